"""`Pool`: the rows of all physical blocks, and the only place where they change.

Reference counts, the index, the tree of cached prefixes, the orders of eviction and what accounts
are charged with live in the arrays here; `ops` draws their layout, and `ops`, `chains` and
`victims` have the loops over them. A parent is named by a block's number, or by a root's
`reference`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import chains, ops, victims
from stemkv.kvstore.ghosts import GhostLog
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.ops import CACHED, F64, I32, I64, KEPT, NONE, PIN, POOL, REF, STATE, TAILS, U64

Tokens = npt.NDArray[np.int32]

NO_BLOCKS = np.empty(0, np.int32)


class Place(NamedTuple):
    """Where in the tree a block belongs: tokens[start:stop] of `tokens`, below `parent`.

    root: index of the root that the chain starts from. owner: number of the tenant.
    """

    tokens: Tokens
    start: int
    stop: int
    parent: int
    root: int
    owner: int


class Departed(NamedTuple):
    """Blocks that eviction took. blocks: all of them. published: those that had keys."""

    blocks: I32
    published: I32


Asking = tuple[int, int, float, float]
"""For whom blocks are: index of the root, number of the tenant; and the time, and after how long
an account that does not use the cache is idle, in seconds."""


class SequenceArrays(Protocol):
    """The arrays of `sequences.Sequences`, which the pool's loops over batches work on."""

    rows: I64
    history: I32
    tables: I32


@dataclass(slots=True, eq=False)
class Pool:
    """All blocks; see `ops` for the arrays.

    terms: float64 [accounts, 2], see `victims`. lost: int64 [accounts], blocks that the eviction
    under way takes from each.
    """

    capacity: int
    block_size: int
    meta: I32 = field(init=False)
    tokens: I32 = field(init=False)
    keys: U64 = field(init=False)
    table: I64 = field(init=False)
    roots: I64 = field(init=False)
    accounts: I64 = field(init=False)
    terms: F64 = field(init=False)
    lost: I64 = field(init=False)

    def __post_init__(self) -> None:
        """Make the arrays: all blocks free, index empty, no root, no account."""
        n = self.capacity
        self.meta = np.full((n + 1, ops.COLUMNS), NONE, np.int32)
        self.meta[:, [REF, PIN, ops.FILL, STATE, ops.KEEP, ops.STAMP, ops.ROOT]] = 0
        self.meta[n, [ops.PREV, ops.NEXT]] = -1 - ops.FREE_LIST
        self.tokens = np.zeros((n, self.block_size), np.int32)
        self.keys = np.zeros((n, 2), np.uint64)
        self.table = np.full(1 << max(4, (2 * n - 1).bit_length()), NONE, np.int64)
        self.roots = np.zeros((16, ops.ROOT_COLUMNS), np.int64)
        self.roots[:, ops.HEAD] = NONE
        self.accounts = np.zeros((1, ops.ACCOUNT_COLUMNS), np.int64)
        self.terms = np.zeros((1, 2))
        self.lost = np.zeros(1, np.int64)
        ops.free_all(self.meta, self.accounts, n)

    # --- what is there -----------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Bytes of memory that the blocks' bookkeeping takes."""
        return sum(array.nbytes for array in (self.meta, self.tokens, self.keys, self.table))

    @property
    def free(self) -> int:
        """How many blocks hold nothing."""
        return int(self.accounts[POOL, ops.FREED])

    @property
    def stale(self) -> int:
        """How many flushed blocks wait to be free again."""
        return int(self.accounts[POOL, ops.STALE])

    @property
    def idle(self) -> int:
        """How many blocks are free, or could be: cached ones, kept by pins or not."""
        row = self.accounts[POOL]
        return int(row[ops.FREED] + row[ops.STALE] + row[CACHED] + row[TAILS] + row[KEPT])

    def available(self, account: int) -> tuple[int, int]:
        """How many blocks an account could be given, and how many if there were no quotas."""
        room, whole = victims.available(self.accounts, self.capacity, account)
        return int(room), int(whole)

    def unheld(self, blocks: I32, account: int) -> int:
        """How many of these blocks nothing holds: adopting them takes from what is available."""
        return int(ops.count_unheld(self.meta, self.roots, blocks, account))

    def references(self, block: int) -> int:
        """How many sequences hold a block."""
        return int(self.meta[block, REF])

    def is_published(self, block: int) -> bool:
        """Whether a block is in the index, or was when its root died."""
        return bool(self.meta[block, STATE] == ops.PUBLISHED)

    def live(self) -> npt.NDArray[np.bool_]:
        """Say of each block whether it is published or a tail, and not flushed; bool [capacity]."""
        rows = self.meta[: self.capacity]
        in_tree = np.isin(rows[:, STATE], (ops.PUBLISHED, ops.TAIL))
        roots = np.where(in_tree, rows[:, ops.ROOT], 0)
        return np.asarray(in_tree & (self.roots[roots, ops.DEAD] == 0))

    def key(self, block: int) -> BlockKey:
        """Return the key of a published block."""
        return BlockKey(self.keys[block].tobytes())

    def keys_of(self, blocks: I32) -> U64:
        """Return the keys of published blocks, uint64 [blocks, 2]; see `keys.PackedKeys`."""
        return self.keys[blocks]

    def children(self, parent: int) -> Iterator[int]:
        """Iterate over the children of a parent, most recently used first."""
        b = int(ops.first_child(self.meta, self.roots, parent))
        while b >= 0:
            following = int(self.meta[b, ops.NEXT_SIBLING])
            yield b
            b = following

    def common_prefix(self, block: int, prompt: Tokens, offset: int) -> int:
        """How many of a block's first tokens equal prompt[offset:]."""
        limit = min(int(self.meta[block, ops.FILL]), len(prompt) - offset)
        return int(chains.common_prefix(self.tokens, block, prompt, offset, limit))

    def walk(self, prompt: Tokens, parent: int, start: int, out: I32) -> int:
        """Follow newest children from block index start; see `chains.walk`."""
        return int(
            chains.walk(self.tokens, self.meta, self.roots, prompt, parent, start, len(out), out)
        )

    def match_chain(self, prompt: Tokens, root: int, owner: int) -> tuple[I32, int, int, int, int]:
        """Return the leading published blocks of a prompt, and the best part of one more.

        root: index of the root. Last, how many of the blocks nothing holds, and how many could be
        had besides. See `chains.match_chain`.
        """
        out = np.empty(len(prompt) // self.block_size, np.int32)
        found, partial, length, unheld, room = chains.match_chain(
            self.tokens,
            self.meta,
            self.roots,
            self.accounts,
            self.table,
            self.keys,
            prompt,
            root,
            owner,
            out,
        )
        return out[:found], partial, length, unheld, room

    def find_twin(self, prompt: Tokens, offset: int, parent: int, key: BlockKey) -> int:
        """Return the block under a key if it is parent's child with prompt's tokens at offset.

        NONE if there is no block under the key, ops.COLLISION if it is another one.
        """
        low, high = halves(key)
        return int(
            chains.find_twin(
                self.tokens,
                self.meta,
                self.roots,
                self.table,
                self.keys,
                prompt,
                offset,
                parent,
                low,
                high,
            )
        )

    def best_partial(self, prompt: Tokens, offset: int, parent: int, owner: int) -> tuple[int, int]:
        """Return the owner's child of parent with the longest common prefix, and its length."""
        block, length = chains.best_partial(
            self.tokens, self.meta, self.roots, prompt, offset, parent, owner
        )
        return int(block), int(length)

    def is_stale(self, key: BlockKey) -> bool:
        """Whether a flushed block of this key still waits to be free again."""
        found = np.flatnonzero((self.keys == halves(key)).all(axis=1))
        states = self.meta[found, STATE] == ops.PUBLISHED
        return bool((states & (self.roots[self.meta[found, ops.ROOT], ops.DEAD] == 1)).any())

    def by_account(self, blocks: I32) -> Iterator[tuple[int, I32]]:
        """Split blocks by the account that is charged with them, in their order."""
        accounts = self.roots[self.meta[blocks, ops.ROOT], ops.ACCOUNT]
        for account in np.unique(accounts).tolist():
            yield account, blocks[accounts == account]

    # --- holding -----------------------------------------------------------------------------

    def reference(self, blocks: I32) -> None:
        """Add one reference to each published block, as most recently used."""
        ops.reference(self.meta, self.roots, self.accounts, blocks, REF)

    def dereference(self, blocks: I32) -> None:
        """Drop one reference of each block of a chain, its end first."""
        ops.dereference(self.meta, self.roots, self.accounts, blocks, REF)

    def share(self, blocks: I32) -> None:
        """Add one reference to each block that a sequence holds already, published or not."""
        self.meta[blocks, REF] += 1

    def unshare(self, block: int) -> None:
        """Drop one of several references."""
        assert self.meta[block, REF] > 1
        self.meta[block, REF] -= 1

    def pin(self, block: int) -> None:
        """Keep a copy's source where it is."""
        ops.reference(self.meta, self.roots, self.accounts, np.array([block], np.int32), PIN)

    def unpin(self, blocks: Iterable[int]) -> None:
        """Let sources go, one pin each."""
        ops.dereference(self.meta, self.roots, self.accounts, np.array([*blocks], np.int32), PIN)

    def keep(self, blocks: I32) -> None:
        """Let one more pin keep each of these published blocks from eviction."""
        ops.keep(self.meta, self.roots, self.accounts, blocks)

    def keep_no_more(self, blocks: I32) -> None:
        """Take one pin from each of these blocks of a chain."""
        ops.keep_no_more(self.meta, self.roots, self.accounts, blocks)

    # --- taking ----------------------------------------------------------------------------------

    def take(self, wanted: int, evicted: I32, root: int) -> I32:
        """Make `wanted` blocks private with one reference: evicted ones first, then free ones.

        They are charged to a root. Evicted ones that are not wanted are free.
        """
        out = np.empty(wanted, np.int32)
        victims.take(self.meta, self.roots, self.accounts, evicted, root, out)
        return out

    def grant(
        self, wanted: int, asking: Asking, evicted: I64, ghosts: GhostLog
    ) -> tuple[int, I32, int, U64, I32]:
        """Take blocks for a root, evicting by age, as far as that is simple: see `victims.grant`.

        Returns its answer, the blocks, how many went for them, and the keys that went, of which
        ghosts are told, with the accounts that lost them.
        """
        (out, losers), departed = np.empty((2, wanted), np.int32), np.empty((wanted, 2), np.uint64)
        answer, gone, left = victims.grant(
            self.meta,
            self.roots,
            self.accounts,
            self.table,
            self.keys,
            self.terms,
            *asking,
            evicted,
            self.lost,
            *ghosts.ring,
            ghosts.written,
            departed,
            losers,
            out,
        )
        ghosts.written += int(left)
        return int(answer), out, int(gone), departed[:left], losers[:left]

    def free_all(self, evicted: I32) -> None:
        """Put evicted blocks on the free list."""
        victims.release_all(self.meta, self.accounts, evicted)

    def obtainable(self, account: int) -> int:
        """How many blocks eviction can get for an account, as long as no pin gives way."""
        return int(victims.obtainable(self.accounts, account))

    def evict_by_age(
        self, wanted: int, account: int, own: int, used_since: float, evicted: I64
    ) -> Departed:
        """Evict blocks for an account, see `victims.evict_by_age`; nobody has them then.

        evicted: counts by owner, to be added to; `lost` gets the counts by account.
        """
        out, departed = np.empty((2, wanted), np.int32)
        n, left = victims.evict_by_age(
            self.meta,
            self.roots,
            self.accounts,
            self.table,
            self.keys,
            self.terms,
            account,
            own,
            used_since,
            evicted,
            self.lost,
            departed,
            out,
        )
        return Departed(out[:n], departed[:left])

    # --- what a block is -----------------------------------------------------------------------

    def publish(self, block: int, place: Place, key: BlockKey) -> None:
        """Put a full private block into the tree, and into the index under a key that is free."""
        self._enter(block, place)
        self.meta[block, STATE] = ops.PUBLISHED
        self.keys[block] = halves(key)
        ops.insert_key(self.table, self.keys, block)

    def publish_row(
        self, open_: SequenceArrays, number: int, stop: int, operator: int, may_swap: bool
    ) -> I32:
        """Publish a sequence's blocks up to index stop - 1; return those that are new.

        See `chains.publish_row`.
        """
        row = open_.rows[number]
        stored = np.empty(max(0, stop - int(row[chains.PUBLISHED_BLOCKS])), np.int32)
        new = chains.publish_row(
            self.tokens,
            self.meta,
            self.roots,
            self.accounts,
            self.table,
            self.keys,
            row,
            open_.history[number],
            open_.tables[number],
            stop,
            operator,
            may_swap,
            stored,
            0,
        )
        return stored[:new]

    def commit_batch(self, open_: SequenceArrays, batch: I32, operator: int, may_swap: bool) -> I32:
        """Commit a batch, see `chains.commit_batch`; return the blocks that are new."""
        return chains.commit_batch(
            self.tokens,
            self.meta,
            self.roots,
            self.accounts,
            self.table,
            self.keys,
            open_.rows,
            open_.history,
            open_.tables,
            batch,
            operator,
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
        same = chains.drop_covered_tail(
            self.tokens,
            self.meta,
            self.roots,
            self.accounts,
            self.table,
            self.keys,
            place.tokens,
            place.start,
            place.stop - place.start,
            place.parent,
            place.owner,
        )
        return int(same)

    def drop(self, blocks: I32) -> int:
        """Take blocks that were cut off the tree out of everything; how many are still held."""
        return int(
            ops.drop_all(self.meta, self.roots, self.accounts, self.table, self.keys, blocks)
        )

    def _enter(self, block: int, place: Place) -> None:
        fill = place.stop - place.start
        self.tokens[block, :fill] = place.tokens[place.start : place.stop]
        ops.enter(
            self.meta,
            self.roots,
            self.accounts,
            block,
            fill,
            place.parent,
            place.root,
            place.owner,
        )

    # --- accounts, roots and whole branches ------------------------------------------------------

    def add_account(self) -> int:
        """Make one more account, with two lists; return its number, 1 or above."""
        number = len(self.accounts)
        self.accounts = np.vstack([self.accounts, np.zeros_like(self.accounts[:1])])
        self.terms = np.vstack([self.terms, np.zeros_like(self.terms[:1])])
        self.lost = np.append(self.lost, np.int64(0))
        self._add_lists(int(ops.tail_list(number)) + 1)
        return number

    def _add_lists(self, lists: int) -> None:
        """Have sentinels for so many lists; those that are there keep their numbers."""
        known = len(self.meta) - self.capacity
        if lists <= known:
            return
        more = np.full((max(lists, 2 * known) - known, ops.COLUMNS), NONE, np.int32)
        heads = -1 - np.arange(known, known + len(more), dtype=np.int32)[::-1]
        more[:, ops.PREV] = more[:, ops.NEXT] = heads
        blocks, sentinels = self.meta[: self.capacity], self.meta[self.capacity :]
        self.meta = np.vstack([blocks, more, sentinels])

    def set_root(self, root: int, key: BlockKey, account: int) -> None:
        """Let the root of this index be alive, hashed with this key, its blocks an account's."""
        while root >= len(self.roots):
            grown = np.zeros((2 * len(self.roots), ops.ROOT_COLUMNS), np.int64)
            grown[:, ops.HEAD] = NONE
            grown[: len(self.roots)] = self.roots
            self.roots = grown
        self.roots[root] = 0
        self.roots[root, ops.HEAD] = NONE
        self.roots[root, ops.ACCOUNT] = account
        self.roots[root, [ops.KEY_LOW, ops.KEY_HIGH]] = halves(key).view(np.int64)

    def charged(self, root: int) -> int:
        """How many blocks are of this root, stale ones and private ones too."""
        return int(self.roots[root, ops.CHARGED])

    def kill_root(self, root: int) -> int:
        """Let a root be dead; how many blocks are stale by that. In time that no block adds to."""
        before = self.stale
        victims.kill(self.roots, self.accounts, root)
        return self.stale - before

    def sweep(self, start: int, rows: int) -> tuple[int, I32, I32]:
        """Free stale blocks among some rows, see `victims.sweep`.

        Returns the row to go on from, the blocks that had keys, and whose they were.
        """
        departed, roots = np.empty((2, min(rows, self.capacity)), np.int32)
        following, left = victims.sweep(
            self.meta,
            self.roots,
            self.accounts,
            self.table,
            self.keys,
            start,
            rows,
            departed,
            roots,
        )
        return int(following), departed[:left], roots[:left]

    def cut_branches(self, tops: Iterable[int]) -> I32:
        """Cut off these blocks with all below them, and list that; the caller drops it."""
        out = np.empty(self.capacity, np.int32)
        n = 0
        for top in tops:
            n = int(ops.subtree(self.meta, self.roots, top, out, n))
        return out[:n]


def halves(key: BlockKey) -> U64:
    """Return a key as two numbers, the low half first."""
    return np.frombuffer(key, np.uint64)
