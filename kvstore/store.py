"""`BlockStore`: which block holds what, for whom, and may it be reused.

The public face of the bookkeeping; each mutable thing has one owner behind it:

    pool        block rows: references, index, tree, orders of eviction
    roots       namespaces, and the nonces in force
    sequences   tokens and block tables
    copies      what is to be copied before the next step writes
    leaders     who computes what
    owners      tenants, and their counts
    allocator   who gives way; ghosts: what left lately

It holds no tensor: what must be copied is returned as a plan, and a block enters the index only
when told that its step has run.

The calls of one step, in order: `admit`, `fork`, `reserve` and `release` in any mixture;
`take_copies`; the step runs; `commit` for each sequence; `settle`. Calls come from one thread.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from stemkv.kvstore import ops
from stemkv.kvstore.allocation import Allocator
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.copies import Copies
from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.eviction import make_order
from stemkv.kvstore.flush import Flush, FlushReport
from stemkv.kvstore.flushing import Flusher
from stemkv.kvstore.ghosts import GhostLog
from stemkv.kvstore.ids import BlockKey, SequenceId
from stemkv.kvstore.keys import HASH_FUNCTIONS, Digest, as_bytes, chain
from stemkv.kvstore.leaders import Leaders
from stemkv.kvstore.matching import NO_MATCH, Match, Matcher, end_of
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.ops import I32
from stemkv.kvstore.owners import Owners
from stemkv.kvstore.pool import Pool, SequenceArrays, Tokens
from stemkv.kvstore.publishing import Publisher
from stemkv.kvstore.reserving import Reserver
from stemkv.kvstore.roots import Root, Roots
from stemkv.kvstore.sequences import Progress, Sequences, SequenceState
from stemkv.kvstore.values import Admission, Copy, Following, Lookup, Shortage
from stemkv.kvstore.views import PoolCounts, TenantCounts
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
        self.roots = Roots(config, dict(directory.nonces()), self.pool)
        self.owners = Owners()
        self.ghosts = GhostLog(max(config.capacity_blocks, _GHOSTS_AT_LEAST))
        self.matcher = Matcher(self.pool, digest or HASH_FUNCTIONS[config.hash_function])
        self.copies = Copies(self.pool)
        self.leaders = Leaders()
        self._open = Sequences(config)
        kept = config.capacity_blocks - config.keep_free
        self.order = make_order(
            policy or EVICTION[config.eviction], self.pool, kept, clock, config.compare_policies
        )
        self._allocator = Allocator(
            self.pool, self.owners, self.ghosts, directory, clock, self.order, config.keep_free
        )
        self._publisher = Publisher(
            self.pool, self.matcher, self._open, self.leaders, self.copies, directory
        )
        self._reserver = Reserver(self.pool, self._open, self._allocator, self.copies)
        self._flusher = Flusher(
            config,
            self.pool,
            self.roots,
            self.matcher,
            self._open,
            self._publisher,
            self._allocator,
        )

    # --- what is there -----------------------------------------------------------------------

    def lookup(self, namespace: Namespace, prompt: Tokens) -> Lookup:
        """Return a prompt's longest reusable prefix, holding nothing."""
        match, leader = self._find(namespace, _plain(prompt))
        return Lookup(len(match.blocks), match.partial_tokens, leader)

    @property
    def may_hit(self) -> bool:
        """Whether a lookup may find anything: cache on, and no flush can have been missed."""
        return self.config.prefix_cache and self.directory.current

    def keys_of(self, namespace: Namespace, prompt: Tokens) -> list[BlockKey]:
        """Return the keys that a prompt's full blocks have in this namespace, cached or not."""
        start = self.roots.key_of(namespace)
        return chain(self.matcher.digest, start, as_bytes(prompt), self.config.block_size)

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
        free, cached, tails = (int(c) for c in self.pool.count)
        capacity = self.config.capacity_blocks
        return PoolCounts(
            capacity=capacity,
            free=free,
            in_use=capacity - free - cached - tails,
            cached=cached + tails,
            stale=0,
            quarantined=0,
            tails=tails,
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
        published = rows[rows[:, ops.STATE] == ops.PUBLISHED]
        names = self.owners.names
        held = np.bincount(published[:, ops.OWNER], minlength=len(names)).tolist()
        evicted = self.owners.evicted[: len(names)].tolist()
        return {
            name: TenantCounts(c.lookup, c.hit_full, c.hit_partial, blocks, gone)
            for name, c, blocks, gone in zip(names, self.owners.counts, held, evicted, strict=True)
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
        assert not self.copies.under_way, "a step is under way"
        prompt = _plain(prompt)
        match, leader = self._find(namespace, prompt) if read else (NO_MATCH, None)
        if leader is not None:
            return Following(leader)
        if not self._open.free:
            return Shortage("sequences", 1, 0)
        needed = -(-len(prompt) // config.block_size) - len(match.blocks)
        match, shortage = self._fit(match, needed)
        if shortage is not None:
            return shortage
        # Only now that nothing can go wrong are a root and an owner made.
        root, owner = self.roots.get(namespace), self.owners.get(namespace.tenant)
        if not again:
            self._count_lookup(owner, len(prompt), match)
        return self._adopt(root, owner, prompt, match, write and config.prefix_cache)

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
        state.computed = computed
        if state.writes and state.published < computed // self.config.block_size:
            self._publisher.publish(state)
            self._publisher.lead(state)

    def release(self, sequence: SequenceId) -> None:
        """Close a sequence: published blocks stay cached, a partly filled last one as a tail."""
        assert not self.copies.under_way, "a step is under way"
        state = self._open[sequence]
        self.leaders.stop(sequence)
        blocks = self._open.table(state).copy()
        if self.config.partial_hits:
            self._publisher.keep_tail(state)
        # While the chain is still held, so that no copy's source ages after its parent.
        if self.copies.planned:
            self.copies.cancel(b for b in blocks.tolist() if self.pool.references(b) == 1)
        if self.order.watches:
            published = blocks[: state.published]
            self.order.use(published, state.prompt_blocks)
            self.pool.dereference(blocks)
            self.order.let_go(published)
        else:
            self.pool.dereference(blocks)
        if self.config.keep_free:
            self._allocator.tidy(state.owner)
        self._open.close(state)
        if not state.root.alive:
            self.roots.free_dead([state.root])

    # --- sequences, a batch at a time: what a decode step does to each ---------------------------

    def extend_all(self, batch: I32, tokens: I32) -> None:
        """Append tokens[i] to sequence batch[i]; raises ValueError if one of them is full."""
        full = ops.extend_batch(self._open.rows, self._open.history, batch, tokens)
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
        if ran or not destinations:
            return
        for state in self._open:
            if not destinations.isdisjoint(self._open.table(state).tolist()):
                self._publisher.silence(state)

    def flush(self, flush: Flush) -> FlushReport:
        """Carry a flush out; sequences that hold flushed blocks keep them, and publish no more."""
        return self._flusher.flush(flush)

    # --- how -----------------------------------------------------------------------------------

    def _find(self, namespace: Namespace, prompt: Tokens) -> tuple[Match, SequenceId | None]:
        """Match a prompt, and find who computes what comes next."""
        root = self.roots.find(namespace)
        if root is None or not self.may_hit:
            return NO_MATCH, None
        owner = self.owners.find(namespace.tenant)
        match = self.matcher.match(root, prompt, owner, partial=self.config.partial_hits)
        start = len(match.blocks) * self.config.block_size
        block = prompt[start : start + self.config.block_size]
        if len(block) < self.config.block_size or not self.leaders.all():
            return match, None
        return match, self.leaders.find((end_of(match.blocks, root), as_bytes(block)))

    def _fit(self, match: Match, needed: int) -> tuple[Match, Shortage | None]:
        """Check that a match can be adopted and the rest taken; give the copy up if it cannot."""
        if not needed:
            return match, None
        adopted = self.pool.unheld(match.blocks) if len(match.blocks) else 0
        if match.partial >= 0:
            source = self.pool.unheld(np.array([match.partial], np.int32))
            if self._allocator.shortage(needed, adopted + source) is None:
                return match, None
            match = Match(match.blocks)
        return match, self._allocator.shortage(needed, adopted)

    def _count_lookup(self, owner: int, tokens: int, match: Match) -> None:
        full, partial = len(match.blocks) * self.config.block_size, match.partial_tokens
        if full + partial == tokens:
            # The last token is run all the same, for its logits.
            full, partial = (full, partial - 1) if partial else (full - 1, 0)
        counts = self.owners.counts[owner]
        counts.lookup += tokens
        counts.hit_full += full
        counts.hit_partial += partial

    def _adopt(
        self, root: Root, owner: int, prompt: Tokens, match: Match, writes: bool
    ) -> Admission:
        """Open a sequence on a match that fits."""
        size = self.config.block_size
        adopted = len(match.blocks)
        needed = -(-len(prompt) // size) - adopted
        if adopted:
            self.pool.reference(match.blocks)
        if match.partial >= 0:
            # Held before blocks are taken, or the source itself might be evicted for them.
            self.pool.pin(match.partial)
        fresh = self._allocator.take(needed, owner)
        if match.partial >= 0:
            self.copies.plan(match.partial, int(fresh[0]), match.partial_tokens)
            self.pool.unpin([match.partial])
        progress = Progress(
            owner=owner,
            writes=writes,
            computed=adopted * size + match.partial_tokens,
            reserved=len(prompt),
            published=adopted,
            prompt_blocks=len(prompt) // size,
        )
        blocks = np.concatenate([match.blocks, fresh]) if adopted and needed else fresh
        if not needed:
            blocks = match.blocks
        state = self._open.open(root, progress, prompt, blocks)
        if writes and adopted < progress.prompt_blocks:
            self._publisher.lead(state)
        return Admission(state.number, adopted * size, match.partial_tokens)


def _plain(prompt: Tokens) -> Tokens:
    """Return a prompt as compiled loops take it: int32, contiguous, and theirs to write to."""
    flags = prompt.flags
    if prompt.dtype == _TOKEN and flags.c_contiguous and flags.writeable:
        return prompt
    return np.array(prompt, np.int32)
