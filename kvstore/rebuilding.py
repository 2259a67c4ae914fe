"""Block rows made anew from what can be trusted, after a fault; see `repair`.

Everything here is derived: who holds what comes from the tables of open sequences, what is cached
from blocks that verify by themselves.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import audit_ops, audit_tree_ops, ops
from stemkv.kvstore.audit_ops import Marks
from stemkv.kvstore.ops import FILL, FIRST_CHILD, I32, I64, NONE, PARENT, PIN, REF, STATE
from stemkv.kvstore.pool import halves
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.violations_open import blocks_of
from stemkv.kvstore.violations_tree import wrong_keys

_LOW_31 = 0x7FFFFFFF


class Holds(NamedTuple):
    """What each block is for, int32 [capacity] each but for `out`.

    held: sequences. read: copies. kept: pins. out: whether it is out of service. root: whom a block
    is charged to that is held and not published.
    """

    held: I32
    read: I32
    kept: I32
    out: Marks
    root: I32

    @property
    def busy(self) -> Marks:
        """Whether a sequence or a copy has a block."""
        return np.asarray((self.held > 0) | (self.read > 0))


def restore_terms(store: BlockStore) -> None:
    """Write into the rows of roots and accounts what is known of them elsewhere."""
    store.accounts.restore(store.publics.blocks())
    for root in (*store.roots, *store.roots.dead):
        row = store.pool.roots[root.index]
        row[[ops.ACCOUNT, ops.DEAD]] = root.account, not root.alive
        row[[ops.KEY_LOW, ops.KEY_HIGH]] = halves(root.key).view(np.int64)


def verified(store: BlockStore, holds: Holds) -> Marks:
    """Mark the published blocks whose whole chain verifies; bool [capacity].

    Terms must have been restored. A block that is in use below one that is not does not verify:
    no table can have led to it.
    """
    pool, n = store.pool, store.pool.capacity
    meta, known = pool.meta[:n], len(pool.roots)
    live = np.zeros(known + 1, np.bool_)
    live[[root.index for root in store.roots]] = True
    root, parent, owner = (meta[:, c].astype(np.int64) for c in (ops.ROOT, PARENT, ops.OWNER))
    sound = (meta[:, STATE] == ops.PUBLISHED) & ~holds.out
    sound &= live[np.where((root >= 0) & (root < known), root, known)]
    sound &= (meta[:, FILL] == pool.block_size) & (owner >= 0) & (owner < len(store.owners.names))
    below = (parent >= 0) & (parent < n)
    sound &= below | (parent == -2 - root)
    above = np.where(below, parent, n)
    sound &= ~below | (root == np.append(root, NONE)[above])
    busy = holds.busy
    sound &= ~below | ~busy | np.append(busy, True)[above]
    sound &= ~wrong_keys(store, np.flatnonzero(sound))
    sound &= ~_superfluous(pool.keys, np.flatnonzero(sound), busy)
    depths = depths_of(np.where(sound & below, parent, NONE), sound)
    return depths > 0


def _superfluous(keys: ops.U64, sound: npt.NDArray[np.intp], busy: Marks) -> Marks:
    """Mark all but one of the blocks under each key; one that is in use stays."""
    marks = np.zeros(len(keys), np.bool_)
    order = sound[np.lexsort((~busy[sound], keys[sound, 0], keys[sound, 1]))]
    again = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    marks[order[1:][again]] = True
    return marks


def depths_of(parent: npt.NDArray[np.integer], sound: Marks) -> I64:
    """Say how deep in the tree each block is, 1 below a root; 0 if not all above it is sound.

    parent: a block, or NONE for a root; by doubling the steps, so that no chain is too long.
    """
    n = len(parent)
    above = np.append(np.where(parent >= 0, parent, n), n)
    good = np.append(sound, True)
    depth = np.append(np.ones(n, np.int64), 0)
    for _ in range(n.bit_length() + 1):
        good &= good[above]
        depth += depth[above]
        above = above[above]
    # Who has not come to a root by now goes round in a ring.
    return np.asarray(np.where(good & (above == n), depth, 0)[:n])


def rebuild(store: BlockStore, holds: Holds, published: Marks) -> None:
    """Write all rows, lists, links and counts anew. published: the blocks that stay in the tree."""
    pool, n = store.pool, store.pool.capacity
    meta = pool.meta[:n]
    now = pool.accounts[ops.POOL, ops.NOW]
    age = np.where(holds.busy, NONE, (now - meta[:, ops.STAMP]) & _LOW_31)
    busy = holds.busy & ~published & ~holds.out
    pool.roots[:, ops.HEAD] = NONE
    meta[:, REF], meta[:, PIN] = holds.held, holds.read
    meta[:, ops.KEEP] = np.where(published, holds.kept, 0)
    meta[:, [FIRST_CHILD, ops.NEXT_SIBLING, ops.PREV_SIBLING]] = NONE
    meta[~published, PARENT] = NONE
    meta[~published, FILL] = 0
    meta[~published, ops.ROOT] = np.where(busy, holds.root, 0)[~published]
    meta[:, STATE] = ops.FREE
    meta[busy, STATE] = ops.PRIVATE
    meta[holds.out, STATE] = ops.QUARANTINED
    meta[published, STATE] = ops.PUBLISHED
    kept = np.flatnonzero(published).astype(np.int32)
    audit_tree_ops.enter_all(pool.table, pool.keys, kept)
    depth = depths_of(np.where(published, meta[:, PARENT], NONE), published)
    _age_after_children(kept, depth, meta[:, PARENT], age)
    meta[kept, ops.STAMP] = (now - np.maximum(age[kept], 0)) & _LOW_31
    _link_children(pool.meta, pool.roots, kept[np.lexsort((age[kept], meta[kept, PARENT]))])
    oldest_first = kept[np.lexsort((-depth[kept], -age[kept]))]
    idle = oldest_first[~holds.busy[oldest_first] & (meta[oldest_first, ops.KEEP] == 0)]
    _make_lists(store, idle)
    _count(store)


def _age_after_children(kept: I32, depth: I64, parent: I32, age: I64) -> None:
    """Let no block have been let go before one below it: those who hold a child hold it too."""
    order = kept[np.argsort(depth[kept], kind="stable")]
    deepest = int(depth.max(initial=0))
    starts = np.searchsorted(depth[order], np.arange(1, deepest + 2))
    for level in range(deepest, 1, -1):
        of = order[starts[level - 1] : starts[level]]
        np.minimum.at(age, parent[of], age[of])


def _link_children(meta: I32, roots: I64, children: I32) -> None:
    """Link siblings; children: by parent, and of each the most recently used first."""
    if not len(children):
        return
    parent = meta[children, PARENT]
    same = parent[1:] == parent[:-1]
    before, after = children[:-1][same], children[1:][same]
    meta[before, ops.NEXT_SIBLING], meta[after, ops.PREV_SIBLING] = after, before
    first = np.append(True, ~same)
    heads, above = children[first], parent[first]
    meta[above[above >= 0], FIRST_CHILD] = heads[above >= 0]
    roots[-2 - above[above < 0], ops.HEAD] = heads[above < 0]


def _make_lists(store: BlockStore, idle: I32) -> None:
    """Put free blocks on their list, and idle ones, oldest first, on their accounts' lists."""
    pool = store.pool
    meta, lists = pool.meta, len(pool.meta) - pool.capacity
    heads = -1 - np.arange(lists)
    meta[heads, ops.PREV] = meta[heads, ops.NEXT] = heads
    free = np.flatnonzero(meta[: pool.capacity, STATE] == ops.FREE)
    _make_list(meta, ops.FREE_LIST, free)
    accounts = pool.roots[meta[idle, ops.ROOT], ops.ACCOUNT]
    for account in np.unique(accounts).tolist():
        _make_list(meta, int(ops.cached_list(account)), idle[accounts == account])


def _make_list(meta: I32, which: int, blocks: npt.NDArray[np.integer]) -> None:
    ring = np.concatenate([[-1 - which], blocks, [-1 - which]])
    meta[ring[:-1], ops.NEXT] = ring[1:]
    meta[ring[1:], ops.PREV] = ring[:-1]


def _count(store: BlockStore) -> None:
    """Write what roots, accounts and the pool count."""
    pool = store.pool
    roots, accounts = np.zeros_like(pool.roots), np.zeros_like(pool.accounts)
    audit_ops.count_blocks(blocks_of(store), roots, accounts)
    for column in (ops.CACHED, ops.TAILS, ops.KEPT, ops.CHARGED):
        pool.roots[:, column] = roots[:, column]
    for column in (ops.CACHED, ops.TAILS, ops.KEPT, ops.HELD):
        pool.accounts[1:, column] = accounts[1:, column]
    for column in (ops.CACHED, ops.TAILS, ops.KEPT, ops.FREED, ops.STALE, ops.OUT):
        pool.accounts[ops.POOL, column] = accounts[ops.POOL, column]
