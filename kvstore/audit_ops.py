"""Inner loops of the audit: whether all is in order, and nothing of what is not.

They trust nothing that they have not looked at: every number read from the arrays is checked
before it is an index, so that no damage makes them read elsewhere or go round for ever. Each says
what the function of a like name in `violations` says in words.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stemkv.kvstore.chains import (
    BLOCKS,
    COMPUTED,
    ENTRY,
    LENGTH,
    PUBLIC_ROOT,
    PUBLISHED_BLOCKS,
    RESERVED,
    ROOT_INDEX,
    SEQUENCE_OWNER,
    WRITES,
    child_key,
    matches,
)
from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import (
    ACCOUNT,
    CHARGED,
    DEAD,
    FILL,
    FIRST_CHILD,
    FREE,
    FREE_LIST,
    FREED,
    HELD,
    I32,
    I64,
    KEEP,
    KEPT,
    KINDS,
    NEXT,
    NEXT_SIBLING,
    NONE,
    OUT,
    OWNER,
    PARENT,
    PIN,
    POOL,
    PREV,
    PREV_SIBLING,
    PRIVATE,
    PUBLISHED,
    QUARANTINED,
    REF,
    RESERVE,
    ROOT,
    STALE,
    STATE,
    TAIL,
    U64,
    Int,
    block_of,
    find_key,
    first_child,
    is_held,
    kind_of,
    list_of,
)

Marks = npt.NDArray[np.bool_]


class Blocks(NamedTuple):
    """The pool's arrays; see `ops`."""

    meta: I32
    tokens: I32
    keys: U64
    table: I64
    roots: I64
    accounts: I64


class Open(NamedTuple):
    """The open sequences: `numbers` int64 are their rows in the arrays of `Sequences`.

    roots, publics: int64 [open], the index of the root that each has, and of the public one before
    it; entries: int64 [open], how many blocks hang on that.
    """

    rows: I64
    history: I32
    tables: I32
    numbers: I64
    roots: I64
    publics: I64
    entries: I64


@compiled
def in_tree(meta: I32, b: Int) -> bool:
    """Whether a block is published or a tail, of a dead root or not."""
    return bool(meta[b, STATE] == PUBLISHED or meta[b, STATE] == TAIL)


@compiled
def is_live(blocks: Blocks, b: Int) -> bool:
    """Whether a block, whose row holds, is in the tree of a live root."""
    meta = blocks.meta
    return in_tree(meta, b) and blocks.roots[meta[b, ROOT], DEAD] == 0


@compiled
def lists_hold(blocks: Blocks, place: I32) -> bool:
    """Check the lists; place[b], NONE before, gets where among all of them b comes.

    Rows must hold (`rows_hold`).
    """
    meta, capacity = blocks.meta, place.shape[0]
    n = 0
    for which in range(2 * blocks.accounts.shape[0] - 1):
        head = np.int64(-1 - which)
        before = head
        b = np.int64(meta[head, NEXT])
        while b != head:
            if b < 0 or b >= capacity or place[b] != NONE or meta[b, PREV] != before:
                return False
            if which == FREE_LIST:
                if meta[b, STATE] != FREE:
                    return False
            elif not in_tree(meta, b) or list_of(meta, blocks.roots, b) != which:
                return False
            place[b] = n
            n += 1
            before = b
            b = np.int64(meta[b, NEXT])
        if meta[head, PREV] != before:
            return False
    return True


@compiled
def counts_hold(blocks: Blocks) -> bool:
    """Check what roots, accounts and the pool count (rules 10 and 11). Rows must hold."""
    meta, capacity = blocks.meta, blocks.keys.shape[0]
    roots, accounts = np.zeros_like(blocks.roots), np.zeros_like(blocks.accounts)
    for b in range(capacity):
        state = meta[b, STATE]
        if state == FREE:
            accounts[POOL, FREED] += 1
            continue
        if state == QUARANTINED:
            accounts[POOL, OUT] += 1
            continue
        root = meta[b, ROOT]
        account = blocks.roots[root, ACCOUNT]
        roots[root, CHARGED] += 1
        accounts[account, HELD] += 1
        if not in_tree(meta, b) or is_held(meta, b):
            continue
        if blocks.roots[root, DEAD] != 0:
            accounts[account, HELD] -= 1
            accounts[POOL, STALE] += 1
        else:
            kind = KEPT if meta[b, KEEP] > 0 else kind_of(meta, b)
            roots[root, kind] += 1
            accounts[account, kind] += 1
            accounts[POOL, kind] += 1
    for root in range(roots.shape[0]):
        for kind in range(KINDS):
            if roots[root, kind] != blocks.roots[root, kind]:
                return False
        if roots[root, CHARGED] != blocks.roots[root, CHARGED]:
            return False
    reserved = 0
    for account in range(1, accounts.shape[0]):
        for column in range(HELD + 1):
            if accounts[account, column] != blocks.accounts[account, column]:
                return False
        if blocks.accounts[account, RESERVE] < 0:
            return False
        reserved += blocks.accounts[account, RESERVE]
    for column in range(OUT + 1):
        if accounts[POOL, column] != blocks.accounts[POOL, column]:
            return False
    return bool(reserved <= capacity)


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
def references_hold(blocks: Blocks, place: I32, held: I32, pinned: I32, kept: I32) -> bool:
    """Check the counts of references, and that what nothing holds or keeps is on a list."""
    meta = blocks.meta
    for b in range(place.shape[0]):
        if meta[b, REF] != held[b] or meta[b, PIN] != pinned[b]:
            return False
        if is_live(blocks, b) and meta[b, KEEP] != kept[b]:
            return False
        idle = held[b] == 0 and pinned[b] == 0 and meta[b, STATE] != QUARANTINED
        if (place[b] != NONE) != (idle and not (in_tree(meta, b) and meta[b, KEEP] > 0)):
            return False
    return True


@compiled
def rows_hold(blocks: Blocks, live: Marks, owners: Int) -> bool:
    """Check each row for itself. live: by index of a root. owners: how many there are."""
    meta, roots = blocks.meta, blocks.roots
    capacity, size = blocks.tokens.shape
    if meta.shape[0] - capacity < 2 * blocks.accounts.shape[0] - 1:
        return False
    for b in range(capacity):
        state = meta[b, STATE]
        if state in (FREE, QUARANTINED):
            continue
        root = meta[b, ROOT]
        if root < 0 or root >= roots.shape[0]:
            return False
        if roots[root, ACCOUNT] < 1 or roots[root, ACCOUNT] >= blocks.accounts.shape[0]:
            return False
        if state == PRIVATE:
            continue
        if state not in (PUBLISHED, TAIL):
            return False
        fill, owner = meta[b, FILL], meta[b, OWNER]
        if fill != size if state == PUBLISHED else fill <= 0 or fill >= size:
            return False
        if owner < 0 or owner >= owners:
            return False
        if roots[root, DEAD] != 0:
            continue
        if root >= live.shape[0] or not live[root]:
            return False
        for column in (FIRST_CHILD, NEXT_SIBLING, PREV_SIBLING):
            if meta[b, column] < NONE or meta[b, column] >= capacity:
                return False
        if meta[b, PARENT] == NONE or meta[b, PARENT] >= capacity:
            return False
    return True


@compiled
def index_holds(blocks: Blocks) -> bool:
    """Check that the index has the published blocks, and finds each live one under its key."""
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
        if not entered[b]:
            return False
        own = find_key(table, keys, meta, blocks.roots, keys[b, 0], keys[b, 1])
        if own != b and is_live(blocks, b):
            return False
    return True


@compiled
def keys_hold(blocks: Blocks) -> bool:
    """Check that keys are hashes of content.

    Twins are found so, too: they would have one key, and the index finds but one block under it.
    """
    meta, keys, tokens = blocks.meta, blocks.keys, blocks.tokens
    words = np.empty(2 + tokens.shape[1] // 2, np.uint64)
    for b in range(keys.shape[0]):
        if meta[b, STATE] == PUBLISHED and is_live(blocks, b):
            parent = np.int64(meta[b, PARENT])
            low, high = child_key(keys, blocks.roots, tokens[b], 0, parent, words)
            if low != keys[b, 0] or high != keys[b, 1]:
                return False
    return True


@compiled
def children_hold(blocks: Blocks, parent: Int, root: Int, listed: Marks) -> bool:
    """Check the links of a parent's children, which nobody else may have listed."""
    meta = blocks.meta
    before = np.int64(NONE)
    b = np.int64(first_child(meta, blocks.roots, parent))
    while b >= 0:
        if b >= listed.shape[0] or listed[b]:
            return False
        if not is_live(blocks, b):
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
        if meta[b, STATE] != PUBLISHED or not is_live(blocks, b):
            continue
        if not children_hold(blocks, b, meta[b, ROOT], listed):
            return False
    for root in roots:
        if not children_hold(blocks, -2 - root, root, listed):
            return False
    # Not with all(): a generator is nothing that numba compiles.
    for b in range(capacity):  # noqa: SIM110
        if not listed[b] and is_live(blocks, b):
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
    if row[ENTRY] != open_.entries[k] or row[ENTRY] < 0:
        return False
    if row[ENTRY] > 0 and row[PUBLIC_ROOT] != open_.publics[k]:
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
        parent = np.int64(-2 - open_.publics[k])
        for i in range(row[BLOCKS]):
            if i == row[ENTRY]:
                parent = np.int64(-2 - open_.roots[k])
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
