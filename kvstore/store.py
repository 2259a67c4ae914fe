"""`BlockStore`: which block holds what, for whom, and may it be reused.

The public face of the bookkeeping; each mutable thing has one owner behind it:

    pool        block rows: references, index, tree, orders of eviction
    accounts    who is charged with blocks, and what each may hold
    roots       namespaces, and the nonces in force
    publics     prefixes that all tenants share
    sequences   tokens and block tables
    copies      what is to be copied before the next step writes
    leaders     who computes what
    owners      tenants, and their counts
    pins        prefixes that are kept for a time
    allocator   who gives way; ghosts: what left lately
    events      what happened, for those who follow

It holds no tensor: what must be copied is returned as a plan, and a block enters the index only
when told that its step has run.

The calls of one step, in order: `admit`, `fork`, `reserve` and `release` in any mixture;
`take_copies`; the step runs; `commit` for each sequence; `settle`. Calls come from one thread.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import chains, ops, scoring
from stemkv.kvstore.accounts import Accounts
from stemkv.kvstore.allocation import Allocator
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.copies import Copies
from stemkv.kvstore.curves import MissRatioCurves
from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.events import EventStream
from stemkv.kvstore.eviction import make_order
from stemkv.kvstore.finding import Finder, Found
from stemkv.kvstore.flush import Flush, FlushReport
from stemkv.kvstore.flushing import Flusher
from stemkv.kvstore.ghosts import GhostLog
from stemkv.kvstore.ids import BlockKey, SequenceId
from stemkv.kvstore.keys import HASH_FUNCTIONS, Digest, as_bytes
from stemkv.kvstore.leaders import Leaders
from stemkv.kvstore.matching import NO_MATCH, Match, Matcher
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.ops import I32
from stemkv.kvstore.owners import Owners
from stemkv.kvstore.pins import Pins, PinTerms
from stemkv.kvstore.pool import Pool, SequenceArrays, Tokens
from stemkv.kvstore.public import Publics
from stemkv.kvstore.publishing import Publisher
from stemkv.kvstore.quotas import OPERATOR, Quota
from stemkv.kvstore.reserving import Reserver
from stemkv.kvstore.roots import Path, Roots, Way
from stemkv.kvstore.sequences import Progress, Sequences, SequenceState
from stemkv.kvstore.values import Admission, Copy, Following, Lookup, Shortage
from stemkv.kvstore.views import (
    AccountCounts,
    EventKind,
    MissRatioPoint,
    PinInfo,
    PoolCounts,
    PublicPrefix,
    TenantCounts,
)
from stemkv.policies.eviction import EVICTION, EvictionPolicy

_GHOSTS_AT_LEAST = 1024
_TOKEN = np.dtype(np.int32)


class BlockStore:
    """The pool, the index and the open sequences. See the module for the order of calls.

    clock gives seconds. digest replaces the configured hash function (tests break it on purpose),
    policy the configured policy of eviction (for one that is in no registry).
    """

    def __init__(
        self,
        config: StoreConfig,
        directory: Directory,
        clock: Callable[[], float] = time.monotonic,
        digest: Digest | None = None,
        policy: EvictionPolicy | None = None,
    ) -> None:
        self.config = config
        self.directory = directory
        self.clock = clock
        self.pool = Pool(config.capacity_blocks, config.block_size)
        self.accounts = Accounts(self.pool, clock)
        self.roots = Roots(config, dict(directory.nonces()), self.pool, self.accounts)
        self.owners = Owners()
        self.ghosts = GhostLog(max(config.capacity_blocks, _GHOSTS_AT_LEAST))
        self.matcher = Matcher(self.pool, digest or HASH_FUNCTIONS[config.hash_function])
        self.publics = Publics(self.roots, self.matcher, config.block_size)
        self.copies = Copies(self.pool)
        self.leaders = Leaders()
        self.events = EventStream(config.event_blocks, self.accounts.names, clock)
        self.curves = MissRatioCurves(config.capacity_blocks) if config.curves else None
        self._open = Sequences(config)
        kept = config.capacity_blocks - config.keep_free
        self.order = make_order(
            policy or EVICTION[config.eviction], self.pool, kept, clock, config.compare_policies
        )
        self.pins = Pins(self.pool, self.order, clock)
        self._allocator = Allocator(
            self.pool,
            self.roots,
            self.owners,
            self.accounts,
            self.ghosts,
            self.events,
            directory,
            clock,
            self.order,
            self.pins,
            config.keep_free,
        )
        self._publisher = Publisher(
            self.pool,
            self.matcher,
            self._open,
            self.leaders,
            self.copies,
            directory,
            self.owners,
            self.events,
        )
        self._reserver = Reserver(self.pool, self._open, self._allocator, self.copies)
        self._finder = Finder(
            self.roots,
            self.publics,
            self.matcher,
            self.owners,
            config.block_size,
            config.partial_hits,
        )
        self._flusher = Flusher(
            config,
            self.pool,
            self.roots,
            self.matcher,
            self._open,
            self.copies,
            self._publisher,
            self._allocator,
            clock,
        )

    # --- what is there -----------------------------------------------------------------------

    def lookup(self, namespace: Namespace, prompt: Tokens) -> Lookup:
        """Return a prompt's longest reusable prefix, holding nothing."""
        prompt = _plain(prompt)
        match, leader = self._find(self._finder.way(namespace, prompt), namespace.tenant, prompt)
        return Lookup(len(match.blocks), match.partial_tokens, leader)

    @property
    def may_hit(self) -> bool:
        """Whether a lookup may find anything: cache on, and no flush can have been missed."""
        return self.config.prefix_cache and self.directory.current

    def keys_of(self, namespace: Namespace, prompt: Tokens) -> list[BlockKey]:
        """Return the keys that a prompt's full blocks have in this namespace, cached or not."""
        return self._finder.keys(namespace, prompt)

    def find(self, namespace: Namespace, prompt: Tokens) -> tuple[Way, Found]:
        """Say where a prompt's chain goes, and what of it is there, as a lookup sees it."""
        way = self._finder.way(namespace, prompt)
        match, parent = self._finder.find(way, prompt, namespace.tenant)
        return way, (match if self.may_hit else NO_MATCH, parent)

    def makes_room(self, sequence: SequenceId, needing: SequenceId) -> bool:
        """Whether another sequence could have more blocks if this one were released."""
        gives, takes = self._open[sequence].root.account, self._open[needing].root.account
        return gives == takes or self.accounts.gives_room(gives, takes)

    def limit(self, namespace: Namespace) -> int:
        """How many blocks a namespace's account could have in use at most, as quotas are now."""
        return self.accounts.limit(self.accounts.find(namespace.domain) or 0)

    def own_blocks(self, namespace: Namespace, prompt: Tokens, tokens: int) -> int:
        """How many blocks of so many tokens, a prompt's and more, its account would pay for."""
        entry = self._finder.way(namespace, _plain(prompt)).entry
        return -(-tokens // self.config.block_size) - entry

    def is_reserved(self, namespace: Namespace, blocks: int) -> bool:
        """Whether so many more blocks in use are within what is reserved for the account."""
        return self.accounts.is_reserved(self.accounts.find(namespace.domain) or 0, blocks)

    @property
    def sequences(self) -> Mapping[SequenceId, SequenceState]:
        """The open sequences."""
        return self._open.by_number

    @property
    def sequence_arrays(self) -> SequenceArrays:
        """The open sequences' arrays, for loops that read them; closed ones' rows are stale."""
        return self._open

    @property
    def free_sequences(self) -> int:
        """How many more sequences may be opened."""
        return self._open.free

    def table_of(self, sequence: SequenceId) -> I32:
        """Return a sequence's block table, int32 [blocks]; a view, valid until the next call."""
        return self._open.table(self._open[sequence])

    def tokens_of(self, sequence: SequenceId) -> Tokens:
        """Return a sequence's tokens, int32 [length]; a view, valid until the next call."""
        return self._open.tokens(self._open[sequence])

    def slots(self, sequence: SequenceId, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where keys and values of positions start to stop - 1 go: block * block_size + offset.

        int64 [stop - start]; -1 for positions that are computed already: they may lie in a
        published block.
        """
        return self._reserver.slots(self._open[sequence], start, stop)

    def pool_counts(self) -> PoolCounts:
        """Return the blocks by state."""
        row = self.pool.accounts[ops.POOL].tolist()
        capacity = self.config.capacity_blocks
        cached = row[ops.CACHED] + row[ops.TAILS] + row[ops.KEPT]
        elsewhere = row[ops.FREED] + row[ops.STALE] + row[ops.OUT]
        return PoolCounts(
            capacity=capacity,
            free=row[ops.FREED],
            in_use=capacity - cached - elsewhere,
            cached=cached,
            stale=row[ops.STALE],
            quarantined=row[ops.OUT],
            tails=row[ops.TAILS],
            evicted=self._allocator.evicted,
        )

    def policy_hit_shares(self) -> dict[str, float]:
        """Return what share of prompts' full blocks policies of eviction would have hit.

        By name, since the start, estimated from a sample; empty if it is not counted (see
        `StoreConfig.compare_policies`; the adaptive policy always counts).
        """
        shadows = self.order.shadows
        return {} if shadows is None else shadows.hit_shares()

    def tenant_counts(self) -> dict[str, TenantCounts]:
        """Return the counts of every tenant that ever opened a sequence here."""
        rows = self.pool.meta[: self.config.capacity_blocks]
        published = self.pool.live() & (rows[:, ops.STATE] == ops.PUBLISHED)
        names = self.owners.names
        held = np.bincount(rows[published, ops.OWNER], minlength=len(names)).tolist()
        evicted = self.owners.evicted[: len(names)].tolist()
        return {
            name: TenantCounts(
                c.lookup,
                c.hit_full,
                c.hit_partial,
                blocks,
                gone,
                c.resumed,
                c.resumed_lookup,
                c.resumed_hit,
            )
            for name, c, blocks, gone in zip(names, self.owners.counts, held, evicted, strict=True)
            if name != OPERATOR
        }

    def account_counts(self) -> dict[str, AccountCounts]:
        """Return what accounts (tenants by themselves, groups, the operator) hold and have lost."""
        return self.accounts.counts()

    def miss_ratio_curves(self) -> dict[str, tuple[MissRatioPoint, ...]]:
        """Return, by account, what other sizes of cache would hit; empty if it is not estimated."""
        if self.curves is None:
            return {}
        return {self.accounts.names[a]: points for a, points in self.curves.report().items()}

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
        assert not self.copies.under_way, "a step is under way"
        prompt = _plain(prompt)
        self.pins.expire()
        way = self._finder.way(namespace, prompt)
        match, leader = NO_MATCH, None
        if read:
            match, leader = self._find(way, namespace.tenant, prompt)
        if leader is not None:
            return Following(leader)
        if not self._open.free:
            return Shortage("sequences", 1, 0)
        account = way.root.account if way.root else self.accounts.find(namespace.domain) or 0
        writes = write and config.prefix_cache
        public = self._set_aside(way, match) if way.entry and writes else 0
        needed = -(-len(prompt) // config.block_size) - len(match.blocks) - public
        match, shortage = self._fit(match, needed, account)
        if shortage is not None:
            return shortage
        # Only now that nothing can go wrong are roots and an owner made.
        path = self._finder.path(way, namespace, prompt)
        owner = self.owners.get(namespace.tenant)
        self.accounts.use(path.root.account)
        self._count_lookup(owner, len(prompt), match, again)
        return self._adopt(path, owner, prompt, match, writes, public)

    def fork(self, sequence: SequenceId) -> SequenceId | Shortage:
        """Open a second sequence that shares all blocks and tokens of the first.

        Whichever of them writes first to a shared block gets a copy of it (see `reserve`). What
        was reserved for the first must be reserved again: it is not exclusive any more.
        """
        assert not self.copies.under_way, "a step is under way"
        if not self._open.free:
            return Shortage("sequences", 1, 0)
        return self._reserver.fork(self._open[sequence]).number

    def extend(self, sequence: SequenceId, token: int) -> None:
        """Append one token that is known but not run; raises ValueError if the sequence is full."""
        state = self._open[sequence]
        if state.length == self.config.max_tokens:
            raise ValueError(f"sequence {sequence} already has max_tokens = {state.length}")
        self._open.append_token(state, token)

    def reserve(self, sequence: SequenceId, stop: int) -> Shortage | None:
        """Make positions computed to stop - 1 writable: exclusive, unpublished blocks.

        Allocates blocks that are missing, and plans a copy of each that is shared
        (copy-on-write). On a shortage nothing has changed.
        """
        assert not self.copies.under_way, "a step is under way"
        return self._reserver.reserve(self._open[sequence], stop)

    def commit(self, sequence: SequenceId, computed: int) -> None:
        """Say that all positions below `computed` are written; publish the full blocks."""
        state = self._open[sequence]
        before = state.computed
        assert before <= computed <= state.reserved
        if computed == before:
            return
        self.accounts.pass_time()
        state.computed = computed
        if state.writes and state.published < computed // self.config.block_size:
            self._publisher.publish(state)
            self._publisher.lead(state)

    def release(self, sequence: SequenceId) -> None:
        """Close a sequence: published blocks stay cached, a partly filled last one as a tail."""
        assert not self.copies.under_way, "a step is under way"
        state = self._open[sequence]
        self.leaders.stop(sequence)
        self.accounts.use(state.root.account)
        blocks = self._open.table(state)
        if self.config.partial_hits:
            self._publisher.keep_tail(state)
        # While the chain is still held, so that no copy's source ages after its parent.
        if self.copies.planned:
            self.copies.cancel(b for b in blocks.tolist() if self.pool.references(b) == 1)
        if self.order.watches:
            # A fork may have published more of them than this sequence has.
            self.order.use(blocks, state.prompt_blocks)
            self.pool.dereference(blocks)
            self.order.let_go(blocks)
        else:
            self.pool.dereference(blocks)
        if self.curves is not None:
            self._count_reuse(state, blocks)
        self._open.close(state)
        if self.config.keep_free:
            self._allocator.tidy(state.root.account, state.owner)
        if self.roots.dead:
            self._allocator.reclaim()

    # --- sequences, a batch at a time: what a decode step does to each ---------------------------

    def extend_all(self, batch: I32, tokens: I32) -> None:
        """Append tokens[i] to sequence batch[i]; raises ValueError if one of them is full."""
        full = chains.extend_batch(self._open.rows, self._open.history, batch, tokens)
        if full != ops.NONE:
            raise ValueError(f"sequence {full} already has max_tokens = {self.config.max_tokens}")

    def reserve_all(self, batch: I32) -> int:
        """Make all known positions of each sequence writable, as `reserve` does, in order.

        Returns how many could be: less than all of them if blocks ran out, and then nothing has
        changed for that one and those after it.
        """
        assert not self.copies.under_way, "a step is under way"
        return self._reserver.reserve_all(batch)

    def commit_all(self, batch: I32) -> None:
        """Say that all that was reserved for these sequences is written; publish full blocks."""
        self.accounts.pass_time()
        self._publisher.publish_all(batch)

    # --- the step ----------------------------------------------------------------------------

    def take_copies(self) -> tuple[Copy, ...]:
        """Return the copies to execute before this step writes; their sources stay held."""
        return self.copies.take()

    def settle(self, *, ran: bool = True) -> None:
        """Say that the step has run, or (ran False) failed: sources of its copies are let go.

        After a failure nobody knows what the copies' destinations hold: sequences that have one
        publish nothing further, and should be released.
        """
        destinations = self.copies.settle()
        if self.roots.dead:
            self._allocator.reclaim()
        if ran or not destinations:
            return
        for state in self._open:
            if not destinations.isdisjoint(self._open.table(state).tolist()):
                self._publisher.silence(state)

    # --- operators ---------------------------------------------------------------------------

    def flush(self, flush: Flush) -> FlushReport:
        """Carry a flush out; sequences that hold flushed blocks keep them, and publish no more."""
        self.accounts.pass_time()
        report = self._flusher.flush(flush)
        self.publics.renew()
        return report

    def reclaim(self) -> None:
        """Do some of what may be put off: free flushed blocks, end pins whose time is over."""
        self.pins.expire()
        self._allocator.reclaim()

    def set_quotas(self, quotas: Mapping[bytes, Quota]) -> None:
        """Put quotas in force by tenant domain, in place of all others.

        What is held above a new cap goes when its account next needs blocks. Raises ValueError if
        reserves and public prefixes are more than the pool; nothing has changed then.
        """
        self.accounts.set_quotas(quotas)

    def declare_public(
        self, prompt: Tokens, adapter: str = "", adapter_digest: bytes = b""
    ) -> PublicPrefix:
        """Let all tenants share a prompt's full blocks, for which room is set aside.

        Raises ValueError if there is none, or not so much room.
        """
        if len(prompt) < self.config.block_size:
            raise ValueError(
                f"prompt: {len(prompt)} tokens are fewer than a block of {self.config.block_size}"
            )
        space = self.publics.namespace(adapter, adapter_digest)
        self.accounts.set_aside(self.publics.blocks() + self.publics.new_blocks(space, prompt))
        self.publics.add(space, prompt)
        return self.publics.describe((adapter, adapter_digest), prompt)

    def withdraw_public(self, key: str) -> None:
        """Share a declared prefix no more, and flush it as far as no other one needs it.

        key: hex, as `PublicPrefix` has it. Raises ValueError if there is none.
        """
        for adapter, prompt in self.publics.all():
            if self.publics.describe(adapter, prompt).key == key.lower():
                break
        else:
            raise ValueError(f"key: no public prefix is named {key!r}")
        size, space = self.config.block_size, self.publics.namespace(*adapter)
        self.accounts.pass_time()
        needed = self.publics.remove(adapter, prompt)
        if needed < len(prompt) // size:
            self._flusher.withdraw(space, prompt[: (needed + 1) * size])
        self.accounts.set_aside(self.publics.blocks())

    def public_prefixes(self) -> tuple[PublicPrefix, ...]:
        """Return all declared prefixes."""
        return tuple(self.publics.describe(*prefix) for prefix in self.publics.all())

    def pin(self, namespace: Namespace, prompt: Tokens, terms: PinTerms) -> PinInfo:
        """Keep what is cached of a prompt, public blocks apart, which are kept anyway.

        With nothing there, no pin is made: the reply holds 0 blocks. Raises ValueError if pins
        would keep more than the account's quota for them.
        """
        self.pins.expire()
        prompt = _plain(prompt)
        way, (match, _) = self.find(namespace, prompt)
        blocks = match.blocks[way.entry :][: terms.max_blocks]
        if way.root is None or not len(blocks):
            return PinInfo(0, namespace.tenant, namespace.adapter, namespace.salt, 0, 0, 0.0, 0.0)
        account = way.root.account
        pinned, limit = self.pins.blocks_of(account), self.accounts.pins_of(account)
        if pinned + len(blocks) > limit:
            raise ValueError(
                f"pins: {len(blocks)} blocks more than the {pinned} that are pinned are over the "
                f"account's {limit}"
            )
        return self.pins.describe(self.pins.add(namespace, way.root, blocks, terms))

    def unpin(self, number: int) -> None:
        """End a pin; raises ValueError if there is none of this number."""
        self.pins.expire()
        self.pins.remove(number)

    def pinned(self) -> tuple[PinInfo, ...]:
        """Return all pins."""
        self.pins.expire()
        return tuple(self.pins.describe(pin) for pin in self.pins)

    # --- how -----------------------------------------------------------------------------------

    def _find(self, way: Way, tenant: str, prompt: Tokens) -> tuple[Match, SequenceId | None]:
        """Match a prompt, and find who computes what comes next."""
        if not self.may_hit:
            return NO_MATCH, None
        match, parent = self._finder.find(way, prompt, tenant)
        if parent == ops.NONE or not self.leaders.all():
            return match, None
        start = len(match.blocks) * self.config.block_size
        block = prompt[start : start + self.config.block_size]
        if len(block) < self.config.block_size:
            return match, None
        return match, self.leaders.find((parent, as_bytes(block)))

    def _fit(self, match: Match, needed: int, account: int) -> tuple[Match, Shortage | None]:
        """Check that a match can be adopted and the rest taken; give the copy up if it cannot."""
        own = match.unheld
        # As a rule there is more than enough, which the lookup has seen already.
        if needed + own + 1 <= match.room:
            return match, None
        if not needed and not (self.accounts.limited and own):
            return match, None
        if match.partial >= 0:
            source = self.pool.unheld(np.array([match.partial], np.int32), account)
            if self._allocator.shortage(needed, account, own + source) is None:
                return match, None
            match = match._replace(partial=ops.NONE, partial_tokens=0)
        return match, self._allocator.shortage(needed, account, own)

    def _count_lookup(self, owner: int, tokens: int, match: Match, again: bool) -> None:
        full, partial = len(match.blocks) * self.config.block_size, match.partial_tokens
        if full + partial == tokens:
            # The last token is run all the same, for its logits.
            full, partial = (full, partial - 1) if partial else (full - 1, 0)
        counts = self.owners.counts[owner]
        if again:
            counts.resumed += 1
            counts.resumed_lookup += tokens
            counts.resumed_hit += full + partial
            return
        counts.lookup += tokens
        counts.hit_full += full
        counts.hit_partial += partial

    def _set_aside(self, way: Way, match: Match) -> int:
        """How many blocks that a prompt misses are public, with room set aside for them."""
        missing = way.entry - len(match.blocks)
        return min(missing, self.pool.available(ops.OPERATOR)[0]) if missing > 0 else 0

    def _adopt(
        self, path: Path, owner: int, prompt: Tokens, match: Match, writes: bool, public: int
    ) -> Admission:
        """Open a sequence on a match that fits.

        public: how many of the blocks that it misses, the first ones, are the operator's to pay.
        """
        size = self.config.block_size
        adopted = len(match.blocks)
        needed = -(-len(prompt) // size) - adopted
        if adopted:
            self.pool.reference(match.blocks)
            if self.events.on:
                self._tell("adopted", match.blocks)
        if match.partial >= 0:
            # Held before blocks are taken, or the source itself might be evicted for them.
            self.pool.pin(match.partial)
            if self.events.on:
                self._tell("copied", np.array([match.partial], np.int32))
        fresh = self._allocator.take(needed - public, path.root, owner)
        if public:
            assert path.public is not None
            ahead = self._allocator.take(public, path.public, owner)
            fresh = np.concatenate([ahead, fresh])
        if match.partial >= 0:
            self.copies.plan(match.partial, int(fresh[0]), match.partial_tokens)
            self.pool.unpin([match.partial])
        computed, full = adopted * size + match.partial_tokens, len(prompt) // size
        progress = Progress(owner, writes, computed, len(prompt), adopted, full)
        blocks = np.concatenate([match.blocks, fresh]) if adopted and needed else fresh
        if not needed:
            blocks = match.blocks
        state = self._open.open(path, progress, prompt, blocks)
        if writes and adopted < full:
            self._publisher.lead(state)
        return Admission(state.number, adopted * size, match.partial_tokens)

    def _tell(self, kind: EventKind, blocks: ops.I32) -> None:
        """Record an event of published blocks, or of a tail, which has no key."""
        for account, mine in self.pool.by_account(blocks):
            keys = self.pool.keys_of(mine)
            keys[self.pool.meta[mine, ops.STATE] != ops.PUBLISHED] = 0
            self.events.record(kind, account, keys)

    def _count_reuse(self, state: SequenceState, blocks: ops.I32) -> None:
        """Let the curves see the own part of a chain that a sequence is done with."""
        assert self.curves is not None
        mine = blocks[state.entry : state.published]
        mine = mine[: scoring.leading_live(self.pool.meta, self.pool.roots, mine)]
        if len(mine):
            # A sequence may be closed before all of its prompt is in the index.
            looked_up = min(max(0, state.prompt_blocks - state.entry), len(mine))
            self.curves.use(state.root.account, self.pool.keys_of(mine), looked_up)


def _plain(prompt: Tokens) -> Tokens:
    """Return a prompt as compiled loops take it: int32, contiguous, and theirs to write to."""
    flags = prompt.flags
    if prompt.dtype == _TOKEN and flags.c_contiguous and flags.writeable:
        return prompt
    return np.array(prompt, np.int32)
