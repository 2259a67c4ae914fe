"""Inner loops of the audit over open sequences; see `audit_ops`."""

from typing import NamedTuple

import numpy as np

from stemkv.kvstore.audit_ops import Blocks
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
    matches,
)
from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import I32, I64, NONE, PARENT, PUBLISHED, QUARANTINED, REF, STATE, Int

# Faults of what sequences hold.
NO_FAULT, WRITES_PUBLISHED, WRITES_SHARED, WRITES_ON_BAD, NOT_ITS_CHAIN, OTHER_TOKENS = range(6)


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
