"""Inner loops over whole chains and whole batches: match, publish, extend, reserve, commit.

See `ops` for the arrays. Keys are hashed with xxh3_128 here, a chain in one call.
"""

import numpy as np

from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import (
    ACCOUNT,
    COLLISION,
    FILL,
    I32,
    I64,
    KEY_HIGH,
    KEY_LOW,
    NEXT_SIBLING,
    NONE,
    OWNER,
    PARENT,
    PUBLISHED,
    REF,
    STATE,
    TAIL,
    U64,
    Int,
    drop,
    enter,
    find_live,
    first_child,
    hold,
    insert_key,
    is_held,
    let_go,
    remove_child,
    tag_of,
)
from stemkv.kvstore.victims import AHEAD, available
from stemkv.kvstore.xxh3 import swapped, xxh3_128

# Columns of a sequence's row; see `sequences.SequenceState`.
LENGTH, COMPUTED, RESERVED, BLOCKS, PUBLISHED_BLOCKS = 0, 1, 2, 3, 4
WRITES, SEQUENCE_OWNER, PROMPT_BLOCKS, ROOT_INDEX, ENTRY, PUBLIC_ROOT = 5, 6, 7, 8, 9, 10
SEQUENCE_COLUMNS = 11


@compiled
def common_prefix(tokens: I32, b: Int, prompt: I32, offset: Int, limit: Int) -> Int:
    """How many of block b's first tokens, at most limit, equal prompt[offset:]."""
    n = 0
    while n < limit and tokens[b, n] == prompt[offset + n]:
        n += 1
    return n


@compiled
def matches(tokens: I32, meta: I32, b: Int, parent: Int, prompt: I32, offset: Int) -> bool:
    """Whether b is the published child of parent that holds the block of prompt at offset."""
    if meta[b, STATE] != PUBLISHED or meta[b, PARENT] != parent:
        return False
    size = int(tokens.shape[1])
    return common_prefix(tokens, b, prompt, offset, size) == size


@compiled
def walk(
    tokens: I32, meta: I32, roots: I64, prompt: I32, parent: Int, start: Int, stop: Int, out: I32
) -> Int:
    """Follow newest children from block index start; return the index of the first not found so.

    out[i] gets the block of index i. Compares parent and tokens, so it needs no key.
    """
    size = tokens.shape[1]
    for i in range(start, stop):
        b = first_child(meta, roots, parent)
        if b < 0 or not matches(tokens, meta, b, parent, prompt, i * size):
            return i
        out[i] = b
        parent = b
    return stop


@compiled
def best_partial(
    tokens: I32, meta: I32, roots: I64, prompt: I32, offset: Int, parent: Int, owner: Int
) -> tuple[Int, Int]:
    """Return the child of parent with the longest common prefix with prompt[offset:]; its length.

    Looks at the 32 most recently used children, published or tails, of this owner alone.
    """
    best: Int = NONE
    length: Int = 0
    rest = prompt.shape[0] - offset
    b = first_child(meta, roots, parent)
    for _ in range(32):
        if b < 0:
            break
        if meta[b, OWNER] == owner:
            n = common_prefix(tokens, b, prompt, offset, min(rest, meta[b, FILL]))
            if n > length:
                best, length = b, n
        b = meta[b, NEXT_SIBLING]
    return best, length


@compiled
def find_twin(
    tokens: I32,
    meta: I32,
    roots: I64,
    table: I64,
    keys: U64,
    prompt: I32,
    offset: Int,
    parent: Int,
    low: np.uint64,
    high: np.uint64,
) -> Int:
    """Return the published block under this key if it is the same, COLLISION if it is another."""
    b = find_live(table, keys, meta, roots, low, high)
    if b < 0:
        return NONE
    if matches(tokens, meta, b, parent, prompt, offset):
        return b
    return COLLISION


@compiled
def block_key(
    above_low: np.uint64, above_high: np.uint64, tokens: I32, offset: Int, words: U64
) -> tuple[np.uint64, np.uint64]:
    """Key of the block of `tokens` at offset below a parent with this key, as `keys` has it.

    words: scratch, 2 + block_size / 2; the block size is even. Twin: `keys.chain`.
    """
    words[0], words[1] = above_low, above_high
    for i in range(words.shape[0] - 2):
        low = np.uint64(np.uint32(tokens[offset + 2 * i]))
        words[2 + i] = low | (np.uint64(np.uint32(tokens[offset + 2 * i + 1])) << np.uint64(32))
    low_half, high_half = xxh3_128(words)
    # A digest is written most significant byte first, and read as two little-endian words.
    return swapped(high_half), swapped(low_half)


@compiled
def key_above(keys: U64, roots: I64, parent: Int) -> tuple[np.uint64, np.uint64]:
    """Return the key that a child of this parent is hashed with."""
    if parent >= 0:
        return keys[parent, 0], keys[parent, 1]
    return np.uint64(roots[-2 - parent, KEY_LOW]), np.uint64(roots[-2 - parent, KEY_HIGH])


@compiled
def child_key(
    keys: U64, roots: I64, tokens: I32, offset: Int, parent: Int, words: U64
) -> tuple[np.uint64, np.uint64]:
    """Key of parent's child that holds the block of `tokens` at offset; see `block_key`."""
    low, high = key_above(keys, roots, parent)
    return block_key(low, high, tokens, offset, words)


@compiled
def hash_ahead(
    tokens: I32,
    table: I64,
    history: I32,
    blocks: I32,
    start: Int,
    above_low: np.uint64,
    above_high: np.uint64,
    ahead: U64,
) -> None:
    """Make the keys of a sequence's blocks from index start on into `ahead`, uint64 [blocks, 2].

    Reads what is written to next, the index and the blocks' tokens, so that it is in the caches:
    these reads do not wait for each other, as they would one block after the other.
    """
    size = tokens.shape[1]
    words = np.empty(2 + size // 2, np.uint64)
    mask, read = np.int64(table.shape[0] - 1), np.int64(0)
    low, high = above_low, above_high
    for k in range(ahead.shape[0]):
        low, high = block_key(low, high, history, (start + k) * size, words)
        ahead[k, 0], ahead[k, 1] = low, high
        read ^= table[tag_of(low) & mask] ^ tokens[blocks[start + k], 0]
    words[0] = np.uint64(read)  # or the compiler leaves the reads out


@compiled
def match_chain(
    tokens: I32,
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    prompt: I32,
    root: Int,
    owner: Int,
    out: I32,
) -> tuple[int, int, int, int, int]:
    """Find a prompt's leading published blocks, and the best part of one more.

    A parent's newest child is tried first, then its key is looked up; a parent without children
    needs no key. out gets the blocks; returned are their count, what `best_partial` says of the
    owner's blocks after them, how many of them nothing holds, and how many blocks the root's
    account could be given now (`victims.available`).
    """
    size = tokens.shape[1]
    words = np.empty(2 + size // 2, np.uint64)
    parent = np.int64(-2 - root)
    n, unheld, block, length = 0, 0, NONE, 0
    while n < out.shape[0]:
        b = np.int64(first_child(meta, roots, parent))
        if b < 0:
            break
        if not matches(tokens, meta, b, parent, prompt, n * size):
            low, high = child_key(keys, roots, prompt, n * size, parent, words)
            b = np.int64(
                find_twin(tokens, meta, roots, table, keys, prompt, n * size, parent, low, high)
            )
            if b < 0:
                break
        out[n] = b
        parent = b
        n += 1
        if not is_held(meta, b):
            unheld += 1
    if n * size < prompt.shape[0]:
        found = best_partial(tokens, meta, roots, prompt, n * size, parent, owner)
        block, length = int(found[0]), int(found[1])
    room, _ = available(accounts, keys.shape[0], roots[root, ACCOUNT])
    return n, block, length, unheld, int(room)


@compiled
def publish_chain(
    tokens: I32,
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    history: I32,
    blocks: I32,
    start: Int,
    stop: Int,
    base: Int,
    root: Int,
    owner: Int,
    may_swap: bool,
    stored: I32,
    new: Int,
) -> tuple[Int, Int]:
    """Publish a sequence's blocks of index start to stop - 1; see `Publisher.publish`.

    base: the index whose parent is the root. stored: gets the blocks that are new in the index,
    after the `new` before them. Returns the index reached, below stop only where one collides, and
    how many are new by now.
    """
    size = tokens.shape[1]
    top = np.int64(-2 - root)
    ahead = np.empty((min(AHEAD, stop - start), 2), np.uint64)
    hashed, hashed_to = start, start
    for i in range(start, stop):
        parent = np.int64(blocks[i - 1]) if i > base else top
        offset = i * size
        if i == hashed_to:
            hashed, hashed_to = i, min(i + AHEAD, stop)
            above_low, above_high = key_above(keys, roots, parent)
            some = ahead[: hashed_to - hashed]
            hash_ahead(tokens, table, history, blocks, i, above_low, above_high, some)
        low, high = ahead[i - hashed, 0], ahead[i - hashed, 1]
        twin = find_twin(tokens, meta, roots, table, keys, history, offset, parent, low, high)
        b = blocks[i]
        if twin == b:
            continue  # a fork has published it
        if twin == COLLISION or (twin >= 0 and not may_swap):
            return i, new
        if twin >= 0:
            blocks[i] = twin
            hold(meta, roots, accounts, twin)
            let_go(meta, roots, accounts, b)
            continue
        if first_child(meta, roots, parent) >= 0:
            drop_covered_tail(
                tokens, meta, roots, accounts, table, keys, history, offset, size, parent, owner
            )
        for j in range(size):
            tokens[b, j] = history[offset + j]
        enter(meta, roots, accounts, b, size, parent, root, owner)
        meta[b, STATE] = PUBLISHED
        keys[b, 0], keys[b, 1] = low, high
        insert_key(table, keys, b)
        stored[new] = b
        new += 1
    return stop, new


@compiled
def drop_covered_tail(
    tokens: I32,
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    known: I32,
    offset: Int,
    fill: Int,
    parent: Int,
    owner: Int,
) -> Int:
    """Free a tail that known[offset : offset + fill] goes on from; how much of it is there."""
    b, same = best_partial(tokens, meta, roots, known[: offset + fill], offset, parent, owner)
    if b >= 0 and meta[b, STATE] == TAIL and same == meta[b, FILL] and same < fill:
        remove_child(meta, roots, b)
        drop(meta, roots, accounts, table, keys, b)
        return 0
    return same


# --- a batch of sequences at once -----------------------------------------------------------------


@compiled
def extend_batch(rows: I64, history: I32, batch: I32, new_tokens: I32) -> Int:
    """Append a token to each sequence, to none if one is full: that one's number, else NONE."""
    for s in batch:
        if rows[s, LENGTH] >= history.shape[1]:
            return int(s)
    for k in range(batch.shape[0]):
        s = batch[k]
        history[s, rows[s, LENGTH]] = new_tokens[k]
        rows[s, LENGTH] += 1
    return NONE


@compiled
def survey_batch(
    meta: I32, rows: I64, tables: I32, batch: I32, start: Int, size: Int
) -> tuple[Int, Int, Int]:
    """Say how far a batch, from start on, can be reserved without a copy: stop, blocks, for whom.

    Stops before a sequence that would write to a shared block, or whose root or owner is not that
    of the first one that misses blocks (which is named, NONE without).
    """
    needed, first = 0, np.int64(NONE)
    for k in range(start, batch.shape[0]):
        s = np.int64(batch[k])
        if rows[s, LENGTH] <= rows[s, RESERVED]:
            continue
        last = (rows[s, LENGTH] + size - 1) // size
        for i in range(rows[s, COMPUTED] // size, min(last, rows[s, BLOCKS])):
            if meta[tables[s, i], REF] > 1:
                return k, needed, first
        missing = max(0, last - rows[s, BLOCKS])
        if missing > 0:
            if first == NONE:
                first = s
            elif (
                rows[s, ROOT_INDEX] != rows[first, ROOT_INDEX]
                or rows[s, SEQUENCE_OWNER] != rows[first, SEQUENCE_OWNER]
            ):
                return k, needed, first
        needed += missing
    return batch.shape[0], needed, first


@compiled
def fit_batch(
    rows: I64, batch: I32, start: Int, stop: Int, size: Int, available: Int
) -> tuple[Int, Int]:
    """Say how many sequences from start on get all that they miss: where to stop, and blocks."""
    needed = 0
    for k in range(start, stop):
        s = batch[k]
        if rows[s, LENGTH] <= rows[s, RESERVED]:
            continue
        missing = max(0, (rows[s, LENGTH] + size - 1) // size - rows[s, BLOCKS])
        if needed + missing > available:
            return k, needed
        needed += missing
    return stop, needed


@compiled
def reserve_batch(
    rows: I64, tables: I32, batch: I32, start: Int, stop: Int, size: Int, fresh: I32
) -> None:
    """Reserve all that is known of sequences start to stop - 1 of a batch, with fresh blocks."""
    n = 0
    for k in range(start, stop):
        s = batch[k]
        if rows[s, LENGTH] <= rows[s, RESERVED]:
            continue
        while rows[s, BLOCKS] * size < rows[s, LENGTH]:
            tables[s, rows[s, BLOCKS]] = fresh[n]
            rows[s, BLOCKS] += 1
            n += 1
        rows[s, RESERVED] = rows[s, LENGTH]


@compiled
def commit_batch(
    tokens: I32,
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    rows: I64,
    history: I32,
    tables: I32,
    batch: I32,
    operator: Int,
    may_swap: bool,
) -> I32:
    """Take all that is reserved as computed, publish full blocks; return those that are new.

    operator: owner of what is published below a public root.
    """
    size = tokens.shape[1]
    most = 0
    for s in batch:
        most += rows[s, RESERVED] // size - rows[s, PUBLISHED_BLOCKS]
    stored = np.empty(max(0, most), np.int32)
    new: Int = 0
    for s in batch:
        rows[s, COMPUTED] = rows[s, RESERVED]
        stop = rows[s, COMPUTED] // size
        if rows[s, WRITES] == 0 or rows[s, PUBLISHED_BLOCKS] >= stop:
            continue
        new = publish_row(
            tokens,
            meta,
            roots,
            accounts,
            table,
            keys,
            rows[s],
            history[s],
            tables[s],
            stop,
            operator,
            may_swap,
            stored,
            new,
        )
    return stored[:new]


@compiled
def publish_row(
    tokens: I32,
    meta: I32,
    roots: I64,
    accounts: I64,
    table: I64,
    keys: U64,
    row: I64,
    history: I32,
    blocks: I32,
    stop: Int,
    operator: Int,
    may_swap: bool,
    stored: I32,
    new: Int,
) -> Int:
    """Publish one sequence's blocks up to index stop - 1: the public ones, then its own.

    A sequence that meets a collision writes no more. Returns how many blocks are new by now.
    """
    entry = row[ENTRY]
    reached = row[PUBLISHED_BLOCKS]
    if reached < entry:
        goal = min(stop, entry)
        reached, new = publish_chain(
            tokens,
            meta,
            roots,
            accounts,
            table,
            keys,
            history,
            blocks,
            reached,
            goal,
            0,
            row[PUBLIC_ROOT],
            operator,
            may_swap,
            stored,
            new,
        )
        if reached < goal:
            row[PUBLISHED_BLOCKS] = reached
            row[WRITES] = 0
            return new
    if reached < stop:
        reached, new = publish_chain(
            tokens,
            meta,
            roots,
            accounts,
            table,
            keys,
            history,
            blocks,
            reached,
            stop,
            entry,
            row[ROOT_INDEX],
            row[SEQUENCE_OWNER],
            may_swap,
            stored,
            new,
        )
        if reached < stop:
            row[WRITES] = 0
    row[PUBLISHED_BLOCKS] = reached
    return new
