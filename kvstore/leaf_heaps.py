"""Inner loops of scored eviction: for each account a heap of blocks that may go, and who goes next.

The heaps are pairing heaps (Fredman, Sedgewick, Sleator and Tarjan, 1986) over links in arrays, so
that any number of accounts shares the arrays of one pool.
"""

from typing import NamedTuple

import numpy as np

from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import (
    ACCOUNT,
    CACHED,
    DEAD,
    F64,
    FIRST_CHILD,
    HELD,
    I32,
    I64,
    KEEP,
    NONE,
    OPERATOR,
    OWNER,
    PARENT,
    PIN,
    PUBLISHED,
    REF,
    ROOT,
    STATE,
    TAILS,
    U64,
    Int,
    unlink,
)
from stemkv.kvstore.victims import (
    count_out,
    evict_oldest,
    leave,
    set_floors,
)

OUTSIDE = -2


class Leaves(NamedTuple):
    """Blocks by score, then by tie; of each account the lowest is at the top of its heap.

    top: int32 [accounts]. child, following: int32 [blocks], links down and to the next sibling.
    before: int32 [blocks], the previous sibling, or the parent of a first child; NONE at the top,
    OUTSIDE for blocks that are in no heap. score: float64 [blocks]. tie: int64 [blocks].
    """

    top: I32
    child: I32
    following: I32
    before: I32
    score: F64
    tie: I64


def make_leaves(blocks: int, accounts: int) -> Leaves:
    """Return empty heaps."""
    return Leaves(
        np.full(accounts, NONE, np.int32),
        np.full(blocks, NONE, np.int32),
        np.full(blocks, NONE, np.int32),
        np.full(blocks, OUTSIDE, np.int32),
        np.full(blocks, -np.inf),
        np.zeros(blocks, np.int64),
    )


@compiled
def precedes(leaves: Leaves, a: Int, b: Int) -> bool:
    """Whether block a goes before block b."""
    if leaves.score[a] == leaves.score[b]:
        return bool(leaves.tie[a] < leaves.tie[b])
    return bool(leaves.score[a] < leaves.score[b])


@compiled
def meld(leaves: Leaves, a: Int, b: Int) -> Int:
    """Make one heap of two by their tops (NONE for an empty one); return its top."""
    if a < 0:
        return b
    if b < 0:
        return a
    above, below = (b, a) if precedes(leaves, b, a) else (a, b)
    first = leaves.child[above]
    leaves.following[below] = first
    if first >= 0:
        leaves.before[first] = below
    leaves.before[below] = above
    leaves.child[above] = below
    return above


@compiled
def meld_children(leaves: Leaves, b: Int) -> Int:
    """Take a block's children from it, as one heap; return its top."""
    child, following, before = leaves.child, leaves.following, leaves.before
    first = np.int64(child[b])
    child[b] = NONE
    pairs = np.int64(NONE)
    while first >= 0:
        second, rest = np.int64(following[first]), np.int64(NONE)
        before[first], following[first] = NONE, NONE
        if second >= 0:
            rest = np.int64(following[second])
            before[second], following[second] = NONE, NONE
        pair = np.int64(meld(leaves, first, second))
        following[pair] = pairs
        pairs, first = pair, rest
    top = np.int64(NONE)
    while pairs >= 0:
        rest = np.int64(following[pairs])
        following[pairs] = NONE
        top = np.int64(meld(leaves, top, pairs))
        pairs = rest
    return top


@compiled
def put(leaves: Leaves, account: Int, b: Int) -> None:
    """Add a block that is in no heap."""
    leaves.before[b] = NONE
    leaves.top[account] = meld(leaves, np.int64(leaves.top[account]), np.int64(b))


@compiled
def take_out(leaves: Leaves, account: Int, b: Int) -> None:
    """Take a block out of its heap."""
    child, following, before = leaves.child, leaves.following, leaves.before
    at, after = np.int64(before[b]), np.int64(following[b])
    below = np.int64(meld_children(leaves, b))
    if at == NONE:
        leaves.top[account] = below
    else:
        if child[at] == b:
            child[at] = after
        else:
            following[at] = after
        if after >= 0:
            before[after] = at
        leaves.top[account] = meld(leaves, np.int64(leaves.top[account]), below)
    following[b] = NONE
    before[b] = OUTSIDE


@compiled
def account_of(meta: I32, roots: I64, b: Int) -> Int:
    """Return who is charged with a block."""
    return int(roots[meta[b, ROOT], ACCOUNT])


@compiled
def is_leaf(meta: I32, roots: I64, b: Int) -> bool:
    """Whether no sequence holds or pin keeps a published block, and nothing hangs on it.

    Ones that a copy reads count: a copy says nothing when it lets go, unlike a sequence.
    """
    if meta[b, STATE] != PUBLISHED or meta[b, REF] > 0 or meta[b, KEEP] > 0:
        return False
    return bool(meta[b, FIRST_CHILD] < 0 and roots[meta[b, ROOT], DEAD] == 0)


@compiled
def offer(meta: I32, roots: I64, leaves: Leaves, b: Int) -> None:
    """Put a block into its account's heap if it is a leaf and not there yet."""
    if b >= 0 and leaves.before[b] == OUTSIDE and is_leaf(meta, roots, b):
        put(leaves, account_of(meta, roots, b), b)


@compiled
def offer_all(meta: I32, roots: I64, leaves: Leaves) -> None:
    """Empty the heaps, and put every leaf into its own."""
    leaves.top[:] = NONE
    leaves.child[:] = NONE
    leaves.following[:] = NONE
    leaves.before[:] = OUTSIDE
    for b in range(leaves.before.shape[0]):
        offer(meta, roots, leaves, b)


@compiled
def rank_blocks(
    meta: I32, roots: I64, leaves: Leaves, blocks: I32, rows: F64, slots: I32, ties: I64
) -> None:
    """Give blocks the scores in their slots' rows, and these ties; none of them stays in a heap."""
    for i in range(blocks.shape[0]):
        b = blocks[i]
        if leaves.before[b] != OUTSIDE:
            take_out(leaves, account_of(meta, roots, b), b)
        leaves.score[b] = rows[slots[i], 0]
        leaves.tie[b] = ties[i]


@compiled
def clear_top(meta: I32, roots: I64, leaves: Leaves, account: Int, aside: I32, n: Int) -> Int:
    """Take blocks off the top of a heap that may not go now, until one may.

    aside: gets those that a copy reads, after the `n` before them; returns how many there are.
    """
    b = np.int64(leaves.top[account])
    while b >= 0:
        leaf = is_leaf(meta, roots, b)
        if leaf and meta[b, PIN] == 0:
            break
        take_out(leaves, account, b)
        if leaf:
            aside[n] = b
            n += 1
        b = np.int64(leaves.top[account])
    return n


@compiled
def lowest(accounts: I64, leaves: Leaves, floors: I64) -> Int:
    """Find whose leaf goes next; accounts at their floors are left out. NONE if there is none."""
    best: Int = NONE
    for a in range(OPERATOR + 1, accounts.shape[0]):
        if leaves.top[a] < 0 or accounts[a, HELD] <= floors[a]:
            continue
        if best == NONE or precedes(leaves, leaves.top[a], leaves.top[best]):
            best = a
    return best


@compiled
def evict_lowest(
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    leaves: Leaves,
    floors: I64,
    evicted: I64,
    lost: I64,
    departed: I32,
    left: Int,
    out: I32,
    n: Int,
) -> tuple[Int, Int]:
    """Go on after n victims in out with leaves, the lowest first; see `victims.evict_oldest`."""
    aside = np.empty(leaves.before.shape[0], np.int32)
    pinned: Int = 0
    for account in range(1, accounts.shape[0]):
        pinned = clear_top(meta, roots, leaves, account, aside, pinned)
    while n < out.shape[0]:
        a = lowest(accounts, leaves, floors)
        if a == NONE:
            break
        b = leaves.top[a]
        parent = meta[b, PARENT]
        take_out(leaves, a, b)
        unlink(meta, b)
        leave(meta, roots, table, keys, b)
        count_out(roots, accounts, lost, meta[b, ROOT], CACHED, 1)
        evicted[meta[b, OWNER]] += 1
        out[n], departed[left] = b, b
        n += 1
        left += 1
        offer(meta, roots, leaves, parent)
        pinned = clear_top(meta, roots, leaves, a, aside, pinned)
    for i in range(pinned):
        put(leaves, account_of(meta, roots, aside[i]), aside[i])
    return n, left


@compiled
def evict_by_score(
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    terms: F64,
    leaves: Leaves,
    asking: Int,
    own: Int,
    used_since: float,
    evicted: I64,
    lost: I64,
    departed: I32,
    out: I32,
) -> tuple[Int, Int]:
    """Do what `victims.evict_by_age` does, but for the order of published blocks."""
    floors = np.empty(accounts.shape[0], np.int64)
    n: Int = 0
    left: Int = 0
    for phase in range(3):
        goal = out[:own] if phase == 0 else out
        if n >= goal.shape[0]:
            continue
        set_floors(phase, accounts, terms, keys.shape[0], asking, used_since, out.shape[0], floors)
        n, left = evict_oldest(
            meta,
            roots,
            accounts,
            table,
            keys,
            floors,
            TAILS,
            evicted,
            lost,
            departed,
            left,
            goal,
            n,
        )
        # What a tail hung on may be a leaf by now.
        for i in range(n):
            offer(meta, roots, leaves, meta[out[i], PARENT])
        n, left = evict_lowest(
            meta,
            roots,
            accounts,
            table,
            keys,
            leaves,
            floors,
            evicted,
            lost,
            departed,
            left,
            goal,
            n,
        )
    return n, left


@compiled
def first_broken(meta: I32, roots: I64, leaves: Leaves) -> Int:
    """Return a block whose place in the heaps is not as it should be, NONE if there is none.

    Reads no index that was not checked, and goes over each block once at most.
    """
    blocks = leaves.before.shape[0]
    seen = np.zeros(blocks, np.bool_)
    stack = np.empty(blocks, np.int32)
    for a in range(leaves.top.shape[0]):
        top = leaves.top[a]
        if top == NONE:
            continue
        if top < 0 or top >= blocks or leaves.before[top] != NONE or leaves.following[top] != NONE:
            return int(top)
        if seen[top]:
            return int(top)
        seen[top] = True
        stack[0], waiting = top, 1
        while waiting > 0:
            waiting -= 1
            above = stack[waiting]
            if meta[above, STATE] == PUBLISHED and account_of(meta, roots, above) != a:
                return int(above)
            before, b = above, leaves.child[above]
            while b != NONE:
                if b < 0 or b >= blocks or seen[b] or leaves.before[b] != before:
                    return int(above)
                if precedes(leaves, b, above):
                    return int(b)
                seen[b] = True
                stack[waiting] = b
                waiting += 1
                before, b = b, leaves.following[b]
    for b in range(blocks):
        if (leaves.before[b] == OUTSIDE) == seen[b]:
            return b
        if not seen[b] and (leaves.child[b] != NONE or leaves.following[b] != NONE):
            return b
    return NONE


@compiled
def first_left_out(meta: I32, roots: I64, leaves: Leaves) -> Int:
    """Return a leaf that is in no heap, NONE if there is none."""
    for b in range(leaves.before.shape[0]):
        if leaves.before[b] == OUTSIDE and is_leaf(meta, roots, b) and meta[b, PIN] == 0:
            return b
    return NONE
