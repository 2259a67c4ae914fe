"""Going on after a fault: what can be trusted stays, what is in doubt leaves service.

Trusted are the tables of open sequences as far as the audit found nothing in them, the planned
copies, the pins, and published blocks whose whole chain verifies: each key is the hash of the
parent's key and the block's tokens, from a live root down. Everything else that is cached is
dropped, tails too, which carry no key. Blocks that a violation names are quarantined for good.
"""

from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore import audit_open_ops, chains, ops
from stemkv.kvstore.audit import audit
from stemkv.kvstore.audit_ops import Marks
from stemkv.kvstore.ghosts import FLUSHED
from stemkv.kvstore.ids import BlockId, BlockKey, SequenceId
from stemkv.kvstore.keys import PackedKeys, as_bytes
from stemkv.kvstore.ops import I32, STATE
from stemkv.kvstore.rebuilding import Holds, rebuild, restore_terms, verified
from stemkv.kvstore.sequences import SequenceState
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Copy
from stemkv.kvstore.views import EventKind, RepairReport, Violation
from stemkv.kvstore.violations import kept
from stemkv.kvstore.violations_open import copy_fault, entry_of, open_of, sound_length
from stemkv.kvstore.violations_tree import wrong_keys

_ROUNDS = 3
"""What faults in rows hide may only be seen when the rows are right."""


class RepairError(Exception):
    """What is left of the store is too little to go on: what it is made of contradicts itself."""


def repair(store: BlockStore) -> RepairReport:
    """Audit a store between two steps, and make it consistent again if need be.

    The sequences in the report are to be released by whoever opened them; until then they publish
    nothing, and those that were wrong themselves hold nothing any more. Raises RepairError, after
    which the store must not be used.
    """
    assert not store.copies.under_way, "a step is under way"
    found = audit(store)
    if not found:
        return RepairReport()
    messages = tuple(map(str, found))
    work = _Repair(store)
    work.check()
    # Blocks must not be blamed for the row of a root or an account.
    restore_terms(store)
    for _ in range(_ROUNDS):
        found = audit(store)
        if not found:
            return work.report(messages)
        work.round(found)
    found = audit(store)
    if found:
        raise RepairError("; ".join(map(str, found)))
    return work.report(messages)


@dataclass(slots=True, eq=False)
class _Repair:
    """One repair, which may take several rounds. It writes to what other parts of the store own."""

    store: BlockStore
    quarantined: set[int] = field(default_factory=set)
    dropped: int = 0
    affected: set[SequenceId] = field(default_factory=set)

    def check(self) -> None:
        """Raise RepairError if there is nothing to build on."""
        store, pool = self.store, self.store.pool
        if len(store.sequences) + store.free_sequences != store.config.max_sequences:
            raise RepairError("open and free sequences are not all sequences")
        if len(store.accounts) != len(pool.accounts) or len(pool.terms) != len(pool.accounts):
            raise RepairError("accounts and their rows are not as many")
        if len(pool.meta) - pool.capacity < 2 * len(pool.accounts) - 1:
            raise RepairError("there are too few lists for the accounts")
        known = [*store.roots, *store.roots.dead]
        numbers = {root.index for root in known}
        if len(numbers) != len(known) or max(numbers, default=0) >= max(1, len(pool.roots)):
            raise RepairError("roots and their rows do not belong together")
        for state in store.sequences.values():
            if not {state.root.index, (state.public or state.root).index} <= numbers:
                raise RepairError(f"sequence {state.number} goes on from a root that there is not")

    def report(self, messages: tuple[str, ...]) -> RepairReport:
        """Return what the rounds have come to."""
        out, sequences = sorted(self.quarantined), sorted(self.affected)
        return RepairReport(messages, tuple(out), self.dropped, tuple(sequences))

    def round(self, found: tuple[Violation, ...]) -> None:
        """Take in what an audit found, and rebuild everything."""
        store = self.store
        capacity = store.pool.capacity
        out = store.pool.meta[:capacity, STATE] == ops.QUARANTINED
        named = {b for violation in found for b in violation.blocks if 0 <= b < capacity}
        self.quarantined |= {b for b in named if not out[b]}
        out[[*named]] = True
        broken = {n for n in store.sequences for v in found if n in v.sequences}
        broken |= self._without_their_copies(out, broken)
        for number in broken:
            self._empty(store.sequences[number])
        holds = self._holds(out)
        published = verified(store, holds)
        self._silence(out, published)
        self.affected |= broken
        self._tell(published)
        for pin in store.pins:
            sound = min(sound_length(store, pin.root.index, pin.blocks), len(pin.blocks))
            inside = published[pin.blocks[:sound]]
            store.pins.shorten(pin, sound if inside.all() else int(inside.argmin()))
        self.dropped += self._idle_in_tree(holds, published)
        rebuild(store, holds._replace(kept=kept(store)), published)
        store.order.restore(np.flatnonzero(published).astype(np.int32))
        self._lead_again()
        self._count_sequences()

    def _without_their_copies(self, out: Marks, broken: set[SequenceId]) -> set[SequenceId]:
        """Forget planned copies that make no sense; return whose blocks are not filled by that."""
        store = self.store
        copies = store.copies.open()
        sources = {copy.source for copy in copies}
        voided = {b for number in broken for b in store.table_of(number).tolist()}

        def keep(planned: BlockId, copy: Copy) -> bool:
            if planned != copy.destination or copy_fault(store, copy) is not None:
                return False
            twice = sum(copy.destination == other.destination for other in copies) > 1
            lost = copy.destination in voided or out[copy.source] or out[copy.destination]
            return not twice and not lost and copy.destination not in sources

        unfilled = store.copies.retain(keep)
        return {n for n in store.sequences if not unfilled.isdisjoint(store.table_of(n).tolist())}

    def _empty(self, state: SequenceState) -> None:
        """Let a sequence that is wrong itself hold nothing; its request is lost anyway."""
        store = self.store
        self._silence_one(state)
        state.published = state.computed = state.reserved = state.blocks = state.prompt_blocks = 0
        state.length = min(max(0, state.length), store.config.max_tokens)
        state.entry = entry_of(store, state)
        if not 0 <= state.owner < len(store.owners.names):
            state.owner = store.owners.operator
        row = store.sequence_arrays.rows[int(state.number)]
        row[chains.ROOT_INDEX] = state.root.index
        row[chains.PUBLIC_ROOT] = 0 if state.public is None else state.public.index

    def _holds(self, out: Marks) -> Holds:
        """Count who has which block."""
        store, capacity = self.store, self.store.pool.capacity
        held, read, root = np.zeros((3, capacity), np.int32)
        audit_open_ops.hold_all(open_of(store), held)
        for state in store.sequences.values():
            root[store.table_of(state.number)] = state.root.index
        for copy in store.copies.open():
            read[copy.source] += 1
            if not held[copy.source]:
                root[copy.source] = root[copy.destination]
        return Holds(held, read, np.zeros(capacity, np.int32), out, root)

    def _silence(self, out: Marks, published: Marks) -> None:
        """Let those who hold what is in doubt publish nothing further, and note them."""
        store = self.store
        for state in store.sequences.values():
            table = store.table_of(state.number)
            chain = published[table[: state.published]]
            if out[table].any() or (state.writes and not chain.all()):
                self._silence_one(state)
                self.affected.add(state.number)

    def _silence_one(self, state: SequenceState) -> None:
        self.store._publisher.silence(state)

    def _tell(self, published: Marks) -> None:
        """Tell the directory, and those who follow events, of published blocks that leave."""
        store, pool = self.store, self.store.pool
        meta = pool.meta[: pool.capacity]
        was = meta[:, STATE] == ops.PUBLISHED
        # One whose state is wrong is still in the index.
        entered = pool.table[pool.table >= 0] & 0xFFFFFFFF
        was[entered[entered < pool.capacity]] = True
        gone = np.flatnonzero(was & ~published).astype(np.int32)
        keys = {pool.key(b) for b in gone.tolist()}
        keys |= self._keys_as_they_were(gone)
        keys -= {pool.key(b) for b in np.flatnonzero(published).tolist()} if keys else set()
        if keys:
            store.directory.record((), PackedKeys(b"".join(sorted(keys))))
        for root in (*store.roots, *store.roots.dead):
            mine = gone[meta[gone, ops.ROOT] == root.index]
            if not len(mine):
                continue
            kind: EventKind = "removed" if root.died is None else "flushed"
            store.events.record(kind, root.account, pool.keys_of(mine))
            died = store.clock() if root.died is None else root.died
            cause = store.owners.operator if root.died is None else FLUSHED
            store.ghosts.add(pool.keys_of(mine), died, cause)

    def _keys_as_they_were(self, gone: I32) -> set[BlockKey]:
        """Return the keys that content says, of blocks whose own keys it does not give."""
        store, pool = self.store, self.store.pool
        rows = pool.meta[gone]
        roots = {root.index: root for root in store.roots}
        parent, root = rows[:, ops.PARENT].astype(np.int64), rows[:, ops.ROOT]
        hangs = ((parent >= 0) & (parent < pool.capacity)) | (parent == -2 - root)
        of = gone[hangs & np.isin(root, [*roots])]
        wrong = wrong_keys(store, of.astype(np.intp))
        keys = set()
        for b in of[wrong[of]].tolist():
            row = pool.meta[b]
            above = store.matcher.key_of_parent(int(row[ops.PARENT]), roots[int(row[ops.ROOT])])
            keys.add(store.matcher.hash(above + as_bytes(pool.tokens[b])))
        return keys

    def _idle_in_tree(self, holds: Holds, published: Marks) -> int:
        """How many blocks were cached, and will be free."""
        meta = self.store.pool.meta[: len(published)]
        live = np.isin(meta[:, ops.ROOT], [root.index for root in self.store.roots])
        in_tree = np.isin(meta[:, STATE], (ops.PUBLISHED, ops.TAIL))
        return int((live & in_tree & ~holds.busy & ~holds.out & ~published).sum())

    def _lead_again(self) -> None:
        """Find anew who leads others."""
        self.store.leaders.clear()
        for state in self.store.sequences.values():
            if state.writes:
                self.store._publisher.lead(state)

    def _count_sequences(self) -> None:
        """Count the open sequences of each root, and give back roots that nothing is left of."""
        store = self.store
        for root in (*store.roots, *store.roots.dead):
            root.sequences = 0
        for state in store.sequences.values():
            state.root.sequences += 1
            if state.public is not None:
                state.public.sequences += 1
        store.roots.free_dead()
