"""What is wrong with the index, the tree and the order of eviction, in words; see `violations`."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import audit_ops, audit_tree_ops, ops
from stemkv.kvstore.audit_ops import Marks
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes
from stemkv.kvstore.ops import NONE, PARENT, PIN, REF, STATE
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import Violation
from stemkv.kvstore.violations_open import blocks_of

Numbers = npt.NDArray[np.intp]

_FAULTS = 64
"""So many blocks with the same fault are told of, where one is likely to bring others with it."""


def index(store: BlockStore, live: Marks) -> Iterator[Violation]:
    """Check that the index has the published blocks, each under the hash of its content."""
    pool = store.pool
    published = pool.meta[: pool.capacity, STATE] == ops.PUBLISHED
    entries = np.sort(pool.table[pool.table != NONE] & 0xFFFFFFFF)
    if not np.array_equal(entries, np.flatnonzero(published)):
        yield Violation("the index and the published blocks are not the same set")
        return
    lost = np.zeros(pool.capacity, np.bool_)
    audit_tree_ops.find_all(blocks_of(store), lost)
    for b in np.flatnonzero(lost).tolist():
        yield Violation(f"block {b} is not found under its own key")
    shown = live & published
    wrong = wrong_keys(store, np.flatnonzero(shown))
    parent = pool.meta[: pool.capacity, PARENT]
    for b in np.flatnonzero(wrong).tolist():
        # What hangs on a block with a wrong key has been hashed with the right one.
        first = parent[b] < 0 or not wrong[parent[b]]
        message = f"block {b}: its key is not the hash of its content (rule 1)"
        yield Violation(message, (b,) if first else ())
    # Of twins one at least has a wrong key, or is hidden by the other.
    yield from _twins(store, np.flatnonzero(shown), np.flatnonzero(wrong | lost)[:_FAULTS])


def wrong_keys(store: BlockStore, published: Numbers) -> Marks:
    """Mark those of these blocks whose key is not the hash of the parent's key and the tokens.

    bool [capacity]. Parents must be blocks, or the blocks' own roots.
    """
    pool, matcher = store.pool, store.matcher
    wrong = np.zeros(pool.capacity, np.bool_)
    if matcher.hashes_inside:
        audit_tree_ops.check_keys(blocks_of(store), published.astype(np.int32), wrong)
        return wrong
    rows = pool.meta[published]
    for b, parent, root in zip(
        published.tolist(), rows[:, PARENT].tolist(), rows[:, ops.ROOT].tolist(), strict=True
    ):
        above = matcher.key_of_parent(parent, store.roots[root])
        key = matcher.hash(above + as_bytes(pool.tokens[b]))
        wrong[b] = key != BlockKey(pool.keys[b].tobytes())
    return wrong


def _twins(store: BlockStore, published: Numbers, suspects: Numbers) -> Iterator[Violation]:
    """Check that no suspect has the parent and the tokens of another block (rule 7)."""
    pool = store.pool
    parents, told = pool.meta[published, PARENT], set()
    for suspect in suspects.tolist():
        siblings = published[parents == pool.meta[suspect, PARENT]]
        same = siblings[(pool.tokens[siblings] == pool.tokens[suspect]).all(axis=1)]
        for twin in same[same != suspect].tolist():
            pair = (min(suspect, twin), max(suspect, twin))
            if pair not in told:
                told.add(pair)
                yield Violation(f"blocks {pair[0]} and {pair[1]} are twins (rule 7)")


def tree(store: BlockStore, live: Marks) -> Iterator[Violation]:
    """Check that published blocks and tails are the children of published blocks and live roots."""
    pool = store.pool
    roots = np.fromiter((root.index for root in store.roots), np.int64, len(store.roots))
    listed = np.zeros(pool.capacity, np.bool_)
    faults = np.zeros((_FAULTS, 4), np.int64)
    n = audit_tree_ops.follow_children(blocks_of(store), roots, listed, faults)
    for code, _, parent, b in faults[:n].tolist():
        if code == audit_ops.OTHER_ROOT:
            root = pool.meta[parent, ops.ROOT] if parent >= 0 else -2 - parent
            message = f"block {b} hangs on root {pool.meta[b, ops.ROOT]}, its parent on {root}"
        else:
            message = f"block {b}: its links and those of its parent {parent} disagree"
        yield Violation(message, (b,) if 0 <= b < pool.capacity else ())
    for b in np.flatnonzero(listed != live)[:_FAULTS].tolist():
        times = int(listed[b])
        yield Violation(
            f"block {b} in state {pool.meta[b, STATE]} is {times} times in the tree (rule 8)"
        )


def order(store: BlockStore, live: Marks, placed: ops.I32) -> Iterator[Violation]:
    """Check that a parent is published, in use if a child is, and goes after its children."""
    yield from map(Violation, store.order.violations())
    meta = store.pool.meta[: len(placed)]
    children = np.flatnonzero(live & (meta[:, PARENT] >= 0))
    parents = meta[children, PARENT]
    unpublished = meta[parents, STATE] != ops.PUBLISHED
    for b in children[unpublished].tolist():
        message = f"block {b}: its parent {meta[b, PARENT]} is not published (rule 8)"
        yield Violation(message, (b,))
    less = meta[children, ops.KEEP] > meta[parents, ops.KEEP]
    for b in children[less].tolist():
        yield Violation(
            f"block {b} is kept by more pins than its parent {meta[b, PARENT]} (rule 8)"
        )
    held = (meta[children, REF] > 0) | (meta[children, PIN] > 0)
    # Tails go first of all, so that they need no place among the others.
    later = placed[children] > placed[parents]
    later &= (meta[children, STATE] == ops.PUBLISHED) & store.order.by_list
    for b in children[(placed[parents] != NONE) & (held | later)][:_FAULTS].tolist():
        parent = meta[b, PARENT]
        yield Violation(f"block {b} would be evicted after its parent {parent} (rule 8)")
