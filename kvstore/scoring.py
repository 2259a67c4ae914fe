"""Inner loops of scores: what is remembered of blocks, and the heaps of shadow caches."""

from typing import NamedTuple

import numpy as np

from stemkv.kvstore.jit import compiled
from stemkv.kvstore.ops import (
    DEAD,
    F64,
    I32,
    I64,
    NONE,
    PUBLISHED,
    ROOT,
    STATE,
    U64,
    delete_key,
    find_key,
    insert_key,
)
from stemkv.policies.eviction.protocol import AGAIN, FIRST

BEFORE, AFTER = 0, 1


class Keyed(NamedTuple):
    """Slots that stand for blocks by their 16-byte keys, cached or gone.

    keys: uint64 [slots, 2]. table: int64 [power of two >= 2 x slots], the index over them, as in
    `ops`. links: int32 [slots + 1, 2], previous and next of the slots that may be taken for
    another key, the longest unused first; the last row is the sentinel, and NONE stands where a
    slot is not on the list. filled: int64 [1], slots that ever held a key.
    """

    keys: U64
    table: I64
    links: I32
    filled: I64


class Heap(NamedTuple):
    """Items (blocks or slots) by score, then by tie; the lowest is at the top.

    items: int32, in heap order. at: int32 [items], where an item stands, NONE if it is not in the
    heap. score: float64 [items]. tie: int64 [items]. size: int64 [1].
    """

    items: I32
    at: I32
    score: F64
    tie: I64
    size: I64


def make_keyed(slots: int) -> Keyed:
    """Return slots that hold nothing."""
    links = np.full((slots + 1, 2), NONE, np.int32)
    links[slots] = slots
    table = np.full(1 << max(4, (2 * slots - 1).bit_length()), NONE, np.int64)
    return Keyed(np.zeros((slots, 2), np.uint64), table, links, np.zeros(1, np.int64))


def make_heap(items: int) -> Heap:
    """Return an empty heap for items 0 to `items` - 1."""
    return Heap(
        np.empty(items, np.int32),
        np.full(items, NONE, np.int32),
        np.full(items, -np.inf),
        np.zeros(items, np.int64),
        np.zeros(1, np.int64),
    )


@compiled
def put_on_list(links: I32, slot: int) -> None:
    """Let a slot be taken for another key, after all that are on the list."""
    end = links.shape[0] - 1
    last = links[end, BEFORE]
    links[last, AFTER] = slot
    links[slot, BEFORE] = last
    links[slot, AFTER] = end
    links[end, BEFORE] = slot


@compiled
def recall(keyed: Keyed, wanted: U64, slots: I32, events: I32) -> None:
    """Find the slots of these keys, taking others for keys that are new; none stays on the list.

    slots and events (FIRST or AGAIN) are filled in. There must be enough slots to take.
    """
    keys, table, links = keyed.keys, keyed.table, keyed.links
    for i in range(wanted.shape[0]):
        slot = find_key(table, keys, wanted[i, 0], wanted[i, 1])
        events[i] = AGAIN
        if slot < 0:
            events[i] = FIRST
            if keyed.filled[0] < keys.shape[0]:
                slot = int(keyed.filled[0])
                keyed.filled[0] += 1
            else:
                slot = int(links[keys.shape[0], AFTER])
                delete_key(table, keys, slot)
            keys[slot, 0] = wanted[i, 0]
            keys[slot, 1] = wanted[i, 1]
            insert_key(table, keys, slot)
        before, after = links[slot, BEFORE], links[slot, AFTER]
        if before != NONE:
            links[before, AFTER] = after
            links[after, BEFORE] = before
            links[slot, BEFORE] = NONE
        slots[i] = slot


@compiled
def let_go(links: I32, slots: I32) -> None:
    """Put slots that are not on the list there, the last one first: a child before its parent."""
    for i in range(slots.shape[0] - 1, -1, -1):
        if slots[i] >= 0 and links[slots[i], BEFORE] == NONE:
            put_on_list(links, slots[i])


@compiled
def goes_before(heap: Heap, a: int, b: int) -> bool:
    """Whether item a goes before item b."""
    if heap.score[a] == heap.score[b]:
        return bool(heap.tie[a] < heap.tie[b])
    return bool(heap.score[a] < heap.score[b])


@compiled
def rise(heap: Heap, i: int) -> None:
    """Move the item at place i up to where it belongs."""
    items, at = heap.items, heap.at
    item = items[i]
    while i > 0:
        above = (i - 1) >> 1
        if not goes_before(heap, item, items[above]):
            break
        items[i] = items[above]
        at[items[i]] = i
        i = above
    items[i] = item
    at[item] = i


@compiled
def sink(heap: Heap, i: int) -> None:
    """Move the item at place i down to where it belongs."""
    items, at, size = heap.items, heap.at, heap.size[0]
    item = items[i]
    while True:
        below = 2 * i + 1
        if below >= size:
            break
        if below + 1 < size and goes_before(heap, items[below + 1], items[below]):
            below += 1
        if not goes_before(heap, items[below], item):
            break
        items[i] = items[below]
        at[items[i]] = i
        i = below
    items[i] = item
    at[item] = i


@compiled
def put(heap: Heap, item: int) -> None:
    """Add an item that is not in the heap."""
    i = int(heap.size[0])
    heap.size[0] += 1
    heap.items[i] = item
    rise(heap, i)


@compiled
def remove(heap: Heap, item: int) -> None:
    """Take an item out of the heap."""
    i = int(heap.at[item])
    heap.at[item] = NONE
    heap.size[0] -= 1
    last = int(heap.size[0])
    if i == last:
        return
    moved = heap.items[last]
    heap.items[i] = moved
    heap.at[moved] = i
    rise(heap, i)
    sink(heap, int(heap.at[moved]))


@compiled
def leading_live(meta: I32, roots: I64, blocks: I32) -> int:
    """How many of the first blocks are published: a flush may have taken the rest."""
    n = 0
    while n < blocks.shape[0]:
        b = blocks[n]
        if meta[b, STATE] != PUBLISHED or roots[meta[b, ROOT], DEAD] != 0:
            break
        n += 1
    return n


@compiled
def rank(heap: Heap, items: I32, rows: F64, slots: I32, ties: I64) -> None:
    """Give items the scores in their slots' rows, and these ties; none of them stays in."""
    for i in range(items.shape[0]):
        if heap.at[items[i]] != NONE:
            remove(heap, items[i])
        heap.score[items[i]] = rows[slots[i], 0]
        heap.tie[items[i]] = ties[i]


@compiled
def sample(keys: U64, limit: np.uint64, out: I32) -> int:
    """List the places of the keys that are in the sample: those whose high half is not over limit.

    Returns how many; no more than out holds.
    """
    n = 0
    for i in range(keys.shape[0]):
        if n < out.shape[0] and keys[i, 1] <= limit:
            out[n] = i
            n += 1
    return n


@compiled
def count_hits(heap: Heap, slots: I32, n: int) -> int:
    """How many of the first n slots are in the heap: cached, in a shadow cache."""
    hits = 0
    for i in range(n):
        if heap.at[slots[i]] != NONE:
            hits += 1
    return hits


@compiled
def drop_strangers(heap: Heap, slots: I32, events: I32) -> None:
    """Take out slots that were taken for another key."""
    for i in range(slots.shape[0]):
        if events[i] == FIRST and heap.at[slots[i]] != NONE:
            remove(heap, slots[i])


@compiled
def insert(heap: Heap, slots: I32, capacity: int) -> None:
    """Put slots into a shadow cache; whoever is lowest goes, be it one of them."""
    for slot in slots:
        put(heap, slot)
    while heap.size[0] > capacity:
        remove(heap, heap.items[0])
