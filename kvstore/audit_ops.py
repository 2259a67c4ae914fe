"""Inner loops of the audit: whether all is in order, and nothing of what is not.

They trust nothing that they have not looked at: every number read from the arrays is checked
before it is an index, so that no damage makes them read elsewhere or go round for ever. Each says
what the function of a like name in `violations` says in words.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import (
    BLOCKS,
    COMPUTED,
    COUNTS,
    FILL,
    FIRST_CHILD,
    FREE,
    I32,
    I64,
    LENGTH,
    NEXT,
    NEXT_SIBLING,
    NONE,
    OWNER,
    PARENT,
    PIN,
    PREV,
    PREV_SIBLING,
    PRIVATE,
    PUBLISHED,
    PUBLISHED_BLOCKS,
    QUARANTINED,
    REF,
    RESERVED,
    ROOT,
    ROOT_INDEX,
    SEQUENCE_OWNER,
    STATE,
    TAIL,
    U64,
    WRITES,
    Int,
    block_of,
    child_key,
    find_key,
    first_child,
    list_of,
    matches,
)

Marks = npt.NDArray[np.bool_]


class Blocks(NamedTuple):
    """The pool's arrays; see `ops`."""

    meta: I32
    tokens: I32
    keys: U64
    table: I64
    heads: I32
    counts: I64


class Open(NamedTuple):
    """The open sequences: `numbers` int64 are their rows in the arrays of `Sequences`.

    roots: int64 [open], the index of the root that each started from.
    """

    rows: I64
    history: I32
    tables: I32
    numbers: I64
    roots: I64


@compiled
def lists_hold(blocks: Blocks, place: I32) -> bool:
    """Check the three lists; place[b], NONE before, gets where among all of them b comes."""
    meta, capacity = blocks.meta, place.shape[0]
    n = 0
    for which in range(COUNTS):
        start = n
        head = capacity + which
        before = np.int64(head)
        b = np.int64(meta[head, NEXT])
        while b != head:
            if b < 0 or b >= capacity or place[b] != NONE or meta[b, PREV] != before:
                return False
            if list_of(meta, b) != which:
                return False
            place[b] = n
            n += 1
            before = b
            b = np.int64(meta[b, NEXT])
        if meta[head, PREV] != before or n - start != blocks.counts[which]:
            return False
    return True


@compiled
def tables_hold(open_: Open, held: I32) -> bool:
    """Check that tables name each block at most once; held[b], 0 before, counts who holds b."""
    rows, tables = open_.rows, open_.tables
    last = np.full(held.shape[0], NONE, np.int64)
    for s in open_.numbers:
        length = rows[s, BLOCKS]
        if length < 0 or length > tables.shape[1]:
            return False
        for i in range(length):
            b = tables[s, i]
            if b < 0 or b >= held.shape[0] or last[b] == s:
                return False
            last[b] = s
            held[b] += 1
    return True


@compiled
def references_hold(blocks: Blocks, place: I32, held: I32, pinned: I32) -> bool:
    """Check the counts of references, and that what nothing holds is on a list."""
    meta = blocks.meta
    for b in range(place.shape[0]):
        if meta[b, REF] != held[b] or meta[b, PIN] != pinned[b]:
            return False
        if (place[b] != NONE) == (held[b] > 0 or pinned[b] > 0):
            return False
    return True


@compiled
def rows_hold(blocks: Blocks, live: Marks, owners: Int) -> bool:
    """Check each row for itself. live: by index of a root. owners: how many there are."""
    meta = blocks.meta
    capacity, size = blocks.tokens.shape
    for b in range(capacity):
        state = meta[b, STATE]
        if state != PUBLISHED and state != TAIL:
            if state != FREE and state != PRIVATE and state != QUARANTINED:
                return False
            continue
        fill = meta[b, FILL]
        if fill != size if state == PUBLISHED else fill <= 0 or fill >= size:
            return False
        root, owner = meta[b, ROOT], meta[b, OWNER]
        if root < 0 or root >= live.shape[0] or not live[root] or owner < 0 or owner >= owners:
            return False
        for column in (FIRST_CHILD, NEXT_SIBLING, PREV_SIBLING):
            if meta[b, column] < NONE or meta[b, column] >= capacity:
                return False
        if meta[b, PARENT] == NONE or meta[b, PARENT] >= capacity:
            return False
    return True


@compiled
def index_holds(blocks: Blocks) -> bool:
    """Check that the index has the published blocks, and finds each under its key."""
    meta, table, keys = blocks.meta, blocks.table, blocks.keys
    capacity = keys.shape[0]
    entered = np.zeros(capacity, np.bool_)
    for entry in table:
        if entry == NONE:
            continue
        found = block_of(entry)
        if found >= capacity or entered[found] or meta[found, STATE] != PUBLISHED:
            return False
        entered[found] = True
    for b in range(capacity):
        if meta[b, STATE] != PUBLISHED:
            continue
        # At least half of the table is empty by now, so that every search ends.
        if not entered[b] or find_key(table, keys, keys[b, 0], keys[b, 1]) != b:
            return False
    return True


@compiled
def keys_hold(blocks: Blocks, root_keys: U64) -> bool:
    """Check that keys are hashes of content. root_keys: uint64 [roots, 2].

    Twins are found so, too: they would have one key, and the index finds but one block under it.
    """
    meta, keys, tokens = blocks.meta, blocks.keys, blocks.tokens
    words = np.empty(2 + tokens.shape[1] // 2, np.uint64)
    for b in range(keys.shape[0]):
        if meta[b, STATE] == PUBLISHED:
            parent = np.int64(meta[b, PARENT])
            root_key = root_keys[meta[b, ROOT]]
            low, high = child_key(keys, root_key, tokens[b], 0, parent, words)
            if low != keys[b, 0] or high != keys[b, 1]:
                return False
    return True


@compiled
def children_hold(blocks: Blocks, parent: Int, root: Int, listed: Marks) -> bool:
    """Check the links of a parent's children, which nobody else may have listed."""
    meta = blocks.meta
    before = np.int64(NONE)
    b = np.int64(first_child(meta, blocks.heads, parent))
    while b >= 0:
        if b >= listed.shape[0] or listed[b]:
            return False
        if meta[b, STATE] != PUBLISHED and meta[b, STATE] != TAIL:
            return False
        if meta[b, PARENT] != parent or meta[b, PREV_SIBLING] != before or meta[b, ROOT] != root:
            return False
        listed[b] = True
        before = b
        b = np.int64(meta[b, NEXT_SIBLING])
    return True


@compiled
def tree_holds(blocks: Blocks, roots: I64) -> bool:
    """Check that published blocks and tails are the children of published blocks and live roots.

    roots: the live ones' indices.
    """
    meta = blocks.meta
    capacity = blocks.keys.shape[0]
    listed = np.zeros(capacity, np.bool_)
    for b in range(capacity):
        if meta[b, STATE] == PUBLISHED and not children_hold(blocks, b, meta[b, ROOT], listed):
            return False
    for root in roots:
        if not children_hold(blocks, -2 - root, root, listed):
            return False
    for b in range(capacity):
        if not listed[b] and (meta[b, STATE] == PUBLISHED or meta[b, STATE] == TAIL):
            return False
    return True


@compiled
def order_holds(blocks: Blocks, place: I32, by_list: bool) -> bool:
    """Check that parents are published, in use if a child is, and go after their children."""
    meta = blocks.meta
    for b in range(place.shape[0]):
        parent = meta[b, PARENT]
        if (meta[b, STATE] != PUBLISHED and meta[b, STATE] != TAIL) or parent < 0:
            continue
        if meta[parent, STATE] != PUBLISHED:
            return False
        if place[parent] == NONE:
            continue
        if meta[b, REF] > 0 or meta[b, PIN] > 0:
            return False
        if by_list and meta[b, STATE] == PUBLISHED and place[b] > place[parent]:
            return False
    return True


@compiled
def progress_holds(open_: Open, k: Int, size: Int) -> bool:
    """Check how far the k-th open sequence is said to be."""
    row = open_.rows[open_.numbers[k]]
    length, reserved, computed = row[LENGTH], row[RESERVED], row[COMPUTED]
    if length > open_.history.shape[1] or reserved > length or computed > reserved:
        return False
    if row[PUBLISHED_BLOCKS] < 0 or computed < 0 or row[PUBLISHED_BLOCKS] > computed // size:
        return False
    if row[BLOCKS] < 0 or row[BLOCKS] > open_.tables.shape[1] or row[BLOCKS] * size < reserved:
        return False
    return bool(row[ROOT_INDEX] == open_.roots[k])


@compiled
def sequences_hold(blocks: Blocks, open_: Open, owners: Int) -> bool:
    """Check that each holds its own published chain, and writes to nobody else's block.

    Tables must hold (`tables_hold`).
    """
    meta, tokens = blocks.meta, blocks.tokens
    size = tokens.shape[1]
    for k in range(open_.numbers.shape[0]):
        if not progress_holds(open_, k, size):
            return False
        s = open_.numbers[k]
        row = open_.rows[s]
        if row[SEQUENCE_OWNER] < 0 or row[SEQUENCE_OWNER] >= owners:
            return False
        computed, reserved = row[COMPUTED], row[RESERVED]
        parent = np.int64(-2 - open_.roots[k])
        for i in range(row[BLOCKS]):
            b = np.int64(open_.tables[s, i])
            if (i + 1) * size > computed:
                if meta[b, STATE] == PUBLISHED:
                    return False
                if reserved > computed and i * size < reserved and meta[b, REF] != 1:
                    return False
            others = i >= row[PUBLISHED_BLOCKS] or row[WRITES] == 0
            if not others and not matches(tokens, meta, b, parent, open_.history[s], i * size):
                return False
            parent = b
    return True
