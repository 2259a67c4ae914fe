"""Checks of the store's rules on its live structure; what they return are violations, in words.

Property tests, the admin endpoint and debug mode call the same function. A store in order, the
usual case, is told by compiled loops in a few milliseconds; only when those find anything is the
store gone through again for the words.
"""

import numpy as np

from stemkv.kvstore import audit_open_ops, audit_ops, audit_tree_ops, ops
from stemkv.kvstore.audit_open_ops import Open
from stemkv.kvstore.audit_ops import Blocks
from stemkv.kvstore.ops import I32, NONE
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import Violation
from stemkv.kvstore.violations import kept, known_roots, violations_of
from stemkv.kvstore.violations_open import blocks_of, copies, leaders, open_of, pins, quotas, roots
from stemkv.kvstore.violations_tree import wrong_keys


def audit(store: BlockStore) -> tuple[Violation, ...]:
    """Check rules 5 (structure), 7, 8, 10 and 11 and the store's own order; empty means clean."""
    return () if is_clean(store) else violations_of(store)


def is_clean(store: BlockStore) -> bool:
    """Whether `violations_of` would find nothing, in less time."""
    blocks, open_ = blocks_of(store), open_of(store)
    owners = len(store.owners.names)
    roots_ = np.fromiter((root.index for root in store.roots), np.int64, len(store.roots))
    place, on = np.full((2, store.pool.capacity), NONE, np.int32)
    return (
        audit_ops.rows_hold(blocks, known_roots(store), owners)
        and audit_open_ops.sequences_hold(blocks, open_, owners)
        and audit_ops.follow_lists(blocks, place, on, np.zeros((1, 4), np.int64)) == 0
        and audit_ops.counts_hold(blocks)
        and _references_hold(store, blocks, open_, place)
        and audit_tree_ops.index_holds(blocks)
        and _keys_hold(store, blocks)
        and audit_tree_ops.tree_holds(blocks, roots_)
        and audit_tree_ops.order_holds(blocks, place, store.order.by_list)
        and len(store.sequences) + store.free_sequences == store.config.max_sequences
        # Few enough to be gone through in words at once; the order has loops of its own.
        and not any(any(check(store)) for check in (copies, leaders, roots, pins, quotas))
        and not any(store.order.violations())
    )


def _references_hold(store: BlockStore, blocks: Blocks, open_: Open, place: I32) -> bool:
    held, pinned = np.zeros((2, store.pool.capacity), np.int32)
    audit_open_ops.hold_all(open_, held)
    for copy in store.copies.open():
        if 0 <= copy.source < store.pool.capacity:
            pinned[copy.source] += 1
    return audit_ops.references_hold(blocks, place, held, pinned, kept(store))


def _keys_hold(store: BlockStore, blocks: Blocks) -> bool:
    if store.matcher.hashes_inside:
        return audit_tree_ops.keys_hold(blocks)
    pool = store.pool
    published = pool.live() & (pool.meta[: pool.capacity, ops.STATE] == ops.PUBLISHED)
    return not wrong_keys(store, np.flatnonzero(published)).any()
