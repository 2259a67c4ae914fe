"""What is wrong with open sequences and all that is few, in words; see `violations`."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from stemkv.kvstore import audit_open_ops, chains, ops
from stemkv.kvstore.audit_open_ops import Open
from stemkv.kvstore.audit_ops import Blocks
from stemkv.kvstore.keys import TOKEN_BYTES, as_bytes
from stemkv.kvstore.ops import REF, STATE
from stemkv.kvstore.pool import halves
from stemkv.kvstore.sequences import SequenceState
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Copy
from stemkv.kvstore.views import Violation


def blocks_of(store: BlockStore) -> Blocks:
    """Return the pool's arrays as compiled loops take them."""
    pool = store.pool
    return Blocks(pool.meta, pool.tokens, pool.keys, pool.table, pool.roots, pool.accounts)


def open_of(store: BlockStore) -> Open:
    """Return the open sequences as compiled loops take them."""
    states, arrays = store.sequences, store.sequence_arrays
    numbers = np.fromiter(states, np.int64, len(states))
    roots_, publics, entries = np.zeros((3, len(states)), np.int64)
    for k, state in enumerate(states.values()):
        roots_[k] = state.root.index
        publics[k] = top_of(state)
        entries[k] = entry_of(store, state)
    return Open(arrays.rows, arrays.history, arrays.tables, numbers, roots_, publics, entries)


def entry_of(store: BlockStore, state: SequenceState) -> int:
    """Say how many of a sequence's blocks are public by what its root says, not by its row."""
    if state.public is None:
        return 0
    return len(state.root.above) // (TOKEN_BYTES * store.config.block_size)


def top_of(state: SequenceState) -> int:
    """Return the index of the root that a sequence's first block hangs on."""
    return state.root.index if state.public is None else state.public.index


def sequences(store: BlockStore, *, rows_hold: bool) -> Iterator[Violation]:
    """Check how far each sequence is said to be, its table, and that it is in its own chain.

    The last only if block rows hold.
    """
    pool, blocks, open_ = store.pool, blocks_of(store), open_of(store)
    owners, size = len(store.owners.names), store.config.block_size
    seen = np.full(pool.capacity, ops.NONE, np.int64)
    for k, state in enumerate(store.sequences.values()):
        if not audit_open_ops.progress_holds(open_, k, size, owners):
            yield Violation(_out_of_order(store, state), (), (state.number,))
            continue
        at = int(audit_open_ops.first_misplaced(open_, k, seen))
        if at != ops.NONE:
            b = int(store.table_of(state.number)[at])
            what = "is no block" if not 0 <= b < pool.capacity else "stands twice in its table"
            message = f"sequence {state.number}: block {b} in its table {what}"
            yield Violation(message, (), (state.number,))
        elif rows_hold:
            yield from _chain(blocks, open_, k, state)
    if len(store.sequences) + store.free_sequences != store.config.max_sequences:
        yield Violation("open and free sequences are not all sequences")


_CHAIN_FAULTS = {
    audit_open_ops.WRITES_PUBLISHED: "would write to published block {} (rule 5)",
    audit_open_ops.WRITES_SHARED: "would write to shared block {} (rule 5)",
    audit_open_ops.WRITES_ON_BAD: "publishes, and holds block {}, which is out of service",
    audit_open_ops.NOT_ITS_CHAIN: "block {} at {} is not its published chain (rule 5)",
    audit_open_ops.OTHER_TOKENS: "block {} at {} holds other tokens (rule 2)",
}


def _chain(blocks: Blocks, open_: Open, k: int, state: SequenceState) -> Iterator[Violation]:
    """Check that a sequence holds its own published chain, and writes to nobody else's block."""
    fault, at = audit_open_ops.first_fault(blocks, open_, k)
    if fault != audit_open_ops.NO_FAULT:
        b = int(open_.tables[state.number, at])
        bad = (b,) if fault == audit_open_ops.WRITES_ON_BAD else ()
        text = _CHAIN_FAULTS[int(fault)].format(b, at)
        yield Violation(f"sequence {state.number}: {text}", bad, (state.number,))


def _out_of_order(store: BlockStore, state: SequenceState) -> str:
    """Say what is wrong with a sequence's row."""
    size, most = store.config.block_size, store.config.max_tokens
    row = store.sequence_arrays.rows[int(state.number)]
    name = f"sequence {state.number}"
    written = 0 <= state.published * size <= state.computed <= state.reserved
    if not (written and state.reserved <= state.length <= most):
        return f"{name}: published, computed, reserved and length are out of order"
    if state.writes and state.published != state.computed // size:
        return f"{name}: {state.published} blocks published of {state.computed} computed tokens"
    if not state.reserved <= state.blocks * size <= store.config.blocks_per_sequence * size:
        return f"{name}: {state.blocks} blocks for {state.reserved} positions"
    if state.entry != entry_of(store, state):
        return (
            f"{name}: {state.entry} public blocks, and its root is below {entry_of(store, state)}"
        )
    root, public = int(row[chains.ROOT_INDEX]), int(row[chains.PUBLIC_ROOT])
    if state.public is not None and public != state.public.index:
        return f"{name}: public root {public} is not its own"
    if not 0 <= state.prompt_blocks * size <= state.length:
        return f"{name}: {state.prompt_blocks} blocks of a prompt in {state.length} tokens"
    return f"{name}: root {root} or owner {state.owner} is not its own"


def copies(store: BlockStore) -> Iterator[Violation]:
    """Check the planned copies and those under way."""
    open_copies = store.copies.open()
    sources = {c.source for c in open_copies}
    destinations = Counter(c.destination for c in open_copies)
    for copy in open_copies:
        if wrong := copy_fault(store, copy):
            yield Violation(wrong)
        elif destinations[copy.destination] > 1 or copy.destination in sources:
            yield Violation(
                f"block {copy.destination} is the destination of one copy and part of another"
            )


def copy_fault(store: BlockStore, copy: Copy) -> str | None:
    """Say what is wrong with one copy, None if nothing is."""
    source, destination, tokens = copy
    pool = store.pool
    for b in (source, destination):
        if not 0 <= b < pool.capacity:
            return f"copy of {source} to {destination}: {b}, which is no block"
    if not 0 < tokens <= pool.block_size:
        return f"copy of {source} to {destination}: {tokens} tokens"
    row = pool.meta[destination]
    if row[STATE] != ops.PRIVATE or row[REF] < 1:
        return f"block {destination} is to be copied to, and is not a sequence's own (rule 5)"
    return None


def leaders(store: BlockStore) -> Iterator[Violation]:
    """Check that who is said to lead publishes that block next."""
    size = store.config.block_size
    for (parent, block), sequence in store.leaders.all().items():
        state = store.sequences.get(sequence)
        if state is None:
            yield Violation(f"sequence {sequence} is said to lead, and is closed (rule 4)")
            continue
        i, table = state.published, store.table_of(sequence).tolist()
        above = table[i - 1] if 0 < i <= len(table) else -2 - top_of(state)
        if i == state.entry:
            above = state.root.reference
        known = as_bytes(store.tokens_of(sequence)[i * size : (i + 1) * size])
        if not state.writes or (parent, block) != (above, known):
            yield Violation(
                f"sequence {sequence} leads others to what it does not publish next (rule 4)"
            )


def roots(store: BlockStore) -> Iterator[Violation]:
    """Check the roots' rows, and the live ones' counts of sequences."""
    states, rows = store.sequences.values(), store.pool.roots
    counts = Counter(state.root.index for state in states)
    counts.update(state.public.index for state in states if state.public is not None)
    for root in (*store.roots, *store.roots.dead):
        if root.index >= len(rows):
            yield Violation(f"root {root.index} has no row")
            continue
        key = halves(root.key).view(np.int64)
        row = rows[root.index]
        said = (int(row[ops.ACCOUNT]), int(row[ops.DEAD]))
        if said != (root.account, int(not root.alive)):
            yield Violation(
                f"root {root.index}: account and death are {said}, and should be "
                f"{(root.account, int(not root.alive))} (rule 11)"
            )
        if (row[[ops.KEY_LOW, ops.KEY_HIGH]] != key).any():
            yield Violation(f"root {root.index}: its key is not what its row has (rule 1)")
        if root.sequences != counts[root.index]:
            yield Violation(
                f"root {root.index}: {root.sequences} sequences counted, {counts[root.index]} open"
            )


def pins(store: BlockStore) -> Iterator[Violation]:
    """Check that each pin keeps the beginning of a chain below its root."""
    for pin in store.pins:
        if sound_length(store, pin.root.index, pin.blocks) < max(1, len(pin.blocks)):
            yield Violation(
                f"pin {pin.number} keeps blocks {pin.blocks.tolist()}, which are no chain of its "
                "root (rule 8)"
            )


def sound_length(store: BlockStore, root: int, blocks: ops.I32) -> int:
    """Say how many of a chain's first blocks are published one below the other under a root."""
    inside = (blocks >= 0) & (blocks < store.pool.capacity)
    rows = store.pool.meta[np.where(inside, blocks, 0)]
    above = np.concatenate([[-2 - root], blocks[:-1]])
    sound = inside & (rows[:, STATE] == ops.PUBLISHED) & (rows[:, ops.PARENT] == above)
    return len(blocks) if sound.all() else int(sound.argmin())


def quotas(store: BlockStore) -> Iterator[Violation]:
    """Check that reserves fit the pool together, and that all accounts have names and rows."""
    pool = store.pool
    reserves, public = pool.accounts[1:, ops.RESERVE], store.publics.blocks()
    if (reserves < 0).any() or sum(reserves.tolist()) > pool.capacity:
        yield Violation(f"reserves of {reserves.tolist()} blocks do not fit the pool (rule 11)")
    if not len(store.accounts) == len(pool.accounts) == len(pool.terms):
        yield Violation("accounts and their rows are not as many (rule 11)")
    elif not np.array_equal(
        pool.accounts[1:, [ops.RESERVE, ops.CAP]], store.accounts.granted(public)
    ):
        yield Violation("what accounts may hold is not what their quotas say (rule 11)")
