"""What the store's calls return."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from stemkv.kvstore.ids import BlockId, SequenceId


class Copy(NamedTuple):
    """The first `tokens` positions of block `source` are to be copied to block `destination`."""

    source: BlockId
    destination: BlockId
    tokens: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """A prompt's longest reusable prefix, as of now; nothing is held.

    full_blocks: leading published blocks. partial_tokens: further tokens that copying one block
    would reuse. leader: a sequence that is computing the next block, None if nobody is.
    """

    full_blocks: int
    partial_tokens: int
    leader: SequenceId | None


class Admission(NamedTuple):
    """A prompt that got its blocks: the cached ones adopted, the rest reserved.

    full_tokens and partial_tokens: reused from full blocks, and by a planned copy. computed:
    their sum; the last prompt token is run again if that is all, for its logits, not written.
    """

    sequence: SequenceId
    full_tokens: int
    partial_tokens: int

    @property
    def computed(self) -> int:
        """Tokens whose keys and values need not be computed."""
        return self.full_tokens + self.partial_tokens


@dataclass(frozen=True, slots=True)
class Following:
    """Not admitted: `leader` is computing the prompt's next block; ask again after a step."""

    leader: SequenceId


@dataclass(frozen=True, slots=True)
class Shortage:
    """The call could not be satisfied and changed nothing.

    what: "quota" where the pool has enough, but this account's cap or the reserves of others forbid
    it. needed: blocks that would be taken or, cached and held by nobody, adopted.
    """

    what: Literal["blocks", "sequences", "quota"]
    needed: int
    available: int
