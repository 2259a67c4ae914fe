"""What is wrong with a store, in words: the slow half of `audit`, for a store that has a fault.

Numbers in the messages are physical blocks, sequence ids and rules of the design document. What
is found here must be found by `audit.is_clean`, too, and the other way round.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes
from stemkv.kvstore.ops import FILL, NONE, PARENT, PIN, REF, STATE
from stemkv.kvstore.sequences import SequenceState
from stemkv.kvstore.store import BlockStore

_LISTS = {"free": ops.FREE_LIST, "cached": ops.CACHED_LIST, "tails": ops.TAIL_LIST}
_IN_TREE = (ops.PUBLISHED, ops.TAIL)


def violations_of(store: BlockStore) -> tuple[str, ...]:
    """Check what `audit` checks, block by block, in plain Python: seconds for a large pool."""
    placed: dict[int, str] = {}
    violations = [*_lists(store, placed), *_references(store, placed), *copies(store)]
    broken = [*_rows(store)]
    # What hangs together can only be followed where the single rows make sense.
    if not violations and not broken:
        broken = [*_index(store), *_tree(store), *_order(store, [*placed])]
    violations += [*broken, *_sequences(store), *leaders(store), *roots(store)]
    return tuple(violations)


def _lists(store: BlockStore, placed: dict[int, str]) -> Iterator[str]:
    """Check the three lists; `placed` gets every block that is on one, in their order."""
    meta, capacity = store.pool.meta, store.pool.capacity
    for name, which in _LISTS.items():
        length = 0
        head = capacity + which
        before, b = head, int(meta[head, ops.NEXT])
        while b != head:
            if not 0 <= b < capacity:
                yield f"{name} list: {b} is no block"
                break
            if b in placed:
                yield f"block {b} is on the {name} list and on the {placed[b]} list"
                break
            placed[b] = name
            if meta[b, ops.PREV] != before:
                yield f"{name} list: the links of {before} and {b} disagree"
            if ops.list_of(meta, b) != which:
                yield f"block {b} in state {meta[b, STATE]} is on the {name} list"
            before, b = b, int(meta[b, ops.NEXT])
            length += 1
        if b == head and meta[head, ops.PREV] != before:
            yield f"{name} list: the links of {before} and its end disagree"
        if length != store.pool.count[which]:
            yield f"{name} list: {length} blocks, counted {store.pool.count[which]} (rule 10)"


def _references(store: BlockStore, placed: dict[int, str]) -> Iterator[str]:
    meta = store.pool.meta
    held: Counter[int] = Counter()
    for sequence in store.sequences:
        table = store.table_of(sequence).tolist()
        if len(set(table)) != len(table):
            yield f"sequence {sequence}: a block stands twice in its table"
        held.update(table)
    pinned = Counter(int(c.source) for c in store.copies.open())
    for b in range(store.pool.capacity):
        if meta[b, REF] != held[b]:
            yield f"block {b}: {meta[b, REF]} references counted, {held[b]} held"
        if meta[b, PIN] != pinned[b]:
            yield f"block {b}: {meta[b, PIN]} pins counted, {pinned[b]} held"
        if (b in placed) == bool(held[b] or pinned[b]):
            where = placed.get(b, "no")
            yield f"block {b}: held {held[b]} times, pinned {pinned[b]}, on {where} list (rule 10)"


def copies(store: BlockStore) -> Iterator[str]:
    """Check the planned copies and those under way."""
    open_copies = store.copies.open()
    sources = {c.source for c in open_copies}
    destinations = Counter(c.destination for c in open_copies)
    for source, destination, tokens in open_copies:
        if not 0 <= destination < store.pool.capacity:
            yield f"copy of {source} to {destination}, which is no block"
            continue
        if destinations[destination] > 1 or destination in sources:
            yield f"block {destination} is the destination of one copy and part of another"
        if not 0 < tokens <= store.pool.block_size:
            yield f"copy of {source} to {destination}: {tokens} tokens"
        row = store.pool.meta[destination]
        if row[STATE] != ops.PRIVATE or row[REF] < 1:
            yield f"block {destination} is to be copied to, and is not a sequence's own (rule 5)"


def _rows(store: BlockStore) -> Iterator[str]:
    """Check each row for itself."""
    live = {root.index for root in store.roots}
    for b, row in enumerate(store.pool.meta[: store.pool.capacity].tolist()):
        if row[STATE] not in _IN_TREE:
            if row[STATE] not in (ops.FREE, ops.PRIVATE, ops.QUARANTINED):
                yield f"block {b} is in state {row[STATE]}, which is none"
            continue
        size = store.config.block_size
        full = row[FILL] == size if row[STATE] == ops.PUBLISHED else 0 < row[FILL] < size
        if not full:
            yield f"block {b} in state {row[STATE]} holds {row[FILL]} tokens"
        if row[ops.ROOT] not in live:
            yield f"block {b} hangs on root {row[ops.ROOT]}, which is not alive"
        if not 0 <= row[ops.OWNER] < len(store.owners.names):
            yield f"block {b} is of owner {row[ops.OWNER]}, who is nobody"
        links = (row[ops.FIRST_CHILD], row[ops.NEXT_SIBLING], row[ops.PREV_SIBLING])
        linked = all(NONE <= link < store.pool.capacity for link in links)
        if not linked or row[PARENT] == NONE or row[PARENT] >= store.pool.capacity:
            yield f"block {b}: links {links} and parent {row[PARENT]} are not of the tree"


def _index(store: BlockStore) -> Iterator[str]:
    pool = store.pool
    published = np.flatnonzero(pool.meta[: pool.capacity, STATE] == ops.PUBLISHED)
    entries = pool.table[pool.table != NONE] & 0xFFFFFFFF
    if sorted(entries.tolist()) != published.tolist():
        yield "the index and the published blocks are not the same set"
        return
    seen: dict[tuple[int, bytes], int] = {}
    for b in published.tolist():
        low, high = pool.keys[b]
        if ops.find_key(pool.table, pool.keys, low, high) != b:
            yield f"block {b} is not found under its own key"
        parent = int(pool.meta[b, PARENT])
        tokens = as_bytes(pool.tokens[b])
        twin = seen.setdefault((parent, tokens), b)
        if twin != b:
            yield f"blocks {twin} and {b} are twins (rule 7)"
        above = store.matcher.key_of_parent(parent, store.roots[int(pool.meta[b, ops.ROOT])])
        if store.matcher.hash(above + tokens) != BlockKey(pool.keys[b].tobytes()):
            yield f"block {b}: its key is not the hash of its content (rule 1)"


def _tree(store: BlockStore) -> Iterator[str]:
    meta, heads = store.pool.meta, store.pool.heads
    published = np.flatnonzero(meta[: store.pool.capacity, STATE] == ops.PUBLISHED)
    listed: Counter[int] = Counter()
    for parent in [*published.tolist(), *(root.reference for root in store.roots)]:
        before, b = NONE, int(ops.first_child(meta, heads, parent))
        while 0 <= b < store.pool.capacity and listed[b] == 0:
            listed[b] += 1
            if meta[b, PARENT] != parent or meta[b, ops.PREV_SIBLING] != before:
                yield f"block {b}: its links and those of its parent {parent} disagree"
            root = meta[parent, ops.ROOT] if parent >= 0 else -2 - parent
            if meta[b, ops.ROOT] != root:
                yield f"block {b} hangs on root {meta[b, ops.ROOT]}, its parent on {root}"
            before, b = b, int(meta[b, ops.NEXT_SIBLING])
        if b >= 0:
            yield f"block {b}: its links and those of its parent {parent} disagree"
    for b in range(store.pool.capacity):
        if (int(meta[b, STATE]) in _IN_TREE) != (listed[b] == 1):
            yield f"block {b} in state {meta[b, STATE]} is {listed[b]} times in the tree (rule 8)"


def _order(store: BlockStore, placed: list[int]) -> Iterator[str]:
    """Check that a parent is cached or in use, and goes after its children (rule 8)."""
    yield from store.order.violations()
    meta = store.pool.meta
    # Tails go first of all, so that they need no place among the others.
    position = {b: i for i, b in enumerate(placed) if meta[b, STATE] == ops.PUBLISHED}
    for b in range(store.pool.capacity):
        parent = int(meta[b, PARENT])
        if int(meta[b, STATE]) not in _IN_TREE or parent < 0:
            continue
        if meta[parent, STATE] != ops.PUBLISHED:
            yield f"block {b}: its parent {parent} is not published (rule 8)"
        held = meta[b, REF] > 0 or meta[b, PIN] > 0
        if parent not in position:
            continue
        later = store.order.by_list and position.get(b, NONE) > position[parent]
        if held or later:
            yield f"block {b} would be evicted after its parent {parent} (rule 8)"


def _sequences(store: BlockStore) -> Iterator[str]:
    size, most = store.config.block_size, store.config.max_tokens
    for state in store.sequences.values():
        written = 0 <= state.published * size <= state.computed
        if not (written and state.computed <= state.reserved <= state.length <= most):
            yield (
                f"sequence {state.number}: published, computed, reserved and length are out of "
                "order"
            )
        elif not state.reserved <= state.blocks * size <= store.config.blocks_per_sequence * size:
            yield f"sequence {state.number}: {state.blocks} blocks for {state.reserved} positions"
        else:
            yield from _table(store, state)
        root = int(store.sequence_arrays.rows[state.number, ops.ROOT_INDEX])
        if root != state.root.index or not 0 <= state.owner < len(store.owners.names):
            yield f"sequence {state.number}: root {root} or owner {state.owner} is not its own"
    if len(store.sequences) + store.free_sequences != store.config.max_sequences:
        yield "open and free sequences are not all sequences"


def _table(store: BlockStore, state: SequenceState) -> Iterator[str]:
    """Check that a sequence holds its own published chain, and writes to nobody else's block."""
    pool, size = store.pool, store.config.block_size
    table = store.table_of(state.number).tolist()
    for i, b in enumerate(table):
        if not 0 <= b < pool.capacity:
            yield f"sequence {state.number}: {b} in its table is no block"
            return
        published = pool.is_published(b)
        if published and (i + 1) * size > state.computed:
            yield f"sequence {state.number}: would write to published block {b} (rule 5)"
        written = i * size < state.reserved and (i + 1) * size > state.computed
        if written and state.reserved > state.computed and pool.references(b) != 1:
            yield f"sequence {state.number}: would write to shared block {b} (rule 5)"
        if i >= state.published or not state.writes:
            continue
        parent = table[i - 1] if i else state.root.reference
        known = store.tokens_of(state.number)[i * size : (i + 1) * size]
        if not published or pool.meta[b, PARENT] != parent:
            yield f"sequence {state.number}: block {b} at {i} is not its published chain"
        elif (pool.tokens[b] != known).any():
            yield f"sequence {state.number}: block {b} at {i} holds other tokens (rule 2)"


def leaders(store: BlockStore) -> Iterator[str]:
    """Check that who is said to lead publishes that block next."""
    size = store.config.block_size
    for (parent, block), sequence in store.leaders.all().items():
        state = store.sequences.get(sequence)
        if state is None:
            yield f"sequence {sequence} is said to lead, and is closed (rule 4)"
            continue
        i, table = state.published, store.table_of(sequence).tolist()
        above = table[i - 1] if 0 < i <= len(table) else state.root.reference
        known = as_bytes(store.tokens_of(sequence)[i * size : (i + 1) * size])
        if not state.writes or (parent, block) != (above, known):
            yield f"sequence {sequence} leads others to what it does not publish next (rule 4)"


def roots(store: BlockStore) -> Iterator[str]:
    """Check the live roots' counts of sequences."""
    counts = Counter(state.root.index for state in store.sequences.values())
    for root in store.roots:
        if root.sequences != counts[root.index]:
            yield (
                f"root {root.index}: {root.sequences} sequences counted, {counts[root.index]} open"
            )
