"""Inner loops of `curves`: LRU stacks over sampled blocks that know which size holds each block.

An account's sampled blocks stand on two stacks, the most recent first: on the whole one, and on
that of its group (the blocks are cut into GROUPS by their keys). On each stack, a mark points at
the last block that a cache of each of the SIZES would hold; a block's zone on a stack is the first
size that holds it, SIZES if none does. When a block comes to the top from beyond a mark, what is
marked falls into the next zone, and the mark moves up by one: all sizes are followed at once, in a
few steps a use, and exactly.
"""

from typing import NamedTuple

import numpy as np

from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import F64, I32, I64, NONE, U64, Int

GROUPS = 16
SIZES = 4
STACKS = 1 + GROUPS
"""Stack 0 is the whole one, stack 1 + g that of group g; row s of `rows` is stack s's sentinel."""

# Columns of rows. Those of a stack's kind (0 whole, 1 group) are at the column + the kind.
NEWER, OLDER, ZONE, NEXT = 0, 2, 4, 6
ROW_COLUMNS = 7

# Columns of marks after the SIZES marks. Rows STACKS + kind hold the depths of the marks.
LENGTH = SIZES
MARK_COLUMNS = SIZES + 1


class Stacks(NamedTuple):
    """One account's sample.

    keys: uint64 [rows], the high half of a block's key, which no two sampled blocks share in
    practice. rows: int32 [rows, ROW_COLUMNS], neighbours and zones, and the next row of the same
    bucket. buckets: int32 [power of two], the first row of each. marks: int32 [STACKS + 2,
    MARK_COLUMNS]. misses: float64 [STACKS, SIZES], estimates of blocks that were looked up and
    that a cache of this size would not have had. taken: int64 [1], rows in use, sentinels included.
    """

    keys: U64
    rows: I32
    buckets: I32
    marks: I32
    misses: F64
    taken: I64


def make_stacks(blocks: int, depths: I32) -> Stacks:
    """Return stacks for so many blocks. depths: int32 [2, SIZES], of the marks of each kind."""
    rows = np.full((STACKS + blocks, ROW_COLUMNS), NONE, np.int32)
    for column in (NEWER, OLDER):
        rows[:STACKS, column : column + 2] = np.arange(STACKS)[:, None]
    marks = np.full((STACKS + 2, MARK_COLUMNS), NONE, np.int32)
    marks[:STACKS, LENGTH] = 0
    marks[STACKS:, :SIZES] = depths
    return Stacks(
        np.zeros(STACKS + blocks, np.uint64),
        rows,
        np.full(1 << max(4, (blocks - 1).bit_length()), NONE, np.int32),
        marks,
        np.zeros((STACKS, SIZES)),
        np.array([STACKS]),
    )


@compiled
def bucket_of(buckets: I32, key: np.uint64) -> Int:
    """Return the bucket of a key, by bits that decide neither its group nor the sample."""
    return np.int64(key >> np.uint64(8)) & np.int64(buckets.shape[0] - 1)


@compiled
def find(stacks: Stacks, key: np.uint64) -> Int:
    """Return the row of a key, NONE without."""
    row: Int = stacks.buckets[bucket_of(stacks.buckets, key)]
    while row != NONE and stacks.keys[row] != key:
        row = stacks.rows[row, NEXT]
    return row


@compiled
def raise_to_top(stacks: Stacks, stack: Int, kind: Int, row: Int) -> None:
    """Put a row at the top of a stack; if it is new there, its zone is SIZES."""
    rows, marks = stacks.rows, stacks.marks
    zone = rows[row, ZONE + kind]
    for size in range(SIZES):
        marked = marks[stack, size]
        if marked == NONE or (zone <= size and marked != row):
            continue
        if marked != row:
            rows[marked, ZONE + kind] = size + 1
        above = rows[marked, NEWER + kind]
        marks[stack, size] = above if above != stack else row
    newer, older = rows[row, NEWER + kind], rows[row, OLDER + kind]
    is_new = newer == NONE
    if not is_new:
        rows[newer, OLDER + kind] = older
        rows[older, NEWER + kind] = newer
    top = rows[stack, OLDER + kind]
    rows[row, NEWER + kind] = stack
    rows[row, OLDER + kind] = top
    rows[top, NEWER + kind] = row
    rows[stack, OLDER + kind] = row
    marks[stack, LENGTH] += is_new
    first = SIZES
    for size in range(SIZES - 1, -1, -1):
        depth = marks[STACKS + kind, size]
        if depth > 0:
            first = size
        if is_new and depth == marks[stack, LENGTH]:
            marks[stack, size] = rows[stack, NEWER + kind]
    rows[row, ZONE + kind] = first


@compiled
def remove_oldest(stacks: Stacks) -> Int:
    """Take out the row that is the last of the whole stack, and so of its group's; return it."""
    rows, marks, buckets = stacks.rows, stacks.marks, stacks.buckets
    row: Int = rows[0, NEWER]
    group = 1 + np.int64(stacks.keys[row] & np.uint64(GROUPS - 1))
    for kind in range(2):
        stack = group if kind else 0
        newer = rows[row, NEWER + kind]
        rows[newer, OLDER + kind] = stack
        rows[stack, NEWER + kind] = newer
        rows[row, NEWER + kind] = NONE
        marks[stack, LENGTH] -= 1
        for size in range(SIZES):
            if marks[stack, size] == row:
                marks[stack, size] = NONE
    bucket = bucket_of(buckets, stacks.keys[row])
    before = buckets[bucket]
    if before == row:
        buckets[bucket] = rows[row, NEXT]
        return row
    while rows[before, NEXT] != row:
        before = rows[before, NEXT]
    rows[before, NEXT] = rows[row, NEXT]
    return row


@compiled
def touch(stacks: Stacks, key: np.uint64, may_evict: bool) -> bool:
    """Make a block the most recent; False, and nothing done, if there is no room for a new one."""
    keys, rows, taken = stacks.keys, stacks.rows, stacks.taken
    row = find(stacks, key)
    if row == NONE:
        if taken[0] < keys.shape[0]:
            row = int(taken[0])
            taken[0] += 1
        elif may_evict:
            row = remove_oldest(stacks)
        else:
            return False
        keys[row] = key
        rows[row, ZONE] = SIZES
        rows[row, ZONE + 1] = SIZES
        bucket = bucket_of(stacks.buckets, key)
        rows[row, NEXT] = stacks.buckets[bucket]
        stacks.buckets[bucket] = row
    raise_to_top(stacks, 0, 0, row)
    raise_to_top(stacks, 1 + np.int64(key & np.uint64(GROUPS - 1)), 1, row)
    return True


@compiled
def look_up(stacks: Stacks, key: np.uint64, weight: float) -> None:
    """Count a looked-up block, which stands for `weight` blocks, at each size that lacks it."""
    row = find(stacks, key)
    for kind in range(2):
        stack = 1 + np.int64(key & np.uint64(GROUPS - 1)) if kind else 0
        zone = SIZES if row == NONE else stacks.rows[row, ZONE + kind]
        for size in range(zone):
            stacks.misses[stack, size] += weight


@compiled
def enter(stacks: Stacks, keys: U64, end: int, limit: np.uint64, may_evict: bool) -> int:
    """Touch the sampled blocks of the first `end`, the last first; 0, or where room ran out.

    What is returned is the `end` to go on with, once there is room.
    """
    for i in range(end - 1, -1, -1):
        if keys[i, 1] <= limit and not touch(stacks, keys[i, 1], may_evict):
            return i + 1
    return 0


@compiled
def sampled_end(keys: U64, limit: np.uint64) -> int:
    """Return the place after the last of keys uint64 [blocks, 2] that is sampled, 0 without.

    Those whose high half is not over limit are sampled.
    """
    for i in range(keys.shape[0] - 1, -1, -1):
        if keys[i, 1] <= limit:
            return i + 1
    return 0


@compiled
def use(stacks: Stacks, keys: U64, looked_up: int, limit: np.uint64, may_evict: bool) -> int:
    """Look up the first blocks of a chain, then enter all of it; returns what `enter` does."""
    weight = 2.0**64 / (float(limit) + 1.0)
    for i in range(looked_up):
        if keys[i, 1] <= limit:
            look_up(stacks, keys[i, 1], weight)
    return enter(stacks, keys, keys.shape[0], limit, may_evict)


@compiled
def move(old: Stacks, new: Stacks, limit: np.uint64) -> None:
    """Enter into new, empty stacks what is in the old ones and not over limit, in order."""
    row = old.rows[0, NEWER]
    while row != 0:
        if old.keys[row] <= limit:
            touch(new, old.keys[row], False)
        row = old.rows[row, NEWER]
    new.misses[:] = old.misses
