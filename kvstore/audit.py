"""Checks of the store's rules on its live structure; what they return are violations, in words.

Property tests, the admin endpoint and debug mode call the same function. A store in order, the
usual case, is told by compiled loops in a few milliseconds; only when those find anything is the
store gone through again for the words.
"""

from collections.abc import Sequence

import numpy as np

from stemkv.kvstore import audit_ops, ops
from stemkv.kvstore.audit_ops import Blocks, Open
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes
from stemkv.kvstore.ops import I32, I64, NONE
from stemkv.kvstore.roots import Root
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.violations import copies, kept, leaders, quotas, roots, violations_of


def audit(store: BlockStore) -> tuple[str, ...]:
    """Check rules 5 (structure), 7, 8, 10 and 11 and the store's own order; empty means clean."""
    return () if is_clean(store) else violations_of(store)


def is_clean(store: BlockStore) -> bool:
    """Whether `violations_of` would find nothing, in much less time."""
    pool = store.pool
    blocks = Blocks(pool.meta, pool.tokens, pool.keys, pool.table, pool.roots, pool.accounts)
    open_ = _open(store)
    live, owners = [*store.roots], len(store.owners.names)
    place = np.full(pool.capacity, NONE, np.int32)
    return (
        audit_ops.rows_hold(blocks, _marks(live), owners)
        and audit_ops.lists_hold(blocks, place)
        and audit_ops.counts_hold(blocks)
        and _references_hold(store, blocks, open_, place)
        and audit_ops.index_holds(blocks)
        and _keys_hold(store, blocks)
        and audit_ops.tree_holds(blocks, _indices(live))
        and audit_ops.order_holds(blocks, place, store.order.by_list)
        and audit_ops.sequences_hold(blocks, open_, owners)
        and len(store.sequences) + store.free_sequences == store.config.max_sequences
        # Few enough to be gone through in words at once; the order has loops of its own.
        and not any(any(check(store)) for check in (copies, leaders, roots, quotas))
        and not any(store.order.violations())
    )


def _open(store: BlockStore) -> Open:
    states, arrays = store.sequences, store.sequence_arrays
    numbers = np.fromiter(states, np.int64, len(states))
    roots, publics, entries = np.zeros((3, len(states)), np.int64)
    for k, state in enumerate(states.values()):
        roots[k] = state.root.index
        publics[k] = state.root.index if state.public is None else state.public.index
        entries[k] = state.path.entry
    return Open(arrays.rows, arrays.history, arrays.tables, numbers, roots, publics, entries)


def _references_hold(store: BlockStore, blocks: Blocks, open_: Open, place: I32) -> bool:
    held, pinned = np.zeros((2, store.pool.capacity), np.int32)
    for copy in store.copies.open():
        if not 0 <= copy.source < store.pool.capacity:
            return False
        pinned[copy.source] += 1
    return audit_ops.tables_hold(open_, held) and audit_ops.references_hold(
        blocks, place, held, pinned, kept(store)
    )


def _keys_hold(store: BlockStore, blocks: Blocks) -> bool:
    if store.matcher.hashes_inside:
        return audit_ops.keys_hold(blocks)
    pool, matcher = store.pool, store.matcher
    published = np.flatnonzero(
        pool.live() & (pool.meta[: pool.capacity, ops.STATE] == ops.PUBLISHED)
    )
    rows = pool.meta[published]
    for b, parent, root in zip(
        published.tolist(), rows[:, ops.PARENT].tolist(), rows[:, ops.ROOT].tolist(), strict=True
    ):
        above = matcher.key_of_parent(parent, store.roots[root])
        if matcher.hash(above + as_bytes(pool.tokens[b])) != BlockKey(pool.keys[b].tobytes()):
            return False
    return True


def _indices(live: Sequence[Root]) -> I64:
    return np.fromiter((root.index for root in live), np.int64, len(live))


def _marks(live: Sequence[Root]) -> audit_ops.Marks:
    """Mark the numbers of live roots."""
    indices = _indices(live)
    marks = np.zeros(indices.max(initial=NONE) + 1, np.bool_)
    marks[indices] = True
    return marks
