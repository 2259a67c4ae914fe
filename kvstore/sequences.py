"""Open sequences: their tokens, their block tables, and how far each of them is.

All of it lies in arrays with a row a sequence, so that one compiled call serves a whole batch;
`SequenceState` shows one row to those who deal with one sequence at a time.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stemkv.kvstore import chains
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.ops import I32, I64
from stemkv.kvstore.pool import Tokens
from stemkv.kvstore.roots import Path, Root

# A row in the order of its columns in `chains`, LENGTH to PUBLIC_ROOT.
_ROW = struct.Struct(f"={chains.SEQUENCE_COLUMNS}q")


class _Cell:
    """One number of a sequence's row, read and written as an attribute."""

    __slots__ = ("_column",)

    def __init__(self, column: int) -> None:
        self._column = column

    def __get__(self, state: "SequenceState", owner: object = None) -> int:
        value: int = state._cells[state._at + self._column]
        return value

    def __set__(self, state: "SequenceState", value: int) -> None:
        state._cells[state._at + self._column] = value


class SequenceState:
    """One open sequence; its numbers, tokens and block table are row `number` of the arrays.

        0 ........ published*size ........ computed ........ reserved ........ length
        | in the index | keys and values written | may be written | known, not run |

    prompt_blocks: full blocks of the prompt it was admitted with, the part that others may
    follow. writes: may publish (0 or 1). blocks: length of its block table.
    entry: how many leading blocks are public, of the root `public`; what follows is of `root`.
    """

    __slots__ = ("_at", "_cells", "number", "public", "root")

    length = _Cell(chains.LENGTH)
    computed = _Cell(chains.COMPUTED)
    reserved = _Cell(chains.RESERVED)
    blocks = _Cell(chains.BLOCKS)
    published = _Cell(chains.PUBLISHED_BLOCKS)
    writes = _Cell(chains.WRITES)
    owner = _Cell(chains.SEQUENCE_OWNER)
    prompt_blocks = _Cell(chains.PROMPT_BLOCKS)
    entry = _Cell(chains.ENTRY)

    def __init__(self, number: SequenceId, path: Path, cells: memoryview) -> None:
        self.number = number
        self.root = path.root
        self.public = path.public
        self._cells = cells
        self._at = number * chains.SEQUENCE_COLUMNS

    @property
    def path(self) -> Path:
        """Where its chain goes."""
        return Path(self.root, self.public, self.entry)

    def root_of(self, index: int) -> Root:
        """Return the root that its block of this index hangs on."""
        if index >= self.entry:
            return self.root
        assert self.public is not None
        return self.public


class Progress(NamedTuple):
    """How far a sequence is when it is opened; see `SequenceState`."""

    owner: int
    writes: bool
    computed: int
    reserved: int
    published: int
    prompt_blocks: int


@dataclass(slots=True, eq=False)
class Sequences:
    """All open sequences, with room for `max_sequences` of `max_tokens` each.

    rows: int64 [max_sequences, SEQUENCE_COLUMNS]. history: int32 [max_sequences, max_tokens],
    tables: int32 [max_sequences, blocks_per_sequence].
    """

    config: StoreConfig
    by_number: dict[SequenceId, SequenceState] = field(init=False, default_factory=dict)
    rows: I64 = field(init=False)
    history: I32 = field(init=False)
    tables: I32 = field(init=False)
    _bytes: memoryview = field(init=False)
    _cells: memoryview = field(init=False)
    _free: list[SequenceId] = field(init=False)

    def __post_init__(self) -> None:
        """Make the arrays."""
        n = self.config.max_sequences
        self.rows = np.zeros((n, chains.SEQUENCE_COLUMNS), np.int64)
        self.history = np.zeros((n, self.config.max_tokens), np.int32)
        self.tables = np.zeros((n, self.config.blocks_per_sequence), np.int32)
        self._bytes = self.rows.data.cast("B")
        self._cells = self._bytes.cast("q")
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

    def open(self, path: Path, progress: Progress, tokens: Tokens, blocks: I32) -> SequenceState:
        """Add a sequence with its tokens and its block table; there must be room for one."""
        number = self._free.pop()
        state = SequenceState(number, path, self._cells)
        _ROW.pack_into(
            self._bytes,
            number * _ROW.size,
            len(tokens),
            progress.computed,
            progress.reserved,
            len(blocks),
            progress.published,
            progress.writes,
            progress.owner,
            progress.prompt_blocks,
            path.root.index,
            path.entry,
            0 if path.public is None else path.public.index,
        )
        self.history[number, : len(tokens)] = tokens
        self.tables[number, : len(blocks)] = blocks
        self.by_number[number] = state
        path.root.sequences += 1
        if path.public is not None:
            path.public.sequences += 1
        return state

    def close(self, state: SequenceState) -> None:
        """Take a sequence out; its number is free again."""
        del self.by_number[state.number]
        self._free.append(state.number)
        state.root.sequences -= 1
        if state.public is not None:
            state.public.sequences -= 1

    def tokens(self, state: SequenceState) -> Tokens:
        """Return a sequence's tokens, int32 [length]; a view."""
        return self.history[state.number, : state.length]

    def table(self, state: SequenceState) -> I32:
        """Return a sequence's block table, int32 [blocks]; a view that the store may write to."""
        return self.tables[state.number, : state.blocks]

    def parent(self, state: SequenceState, index: int) -> int:
        """Name the parent of a sequence's block of this index."""
        if index == state.entry:
            return state.root.reference
        if index == 0:
            assert state.public is not None
            return state.public.reference
        return int(self.tables[state.number, index - 1])

    def append_token(self, state: SequenceState, token: int) -> None:
        """Make a sequence one token longer; there must be room."""
        length = state.length
        self.history[state.number, length] = token
        state.length = length + 1

    def append_blocks(self, state: SequenceState, blocks: I32) -> None:
        """Make a sequence's block table longer."""
        known = state.blocks
        self.tables[state.number, known : known + len(blocks)] = blocks
        state.blocks = known + len(blocks)
