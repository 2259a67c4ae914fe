"""What the operator is told of requests: a line of the log each, and records of the latest.

A record keeps a few token ids of its prompt beside what was not reused, and no text.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from stemkv.engine.request import Delta, FinishReason, Request, Started
from stemkv.kvstore.views import Explanation

logger = logging.getLogger(__name__)

# Tokens of the prompt that are kept from before the position where a lookup stopped.
_CONTEXT_TOKENS = 16

RUNNING, FINISHED = "running", "finished"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One prompt of one API call, as far as it has come.

    id: the engine's, unique. answer_id: what the client's answer carries. request_id: of the
    header and the log, which the client may choose. submitted: to the engine, unix seconds.
    first_token_seconds and seconds: after the call's arrival, None before. cached_tokens: None
    before the first token. completion_tokens: 0 until the end. outcome: running, finished, aborted
    (the client left), or why it failed. finish: why each choice ended. miss: why no more was
    reused; context: token ids of the prompt before that place.
    """

    id: str
    answer_id: str
    request_id: str
    tenant: str
    model: str
    adapter: str
    salt: str
    submitted: float
    prompt_tokens: int
    cache_read: bool
    cache_write: bool
    cached_tokens: int | None = None
    completion_tokens: int = 0
    first_token_seconds: float | None = None
    seconds: float | None = None
    outcome: str = RUNNING
    finish: tuple[FinishReason | None, ...] = ()
    miss: Explanation | None = None
    context: tuple[int, ...] = ()

    def line(self) -> str:
        """Return what the log says of a request that has ended: no text, no token of anyone's."""
        if self.cached_tokens is None:
            found = f"{self.prompt_tokens} prompt tokens, none run"
        else:
            found = f"cached {self.cached_tokens} of {self.prompt_tokens} tokens"
        if self.miss is not None:
            found += f"; miss: {self.miss.reason} at {self.miss.position}"
        if not self.cache_read:
            found += "; may not read the cache"
        return (
            f"request {self.request_id} ({self.id}) tenant={self.tenant} {found};"
            f" first token {_milliseconds(self.first_token_seconds)},"
            f" {self.completion_tokens} tokens {_milliseconds(self.seconds)}; {self._ending()}"
        )

    def _ending(self) -> str:
        if self.outcome != FINISHED:
            return self.outcome
        return ",".join(dict.fromkeys(str(reason) for reason in self.finish))


@dataclass(slots=True, eq=False)
class RequestLog:
    """The records of the latest `capacity` requests, by id; 0 keeps none."""

    capacity: int
    _records: OrderedDict[str, RequestRecord] = field(default_factory=OrderedDict)

    def put(self, record: RequestRecord) -> None:
        """Keep a record, in place of the one of the same id; the oldest goes if it is one more."""
        self._records[record.id] = record
        while len(self._records) > self.capacity:
            self._records.popitem(last=False)

    def find(self, name: str) -> list[RequestRecord]:
        """Return the records that have this id, answer id or request id, the latest first."""
        return list(self.matching(lambda r: name in (r.id, r.answer_id, r.request_id)))

    def matching(self, wanted: Callable[[RequestRecord], bool]) -> Iterator[RequestRecord]:
        """Iterate over the records that are wanted, the latest first."""
        return filter(wanted, reversed(self._records.values()))


class Recorder:
    """Follows one request with its record, and logs a line in the end. Times: seconds, see there.

    choices: how many answers its prompt gets.
    """

    def __init__(
        self, log: RequestLog, request: Request, record: RequestRecord, *, choices: int
    ) -> None:
        self._log = log
        self._request = request
        self._record = record
        self._tokens = 0
        self._finish: list[FinishReason | None] = [None] * choices
        log.put(record)

    def started(self, event: Started, seconds: float) -> None:
        """Note the first token, and what was reused."""
        self._record = replace(
            self._record,
            cached_tokens=event.cached_tokens,
            first_token_seconds=seconds,
            miss=event.miss,
            context=() if event.miss is None else context_of(self._request.prompt, event.miss),
        )
        self._log.put(self._record)

    def added(self, delta: Delta) -> None:
        """Note what a step added."""
        self._tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._finish[delta.index] = delta.finish_reason

    def ended(self, outcome: str, seconds: float) -> None:
        """Note how it ended."""
        self._record = replace(
            self._record,
            completion_tokens=self._tokens,
            seconds=seconds,
            outcome=outcome,
            finish=tuple(self._finish),
        )
        self._log.put(self._record)
        logger.info("%s", self._record.line())


def context_of(prompt: npt.NDArray[np.int32], found: Explanation) -> tuple[int, ...]:
    """Return the prompt's token ids just before the place that an explanation is about.

    That is the token that differs, or else the first that is not reused.
    """
    at = found.position if found.differing_position is None else found.differing_position
    return tuple(prompt[max(0, at - _CONTEXT_TOKENS) : at].tolist())


def _milliseconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {1000 * seconds:.1f} ms"
