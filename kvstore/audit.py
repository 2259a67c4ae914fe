"""Checks of the store's rules on its live structure; what it returns are violations, in words.

Property tests, the admin endpoint and debug mode call the same function. Numbers in the messages
are physical blocks, sequence ids and rules of the design document.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.ops import FILL, NONE, PARENT, PIN, REF, STATE
from stemkv.kvstore.store import BlockStore

_LISTS = {"free": ops.FREE_LIST, "cached": ops.CACHED_LIST, "tails": ops.TAIL_LIST}


def audit(store: BlockStore) -> tuple[str, ...]:
    """Check rules 5 (structure), 7, 8 and 10 and the store's own order; empty means clean."""
    placed: dict[int, str] = {}
    violations = [
        *_lists(store, placed),
        *_references(store, placed),
        *_index(store),
        *_tree(store),
        *_order(store),
        *_sequences(store),
    ]
    return tuple(violations)


def _lists(store: BlockStore, placed: dict[int, str]) -> Iterator[str]:
    capacity = store.config.capacity_blocks
    for name, which in _LISTS.items():
        length = 0
        head = capacity + which
        before, b = head, int(store.pool.meta[head, ops.NEXT])
        while b != head and length <= capacity:
            if not 0 <= b < capacity:
                yield f"{name} list: {b} is no block"
                break
            if b in placed:
                yield f"block {b} is on the {name} list and on {placed[b]}"
            placed[b] = name
            if store.pool.meta[b, ops.PREV] != before:
                yield f"{name} list: the links of {before} and {b} disagree"
            if ops.list_of(store.pool.meta, b) != which:
                yield f"block {b} in state {store.pool.meta[b, STATE]} is on the {name} list"
            before, b = b, int(store.pool.meta[b, ops.NEXT])
            length += 1
        if length != store.pool.count[which]:
            yield f"{name} list: {length} blocks, counted {store.pool.count[which]} (rule 10)"


def _references(store: BlockStore, placed: dict[int, str]) -> Iterator[str]:
    held: Counter[int] = Counter()
    for sequence in store.sequences:
        table = store.table_of(sequence).tolist()
        if len(set(table)) != len(table):
            yield f"sequence {sequence}: a block stands twice in its table"
        held.update(table)
    pinned = Counter(int(c.source) for c in store.copies.open())
    for b in range(store.config.capacity_blocks):
        if store.pool.meta[b, REF] != held[b]:
            yield f"block {b}: {store.pool.meta[b, REF]} references counted, {held[b]} held"
        if store.pool.meta[b, PIN] != pinned[b]:
            yield f"block {b}: {store.pool.meta[b, PIN]} pins counted, {pinned[b]} held"
        if (b in placed) == bool(held[b] or pinned[b]):
            where = placed.get(b, "no list")
            yield f"block {b}: held {held[b]} times, pinned {pinned[b]}, and on {where} (rule 10)"
    destinations = Counter(int(c.destination) for c in store.copies.open())
    for b, n in destinations.items():
        if n > 1 or pinned[b]:
            yield f"block {b} is the destination of {n} copies and the source of {pinned[b]}"


def _index(store: BlockStore) -> Iterator[str]:
    rows = store.pool.meta[: store.config.capacity_blocks]
    published = np.flatnonzero(rows[:, STATE] == ops.PUBLISHED)
    entries = store.pool.table[store.pool.table != NONE]
    if sorted(entries.tolist()) != published.tolist():
        yield "the index and the published blocks are not the same set"
        return
    seen: dict[tuple[int, bytes], int] = {}
    for b in published.tolist():
        low, high = store.pool.keys[b]
        if ops.find_key(store.pool.table, store.pool.keys, low, high) != b:
            yield f"block {b} is not found under its own key"
        parent = int(store.pool.meta[b, PARENT])
        tokens = store.pool.tokens[b].astype("<i4").tobytes()
        twin = seen.setdefault((parent, tokens), b)
        if twin != b:
            yield f"blocks {twin} and {b} are twins (rule 7)"
        if store.pool.meta[b, FILL] != store.config.block_size:
            yield f"block {b} is published with {store.pool.meta[b, FILL]} tokens"
        above = store.matcher.key_of_parent(parent, store.roots[int(store.pool.meta[b, ops.ROOT])])
        if store.matcher.hash(above + tokens) != BlockKey(store.pool.keys[b].tobytes()):
            yield f"block {b}: its key is not the hash of its content (rule 1)"


def _tree(store: BlockStore) -> Iterator[str]:
    listed: Counter[int] = Counter()
    parents = [*range(store.config.capacity_blocks), *(r.reference for r in store.roots)]
    for parent in parents:
        before, b = NONE, int(ops.first_child(store.pool.meta, store.pool.heads, parent))
        if b >= 0 and parent >= 0 and store.pool.meta[parent, STATE] != ops.PUBLISHED:
            yield f"block {parent} has children and is not published (rule 8)"
            continue
        while b >= 0 and listed[b] == 0:
            listed[b] += 1
            if (
                store.pool.meta[b, PARENT] != parent
                or store.pool.meta[b, ops.PREV_SIBLING] != before
            ):
                yield f"block {b}: its links and those of its parent {parent} disagree"
            before, b = b, int(store.pool.meta[b, ops.NEXT_SIBLING])
    for b in range(store.config.capacity_blocks):
        in_tree = int(store.pool.meta[b, STATE]) in (ops.PUBLISHED, ops.TAIL)
        if in_tree != (listed[b] == 1):
            yield f"block {b} in state {store.pool.meta[b, STATE]} is {listed[b]} times in the tree"
        if store.pool.meta[b, STATE] == ops.TAIL and store.pool.meta[b, FILL] < 1:
            yield f"tail {b} holds nothing"


def _order(store: BlockStore) -> Iterator[str]:
    """Check that a parent is cached or in use, and goes after its children (rule 8)."""
    position: dict[int, int] = {}
    for which in (ops.TAIL_LIST, ops.CACHED_LIST):
        head = store.config.capacity_blocks + which
        b = int(store.pool.meta[head, ops.NEXT])
        while b != head and b not in position:
            position[b] = len(position)
            b = int(store.pool.meta[b, ops.NEXT])
    for b in range(store.config.capacity_blocks):
        parent = int(store.pool.meta[b, PARENT])
        if int(store.pool.meta[b, STATE]) not in (ops.PUBLISHED, ops.TAIL) or parent < 0:
            continue
        if store.pool.meta[parent, STATE] != ops.PUBLISHED:
            yield f"block {b}: its parent {parent} is not published (rule 8)"
        if parent in position and position.get(b, len(position)) > position[parent]:
            yield f"block {b} would be evicted after its parent {parent} (rule 8)"


def _sequences(store: BlockStore) -> Iterator[str]:
    size = store.config.block_size
    for sequence, state in store.sequences.items():
        table = store.table_of(sequence)
        if not state.published * size <= state.computed <= state.length:
            yield f"sequence {sequence}: published, computed and length are out of order"
        if state.blocks * size < state.computed:
            yield f"sequence {sequence}: computed {state.computed} in {state.blocks} blocks"
        for i, b in enumerate(table.tolist()):
            published = store.pool.meta[b, STATE] == ops.PUBLISHED
            if published and (i + 1) * size > state.computed:
                yield f"sequence {sequence}: would write to published block {b} (rule 5)"
            if i >= state.published or not state.writes:
                continue
            parent = int(table[i - 1]) if i else state.root.reference
            known = store.tokens_of(sequence)[i * size : (i + 1) * size]
            if not published or store.pool.meta[b, PARENT] != parent:
                yield f"sequence {sequence}: block {b} at {i} is not its published chain"
            elif (store.pool.tokens[b] != known).any():
                yield f"sequence {sequence}: block {b} at {i} holds other tokens (rule 2)"
    open_rows = {state.number for state in store.sequences.values()}
    if len(open_rows) + store.free_sequences != store.config.max_sequences:
        yield "open and free sequences are not all sequences"
    for entry, sequence in store.leaders.all().items():
        if sequence not in store.sequences:
            yield f"prefix {entry[0]} is said to be computed by {sequence}, which is closed"
    counts = Counter(state.root.index for state in store.sequences.values())
    for root in store.roots:
        if root.sequences != counts[root.index]:
            yield (
                f"root {root.index}: {root.sequences} sequences counted, {counts[root.index]} open"
            )
