"""Inner loops over the block arrays: order lists, the key index, the tree, references.

One row of `meta` is one physical block; there is no Python object a block. All compiled code of
the store is in this one file, because numba's disk cache notices a change of the file that a
function is in, not of the functions that it calls.

    meta   int32  [capacity + 3, COLUMNS]   a row a block, then one sentinel a list
    tokens int32  [capacity, block_size]    what a published block or a tail holds
    keys   uint64 [capacity, 2]             its 16-byte key, low half first
    table  int64  [power of two >= 2 x capacity]  open addressing over keys: 31 bits of the key,
                                                  then the block's number; -1 empty
    heads  int32  [roots]                   newest child of each root
    count  int64  [COUNTS]

A parent is a block's number, or -2 - r for root r. Children of a parent form a list from the most
recently used to the least.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from stemkv.kvstore.jit import compiled
from stemkv.kvstore.xxh3 import swapped, xxh3_128

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]
Int = int | np.signedinteger[Any]
"""A number as compiled code has it; plain Python when it is not compiled."""

# Columns of meta.
REF, PIN, PARENT, FIRST_CHILD, NEXT_SIBLING, PREV_SIBLING = 0, 1, 2, 3, 4, 5
PREV, NEXT, ROOT, OWNER, FILL, STATE = 6, 7, 8, 9, 10, 11
COLUMNS = 12

# States. FREE: in the free list. PRIVATE: written by its one holder. PUBLISHED: in the index,
# immutable. TAIL: partly filled, no key, only ever copied from. QUARANTINED: out of service.
FREE, PRIVATE, PUBLISHED, TAIL, QUARANTINED = 0, 1, 2, 3, 4

# Counts of blocks on the three lists; their sentinels are rows capacity + the same number.
FREE_LIST, CACHED_LIST, TAIL_LIST = 0, 1, 2
COUNTS = 3

NONE = -1
COLLISION = -2

# Columns of a sequence's row; see `sequences.SequenceState`.
LENGTH, COMPUTED, RESERVED, BLOCKS, PUBLISHED_BLOCKS = 0, 1, 2, 3, 4
WRITES, SEQUENCE_OWNER, PROMPT_BLOCKS, ROOT_INDEX = 5, 6, 7, 8
SEQUENCE_COLUMNS = 9


@compiled
def link_newest(meta: I32, count: I64, which: Int, b: Int) -> None:
    """Put block b at the newest end of a list."""
    head = meta.shape[0] - 3 + which
    last = meta[head, PREV]
    meta[last, NEXT] = b
    meta[b, PREV] = last
    meta[b, NEXT] = head
    meta[head, PREV] = b
    count[which] += 1


@compiled
def free_all(meta: I32, count: I64) -> None:
    """Put every block on the free list."""
    for b in range(meta.shape[0] - COUNTS):
        link_newest(meta, count, FREE_LIST, b)


@compiled
def unlink(meta: I32, count: I64, which: Int, b: Int) -> None:
    """Take block b off its list."""
    before, after = meta[b, PREV], meta[b, NEXT]
    meta[before, NEXT] = after
    meta[after, PREV] = before
    count[which] -= 1


@compiled
def first_child(meta: I32, heads: I32, parent: Int) -> Int:
    """Return the most recently used child of a block or root, NONE without."""
    if parent >= 0:
        return int(meta[parent, FIRST_CHILD])
    return int(heads[-2 - parent])


@compiled
def set_first_child(meta: I32, heads: I32, parent: Int, b: Int) -> None:
    """Make b the head of the parent's list of children."""
    if parent >= 0:
        meta[parent, FIRST_CHILD] = b
    else:
        heads[-2 - parent] = b


@compiled
def add_child(meta: I32, heads: I32, parent: Int, b: Int) -> None:
    """Put b at the front of the parent's children."""
    front = first_child(meta, heads, parent)
    meta[b, PARENT] = parent
    meta[b, NEXT_SIBLING] = front
    meta[b, PREV_SIBLING] = NONE
    if front >= 0:
        meta[front, PREV_SIBLING] = b
    set_first_child(meta, heads, parent, b)


@compiled
def remove_child(meta: I32, heads: I32, b: Int) -> None:
    """Take b out of its parent's children."""
    before, after = meta[b, PREV_SIBLING], meta[b, NEXT_SIBLING]
    if before >= 0:
        meta[before, NEXT_SIBLING] = after
    else:
        set_first_child(meta, heads, meta[b, PARENT], after)
    if after >= 0:
        meta[after, PREV_SIBLING] = before


@compiled
def move_to_front(meta: I32, heads: I32, b: Int) -> None:
    """Make b the most recently used child of its parent."""
    if meta[b, PREV_SIBLING] >= 0:
        parent = meta[b, PARENT]
        remove_child(meta, heads, b)
        add_child(meta, heads, parent, b)


@compiled
def tag_of(low: np.uint64) -> np.int64:
    """Return the 31 bits of a key that its entry carries; the lowest ones say where it belongs."""
    return np.int64(low & np.uint64(0x7FFFFFFF))


@compiled
def block_of(entry: np.int64) -> np.int64:
    """Return the block of an entry of the index."""
    return entry & np.int64(0xFFFFFFFF)


@compiled
def find_key(table: I64, keys: U64, low: np.uint64, high: np.uint64) -> Int:
    """Return the block published under a key, NONE without."""
    mask = np.int64(table.shape[0] - 1)
    tag = tag_of(low)
    i = tag & mask
    while table[i] >= 0:
        if table[i] >> 32 == tag:
            b = block_of(table[i])
            if keys[b, 0] == low and keys[b, 1] == high:
                return b
        i = (i + 1) & mask
    return NONE


@compiled
def insert_key(table: I64, keys: U64, b: Int) -> None:
    """Enter a block under the key in its row; the key must not be there."""
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
    tokens: I32, meta: I32, heads: I32, prompt: I32, parent: Int, start: Int, stop: Int, out: I32
) -> Int:
    """Follow newest children from block index start; return the index of the first not found so.

    out[i] gets the block of index i. Compares parent and tokens, so it needs no key.
    """
    size = tokens.shape[1]
    for i in range(start, stop):
        b = first_child(meta, heads, parent)
        if b < 0 or not matches(tokens, meta, b, parent, prompt, i * size):
            return i
        out[i] = b
        parent = b
    return stop


@compiled
def best_partial(
    tokens: I32, meta: I32, heads: I32, prompt: I32, offset: Int, parent: Int, owner: Int
) -> tuple[Int, Int]:
    """Return the child of parent with the longest common prefix with prompt[offset:]; its length.

    Looks at the 32 most recently used children, published or tails, of this owner alone.
    """
    best: Int = NONE
    length: Int = 0
    rest = prompt.shape[0] - offset
    b = first_child(meta, heads, parent)
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
def list_of(meta: I32, b: Int) -> Int:
    """Which list an unreferenced block belongs on."""
    if meta[b, STATE] == PUBLISHED:
        return CACHED_LIST
    if meta[b, STATE] == TAIL:
        return TAIL_LIST
    return FREE_LIST


@compiled
def park(meta: I32, count: I64, b: Int) -> None:
    """Put a block that nothing references any more where it can be taken from."""
    which = list_of(meta, b)
    if which == FREE_LIST:
        meta[b, STATE] = FREE
    link_newest(meta, count, which, b)


@compiled
def reference(meta: I32, heads: I32, count: I64, blocks: I32, column: Int) -> None:
    """Add one reference (REF or PIN) to each published block or tail, as most recently used."""
    for b in blocks:
        if meta[b, REF] == 0 and meta[b, PIN] == 0:
            unlink(meta, count, list_of(meta, b), b)
        meta[b, column] += 1
        if meta[b, STATE] != PRIVATE:
            move_to_front(meta, heads, b)


@compiled
def dereference(meta: I32, count: I64, blocks: I32, column: Int) -> None:
    """Drop one reference (REF or PIN) of each block, the last first: it ages before its parent.

    Cached blocks are put on their list as one run: its end is written once.
    """
    head = meta.shape[0] - 3 + CACHED_LIST
    last = meta[head, PREV]
    added = 0
    for i in range(blocks.shape[0] - 1, -1, -1):
        b = blocks[i]
        meta[b, column] -= 1
        if meta[b, REF] != 0 or meta[b, PIN] != 0:
            continue
        if meta[b, STATE] != PUBLISHED:
            park(meta, count, b)
            continue
        meta[last, NEXT] = b
        meta[b, PREV] = last
        last = b
        added += 1
    meta[last, NEXT] = head
    meta[head, PREV] = last
    count[CACHED_LIST] += added


@compiled
def count_unreferenced(meta: I32, blocks: I32) -> Int:
    """How many of these blocks are held by nothing, so that adopting them takes from the pool."""
    n = 0
    for b in blocks:
        if meta[b, REF] == 0 and meta[b, PIN] == 0:
            n += 1
    return n


@compiled
def withdraw(meta: I32, heads: I32, table: I64, keys: U64, b: Int) -> None:
    """Take a block out of the tree, and out of the index if it is published."""
    if meta[b, STATE] == PUBLISHED:
        delete_key(table, keys, b)
    remove_child(meta, heads, b)


@compiled
def take(meta: I32, heads: I32, table: I64, keys: U64, count: I64, victims: I32, out: I32) -> None:
    """Make out.size blocks PRIVATE with one reference: free ones first, then the given victims."""
    v = 0
    for i in range(out.shape[0]):
        if count[FREE_LIST] > 0:
            b = meta[meta.shape[0] - 3 + FREE_LIST, NEXT]
            unlink(meta, count, FREE_LIST, b)
        else:
            b = victims[v]
            v += 1
            unlink(meta, count, list_of(meta, b), b)
            withdraw(meta, heads, table, keys, b)
        reset(meta, b)
        out[i] = b


@compiled
def find_twin(
    tokens: I32,
    meta: I32,
    table: I64,
    keys: U64,
    prompt: I32,
    offset: Int,
    parent: Int,
    low: np.uint64,
    high: np.uint64,
) -> Int:
    """Return the published block under this key if it is the same, COLLISION if it is another."""
    b = find_key(table, keys, low, high)
    if b < 0:
        return NONE
    if matches(tokens, meta, b, parent, prompt, offset):
        return b
    return COLLISION


@compiled
def enter(meta: I32, heads: I32, b: Int, fill: Int, parent: Int, root: Int, owner: Int) -> None:
    """Put a block that holds `fill` tokens into the tree; the caller sets tokens and state."""
    meta[b, FILL] = fill
    meta[b, ROOT] = root
    meta[b, OWNER] = owner
    meta[b, FIRST_CHILD] = NONE
    add_child(meta, heads, parent, b)


@compiled
def drop(meta: I32, table: I64, keys: U64, count: I64, b: Int) -> bool:
    """Take a block out of index and lists but leave the tree's links; True if it is now free.

    A block that is still referenced becomes PRIVATE and goes on serving its holders.
    """
    if meta[b, STATE] == PUBLISHED:
        delete_key(table, keys, b)
    held = meta[b, REF] > 0 or meta[b, PIN] > 0
    if not held:
        unlink(meta, count, list_of(meta, b), b)
    meta[b, STATE] = PRIVATE
    meta[b, PARENT] = NONE
    meta[b, FIRST_CHILD] = NONE
    if not held:
        park(meta, count, b)
    return not held


@compiled
def cut_roots(meta: I32, heads: I32, dead: npt.NDArray[np.bool_], out: I32) -> Int:
    """List every block below the dead roots in out, and cut them off; return how many."""
    n = 0
    for b in range(meta.shape[0] - 3):
        if (meta[b, STATE] == PUBLISHED or meta[b, STATE] == TAIL) and dead[meta[b, ROOT]]:
            out[n] = b
            n += 1
    for r in range(heads.shape[0]):
        if dead[r]:
            heads[r] = NONE
    return n


@compiled
def drop_all(meta: I32, table: I64, keys: U64, count: I64, blocks: I32) -> Int:
    """Drop these blocks; return how many something still holds."""
    held = 0
    for b in blocks:
        if not drop(meta, table, keys, count, b):
            held += 1
    return held


@compiled
def subtree(meta: I32, heads: I32, top: Int, out: I32, n: Int) -> Int:
    """Append top and all below it to out[n:], top first, and cut top off its parent."""
    remove_child(meta, heads, top)
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


# --- whole chains, hashed with xxh3_128 here ----------------------------------------------------


@compiled
def child_key(
    keys: U64, root_key: U64, tokens: I32, offset: Int, parent: Int, words: U64
) -> tuple[np.uint64, np.uint64]:
    """Key of parent's child that holds the block of `tokens` at offset, as `keys` has it.

    words: scratch, 2 + block_size / 2; the block size is even. Twin: `keys.chain`.
    """
    if parent >= 0:
        words[0], words[1] = keys[parent, 0], keys[parent, 1]
    else:
        words[0], words[1] = root_key[0], root_key[1]
    for i in range(words.shape[0] - 2):
        low = np.uint64(np.uint32(tokens[offset + 2 * i]))
        words[2 + i] = low | (np.uint64(np.uint32(tokens[offset + 2 * i + 1])) << np.uint64(32))
    low_half, high_half = xxh3_128(words)
    # A digest is written most significant byte first, and read as two little-endian words.
    return swapped(high_half), swapped(low_half)


@compiled
def match_chain(
    tokens: I32,
    meta: I32,
    heads: I32,
    table: I64,
    keys: U64,
    prompt: I32,
    root_index: Int,
    root_key: U64,
    owner: Int,
    out: I32,
) -> tuple[Int, Int, Int]:
    """Find a prompt's leading published blocks, and the best part of one more.

    A parent's newest child is tried first, then its key is looked up; a parent without children
    needs no key. out gets the blocks; returned are their count and what `best_partial` says of the
    owner's blocks after them.
    """
    size = tokens.shape[1]
    words = np.empty(2 + size // 2, np.uint64)
    parent = np.int64(-2 - root_index)
    n = 0
    while n < out.shape[0]:
        b = np.int64(first_child(meta, heads, parent))
        if b < 0:
            return n, NONE, 0
        if not matches(tokens, meta, b, parent, prompt, n * size):
            low, high = child_key(keys, root_key, prompt, n * size, parent, words)
            b = np.int64(find_twin(tokens, meta, table, keys, prompt, n * size, parent, low, high))
            if b < 0:
                break
        out[n] = b
        parent = b
        n += 1
    if n * size == prompt.shape[0]:
        return n, NONE, 0
    block, length = best_partial(tokens, meta, heads, prompt, n * size, parent, owner)
    return n, block, length


@compiled
def publish_chain(
    tokens: I32,
    meta: I32,
    heads: I32,
    table: I64,
    keys: U64,
    count: I64,
    history: I32,
    blocks: I32,
    start: Int,
    stop: Int,
    root_index: Int,
    owner: Int,
    may_swap: bool,
    root_key: U64,
    stored: I32,
    new: Int,
) -> tuple[Int, Int]:
    """Publish a sequence's blocks of index start to stop - 1; see `Publisher.publish`.

    stored: gets the blocks that are new in the index, after the `new` before them. Returns the
    index reached, below stop only where one collides, and how many are new by now.
    """
    size = tokens.shape[1]
    words = np.empty(2 + size // 2, np.uint64)
    root = -2 - root_index
    for i in range(start, stop):
        parent = np.int64(blocks[i - 1]) if i > 0 else root
        offset = i * size
        low, high = child_key(keys, root_key, history, offset, parent, words)
        twin = find_twin(tokens, meta, table, keys, history, offset, parent, low, high)
        b = blocks[i]
        if twin == b:
            continue  # a fork has published it
        if twin == COLLISION or (twin >= 0 and not may_swap):
            return i, new
        if twin >= 0:
            blocks[i] = twin
            hold(meta, heads, count, twin)
            let_go(meta, count, b)
            continue
        if first_child(meta, heads, parent) >= 0:
            drop_covered_tail(
                tokens, meta, heads, table, keys, count, history, offset, size, parent, owner
            )
        for j in range(size):
            tokens[b, j] = history[offset + j]
        enter(meta, heads, b, size, parent, root_index, owner)
        meta[b, STATE] = PUBLISHED
        keys[b, 0], keys[b, 1] = low, high
        insert_key(table, keys, b)
        stored[new] = b
        new += 1
    return stop, new


@compiled
def hold(meta: I32, heads: I32, count: I64, b: Int) -> None:
    """Add one reference to a block in the tree, as most recently used."""
    if meta[b, REF] == 0 and meta[b, PIN] == 0:
        unlink(meta, count, list_of(meta, b), b)
    meta[b, REF] += 1
    move_to_front(meta, heads, b)


@compiled
def let_go(meta: I32, count: I64, b: Int) -> None:
    """Drop one reference of a block."""
    meta[b, REF] -= 1
    if meta[b, REF] == 0 and meta[b, PIN] == 0:
        park(meta, count, b)


@compiled
def drop_covered_tail(
    tokens: I32,
    meta: I32,
    heads: I32,
    table: I64,
    keys: U64,
    count: I64,
    known: I32,
    offset: Int,
    fill: Int,
    parent: Int,
    owner: Int,
) -> Int:
    """Free a tail that known[offset : offset + fill] goes on from; how much of it is there."""
    b, same = best_partial(tokens, meta, heads, known[: offset + fill], offset, parent, owner)
    if b >= 0 and meta[b, STATE] == TAIL and same == meta[b, FILL] and same < fill:
        withdraw(meta, heads, table, keys, b)
        drop(meta, table, keys, count, b)
        return 0
    return same


@compiled
def note_departures(
    ring_keys: U64,
    ring_seconds: F64,
    ring_cause: I32,
    written: Int,
    keys: U64,
    seconds: float,
    cause: Int,
) -> None:
    """Write keys that leave the index into a ring, after the `written` before them."""
    capacity = ring_keys.shape[0]
    for n in range(keys.shape[0]):
        at = (written + n) % capacity
        ring_keys[at, 0], ring_keys[at, 1] = keys[n, 0], keys[n, 1]
        ring_seconds[at] = seconds
        ring_cause[at] = cause


@compiled
def take_oldest(
    meta: I32,
    heads: I32,
    table: I64,
    keys: U64,
    count: I64,
    evicted: I64,
    departed: U64,
    out: I32,
) -> Int:
    """Do what the policy `lru`, `sort_out` and `take` do, without a list of victims.

    departed: gets the keys of the published blocks that go; the return value counts them.
    """
    capacity = meta.shape[0] - COUNTS
    n = 0
    for i in range(out.shape[0]):
        if count[FREE_LIST] > 0:
            b = meta[capacity + FREE_LIST, NEXT]
            unlink(meta, count, FREE_LIST, b)
        else:
            which = TAIL_LIST if count[TAIL_LIST] > 0 else CACHED_LIST
            b = meta[capacity + which, NEXT]
            evicted[meta[b, OWNER]] += 1
            if which == CACHED_LIST:
                departed[n, 0], departed[n, 1] = keys[b, 0], keys[b, 1]
                n += 1
            unlink(meta, count, which, b)
            withdraw(meta, heads, table, keys, b)
        reset(meta, b)
        out[i] = b
    return n


@compiled
def reset(meta: I32, b: Int) -> None:
    """Make a block that is out of everything private, with one reference."""
    meta[b, STATE] = PRIVATE
    meta[b, REF] = 1
    meta[b, FILL] = 0
    meta[b, FIRST_CHILD] = NONE
    meta[b, PARENT] = NONE


@compiled
def sort_out(meta: I32, victims: I32, evicted: I64, published: I32) -> Int:
    """Count victims by owner, and list the published ones; return how many those are."""
    n = 0
    for b in victims:
        evicted[meta[b, OWNER]] += 1
        if meta[b, STATE] == PUBLISHED:
            published[n] = b
            n += 1
    return n


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
    meta: I32, rows: I64, tables: I32, batch: I32, start: Int, size: Int, available: Int
) -> tuple[Int, Int, Int]:
    """Say how far a batch, from start on, can be reserved without a copy: stop, blocks, tenant.

    Stops before a sequence that would write to a shared block, that more blocks are needed for
    than are available, or whose tenant is not the one that the blocks before it are for.
    """
    needed, owner = 0, np.int64(NONE)
    for k in range(start, batch.shape[0]):
        s = batch[k]
        if rows[s, LENGTH] <= rows[s, RESERVED]:
            continue
        last = (rows[s, LENGTH] + size - 1) // size
        for i in range(rows[s, COMPUTED] // size, min(last, rows[s, BLOCKS])):
            if meta[tables[s, i], REF] > 1:
                return k, needed, owner
        missing = max(0, last - rows[s, BLOCKS])
        if missing > 0:
            if needed + missing > available:
                return k, needed, owner
            if owner != NONE and owner != rows[s, SEQUENCE_OWNER]:
                return k, needed, owner
            owner = rows[s, SEQUENCE_OWNER]
        needed += missing
    return batch.shape[0], needed, owner


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
    heads: I32,
    table: I64,
    keys: U64,
    count: I64,
    root_keys: U64,
    rows: I64,
    history: I32,
    tables: I32,
    batch: I32,
    may_swap: bool,
) -> I32:
    """Take all that is reserved as computed, publish full blocks; return those that are new."""
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
        reached, new = publish_chain(
            tokens,
            meta,
            heads,
            table,
            keys,
            count,
            history[s],
            tables[s],
            rows[s, PUBLISHED_BLOCKS],
            stop,
            rows[s, ROOT_INDEX],
            rows[s, SEQUENCE_OWNER],
            may_swap,
            root_keys[rows[s, ROOT_INDEX]],
            stored,
            new,
        )
        rows[s, PUBLISHED_BLOCKS] = reached
        if reached < stop:
            rows[s, WRITES] = 0
    return stored[:new]
