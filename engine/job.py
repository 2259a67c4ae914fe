"""A request inside the engine: its choices, each a track that is scheduled on its own."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stemkv.engine.detokenizer import Detokenizer
from stemkv.engine.request import Request
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.views import Explanation

_CHOICES_OF_A_JOB = 1 << 16


@dataclass(slots=True, eq=False)
class Track:
    """One choice of a request: what the scheduler admits, runs and preempts.

    outputs: tokens drawn so far. sequence: its open sequence in the store, None while it waits.
    length: tokens known, prompt and outputs. done: how many of them have been run (or need not
    be) since it was admitted; logits of the last one give the next token. resumed: it ran
    before, so it is not looked up for the first time. following: another track computes its
    prefix. last_step: number of the step that ran it last.
    """

    job: "Job"
    index: int
    seed: int
    detokenizer: Detokenizer
    outputs: list[int] = field(default_factory=list)
    sequence: SequenceId | None = None
    done: int = 0
    resumed: bool = False
    following: bool = False
    finished: bool = False
    last_step: int = 0

    @property
    def arrival(self) -> int:
        """Place in the order of arrival, choices of one request one after the other."""
        return self.job.arrival * _CHOICES_OF_A_JOB + self.index

    @property
    def length(self) -> int:
        """Tokens known: the prompt's and the outputs'."""
        return len(self.job.request.prompt) + len(self.outputs)

    @property
    def remaining(self) -> int:
        """Tokens to run before the next one can be drawn."""
        return self.length - self.done

    def tokens(self) -> npt.NDArray[np.int32]:
        """Prompt and outputs, int32 [length]."""
        return np.concatenate([self.job.request.prompt, np.array(self.outputs, np.int32)])


@dataclass(slots=True, eq=False)
class Job:
    """One request with its tracks. forked: its choices go their own ways from here on.

    cached_tokens: prompt tokens reused at the first admission, None before it. miss: why not more.
    """

    request: Request
    arrival: int
    tracks: list[Track] = field(default_factory=list)
    forked: bool = False
    cached_tokens: int | None = None
    miss: Explanation | None = None

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(track.finished for track in self.tracks)
