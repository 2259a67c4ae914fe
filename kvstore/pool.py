"""`Pool`: the rows of all physical blocks, and the only place where they change.

Reference counts, the index, the tree of cached prefixes and the orders of eviction live in the
arrays here; `ops` has the loops over them and draws their layout. A parent is named by a block's
number, or by a root's `reference`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import ops, scoring
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.ops import I32, NONE, PIN, REF, STATE, U64

Tokens = npt.NDArray[np.int32]

NO_BLOCKS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where in the tree a block belongs: tokens[start:stop] of `tokens`, below `parent`.

    root: index of the root that the chain starts from. owner: number of the tenant.
    """

    tokens: Tokens
    start: int
    stop: int
    parent: int
    root: int
    owner: int


class Chain(NamedTuple):
    """A sequence's tokens and its block table (written to where a twin takes a block's place).

    root: index of its root. may_swap: whether twins may be adopted.
    """

    tokens: Tokens
    blocks: I32
    root: int
    owner: int
    may_swap: bool


class SequenceArrays(Protocol):
    """The arrays of `sequences.Sequences`, which the pool's loops over batches work on."""

    rows: ops.I64
    history: I32
    tables: I32


@dataclass(slots=True, eq=False)
class Pool:
    """All blocks; see `ops` for the arrays."""

    capacity: int
    block_size: int
    meta: I32 = field(init=False)
    tokens: I32 = field(init=False)
    keys: U64 = field(init=False)
    table: ops.I64 = field(init=False)
    count: ops.I64 = field(init=False)
    heads: I32 = field(init=False)
    root_keys: U64 = field(init=False)

    def __post_init__(self) -> None:
        """Make the arrays: all blocks free, index empty, no root."""
        n = self.capacity
        self.meta = np.full((n + ops.COUNTS, ops.COLUMNS), NONE, np.int32)
        self.meta[:, [REF, PIN, ops.FILL, STATE]] = 0
        sentinels = np.arange(n, n + ops.COUNTS)
        self.meta[sentinels, ops.PREV] = self.meta[sentinels, ops.NEXT] = sentinels
        self.count = np.zeros(ops.COUNTS, np.int64)
        ops.free_all(self.meta, self.count)
        self.tokens = np.zeros((n, self.block_size), np.int32)
        self.keys = np.zeros((n, 2), np.uint64)
        self.table = np.full(1 << max(4, (2 * n - 1).bit_length()), NONE, np.int64)
        self.heads = np.full(16, NONE, np.int32)
        self.root_keys = np.zeros((16, 2), np.uint64)

    # --- what is there -----------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Bytes of memory that the blocks' bookkeeping takes."""
        return sum(
            array.nbytes for array in (self.meta, self.tokens, self.keys, self.table, self.count)
        )

    @property
    def free(self) -> int:
        """How many blocks hold nothing."""
        return int(self.count[ops.FREE_LIST])

    @property
    def available(self) -> int:
        """How many blocks could be taken: free ones, and those that nothing holds."""
        free, cached, tails = self.count.tolist()
        return int(free + cached + tails)

    def unheld(self, blocks: I32) -> int:
        """How many of these blocks are held by nothing: adopting them makes fewer available."""
        return int(ops.count_unreferenced(self.meta, blocks))

    def references(self, block: int) -> int:
        """How many sequences hold a block."""
        return int(self.meta[block, REF])

    def is_published(self, block: int) -> bool:
        """Whether a block is in the index."""
        return bool(self.meta[block, STATE] == ops.PUBLISHED)

    def key(self, block: int) -> BlockKey:
        """Return the key of a published block."""
        return BlockKey(self.keys[block].tobytes())

    def keys_of(self, blocks: I32) -> U64:
        """Return the keys of published blocks, uint64 [blocks, 2]; see `keys.PackedKeys`."""
        return self.keys[blocks]

    def children(self, parent: int) -> Iterator[int]:
        """Iterate over the children of a parent, most recently used first."""
        b = int(ops.first_child(self.meta, self.heads, parent))
        while b >= 0:
            following = int(self.meta[b, ops.NEXT_SIBLING])
            yield b
            b = following

    def common_prefix(self, block: int, prompt: Tokens, offset: int) -> int:
        """How many of a block's first tokens equal prompt[offset:]."""
        limit = min(int(self.meta[block, ops.FILL]), len(prompt) - offset)
        return int(ops.common_prefix(self.tokens, block, prompt, offset, limit))

    def walk(self, prompt: Tokens, parent: int, start: int, out: I32) -> int:
        """Follow newest children from block index start; see `ops.walk`."""
        return int(
            ops.walk(self.tokens, self.meta, self.heads, prompt, parent, start, len(out), out)
        )

    def match_chain(self, prompt: Tokens, root: int, owner: int) -> tuple[I32, int, int]:
        """Return the leading published blocks of a prompt, and the best part of one more.

        root: index of the root. See `ops.match_chain`.
        """
        out = np.empty(len(prompt) // self.block_size, np.int32)
        found, partial, length = ops.match_chain(
            self.tokens,
            self.meta,
            self.heads,
            self.table,
            self.keys,
            prompt,
            root,
            self.root_keys[root],
            owner,
            out,
        )
        return out[:found], int(partial), int(length)

    def find_twin(self, prompt: Tokens, offset: int, parent: int, key: BlockKey) -> int:
        """Return the block under a key if it is parent's child with prompt's tokens at offset.

        NONE if there is no block under the key, ops.COLLISION if it is another one.
        """
        low, high = _halves(key)
        return int(
            ops.find_twin(
                self.tokens, self.meta, self.table, self.keys, prompt, offset, parent, low, high
            )
        )

    def best_partial(self, prompt: Tokens, offset: int, parent: int, owner: int) -> tuple[int, int]:
        """Return the owner's child of parent with the longest common prefix, and its length."""
        block, length = ops.best_partial(
            self.tokens, self.meta, self.heads, prompt, offset, parent, owner
        )
        return int(block), int(length)

    # --- holding -----------------------------------------------------------------------------

    def reference(self, blocks: I32) -> None:
        """Add one reference to each published block, as most recently used."""
        ops.reference(self.meta, self.heads, self.count, blocks, REF)

    def dereference(self, blocks: I32) -> None:
        """Drop one reference of each block of a chain, its end first."""
        ops.dereference(self.meta, self.count, blocks, REF)

    def share(self, blocks: I32) -> None:
        """Add one reference to each block that a sequence holds already, published or not."""
        self.meta[blocks, REF] += 1

    def unshare(self, block: int) -> None:
        """Drop one of several references."""
        assert self.meta[block, REF] > 1
        self.meta[block, REF] -= 1

    def pin(self, block: int) -> None:
        """Keep a copy's source where it is."""
        ops.reference(self.meta, self.heads, self.count, np.array([block], np.int32), PIN)

    def unpin(self, blocks: Iterable[int]) -> None:
        """Let sources go, one pin each."""
        ops.dereference(self.meta, self.count, np.array([*blocks], np.int32), PIN)

    # --- what a block is -----------------------------------------------------------------------

    def take(self, wanted: int, victims: I32) -> I32:
        """Make `wanted` blocks private with one reference: free ones, then the given victims."""
        out = np.empty(wanted, np.int32)
        ops.take(self.meta, self.heads, self.table, self.keys, self.count, victims, out)
        return out

    def evict(self, victims: I32) -> None:
        """Free blocks that nothing holds, leaves first."""
        scoring.evict(self.meta, self.heads, self.table, self.keys, self.count, victims)

    def take_oldest(self, wanted: int, evicted: ops.I64) -> tuple[I32, U64]:
        """Make `wanted` blocks private: free ones, then tails, then cached ones, oldest first.

        evicted: counts by owner, to be added to. Returns the blocks, and the keys that go.
        """
        out = np.empty(wanted, np.int32)
        departed = np.empty((wanted, 2), np.uint64)
        n = ops.take_oldest(
            self.meta, self.heads, self.table, self.keys, self.count, evicted, departed, out
        )
        return out, departed[:n]

    def publish(self, block: int, place: Place, key: BlockKey) -> None:
        """Put a full private block into the tree, and into the index under a key that is free."""
        self._enter(block, place)
        self.meta[block, STATE] = ops.PUBLISHED
        self.keys[block] = _halves(key)
        ops.insert_key(self.table, self.keys, block)

    def publish_chain(self, chain: "Chain", start: int, stop: int) -> tuple[int, I32]:
        """Publish a sequence's blocks of index start to stop - 1; see `ops.publish_chain`.

        Returns the index reached and the blocks that are new in the index.
        """
        stored = np.empty(stop - start, np.int32)
        reached, new = ops.publish_chain(
            self.tokens,
            self.meta,
            self.heads,
            self.table,
            self.keys,
            self.count,
            chain.tokens,
            chain.blocks,
            start,
            stop,
            chain.root,
            chain.owner,
            chain.may_swap,
            self.root_keys[chain.root],
            stored,
            0,
        )
        return int(reached), stored[:new]

    def commit_batch(self, open_: SequenceArrays, batch: I32, may_swap: bool) -> I32:
        """Commit a batch of sequences, see `ops.commit_batch`; return the blocks that are new."""
        return ops.commit_batch(
            self.tokens,
            self.meta,
            self.heads,
            self.table,
            self.keys,
            self.count,
            self.root_keys,
            open_.rows,
            open_.history,
            open_.tables,
            batch,
            may_swap,
        )

    def make_tail(self, block: int, place: Place) -> None:
        """Put a partly filled private block into the tree."""
        self._enter(block, place)
        self.meta[block, STATE] = ops.TAIL

    def drop_covered_tail(self, place: Place) -> int:
        """Free a tail that the place's tokens go on from; say how many of them are there.

        A tail that a copy still reads is free as soon as that is done.
        """
        same = ops.drop_covered_tail(
            self.tokens,
            self.meta,
            self.heads,
            self.table,
            self.keys,
            self.count,
            place.tokens,
            place.start,
            place.stop - place.start,
            place.parent,
            place.owner,
        )
        return int(same)

    def drop(self, blocks: I32) -> int:
        """Take blocks that were cut off the tree out of everything; how many are still held."""
        return int(ops.drop_all(self.meta, self.table, self.keys, self.count, blocks))

    def _enter(self, block: int, place: Place) -> None:
        fill = place.stop - place.start
        self.tokens[block, :fill] = place.tokens[place.start : place.stop]
        ops.enter(self.meta, self.heads, block, fill, place.parent, place.root, place.owner)

    # --- roots and whole branches --------------------------------------------------------------

    def add_root(self, root: int, key: BlockKey) -> None:
        """Let the root of this index have children, hashed with this key."""
        while root >= len(self.heads):
            self.heads = np.concatenate([self.heads, np.full_like(self.heads, NONE)])
            self.root_keys = np.concatenate([self.root_keys, np.zeros_like(self.root_keys)])
        self.root_keys[root] = _halves(key)

    def is_bare(self, root: int) -> bool:
        """Whether nothing hangs on a root."""
        return bool(self.heads[root] == NONE)

    def cut_roots(self, dead: Iterable[int]) -> I32:
        """Cut off all that hangs on these roots, and list it; the caller drops it."""
        marks = np.zeros(len(self.heads), np.bool_)
        marks[[*dead]] = True
        out = np.empty(self.capacity, np.int32)
        return out[: ops.cut_roots(self.meta, self.heads, marks, out)]

    def cut_branches(self, tops: Iterable[int]) -> I32:
        """Cut off these blocks with all below them, and list that; the caller drops it."""
        out = np.empty(self.capacity, np.int32)
        n = 0
        for top in tops:
            n = int(ops.subtree(self.meta, self.heads, top, out, n))
        return out[:n]


def _halves(key: BlockKey) -> U64:
    return np.frombuffer(key, np.uint64)
