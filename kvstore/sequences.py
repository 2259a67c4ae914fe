"""Open sequences: their tokens, their block tables, and how far each of them is."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.ops import I32
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.roots import Root


@dataclass(slots=True, eq=False)
class SequenceState:
    """One open sequence; its tokens and block table are row `number` of the arrays.

        0 ........ published*size ........ computed ........ reserved ........ length
        | in the index | keys and values written | may be written | known, not run |

    prompt_blocks: full blocks of the prompt it was admitted with, the part that others may
    follow. writes: may publish.
    """

    number: SequenceId
    root: Root
    owner: int
    writes: bool
    length: int
    computed: int
    blocks: int
    published: int
    prompt_blocks: int
    reserved: int


@dataclass(slots=True, eq=False)
class Sequences:
    """All open sequences, with room for `max_sequences` of `max_tokens` each."""

    config: StoreConfig
    by_number: dict[SequenceId, SequenceState] = field(init=False, default_factory=dict)
    _history: I32 = field(init=False)
    _tables: I32 = field(init=False)
    _free: list[SequenceId] = field(init=False)

    def __post_init__(self) -> None:
        """Make the arrays."""
        n = self.config.max_sequences
        self._history = np.zeros((n, self.config.max_tokens), np.int32)
        self._tables = np.zeros((n, self.config.blocks_per_sequence), np.int32)
        self._free = [SequenceId(number) for number in reversed(range(n))]

    def __iter__(self) -> Iterator[SequenceState]:
        """Iterate over the open sequences."""
        return iter(self.by_number.values())

    def __getitem__(self, number: SequenceId) -> SequenceState:
        """Return an open sequence."""
        return self.by_number[number]

    @property
    def free(self) -> int:
        """How many more may be opened."""
        return len(self._free)

    def next_number(self) -> SequenceId:
        """Return the number that the next sequence gets."""
        return self._free[-1]

    def open(self, state: SequenceState, tokens: Tokens, blocks: I32) -> None:
        """Add a sequence under `next_number`, with its tokens and its block table."""
        number = self._free.pop()
        assert number == state.number
        assert (state.length, state.blocks) == (len(tokens), len(blocks))
        self._history[number, : len(tokens)] = tokens
        self._tables[number, : len(blocks)] = blocks
        self.by_number[number] = state

    def close(self, state: SequenceState) -> None:
        """Take a sequence out; its number is free again."""
        del self.by_number[state.number]
        self._free.append(state.number)

    def tokens(self, state: SequenceState) -> Tokens:
        """Return a sequence's tokens, int32 [length]; a view."""
        return self._history[state.number, : state.length]

    def table(self, state: SequenceState) -> I32:
        """Return a sequence's block table, int32 [blocks]; a view that the store may write to."""
        return self._tables[state.number, : state.blocks]

    def parent(self, state: SequenceState, index: int) -> int:
        """Name the parent of a sequence's block of this index."""
        return int(self._tables[state.number, index - 1]) if index else state.root.reference

    def append_token(self, state: SequenceState, token: int) -> None:
        """Make a sequence one token longer; there must be room."""
        self._history[state.number, state.length] = token
        state.length += 1

    def append_blocks(self, state: SequenceState, blocks: I32) -> None:
        """Make a sequence's block table longer."""
        self._tables[state.number, state.blocks : state.blocks + len(blocks)] = blocks
        state.blocks += len(blocks)
