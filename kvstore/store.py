"""`BlockStore`: which block holds what, for whom, and may it be reused.

One owner for every mutable thing about blocks: reference counts, the index, the tree of cached
prefixes and the orders of eviction change here alone. It holds no tensor: what must be copied is
returned as a plan, and a block enters the index only when told that its step has run.

The calls of one step, in order: `admit`, `reserve`, `fork` and `release` in any mixture;
`take_copies`; the step runs; `commit` for each sequence; `settle`. Calls come from one thread.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import ops
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.flush import Flush, FlushKind, FlushReport
from stemkv.kvstore.ghosts import FLUSHED, GhostLog
from stemkv.kvstore.ids import BlockId, BlockKey, SequenceId
from stemkv.kvstore.keys import HASH_FUNCTIONS, TOKEN_BYTES, Digest, chain
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.ops import I32, NONE, PIN, REF, STATE
from stemkv.kvstore.roots import Root, Roots
from stemkv.kvstore.values import Admission, Copy, Following, Lookup, Shortage
from stemkv.kvstore.views import PoolCounts, TenantCounts
from stemkv.policies.eviction import EVICTION

Tokens = npt.NDArray[np.int32]

_NO_BLOCKS = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class SequenceState:
    """One open sequence; its tokens and block table are row `row` of the store's arrays.

        0 ........ published*size ........ computed ........ length
        | in the index | keys and values written | known, not run |

    prompt_blocks: full blocks of the prompt it was admitted with, the part that others may
    follow. writes: may publish. reserved: positions from computed up to it may be written.
    pending: its entry among the prefixes being computed.
    """

    row: int
    root: Root
    owner: int
    writes: bool
    length: int
    computed: int
    blocks: int
    published: int
    prompt_blocks: int
    reserved: int
    pending: tuple[int, bytes] | None = None


@dataclass(slots=True)
class _OwnerCounts:
    lookup: int = 0
    hit_full: int = 0
    hit_partial: int = 0
    evicted: int = 0


@dataclass(slots=True)
class _Match:
    """What of a prompt is there: leading full blocks, then part of one more."""

    blocks: I32
    partial: int = NONE
    partial_tokens: int = 0
    leader: SequenceId | None = None


@dataclass(slots=True, eq=False)
class BlockStore:
    """The pool, the index and the open sequences. See the module for the order of calls.

    digest replaces the configured hash function (tests break it on purpose); clock gives seconds.
    """

    config: StoreConfig
    directory: Directory
    clock: Callable[[], float] = time.monotonic
    digest: Digest | None = None
    roots: Roots = field(init=False)
    ghosts: GhostLog = field(init=False)
    meta: I32 = field(init=False)
    tokens: I32 = field(init=False)
    keys: npt.NDArray[np.uint64] = field(init=False)
    table: I32 = field(init=False)
    count: npt.NDArray[np.int64] = field(init=False)
    history: I32 = field(init=False)
    tables: I32 = field(init=False)
    sequences: dict[SequenceId, SequenceState] = field(init=False, default_factory=dict)
    owners: list[str] = field(init=False, default_factory=list)
    evicted: int = field(init=False, default=0)
    _owner_numbers: dict[str, int] = field(init=False, default_factory=dict)
    _owner_counts: list[_OwnerCounts] = field(init=False, default_factory=list)
    _free_rows: list[int] = field(init=False)
    _pending: dict[tuple[int, bytes], SequenceId] = field(init=False, default_factory=dict)
    _planned: dict[BlockId, Copy] = field(init=False, default_factory=dict)
    _executing: list[Copy] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Make the arrays: all blocks free, index empty."""
        config = self.config
        n = config.capacity_blocks
        if self.digest is None:
            self.digest = HASH_FUNCTIONS[config.hash_function]
        self.roots = Roots(config, dict(self.directory.nonces()))
        self.ghosts = GhostLog(max(n, 1024))
        self.meta = np.full((n + ops.COUNTS, ops.COLUMNS), NONE, np.int32)
        self.meta[:, [REF, PIN, ops.FILL, STATE]] = 0
        ring = np.arange(n + ops.COUNTS)
        self.meta[ring[n:], ops.PREV] = self.meta[ring[n:], ops.NEXT] = ring[n:]
        self.count = np.zeros(ops.COUNTS, np.int64)
        for b in range(n):
            ops.link_newest(self.meta, self.count, ops.FREE_LIST, b)
        self.tokens = np.zeros((n, config.block_size), np.int32)
        self.keys = np.zeros((n, 2), np.uint64)
        self.table = np.full(1 << max(4, (2 * n - 1).bit_length()), NONE, np.int32)
        self.history = np.zeros((config.max_sequences, config.max_tokens), np.int32)
        self.tables = np.zeros((config.max_sequences, config.blocks_per_sequence), np.int32)
        self._free_rows = list(range(config.max_sequences))[::-1]

    # --- what is there -----------------------------------------------------------------------

    def lookup(self, namespace: Namespace, prompt: Tokens) -> Lookup:
        """Return a prompt's longest reusable prefix, holding nothing."""
        root = self.roots.find(namespace)
        if root is None or not self.may_hit:
            return Lookup(0, 0, None)
        owner = self._owner_numbers.get(namespace.tenant, NONE)
        match = self._match(root, np.array(prompt, np.int32), owner)
        return Lookup(len(match.blocks), match.partial_tokens, match.leader)

    @property
    def may_hit(self) -> bool:
        """Whether a lookup may find anything: the cache is on, and no flush can have been missed."""
        return self.config.prefix_cache and self.directory.current

    def keys_of(self, namespace: Namespace, prompt: Tokens) -> list[BlockKey]:
        """Return the keys that a prompt's full blocks have in this namespace, cached or not."""
        root = self.roots.find(namespace)
        start = root.key if root is not None else self.roots.key_of(namespace)
        return chain(self.hash, start, _as_bytes(prompt), self.config.block_size)

    def table_of(self, sequence: SequenceId) -> I32:
        """Return a sequence's block table, int32 [blocks]; a view, valid until the next call."""
        state = self.sequences[sequence]
        return self.tables[state.row, : state.blocks]

    def tokens_of(self, sequence: SequenceId) -> Tokens:
        """Return a sequence's tokens, int32 [length]; a view, valid until the next call."""
        state = self.sequences[sequence]
        return self.history[state.row, : state.length]

    def slots(self, sequence: SequenceId, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where keys and values of positions start to stop - 1 go: block * block_size + offset.

        -1 for positions that are computed already: they may lie in a published block.
        """
        state = self.sequences[sequence]
        assert stop <= state.reserved, f"{sequence}: {stop} is over {state.reserved} reserved"
        positions = np.arange(start, stop)
        blocks = self.tables[state.row, positions // self.config.block_size].astype(np.int64)
        slots = blocks * self.config.block_size + positions % self.config.block_size
        slots[positions < state.computed] = NONE
        return slots

    def pool_counts(self) -> PoolCounts:
        """Return the blocks by state."""
        free, cached, tails = (int(c) for c in self.count)
        capacity = self.config.capacity_blocks
        return PoolCounts(
            capacity=capacity,
            free=free,
            in_use=capacity - free - cached - tails,
            cached=cached + tails,
            stale=0,
            quarantined=0,
            tails=tails,
            evicted=self.evicted,
        )

    def tenant_counts(self) -> dict[str, TenantCounts]:
        """Return the counts of every tenant that ever looked up or wrote here."""
        rows = self.meta[: self.config.capacity_blocks]
        published = rows[rows[:, STATE] == ops.PUBLISHED]
        held = np.bincount(published[:, ops.OWNER], minlength=len(self.owners))
        return {
            name: TenantCounts(c.lookup, c.hit_full, c.hit_partial, int(held[i]), c.evicted)
            for i, (name, c) in enumerate(zip(self.owners, self._owner_counts, strict=True))
        }

    # --- sequences ---------------------------------------------------------------------------

    def admit(
        self,
        namespace: Namespace,
        prompt: Tokens,
        *,
        read: bool = True,
        write: bool = True,
        again: bool = False,
    ) -> Admission | Following | Shortage:
        """Open a sequence: adopt what is cached of its prompt, reserve blocks for the rest.

        read False reuses nothing; write False leaves nothing for others. again: the sequence was
        preempted and comes back, so it is not counted as another lookup. Raises ValueError for a
        prompt that is empty or longer than a sequence may be.
        """
        config = self.config
        if not 0 < len(prompt) <= config.max_tokens:
            raise ValueError(f"prompt: {len(prompt)} tokens are not in 1..{config.max_tokens}")
        assert not self._executing, "a step is under way"
        prompt = np.array(prompt, np.int32)
        # Neither a root nor an owner is made before the call is sure to succeed.
        root = self.roots.find(namespace)
        match = _Match(_NO_BLOCKS)
        if read and root is not None and self.may_hit:
            match = self._match(root, prompt, self._owner_numbers.get(namespace.tenant, NONE))
            if match.leader is not None:
                return Following(match.leader)
        if not self._free_rows:
            return Shortage("sequences", 1, 0)
        needed = -(-len(prompt) // config.block_size) - len(match.blocks)
        match, shortage = self._fit(match, needed)
        if shortage is not None:
            return shortage
        root = self.roots.get(namespace)
        owner = self._owner(namespace.tenant)
        if not again:
            self._count_lookup(owner, len(prompt), match)
        return self._open(root, owner, prompt, match, write and config.prefix_cache)

    def fork(self, sequence: SequenceId) -> SequenceId | Shortage:
        """Open a second sequence that shares all blocks and tokens of the first.

        Whichever of them writes first to a shared block gets a copy of it (see `reserve`). What
        was reserved for the first must be reserved again: it is not exclusive any more.
        """
        assert not self._executing, "a step is under way"
        if not self._free_rows:
            return Shortage("sequences", 1, 0)
        parent = self.sequences[sequence]
        row = self._free_rows.pop()
        blocks = self.tables[parent.row, : parent.blocks]
        self.tables[row, : parent.blocks] = blocks
        self.history[row, : parent.length] = self.history[parent.row, : parent.length]
        self.meta[blocks, REF] += 1
        parent.root.sequences += 1
        parent.reserved = parent.computed
        child = SequenceId(row)
        self.sequences[child] = SequenceState(
            row=row,
            root=parent.root,
            owner=parent.owner,
            writes=parent.writes,
            length=parent.length,
            computed=parent.computed,
            blocks=parent.blocks,
            published=parent.published,
            prompt_blocks=0,
            reserved=parent.computed,
        )
        return child

    def extend(self, sequence: SequenceId, token: int) -> None:
        """Append one token that is known but not run; raises ValueError if the sequence is full."""
        state = self.sequences[sequence]
        if state.length == self.config.max_tokens:
            raise ValueError(f"sequence {sequence} already has max_tokens = {state.length}")
        self.history[state.row, state.length] = token
        state.length += 1

    def reserve(self, sequence: SequenceId, stop: int) -> Shortage | None:
        """Make positions computed to stop - 1 writable: exclusive, unpublished blocks.

        Allocates blocks that are missing, and plans a copy of each that is shared
        (copy-on-write). On a shortage nothing has changed.
        """
        assert not self._executing, "a step is under way"
        state = self.sequences[sequence]
        assert stop <= state.length
        if stop <= state.reserved:
            return None
        size = self.config.block_size
        first, last = state.computed // size, -(-stop // size)
        row = self.tables[state.row]
        shared = [x for x in range(first, min(last, state.blocks)) if self.meta[row[x], REF] > 1]
        missing = max(0, last - state.blocks)
        needed = len(shared) + missing
        shortage = self._shortage(needed)
        if shortage is not None:
            return shortage
        fresh = self._take(needed, state.owner)
        for x, b in zip(shared, fresh, strict=False):
            self._replace(state, x, int(b))
        row[state.blocks : state.blocks + missing] = fresh[len(shared) :]
        state.blocks += missing
        state.reserved = stop
        return None

    def commit(self, sequence: SequenceId, computed: int) -> None:
        """Say that keys and values of positions below `computed` are written; publish full blocks."""
        state = self.sequences[sequence]
        assert state.computed <= computed <= state.reserved
        state.computed = computed
        if not state.writes or state.published == computed // self.config.block_size:
            return
        self._publish(state)
        self._lead(sequence, state)

    def release(self, sequence: SequenceId) -> None:
        """Close a sequence: its published blocks stay cached, a partly filled last one as a tail."""
        assert not self._executing, "a step is under way"
        state = self.sequences.pop(sequence)
        self._stop_leading(sequence, state)
        blocks = self.tables[state.row, : state.blocks].copy()
        self._keep_tail(state)
        self._cancel_copies(blocks)
        ops.dereference(self.meta, self.count, blocks, REF)
        state.root.sequences -= 1
        self.roots.free_dead([state.root])
        self._free_rows.append(state.row)

    # --- copies ------------------------------------------------------------------------------

    def take_copies(self) -> tuple[Copy, ...]:
        """Return the copies to execute before this step writes; their sources stay held."""
        copies = tuple(self._planned.values())
        self._executing += copies
        self._planned.clear()
        return copies

    def settle(self, *, ran: bool = True) -> None:
        """Say that the step has run, or (ran False) failed: sources of its copies are let go.

        After a failure nobody knows what the copies' destinations hold: sequences that have one
        publish nothing further, and should be released.
        """
        if self._executing:
            if not ran:
                self._silence_holders({c.destination for c in self._executing})
            sources = np.array([c.source for c in self._executing], np.int32)
            self._executing.clear()
            ops.dereference(self.meta, self.count, sources, PIN)

    # --- flush -------------------------------------------------------------------------------

    def flush(self, flush: Flush) -> FlushReport:
        """Carry a flush out here. Sequences that hold flushed blocks keep them, and publish no more."""
        if flush.kind is FlushKind.PREFIX:
            dropped = self._cut_prefix(flush)
        else:
            dropped = self._cut_roots(flush)
        removed = dropped[self.meta[dropped, STATE] == ops.PUBLISHED]
        owned = np.bincount(self.meta[dropped, ops.OWNER], minlength=len(self.owners))
        self._forget(removed, FLUSHED)
        held = ops.drop_all(self.meta, self.table, self.keys, self.count, dropped)
        return FlushReport(
            flush_id=flush.flush_id,
            blocks=len(dropped),
            bytes=len(dropped) * self.config.block_bytes,
            in_use=int(held),
            blocks_by_tenant={n: int(k) for n, k in zip(self.owners, owned, strict=True) if k},
        )

    def _cut_roots(self, flush: Flush) -> I32:
        dying = self.roots.retire(flush)
        dead = np.zeros(len(self.roots.heads), np.bool_)
        dead[[root.index for root in dying]] = True
        for sequence, state in self.sequences.items():
            if not state.root.alive:
                self._silence(sequence, state)
        out = np.empty(self.config.capacity_blocks, np.int32)
        n = ops.cut_roots(self.meta, self.roots.heads, dead, out)
        self.roots.free_dead(dying)
        return out[:n]

    def _cut_prefix(self, flush: Flush) -> I32:
        prefix = np.frombuffer(flush.prefix, "<i4").astype(np.int32)
        namespace = Namespace("", flush.domain, flush.adapter, flush.adapter_digest, flush.salt)
        root = self.roots.find(namespace)
        if root is None:
            return _NO_BLOCKS
        for sequence, state in self.sequences.items():
            known = self.history[state.row, : min(state.length, len(prefix))]
            if state.root is root and len(known) == len(prefix) and (known == prefix).all():
                self._silence(sequence, state)
        size = self.config.block_size
        out = np.empty(self.config.capacity_blocks, np.int32)
        above = max(0, -(-len(prefix) // size) - 1)
        path = self._match_blocks(root, prefix[: above * size])
        if len(path) < above:
            return _NO_BLOCKS
        parent = int(path[-1]) if len(path) else root.reference
        rest = len(prefix) - above * size
        b, n = ops.first_child(self.meta, self.roots.heads, parent), 0
        while b >= 0:
            following = int(self.meta[b, ops.NEXT_SIBLING])
            if self.meta[b, ops.FILL] >= rest:
                same = ops.common_prefix(self.tokens, b, prefix, above * size, rest)
                if same == rest:
                    n = ops.subtree(self.meta, self.roots.heads, b, out, n)
            b = following
        return out[:n]

    def _silence(self, sequence: SequenceId, state: SequenceState) -> None:
        """A sequence that holds flushed content publishes nothing further."""
        state.writes = False
        self._stop_leading(sequence, state)

    def _silence_holders(self, blocks: set[BlockId]) -> None:
        for sequence, state in self.sequences.items():
            if not blocks.isdisjoint(self.tables[state.row, : state.blocks].tolist()):
                self._silence(sequence, state)

    # --- how -----------------------------------------------------------------------------------

    def hash(self, data: bytes) -> BlockKey:
        """Hash what a block key is made of."""
        assert self.digest is not None
        return BlockKey(self.digest(data))

    def open_copies(self) -> tuple[Copy, ...]:
        """Return the copies that are planned or under way: their sources are held."""
        return (*self._planned.values(), *self._executing)

    def computing(self) -> Mapping[tuple[int, bytes], SequenceId]:
        """Return which sequence computes the child of which parent with which tokens."""
        return self._pending

    @property
    def free_sequences(self) -> int:
        """How many more sequences may be opened."""
        return len(self._free_rows)

    def _owner(self, tenant: str) -> int:
        number = self._owner_numbers.get(tenant)
        if number is None:
            number = self._owner_numbers[tenant] = len(self.owners)
            self.owners.append(tenant)
            self._owner_counts.append(_OwnerCounts())
        return number

    def _count_lookup(self, owner: int, tokens: int, match: _Match) -> None:
        counts = self._owner_counts[owner]
        counts.lookup += tokens
        counts.hit_full += len(match.blocks) * self.config.block_size
        counts.hit_partial += match.partial_tokens

    def key_of_parent(self, parent: int, root: Root) -> BlockKey:
        """Return the key that a child of this parent (a block, or the root) is hashed with."""
        return BlockKey(self.keys[parent].tobytes()) if parent >= 0 else root.key

    def _key(self, parent: int, root: Root, data: bytes, index: int) -> BlockKey:
        width = self.config.block_size * TOKEN_BYTES
        start = index * width
        above = self.key_of_parent(parent, root)
        return self.hash(above + data[start : start + width])

    def _match_blocks(self, root: Root, prompt: Tokens) -> I32:
        """The leading published blocks of a prompt, verified one by one."""
        size = self.config.block_size
        full = len(prompt) // size
        out = np.empty(full, np.int32)
        data = b""
        parent, i = root.reference, 0
        while True:
            i = ops.walk(self.tokens, self.meta, self.roots.heads, prompt, parent, i, full, out)
            if i == full:
                return out
            # The newest child is another one: look the block up by its key.
            data = data or _as_bytes(prompt)
            parent = int(out[i - 1]) if i else root.reference
            low, high = _halves(self._key(parent, root, data, i))
            b = ops.find_twin(
                self.tokens, self.meta, self.table, self.keys, prompt, i * size, parent, low, high
            )
            if b < 0:
                return out[:i]
            out[i], parent, i = b, b, i + 1

    def _match(self, root: Root, prompt: Tokens, owner: int) -> _Match:
        size = self.config.block_size
        blocks = self._match_blocks(root, prompt)
        offset = len(blocks) * size
        match = _Match(blocks)
        if offset == len(prompt):
            return match
        parent = int(blocks[-1]) if len(blocks) else root.reference
        if offset + size <= len(prompt) and self._pending:
            block = _as_bytes(prompt[offset : offset + size])
            match.leader = self._pending.get((parent, block))
        if self.config.partial_hits:
            match.partial, match.partial_tokens = ops.best_partial(
                self.tokens, self.meta, self.roots.heads, prompt, offset, parent, owner
            )
        return match

    def _shortage(self, needed: int, taken: int = 0) -> Shortage | None:
        available = int(self.count.sum()) - taken
        return Shortage("blocks", needed, available) if needed > available else None

    def _fit(self, match: _Match, needed: int) -> tuple[_Match, Shortage | None]:
        """Check that a match can be adopted and the rest allocated; give the copy up if it cannot."""
        adopted = ops.count_unreferenced(self.meta, match.blocks)
        if match.partial >= 0:
            source = np.array([match.partial], np.int32)
            held = ops.count_unreferenced(self.meta, source)
            if self._shortage(needed, adopted + held) is None:
                return match, None
            match = _Match(match.blocks)
        return match, self._shortage(needed, adopted)

    def _open(
        self, root: Root, owner: int, prompt: Tokens, match: _Match, writes: bool
    ) -> Admission:
        row = self._free_rows.pop()
        sequence = SequenceId(row)
        adopted = len(match.blocks)
        needed = -(-len(prompt) // self.config.block_size) - adopted
        ops.reference(self.meta, self.roots.heads, self.count, match.blocks, REF)
        if match.partial >= 0:
            # Held before blocks are taken, or the source itself might be evicted.
            self._pin(match.partial)
        fresh = self._take(needed, owner)
        self.history[row, : len(prompt)] = prompt
        self.tables[row, :adopted] = match.blocks
        self.tables[row, adopted : adopted + needed] = fresh
        if match.partial >= 0:
            self._plan_copy(match.partial, int(fresh[0]), match.partial_tokens)
        full_tokens = adopted * self.config.block_size
        state = SequenceState(
            row=row,
            root=root,
            owner=owner,
            writes=writes,
            length=len(prompt),
            computed=full_tokens + match.partial_tokens,
            blocks=adopted + needed,
            published=adopted,
            prompt_blocks=len(prompt) // self.config.block_size,
            reserved=len(prompt),
        )
        root.sequences += 1
        self.sequences[sequence] = state
        if writes:
            # A copied prefix may have completed nothing; a whole block is never partial.
            self._lead(sequence, state)
        return Admission(sequence, full_tokens, match.partial_tokens)

    def _pin(self, block: int) -> None:
        source = np.array([block], np.int32)
        ops.reference(self.meta, self.roots.heads, self.count, source, PIN)

    def _take(self, needed: int, owner: int) -> I32:
        """Allocate blocks that are known to be available, evicting for `owner` as need be."""
        out = np.empty(needed, np.int32)
        evict = max(0, needed - int(self.count[ops.FREE_LIST]))
        victims = _NO_BLOCKS
        if evict:
            n = self.config.capacity_blocks
            choose = EVICTION[self.config.eviction]
            victims = choose(self.meta[:, ops.NEXT], n + ops.TAIL_LIST, n + ops.CACHED_LIST, evict)
            self.evicted += evict
            for number in self.meta[victims, ops.OWNER]:
                self._owner_counts[number].evicted += 1
            self._forget(victims[self.meta[victims, STATE] == ops.PUBLISHED], owner)
        ops.take(self.meta, self.roots.heads, self.table, self.keys, self.count, victims, out)
        return out

    def _forget(self, blocks: I32, cause: int) -> None:
        """Note that these published blocks leave the index."""
        if len(blocks):
            keys = self.keys[blocks]
            self.ghosts.add(keys, self.clock(), cause)
            self.directory.record((), [BlockKey(k.tobytes()) for k in keys])

    def _replace(self, state: SequenceState, index: int, fresh: int) -> None:
        """Copy-on-write: give a sequence a block of its own in place of a shared one."""
        row = self.tables[state.row]
        shared = int(row[index])
        row[index] = fresh
        self.meta[shared, REF] -= 1
        filled = state.computed - index * self.config.block_size
        if filled > 0:
            # What is to be copied into the shared block is not there yet: copy from its source.
            planned = self._planned.get(BlockId(shared))
            source = shared if planned is None else planned.source
            self._pin(source)
            self._plan_copy(source, fresh, filled)

    def _plan_copy(self, source: int, destination: int, tokens: int) -> None:
        """Plan a copy; the source is pinned by the caller."""
        self._planned[BlockId(destination)] = Copy(BlockId(source), BlockId(destination), tokens)

    def _cancel_copies(self, blocks: I32) -> None:
        """Forget copies into blocks that their last holder is about to let go.

        Called while the blocks are held, so that no source is evictable after its parent.
        """
        if not self._planned:
            return
        last = blocks[self.meta[blocks, REF] == 1].tolist()
        gone = [c for b in last if (c := self._planned.pop(BlockId(b), None)) is not None]
        if gone:
            ops.dereference(self.meta, self.count, np.array([c.source for c in gone], np.int32), PIN)

    def _publish(self, state: SequenceState) -> None:
        size = self.config.block_size
        row, history = self.tables[state.row], self.history[state.row]
        data = _as_bytes(history[: state.computed])
        stored: list[BlockKey] = []
        while state.published < state.computed // size:
            i = state.published
            b = int(row[i])
            if self.meta[b, STATE] != ops.PUBLISHED:
                parent = int(row[i - 1]) if i else state.root.reference
                key = self._key(parent, state.root, data, i)
                low, high = _halves(key)
                twin = ops.find_twin(
                    self.tokens,
                    self.meta,
                    self.table,
                    self.keys,
                    history,
                    i * size,
                    parent,
                    low,
                    high,
                )
                if twin == ops.COLLISION or (twin >= 0 and not self.may_hit):
                    state.writes = False
                    break
                if twin >= 0:
                    self._swap(state, i, twin)
                else:
                    self._enter(state, i, parent, (low, high))
                    stored.append(key)
            state.published += 1
        if stored:
            self.directory.record(stored, ())

    def _swap(self, state: SequenceState, index: int, twin: int) -> None:
        """Hold the published twin of a block instead of the block itself."""
        row = self.tables[state.row]
        own = row[index : index + 1].copy()
        row[index] = twin
        ops.reference(self.meta, self.roots.heads, self.count, row[index : index + 1].copy(), REF)
        ops.dereference(self.meta, self.count, own, REF)

    def _enter(
        self, state: SequenceState, index: int, parent: int, key: tuple[np.uint64, np.uint64]
    ) -> None:
        """Publish a sequence's block under a key that nobody has."""
        size = self.config.block_size
        history = self.history[state.row]
        b = int(self.tables[state.row, index])
        self._drop_covered_tail(state.owner, parent, history[: (index + 1) * size], index * size)
        ops.enter(
            self.tokens,
            self.meta,
            self.roots.heads,
            b,
            history,
            index * size,
            size,
            parent,
            state.root.index,
            state.owner,
        )
        self.meta[b, STATE] = ops.PUBLISHED
        self.keys[b] = key
        ops.insert_key(self.table, self.keys, b)

    def _keep_tail(self, state: SequenceState) -> None:
        """Leave a partly filled last block in the tree, if its chain is there and it says anything new."""
        size = self.config.block_size
        i, fill = divmod(state.computed, size)
        if not state.writes or not fill or state.published != i or not self.config.partial_hits:
            return
        b = int(self.tables[state.row, i])
        if self.meta[b, REF] != 1 or BlockId(b) in self._planned:
            return
        parent = int(self.tables[state.row, i - 1]) if i else state.root.reference
        known = self.history[state.row, : state.computed]
        if self._drop_covered_tail(state.owner, parent, known, i * size) == fill:
            return
        ops.enter(
            self.tokens,
            self.meta,
            self.roots.heads,
            b,
            known,
            i * size,
            fill,
            parent,
            state.root.index,
            state.owner,
        )
        self.meta[b, STATE] = ops.TAIL

    def _drop_covered_tail(self, owner: int, parent: int, known: Tokens, offset: int) -> int:
        """Free a tail that known[offset:] goes on from; return how much of it is there already."""
        heads = self.roots.heads
        if ops.first_child(self.meta, heads, parent) < 0:
            return 0
        b, same = ops.best_partial(self.tokens, self.meta, heads, known, offset, parent, owner)
        if b >= 0 and self.meta[b, STATE] == ops.TAIL and same == self.meta[b, ops.FILL]:
            if same == len(known) - offset or self.meta[b, PIN]:
                return same
            ops.withdraw(self.meta, heads, self.table, self.keys, b)
            ops.drop(self.meta, self.table, self.keys, self.count, b)
            return 0
        return same

    # --- who computes what -----------------------------------------------------------------------

    def _lead(self, sequence: SequenceId, state: SequenceState) -> None:
        """Let others know which block this sequence computes next, if its prompt has one more."""
        self._stop_leading(sequence, state)
        i = state.published
        if not state.writes or i >= state.prompt_blocks:
            return
        size = self.config.block_size
        parent = int(self.tables[state.row, i - 1]) if i else state.root.reference
        entry = (parent, _as_bytes(self.history[state.row, i * size : (i + 1) * size]))
        if entry not in self._pending:
            self._pending[entry] = sequence
            state.pending = entry

    def _stop_leading(self, sequence: SequenceId, state: SequenceState) -> None:
        if state.pending is not None:
            assert self._pending[state.pending] == sequence
            del self._pending[state.pending]
            state.pending = None


def _as_bytes(tokens: Sequence[int] | Tokens) -> bytes:
    return np.asarray(tokens, "<i4").tobytes()


def _halves(key: BlockKey) -> tuple[np.uint64, np.uint64]:
    low, high = np.frombuffer(key, np.uint64)
    return low, high
