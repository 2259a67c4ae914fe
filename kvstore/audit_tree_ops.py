"""Inner loops of the audit over the index, keys, the tree and its order; see `audit_ops`."""

import numpy as np

from stemkv.kvstore.audit_ops import OTHER_ROOT, UNLINKED, Blocks, Marks, is_live, note
from stemkv.kvstore.chains import child_key
from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import (
    I32,
    I64,
    KEEP,
    NEXT_SIBLING,
    NONE,
    PARENT,
    PREV_SIBLING,
    PUBLISHED,
    ROOT,
    STATE,
    U64,
    Int,
    block_of,
    find_live,
    first_child,
    insert_key,
    is_held,
    tag_of,
)


@compiled
def is_entered(table: I64, keys: U64, b: Int) -> bool:
    """Whether a block's entry is where it is looked for; at least half of the table is empty."""
    mask = np.int64(table.shape[0] - 1)
    tag = tag_of(keys[b, 0])
    own = (tag << 32) | np.int64(b)
    i = tag & mask
    while table[i] >= 0:
        if table[i] == own:
            return True
        i = (i + 1) & mask
    return False


@compiled
def enter_all(table: I64, keys: U64, blocks: I32) -> None:
    """Make the index anew, of these blocks."""
    table[:] = NONE
    for b in blocks:
        insert_key(table, keys, b)


@compiled
def find_all(blocks: Blocks, lost: Marks) -> bool:
    """Mark the published blocks that the index does not find; it must have just these blocks.

    A flushed one must be where it is removed from later. Returns whether none is lost.
    """
    meta, table, keys = blocks.meta, blocks.table, blocks.keys
    none = True
    for b in range(lost.shape[0]):
        if meta[b, STATE] != PUBLISHED:
            continue
        if is_live(blocks, b):
            found = find_live(table, keys, meta, blocks.roots, keys[b, 0], keys[b, 1]) == b
        else:
            found = is_entered(table, keys, b)
        lost[b] = not found
        none = none and found
    return none


@compiled
def index_holds(blocks: Blocks) -> bool:
    """Check that the index has the published blocks, and finds each under its key."""
    meta, capacity = blocks.meta, blocks.keys.shape[0]
    entered = np.zeros(capacity, np.bool_)
    for entry in blocks.table:
        if entry == NONE:
            continue
        found = block_of(entry)
        if found >= capacity or entered[found] or meta[found, STATE] != PUBLISHED:
            return False
        entered[found] = True
    for b in range(capacity):
        if meta[b, STATE] == PUBLISHED and not entered[b]:
            return False
    return find_all(blocks, np.zeros(capacity, np.bool_))


@compiled
def check_keys(blocks: Blocks, published: I32, wrong: Marks) -> bool:
    """Mark those of these blocks whose keys are not hashes of content. Returns whether none is.

    Parents must be blocks or roots.
    """
    tokens, words = blocks.tokens, np.empty(2 + blocks.tokens.shape[1] // 2, np.uint64)
    none = True
    for b in published:
        parent = np.int64(blocks.meta[b, PARENT])
        low, high = child_key(blocks.keys, blocks.roots, tokens[b], 0, parent, words)
        wrong[b] = low != blocks.keys[b, 0] or high != blocks.keys[b, 1]
        none = none and not wrong[b]
    return none


@compiled
def keys_hold(blocks: Blocks) -> bool:
    """Check that keys are hashes of content.

    Twins are found so, too: they would have one key, and the index finds but one block under it.
    """
    capacity = blocks.keys.shape[0]
    published = np.empty(capacity, np.int32)
    n = 0
    for b in range(capacity):
        if blocks.meta[b, STATE] == PUBLISHED and is_live(blocks, b):
            published[n] = b
            n += 1
    return check_keys(blocks, published[:n], np.zeros(capacity, np.bool_))


@compiled
def follow_siblings(
    blocks: Blocks, parent: Int, root: Int, listed: Marks, faults: I64, found: Int
) -> Int:
    """Go along a parent's children, which nobody else may have listed; see `follow_children`."""
    meta = blocks.meta
    before = np.int64(NONE)
    b = np.int64(first_child(meta, blocks.roots, parent))
    while b >= 0:
        if b >= listed.shape[0] or listed[b]:
            return note(faults, found, UNLINKED, 0, parent, b)
        if meta[b, PARENT] != parent or meta[b, PREV_SIBLING] != before:
            found = note(faults, found, UNLINKED, 0, parent, b)
        if meta[b, ROOT] != root:
            found = note(faults, found, OTHER_ROOT, 0, parent, b)
        listed[b] = True
        before = b
        b = np.int64(meta[b, NEXT_SIBLING])
    return found


@compiled
def follow_children(blocks: Blocks, roots: I64, listed: Marks, faults: I64) -> Int:
    """Go through the tree: listed[b], False before, says whether b is somebody's child.

    roots: the live ones' indices. faults: gets rows of a fault, 0, the parent and the child, as
    far as there is room. Returns how many rows.
    """
    meta = blocks.meta
    found: Int = 0
    for b in range(listed.shape[0]):
        if meta[b, STATE] == PUBLISHED and is_live(blocks, b):
            found = follow_siblings(blocks, np.int64(b), meta[b, ROOT], listed, faults, found)
    for root in roots:
        found = follow_siblings(blocks, np.int64(-2 - root), root, listed, faults, found)
    return found


@compiled
def tree_holds(blocks: Blocks, roots: I64) -> bool:
    """Check that published blocks and tails are the children of published blocks and live roots.

    roots: the live ones' indices.
    """
    listed = np.zeros(blocks.keys.shape[0], np.bool_)
    if follow_children(blocks, roots, listed, np.zeros((1, 4), np.int64)) > 0:
        return False
    # Not with all(): a generator is nothing that numba compiles.
    for b in range(listed.shape[0]):  # noqa: SIM110
        if listed[b] != is_live(blocks, b):
            return False
    return True


@compiled
def order_holds(blocks: Blocks, place: I32, by_list: bool) -> bool:
    """Check that parents are published, in use if a child is, and go after their children."""
    meta = blocks.meta
    for b in range(place.shape[0]):
        parent = meta[b, PARENT]
        if not is_live(blocks, b) or parent < 0:
            continue
        if meta[parent, STATE] != PUBLISHED:
            return False
        if meta[b, KEEP] > meta[parent, KEEP]:
            return False
        if place[parent] == NONE:
            continue
        if is_held(meta, b):
            return False
        if by_list and meta[b, STATE] == PUBLISHED and place[b] > place[parent]:
            return False
    return True
