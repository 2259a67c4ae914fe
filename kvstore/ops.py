"""Inner loops over the block arrays: order lists, counts, the key index, the tree, references.

One row of `meta` is one physical block; there is no Python object a block.

    meta     int32  [capacity + lists, COLUMNS]  a row a block, then a sentinel a list
    tokens   int32  [capacity, block_size]       what a published block or a tail holds
    keys     uint64 [capacity, 2]                its 16-byte key, low half first
    table    int64  [power of two >= 2 x capacity]  open addressing over keys: 31 bits of the key,
                                                    then the block's number; -1 empty
    roots    int64  [roots, ROOT_COLUMNS]        a row a root
    accounts int64  [accounts, ACCOUNT_COLUMNS]  row POOL for the whole pool, then a row an account

A parent is a block's number, or -2 - r for root r. Children of a parent form a list from the most
recently used to the least.

Lists: FREE_LIST, and for each account one of cached blocks and one of tails, the least recently
used first. The sentinel of list n is row -1 - n, which stays its number when rows are put between
the blocks and the sentinels. A list's newest end is its sentinel's PREV.

A block that nothing holds is counted in its root's, its account's and the pool's row: CACHED or
TAILS if it is on such a list, KEPT if pins keep it off. Blocks of a dead root (flushed) are counted
as STALE in the pool's row alone; they stay on the lists until `victims.sweep` meets them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from stemkv.kvstore.jit import compiled

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]
Int = int | np.signedinteger[Any]
"""A number as compiled code has it; plain Python when it is not compiled."""

# Columns of meta. REF: sequences that hold the block. PIN: copies that read it. KEEP: pins of
# operators that keep it. STAMP: the low 31 bits of the pool's STAMP when it was let go.
REF, PIN, PARENT, FIRST_CHILD, NEXT_SIBLING, PREV_SIBLING = 0, 1, 2, 3, 4, 5
PREV, NEXT, ROOT, OWNER, FILL, STATE, KEEP, STAMP = 6, 7, 8, 9, 10, 11, 12, 13
COLUMNS = 14

# States. FREE: in the free list. PRIVATE: written by its one holder. PUBLISHED: in the index,
# immutable. TAIL: partly filled, no key, only ever copied from. QUARANTINED: out of service.
FREE, PRIVATE, PUBLISHED, TAIL, QUARANTINED = 0, 1, 2, 3, 4

# Columns of roots and accounts alike: blocks that nothing holds, by kind.
CACHED, TAILS, KEPT = 0, 1, 2
KINDS = 3

# More columns of roots. HEAD: its most recently used child. DEAD: 1 after a flush. CHARGED: blocks
# that are of this root, private and stale ones too. KEY_LOW, KEY_HIGH: its key's bits.
HEAD, ACCOUNT, DEAD, CHARGED, KEY_LOW, KEY_HIGH = 3, 4, 5, 6, 7, 8
ROOT_COLUMNS = 9

# More columns of accounts: HELD, blocks charged to it, in use or not; its quota in blocks.
HELD, RESERVE, CAP = 3, 4, 5

# Rows of accounts. The operator's blocks are public, and never evicted; tenants' rows follow.
# More columns of the pool's row. STALE: flushed, not yet free again. OUT: quarantined. NOW: how
# often blocks were let go.
POOL = 0
OPERATOR = 1
FREED, STALE, OUT, NOW = 3, 4, 5, 6
ACCOUNT_COLUMNS = 7

FREE_LIST = 0
_LOW_31 = 0x7FFFFFFF

NONE = -1
COLLISION = -2


@compiled
def cached_list(account: Int) -> Int:
    """Return the number of an account's list of cached blocks."""
    return 2 * account - 1


@compiled
def tail_list(account: Int) -> Int:
    """Return the number of an account's list of tails."""
    return 2 * account


@compiled
def link_newest(meta: I32, which: Int, b: Int) -> None:
    """Put block b at the newest end of a list."""
    head = -1 - which
    last = meta[head, PREV]
    meta[last, NEXT] = b
    meta[b, PREV] = last
    meta[b, NEXT] = head
    meta[head, PREV] = b


@compiled
def unlink(meta: I32, b: Int) -> None:
    """Take block b off its list."""
    before, after = meta[b, PREV], meta[b, NEXT]
    meta[before, NEXT] = after
    meta[after, PREV] = before


@compiled
def free_all(meta: I32, accounts: I64, capacity: Int) -> None:
    """Put every block on the free list."""
    for b in range(capacity):
        link_newest(meta, FREE_LIST, b)
    accounts[POOL, FREED] = capacity


@compiled
def tally(roots: I64, accounts: I64, root: Int, kind: Int, change: Int) -> None:
    """Count blocks of a root that nothing holds, into a kind or (change < 0) out of it."""
    roots[root, kind] += change
    accounts[roots[root, ACCOUNT], kind] += change
    accounts[POOL, kind] += change


@compiled
def charge(roots: I64, accounts: I64, root: Int, change: Int) -> None:
    """Charge blocks to a root and its account, or (change < 0) no longer."""
    roots[root, CHARGED] += change
    accounts[roots[root, ACCOUNT], HELD] += change


@compiled
def kind_of(meta: I32, b: Int) -> Int:
    """Which kind a published block or a tail is when nothing holds it and no pin keeps it."""
    return CACHED if meta[b, STATE] == PUBLISHED else TAILS


@compiled
def list_of(meta: I32, roots: I64, b: Int) -> Int:
    """Which list a published block or a tail is on when nothing holds it and no pin keeps it."""
    account = roots[meta[b, ROOT], ACCOUNT]
    return cached_list(account) if meta[b, STATE] == PUBLISHED else tail_list(account)


@compiled
def free(meta: I32, roots: I64, accounts: I64, b: Int) -> None:
    """Put a block that is out of everything on the free list; nobody is charged any more."""
    charge(roots, accounts, meta[b, ROOT], -1)
    meta[b, STATE] = FREE
    link_newest(meta, FREE_LIST, b)
    accounts[POOL, FREED] += 1


@compiled
def park(meta: I32, roots: I64, accounts: I64, b: Int) -> None:
    """Put a block that nothing holds any more where it can be taken from."""
    state, root = meta[b, STATE], meta[b, ROOT]
    if state == PRIVATE:
        free(meta, roots, accounts, b)
        return
    if state == QUARANTINED:
        return
    if roots[root, DEAD] != 0:
        accounts[roots[root, ACCOUNT], HELD] -= 1
        accounts[POOL, STALE] += 1
    elif meta[b, KEEP] > 0:
        tally(roots, accounts, root, KEPT, 1)
    else:
        tally(roots, accounts, root, kind_of(meta, b), 1)
    if meta[b, KEEP] == 0:
        meta[b, STAMP] = accounts[POOL, NOW] & _LOW_31
        link_newest(meta, list_of(meta, roots, b), b)


@compiled
def unpark(meta: I32, roots: I64, accounts: I64, b: Int) -> None:
    """Take a published block or a tail of a live root, which nothing holds, off where it is."""
    if meta[b, KEEP] > 0:
        tally(roots, accounts, meta[b, ROOT], KEPT, -1)
    else:
        unlink(meta, b)
        tally(roots, accounts, meta[b, ROOT], kind_of(meta, b), -1)


@compiled
def is_held(meta: I32, b: Int) -> bool:
    """Whether a sequence or a copy holds a block."""
    return bool(meta[b, REF] > 0 or meta[b, PIN] > 0)


# --- the tree -------------------------------------------------------------------------------------


@compiled
def first_child(meta: I32, roots: I64, parent: Int) -> Int:
    """Return the most recently used child of a block or root, NONE without."""
    if parent >= 0:
        return int(meta[parent, FIRST_CHILD])
    return int(roots[-2 - parent, HEAD])


@compiled
def set_first_child(meta: I32, roots: I64, parent: Int, b: Int) -> None:
    """Make b the head of the parent's list of children."""
    if parent >= 0:
        meta[parent, FIRST_CHILD] = b
    else:
        roots[-2 - parent, HEAD] = b


@compiled
def add_child(meta: I32, roots: I64, parent: Int, b: Int) -> None:
    """Put b at the front of the parent's children."""
    front = first_child(meta, roots, parent)
    meta[b, PARENT] = parent
    meta[b, NEXT_SIBLING] = front
    meta[b, PREV_SIBLING] = NONE
    if front >= 0:
        meta[front, PREV_SIBLING] = b
    set_first_child(meta, roots, parent, b)


@compiled
def remove_child(meta: I32, roots: I64, b: Int) -> None:
    """Take b out of its parent's children."""
    before, after = meta[b, PREV_SIBLING], meta[b, NEXT_SIBLING]
    if before >= 0:
        meta[before, NEXT_SIBLING] = after
    else:
        set_first_child(meta, roots, meta[b, PARENT], after)
    if after >= 0:
        meta[after, PREV_SIBLING] = before


@compiled
def move_to_front(meta: I32, roots: I64, b: Int) -> None:
    """Make b the most recently used child of its parent."""
    if meta[b, PREV_SIBLING] >= 0:
        parent = meta[b, PARENT]
        remove_child(meta, roots, b)
        add_child(meta, roots, parent, b)


@compiled
def enter(
    meta: I32, roots: I64, accounts: I64, b: Int, fill: Int, parent: Int, root: Int, owner: Int
) -> None:
    """Put a private block that holds `fill` tokens into the tree; the caller sets tokens and state.

    It is charged to the account of this root from now on.
    """
    if meta[b, ROOT] != root:
        charge(roots, accounts, meta[b, ROOT], -1)
        charge(roots, accounts, root, 1)
        meta[b, ROOT] = root
    meta[b, FILL] = fill
    meta[b, OWNER] = owner
    meta[b, FIRST_CHILD] = NONE
    add_child(meta, roots, parent, b)


@compiled
def withdraw(meta: I32, roots: I64, table: I64, keys: U64, b: Int) -> None:
    """Take a block out of the tree, and out of the index if it is published."""
    if meta[b, STATE] == PUBLISHED:
        delete_key(table, keys, b)
    remove_child(meta, roots, b)


@compiled
def drop(meta: I32, roots: I64, accounts: I64, table: I64, keys: U64, b: Int) -> bool:
    """Take a block out of index and lists but leave the tree's links; True if it is now free.

    A block that is still held becomes PRIVATE and goes on serving its holders.
    """
    if meta[b, STATE] == PUBLISHED:
        delete_key(table, keys, b)
    held = is_held(meta, b)
    if not held:
        unpark(meta, roots, accounts, b)
    meta[b, STATE] = PRIVATE
    meta[b, KEEP] = 0
    meta[b, PARENT] = NONE
    meta[b, FIRST_CHILD] = NONE
    if not held:
        free(meta, roots, accounts, b)
    return not held


@compiled
def drop_all(meta: I32, roots: I64, accounts: I64, table: I64, keys: U64, blocks: I32) -> Int:
    """Drop these blocks; return how many something still holds."""
    held = 0
    for b in blocks:
        if not drop(meta, roots, accounts, table, keys, b):
            held += 1
    return held


@compiled
def subtree(meta: I32, roots: I64, top: Int, out: I32, n: Int) -> Int:
    """Append top and all below it to out[n:], top first, and cut top off its parent."""
    remove_child(meta, roots, top)
    out[n] = top
    read = n
    n += 1
    while read < n:
        b = meta[out[read], FIRST_CHILD]
        read += 1
        while b >= 0:
            out[n] = b
            n += 1
            b = meta[b, NEXT_SIBLING]
    return n


# --- the index ------------------------------------------------------------------------------------


@compiled
def tag_of(low: np.uint64) -> np.int64:
    """Return the 31 bits of a key that its entry carries; the lowest ones say where it belongs."""
    return np.int64(low & np.uint64(0x7FFFFFFF))


@compiled
def block_of(entry: np.int64) -> np.int64:
    """Return the block of an entry of the index."""
    return entry & np.int64(0xFFFFFFFF)


@compiled
def next_match(table: I64, keys: U64, low: np.uint64, high: np.uint64, i: np.int64) -> np.int64:
    """Return the next place, from i on, of an entry with this key; NONE without."""
    mask = np.int64(table.shape[0] - 1)
    tag = tag_of(low)
    while table[i] >= 0:
        if table[i] >> 32 == tag:
            b = block_of(table[i])
            if keys[b, 0] == low and keys[b, 1] == high:
                return i
        i = (i + 1) & mask
    return np.int64(NONE)


@compiled
def find_key(table: I64, keys: U64, low: np.uint64, high: np.uint64) -> Int:
    """Return the first block that is entered under a key, NONE without."""
    i = next_match(table, keys, low, high, tag_of(low) & np.int64(table.shape[0] - 1))
    return NONE if i < 0 else block_of(table[i])


@compiled
def find_live(table: I64, keys: U64, meta: I32, roots: I64, low: np.uint64, high: np.uint64) -> Int:
    """Return the block of a live root that is published under a key, NONE without."""
    mask = np.int64(table.shape[0] - 1)
    i = next_match(table, keys, low, high, tag_of(low) & mask)
    while i >= 0:
        b = block_of(table[i])
        if roots[meta[b, ROOT], DEAD] == 0:
            return b
        i = next_match(table, keys, low, high, (i + 1) & mask)
    return NONE


@compiled
def insert_key(table: I64, keys: U64, b: Int) -> None:
    """Enter a block under the key in its row; no block of a live root may have it."""
    mask = np.int64(table.shape[0] - 1)
    tag = tag_of(keys[b, 0])
    i = tag & mask
    while table[i] >= 0:
        i = (i + 1) & mask
    table[i] = (tag << 32) | np.int64(b)


@compiled
def delete_key(table: I64, keys: U64, b: Int) -> None:
    """Take a block out of the index, moving later entries of its run back (no tombstones)."""
    mask = np.int64(table.shape[0] - 1)
    tag = tag_of(keys[b, 0])
    i = tag & mask
    gone = (tag << 32) | np.int64(b)
    while table[i] != gone:
        i = (i + 1) & mask
    j = i
    while True:
        j = (j + 1) & mask
        entry = table[j]
        if entry < 0:
            break
        home = (entry >> 32) & mask
        if ((j - home) & mask) >= ((j - i) & mask):
            table[i] = entry
            i = j
    table[i] = NONE


# --- references -----------------------------------------------------------------------------------


@compiled
def reference(meta: I32, roots: I64, accounts: I64, blocks: I32, column: Int) -> None:
    """Add one reference (REF or PIN) to each block, as most recently used if it is in the tree.

    Cached blocks of one root are counted as one run.
    """
    run, taken = np.int64(NONE), 0
    for b in blocks:
        root = np.int64(meta[b, ROOT])
        if not is_held(meta, b):
            if meta[b, STATE] != PUBLISHED or meta[b, KEEP] > 0:
                unpark(meta, roots, accounts, b)
            else:
                if root != run:
                    if taken > 0:
                        tally(roots, accounts, run, CACHED, -taken)
                    run, taken = root, 0
                unlink(meta, b)
                taken += 1
        meta[b, column] += 1
        if meta[b, PREV_SIBLING] >= 0 and meta[b, STATE] != PRIVATE and roots[root, DEAD] == 0:
            move_to_front(meta, roots, b)
    if taken > 0:
        tally(roots, accounts, run, CACHED, -taken)


@compiled
def dereference(meta: I32, roots: I64, accounts: I64, blocks: I32, column: Int) -> None:
    """Drop one reference (REF or PIN) of each block, the last first: it ages before its parent.

    Cached blocks of one root are put on their list as one run: its end is written once.
    """
    accounts[POOL, NOW] += 1
    stamp = accounts[POOL, NOW] & _LOW_31
    run: Int = NONE
    head: Int = 0
    last: Int = 0
    added = 0
    for i in range(blocks.shape[0] - 1, -1, -1):
        b = blocks[i]
        meta[b, column] -= 1
        if meta[b, REF] != 0 or meta[b, PIN] != 0:
            continue
        root = meta[b, ROOT]
        if meta[b, STATE] != PUBLISHED or meta[b, KEEP] > 0 or roots[root, DEAD] != 0:
            close_run(meta, roots, accounts, run, head, last, added)
            run, added = NONE, 0
            park(meta, roots, accounts, b)
            continue
        if root != run:
            close_run(meta, roots, accounts, run, head, last, added)
            run, added = root, 0
            head = -1 - cached_list(roots[root, ACCOUNT])
            last = meta[head, PREV]
        meta[last, NEXT] = b
        meta[b, PREV] = last
        meta[b, STAMP] = stamp
        last = b
        added += 1
    close_run(meta, roots, accounts, run, head, last, added)


@compiled
def close_run(
    meta: I32, roots: I64, accounts: I64, root: Int, head: Int, last: Int, added: Int
) -> None:
    """Write the end of a run of blocks that were put on a list, and count them."""
    if added > 0:
        meta[last, NEXT] = head
        meta[head, PREV] = last
        tally(roots, accounts, root, CACHED, added)


@compiled
def hold(meta: I32, roots: I64, accounts: I64, b: Int) -> None:
    """Add one reference to a block in the tree, as most recently used."""
    if not is_held(meta, b):
        unpark(meta, roots, accounts, b)
    meta[b, REF] += 1
    move_to_front(meta, roots, b)


@compiled
def let_go(meta: I32, roots: I64, accounts: I64, b: Int) -> None:
    """Drop one reference of a block."""
    meta[b, REF] -= 1
    if not is_held(meta, b):
        park(meta, roots, accounts, b)


@compiled
def keep(meta: I32, roots: I64, accounts: I64, blocks: I32) -> None:
    """Let one more pin keep each of these published blocks."""
    for b in blocks:
        idle = not is_held(meta, b)
        if idle:
            unpark(meta, roots, accounts, b)
        meta[b, KEEP] += 1
        if idle:
            park(meta, roots, accounts, b)


@compiled
def keep_no_more(meta: I32, roots: I64, accounts: I64, blocks: I32) -> None:
    """Take one pin from each of these blocks, the last first: it ages before its parent."""
    accounts[POOL, NOW] += 1
    for i in range(blocks.shape[0] - 1, -1, -1):
        b = blocks[i]
        idle = not is_held(meta, b)
        if idle:
            unpark(meta, roots, accounts, b)
        meta[b, KEEP] -= 1
        if idle:
            park(meta, roots, accounts, b)


@compiled
def count_unheld(meta: I32, roots: I64, blocks: I32, account: Int) -> Int:
    """How many of these blocks nothing holds, and are charged to this account."""
    n = 0
    for b in blocks:
        if meta[b, REF] == 0 and meta[b, PIN] == 0 and roots[meta[b, ROOT], ACCOUNT] == account:
            n += 1
    return n
