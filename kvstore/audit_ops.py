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
    is_held,
    kind_of,
    list_of,
)

Marks = npt.NDArray[np.bool_]

# Faults of links.
NO_BLOCK, TWICE, UNLINKED, NOT_ITS_LIST, OTHER_END, OTHER_ROOT = 1, 2, 3, 4, 5, 6


class Blocks(NamedTuple):
    """The pool's arrays; see `ops`."""

    meta: I32
    tokens: I32
    keys: U64
    table: I64
    roots: I64
    accounts: I64


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
    # Those of accounts to come too: nothing is on them.
    for which in range(meta.shape[0] - capacity):
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
