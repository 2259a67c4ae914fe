"""What is wrong with a store, in words: the slow half of `audit`, for a store that has a fault.

Numbers in the messages are physical blocks, sequence ids and rules of the design document. What
is found here must be found by `audit.is_clean`, too, and the other way round.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from stemkv.kvstore import chains, ops
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.keys import as_bytes
from stemkv.kvstore.ops import FILL, NONE, PARENT, PIN, REF, STATE
from stemkv.kvstore.sequences import SequenceState
from stemkv.kvstore.store import BlockStore

_IN_TREE = (ops.PUBLISHED, ops.TAIL)
_KIND_NAMES = ("cached", "tails", "kept")


def violations_of(store: BlockStore) -> tuple[str, ...]:
    """Check what `audit` checks, block by block, in plain Python: seconds for a large pool."""
    placed: dict[int, str] = {}
    broken = [*_rows(store)]
    # What hangs together can only be followed where the single rows make sense.
    if not broken:
        broken = [*_lists(store, placed), *_references(store, placed)]
    if not broken:
        broken = [*_counts(store), *_index(store), *_tree(store), *_order(store, [*placed])]
    checks = (copies, _sequences, leaders, roots, quotas)
    return (*broken, *(violation for check in checks for violation in check(store)))


def kept(store: BlockStore) -> ops.I32:
    """Count how many pins keep each block, int32 [capacity]."""
    counts = np.zeros(store.pool.capacity, np.int32)
    for pin in store.pins:
        counts[pin.blocks] += 1
    return counts


def _is_live(store: BlockStore, b: int) -> bool:
    """Whether a block, whose row makes sense, is in the tree of a live root."""
    row = store.pool.meta[b]
    return int(row[STATE]) in _IN_TREE and not store.pool.roots[row[ops.ROOT], ops.DEAD]


def _names_of_lists(store: BlockStore) -> dict[int, str]:
    names = {ops.FREE_LIST: "free"}
    for account, name in enumerate(store.accounts.names[1:], 1):
        names[int(ops.cached_list(account))] = f"cached ({name})"
        names[int(ops.tail_list(account))] = f"tails ({name})"
    return names


def _lists(store: BlockStore, placed: dict[int, str]) -> Iterator[str]:
    """Check the lists; `placed` gets every block that is on one, in their order."""
    pool = store.pool
    meta = pool.meta
    for which, name in _names_of_lists(store).items():
        head = -1 - which
        before, b = head, int(meta[head, ops.NEXT])
        while b != head:
            if not 0 <= b < pool.capacity:
                yield f"{name} list: {b} is no block"
                break
            if b in placed:
                yield f"block {b} is on the {name} list and on the {placed[b]} list"
                break
            placed[b] = name
            if meta[b, ops.PREV] != before:
                yield f"{name} list: the links of {before} and {b} disagree"
            state = int(meta[b, STATE])
            fits = which == ops.FREE_LIST and state == ops.FREE
            if state in _IN_TREE:
                fits = bool(ops.list_of(meta, pool.roots, b) == which)
            if not fits:
                yield f"block {b} in state {state} is on the {name} list"
            before, b = b, int(meta[b, ops.NEXT])
        if b == head and meta[head, ops.PREV] != before:
            yield f"{name} list: the links of {before} and its end disagree"


def _references(store: BlockStore, placed: dict[int, str]) -> Iterator[str]:
    meta = store.pool.meta
    held: Counter[int] = Counter()
    for sequence in store.sequences:
        table = store.table_of(sequence).tolist()
        if len(set(table)) != len(table):
            yield f"sequence {sequence}: a block stands twice in its table"
        held.update(table)
    pinned = Counter(int(c.source) for c in store.copies.open())
    pins = kept(store)
    for b in range(store.pool.capacity):
        if meta[b, REF] != held[b]:
            yield f"block {b}: {meta[b, REF]} references counted, {held[b]} held"
        if meta[b, PIN] != pinned[b]:
            yield f"block {b}: {meta[b, PIN]} copies counted, {pinned[b]} read it"
        if _is_live(store, b) and meta[b, ops.KEEP] != pins[b]:
            yield f"block {b}: {meta[b, ops.KEEP]} pins counted, {pins[b]} keep it"
        idle = not held[b] and not pinned[b] and meta[b, STATE] != ops.QUARANTINED
        off = int(meta[b, STATE]) in _IN_TREE and meta[b, ops.KEEP] > 0
        if (b in placed) != (idle and not off):
            where = placed.get(b, "no")
            yield f"block {b}: held {held[b]} times, read by {pinned[b]}, on {where} list (rule 10)"


def _counts(store: BlockStore) -> Iterator[str]:
    """Check what roots, accounts and the pool count (rules 10 and 11)."""
    pool = store.pool
    roots, accounts = np.zeros_like(pool.roots), np.zeros_like(pool.accounts)
    for b in range(pool.capacity):
        row = pool.meta[b]
        state, root = int(row[STATE]), int(row[ops.ROOT])
        if state in (ops.FREE, ops.QUARANTINED):
            accounts[ops.POOL, ops.FREED if state == ops.FREE else ops.OUT] += 1
            continue
        account = pool.roots[root, ops.ACCOUNT]
        roots[root, ops.CHARGED] += 1
        accounts[account, ops.HELD] += 1
        if state not in _IN_TREE or row[REF] > 0 or row[PIN] > 0:
            continue
        if pool.roots[root, ops.DEAD]:
            accounts[account, ops.HELD] -= 1
            accounts[ops.POOL, ops.STALE] += 1
            continue
        kind = ops.KEPT if row[ops.KEEP] > 0 else ops.kind_of(pool.meta, b)
        for counts in (roots[root], accounts[account], accounts[ops.POOL]):
            counts[kind] += 1
    columns = {ops.CHARGED: "charged", **dict(enumerate(_KIND_NAMES))}
    for root in range(len(roots)):
        for column, name in columns.items():
            if roots[root, column] != pool.roots[root, column]:
                yield (
                    f"root {root}: {pool.roots[root, column]} {name} blocks counted, "
                    f"{roots[root, column]} there (rule 10)"
                )
    columns = {ops.HELD: "held", **dict(enumerate(_KIND_NAMES))}
    for account in range(1, len(accounts)):
        for column, name in columns.items():
            if accounts[account, column] != pool.accounts[account, column]:
                yield (
                    f"account {account}: {pool.accounts[account, column]} {name} blocks counted, "
                    f"{accounts[account, column]} there (rule 11)"
                )
    columns = {ops.FREED: "free", ops.STALE: "stale", ops.OUT: "quarantined"}
    for column, name in (*columns.items(), *enumerate(_KIND_NAMES)):
        if accounts[ops.POOL, column] != pool.accounts[ops.POOL, column]:
            yield (
                f"pool: {pool.accounts[ops.POOL, column]} {name} blocks counted, "
                f"{accounts[ops.POOL, column]} there (rule 10)"
            )


def quotas(store: BlockStore) -> Iterator[str]:
    """Check that reserves fit the pool together, and that all accounts have names and rows."""
    reserves = store.pool.accounts[1:, ops.RESERVE]
    if (reserves < 0).any() or reserves.sum() > store.pool.capacity:
        yield f"reserves of {reserves.tolist()} blocks do not fit the pool (rule 11)"
    if not len(store.accounts) == len(store.pool.accounts) == len(store.pool.terms):
        yield "accounts and their rows are not as many (rule 11)"


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
    pool, size = store.pool, store.config.block_size
    live = {root.index for root in store.roots}
    if len(pool.meta) - pool.capacity < 2 * len(pool.accounts) - 1:
        yield f"{len(pool.accounts)} accounts have too few lists"
        return
    for b, row in enumerate(pool.meta[: pool.capacity].tolist()):
        state, root = row[STATE], row[ops.ROOT]
        if state in (ops.FREE, ops.QUARANTINED):
            continue
        if state not in (ops.PRIVATE, *_IN_TREE):
            yield f"block {b} is in state {state}, which is none"
            continue
        if not 0 <= root < len(pool.roots):
            yield f"block {b} hangs on root {root}, which is not alive"
            continue
        account, dead = pool.roots[root, ops.ACCOUNT], pool.roots[root, ops.DEAD]
        if not 1 <= account < len(pool.accounts):
            yield f"block {b} is charged to account {account}, which is none (rule 11)"
        if state == ops.PRIVATE:
            continue
        full = row[FILL] == size if state == ops.PUBLISHED else 0 < row[FILL] < size
        if not full:
            yield f"block {b} in state {state} holds {row[FILL]} tokens"
        if not 0 <= row[ops.OWNER] < len(store.owners.names):
            yield f"block {b} is of owner {row[ops.OWNER]}, who is nobody"
        if dead:
            continue
        if root not in live:
            yield f"block {b} hangs on root {root}, which is not alive"
        links = (row[ops.FIRST_CHILD], row[ops.NEXT_SIBLING], row[ops.PREV_SIBLING])
        linked = all(NONE <= link < pool.capacity for link in links)
        if not linked or row[PARENT] == NONE or row[PARENT] >= pool.capacity:
            yield f"block {b}: links {links} and parent {row[PARENT]} are not of the tree"


def _index(store: BlockStore) -> Iterator[str]:
    pool = store.pool
    published = np.flatnonzero(pool.meta[: pool.capacity, STATE] == ops.PUBLISHED)
    entries = pool.table[pool.table != NONE] & 0xFFFFFFFF
    if sorted(entries.tolist()) != published.tolist():
        yield "the index and the published blocks are not the same set"
        return
    seen: dict[tuple[int, bytes], int] = {}
    for b in filter(lambda b: _is_live(store, b), published.tolist()):
        low, high = pool.keys[b]
        if ops.find_key(pool.table, pool.keys, pool.meta, pool.roots, low, high) != b:
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
    meta, roots = store.pool.meta, store.pool.roots
    published = np.flatnonzero(meta[: store.pool.capacity, STATE] == ops.PUBLISHED).tolist()
    tops = [root.reference for root in store.roots]
    listed: Counter[int] = Counter()
    for parent in [*(b for b in published if _is_live(store, b)), *tops]:
        before, b = NONE, int(ops.first_child(meta, roots, parent))
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
        if _is_live(store, b) != (listed[b] == 1):
            yield f"block {b} in state {meta[b, STATE]} is {listed[b]} times in the tree (rule 8)"


def _order(store: BlockStore, placed: list[int]) -> Iterator[str]:
    """Check that a parent is cached or in use, and goes after its children (rule 8)."""
    yield from store.order.violations()
    meta = store.pool.meta
    # Tails go first of all, so that they need no place among the others.
    position = {b: i for i, b in enumerate(placed) if meta[b, STATE] == ops.PUBLISHED}
    for b in range(store.pool.capacity):
        parent = int(meta[b, PARENT])
        if not _is_live(store, b) or parent < 0:
            continue
        if meta[parent, STATE] != ops.PUBLISHED:
            yield f"block {b}: its parent {parent} is not published (rule 8)"
        if meta[b, ops.KEEP] > meta[parent, ops.KEEP]:
            yield f"block {b} is kept by more pins than its parent {parent} (rule 8)"
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
        root = int(store.sequence_arrays.rows[int(state.number), chains.ROOT_INDEX])
        public = int(store.sequence_arrays.rows[int(state.number), chains.PUBLIC_ROOT])
        if state.public is not None and public != state.public.index:
            yield f"sequence {state.number}: public root {public} is not its own"
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
        parent = table[i - 1] if i else state.root_of(0).reference
        if i == state.entry:
            parent = state.root.reference
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
        above = table[i - 1] if 0 < i <= len(table) else state.root_of(0).reference
        if i == state.entry:
            above = state.root.reference
        known = as_bytes(store.tokens_of(sequence)[i * size : (i + 1) * size])
        if not state.writes or (parent, block) != (above, known):
            yield f"sequence {sequence} leads others to what it does not publish next (rule 4)"


def roots(store: BlockStore) -> Iterator[str]:
    """Check the live roots' counts of sequences."""
    states = store.sequences.values()
    counts = Counter(state.root.index for state in states)
    counts.update(state.public.index for state in states if state.public is not None)
    for root in store.roots:
        if root.sequences != counts[root.index]:
            yield (
                f"root {root.index}: {root.sequences} sequences counted, {counts[root.index]} open"
            )
