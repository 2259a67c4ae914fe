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
    PROMPT_BLOCKS,
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
    ROOT,
    STALE,
    STATE,
    TAIL,
    U64,
    Int,
    block_of,
    find_live,
    first_child,
    insert_key,
    is_held,
    kind_of,
    list_of,
    tag_of,
)

Marks = npt.NDArray[np.bool_]

# Faults of links.
NO_BLOCK, TWICE, UNLINKED, NOT_ITS_LIST, OTHER_END, OTHER_ROOT = 1, 2, 3, 4, 5, 6

# Faults of what sequences hold.
NO_FAULT, WRITES_PUBLISHED, WRITES_SHARED, WRITES_ON_BAD, NOT_ITS_CHAIN, OTHER_TOKENS = range(6)


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
def follow_lists(blocks: Blocks, place: I32, on: I32, faults: I64) -> Int:
    """Go along all lists; place[b] and on[b], NONE before, get where b comes, and on which list.

    faults: gets rows of a fault, the list, the block before it and the block, as far as there is
    room. Returns how many rows. Block rows must hold (`rows_hold`).
    """
    meta, capacity = blocks.meta, place.shape[0]
    n: Int = 0
    found: Int = 0
    for which in range(2 * blocks.accounts.shape[0] - 1):
        head = np.int64(-1 - which)
        before = head
        b = np.int64(meta[head, NEXT])
        while b != head:
            if b < 0 or b >= capacity:
                found = note(faults, found, NO_BLOCK, which, before, b)
                break
            if place[b] != NONE:
                found = note(faults, found, TWICE, which, before, b)
                break
            if meta[b, PREV] != before:
                found = note(faults, found, UNLINKED, which, before, b)
            if not is_on_its_list(blocks, which, b):
                found = note(faults, found, NOT_ITS_LIST, which, before, b)
            place[b], on[b] = n, which
            n += 1
            before = b
            b = np.int64(meta[b, NEXT])
        if b == head and meta[head, PREV] != before:
            found = note(faults, found, OTHER_END, which, before, b)
    return found


@compiled
def note(faults: I64, found: Int, code: Int, which: Int, before: Int, b: Int) -> Int:
    """Write a fault down after those that were found so far, if there is room; count it."""
    if found < faults.shape[0]:
        faults[found, 0], faults[found, 1] = code, which
        faults[found, 2], faults[found, 3] = before, b
        return found + 1
    return found


@compiled
def is_on_its_list(blocks: Blocks, which: Int, b: Int) -> bool:
    """Whether a block, if it is on a list at all, is to be on this one."""
    meta = blocks.meta
    if which == FREE_LIST:
        return bool(meta[b, STATE] == FREE)
    return in_tree(meta, b) and bool(list_of(meta, blocks.roots, b) == which)


@compiled
def count_blocks(blocks: Blocks, roots: I64, accounts: I64) -> None:
    """Count blocks into rows of zeros as roots, accounts and the pool have them. Rows must hold."""
    meta, capacity = blocks.meta, blocks.keys.shape[0]
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


@compiled
def counts_hold(blocks: Blocks) -> bool:
    """Check what roots, accounts and the pool count (rules 10 and 11). Rows must hold."""
    roots, accounts = np.zeros_like(blocks.roots), np.zeros_like(blocks.accounts)
    count_blocks(blocks, roots, accounts)
    for root in range(roots.shape[0]):
        for kind in range(KINDS):
            if roots[root, kind] != blocks.roots[root, kind]:
                return False
        if roots[root, CHARGED] != blocks.roots[root, CHARGED]:
            return False
    for account in range(1, accounts.shape[0]):
        for column in range(HELD + 1):
            if accounts[account, column] != blocks.accounts[account, column]:
                return False
    for column in range(OUT + 1):  # noqa: SIM110
        if accounts[POOL, column] != blocks.accounts[POOL, column]:
            return False
    return True


@compiled
def first_misplaced(open_: Open, k: Int, last: I64) -> Int:
    """Return where in the k-th table stands what is no block, or stands there twice; or NONE.

    last[b]: the last table with b in it, NONE before the first.
    """
    s = open_.numbers[k]
    for i in range(open_.rows[s, BLOCKS]):
        b = open_.tables[s, i]
        if b < 0 or b >= last.shape[0] or last[b] == s:
            return i
        last[b] = s
    return NONE


@compiled
def hold_all(open_: Open, held: I32) -> None:
    """Count in held[b], 0 before, in how many tables b is; of tables as far as they hold."""
    last = np.full(held.shape[0], NONE, np.int64)
    for k in range(open_.numbers.shape[0]):
        s = open_.numbers[k]
        length = open_.rows[s, BLOCKS]
        if length < 0 or length > open_.tables.shape[1]:
            continue
        stop = first_misplaced(open_, k, last)
        for i in range(length if stop == NONE else stop):
            held[open_.tables[s, i]] += 1


@compiled
def references_hold(blocks: Blocks, place: I32, held: I32, pinned: I32, kept: I32) -> bool:
    """Check the counts of references, and that what nothing holds or keeps is on a list."""
    meta = blocks.meta
    for b in range(place.shape[0]):
        if meta[b, REF] != held[b] or meta[b, PIN] != pinned[b]:
            return False
        shown = in_tree(meta, b)
        flushed = shown and blocks.roots[meta[b, ROOT], DEAD] != 0
        if meta[b, KEEP] != kept[b] and not flushed:
            return False
        idle = held[b] == 0 and pinned[b] == 0 and meta[b, STATE] != QUARANTINED
        if (place[b] != NONE) != (idle and not (shown and meta[b, KEEP] != 0)):
            return False
    return True


@compiled
def rows_hold(blocks: Blocks, known: Marks, owners: Int) -> bool:
    """Check each row for itself. known: by index of a root. owners: how many there are."""
    meta, roots = blocks.meta, blocks.roots
    capacity, size = blocks.tokens.shape
    if meta.shape[0] - capacity < 2 * blocks.accounts.shape[0] - 1:
        return False
    for b in range(capacity):
        state = meta[b, STATE]
        if state in (FREE, QUARANTINED):
            continue
        root = meta[b, ROOT]
        if root < 0 or root >= known.shape[0] or not known[root]:
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
        if roots[root, DEAD] == 0 and not links_hold(meta, b, capacity):
            return False
    return True


@compiled
def links_hold(meta: I32, b: Int, capacity: Int) -> bool:
    """Check that links lead to blocks, and the parent is a block or the block's own root."""
    for column in (FIRST_CHILD, NEXT_SIBLING, PREV_SIBLING):
        if meta[b, column] < NONE or meta[b, column] >= capacity:
            return False
    if meta[b, STATE] == TAIL and meta[b, FIRST_CHILD] != NONE:
        return False
    parent = np.int64(meta[b, PARENT])
    if parent >= capacity:
        return False
    return bool(parent >= 0 or parent == -2 - np.int64(meta[b, ROOT]))


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


@compiled
def progress_holds(open_: Open, k: Int, size: Int, owners: Int) -> bool:
    """Check how far the k-th open sequence is said to be, and whose it is."""
    row = open_.rows[open_.numbers[k]]
    length, reserved, computed = row[LENGTH], row[RESERVED], row[COMPUTED]
    if length > open_.history.shape[1] or reserved > length or computed > reserved:
        return False
    if row[PUBLISHED_BLOCKS] < 0 or computed < 0 or row[PUBLISHED_BLOCKS] > computed // size:
        return False
    if row[WRITES] != 0 and row[PUBLISHED_BLOCKS] != computed // size:
        return False
    if row[BLOCKS] < 0 or row[BLOCKS] > open_.tables.shape[1] or row[BLOCKS] * size < reserved:
        return False
    if row[ENTRY] != open_.entries[k]:
        return False
    if row[ENTRY] > 0 and row[PUBLIC_ROOT] != open_.publics[k]:
        return False
    if row[PROMPT_BLOCKS] < 0 or row[PROMPT_BLOCKS] > length // size:
        return False
    if row[SEQUENCE_OWNER] < 0 or row[SEQUENCE_OWNER] >= owners:
        return False
    return bool(row[ROOT_INDEX] == open_.roots[k])


@compiled
def first_fault(blocks: Blocks, open_: Open, k: Int) -> tuple[Int, Int]:
    """Check that the k-th sequence has its own published chain, and writes to nobody else's block.

    Its row and its table must hold. Returns the first fault, and at which index of the table.
    """
    meta, tokens = blocks.meta, blocks.tokens
    size = tokens.shape[1]
    s = open_.numbers[k]
    row = open_.rows[s]
    computed, reserved = row[COMPUTED], row[RESERVED]
    parent = np.int64(-2 - open_.publics[k])
    for i in range(row[BLOCKS]):
        if i == row[ENTRY]:
            parent = np.int64(-2 - open_.roots[k])
        b = np.int64(open_.tables[s, i])
        if (i + 1) * size > computed:
            if meta[b, STATE] == PUBLISHED:
                return WRITES_PUBLISHED, i
            if reserved > computed and i * size < reserved and meta[b, REF] != 1:
                return WRITES_SHARED, i
        if row[WRITES] != 0:
            if meta[b, STATE] == QUARANTINED:
                return WRITES_ON_BAD, i
            if i < row[PUBLISHED_BLOCKS]:
                if meta[b, STATE] != PUBLISHED or meta[b, PARENT] != parent:
                    return NOT_ITS_CHAIN, i
                if not matches(tokens, meta, b, parent, open_.history[s], i * size):
                    return OTHER_TOKENS, i
        parent = b
    return NO_FAULT, 0


@compiled
def sequences_hold(blocks: Blocks, open_: Open, owners: Int) -> bool:
    """Check each open sequence: its row, its table, and `first_fault`."""
    last = np.full(blocks.keys.shape[0], NONE, np.int64)
    for k in range(open_.numbers.shape[0]):
        if not progress_holds(open_, k, blocks.tokens.shape[1], owners):
            return False
        if first_misplaced(open_, k, last) != NONE:
            return False
        if first_fault(blocks, open_, k)[0] != NO_FAULT:
            return False
    return True
