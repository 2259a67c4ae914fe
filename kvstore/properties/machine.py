"""A hypothesis state machine that drives a block store and its model side by side.

A numpy array stands in for the cache: what a position's keys and values are depends on all tokens
up to it and on the root, so that a wrong hit, a wrong copy or a write to a shared block shows as
wrong content.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stemkv.kvstore import ops
from stemkv.kvstore.audit import is_clean
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.explain import explain
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId, SequenceId
from stemkv.kvstore.inspect import list_blocks
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.properties.draws import (
    ACTIONS,
    LONG,
    MAX_TOKENS,
    SECRET,
    Draw,
    draws_,
    narrow,
    wide,
)
from stemkv.kvstore.properties.eviction_model import POLICIES, model_of
from stemkv.kvstore.properties.model import Block, Match, RootName, StoreModel, Tokens, path_of
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.roots import PUBLIC
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Copy, Following, Shortage
from stemkv.kvstore.violations import violations_of

Executed = tuple[Block, Block, int]
"""A copy in the model's terms: source, destination, tokens."""


@cache
def value_of(root: RootName, prefix: Tokens) -> int:
    """Return what the last position of a prefix holds in the cache."""
    return int.from_bytes(hashlib.sha256(repr((root, prefix)).encode()).digest()[:7], "little")


class StoreMachine(RuleBasedStateMachine):
    """Calls in any order that the store's contract allows."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.flushes = 0
        self.prompts: list[Tokens] = [*LONG]

    @initialize(
        capacity=st.sampled_from([12, 24, 18, 16, 14, 10, 8, 7, 6, 5, 4, 3, 2, 1]),
        block_size=st.sampled_from([4, 3, 2, 1, 5, 6, 7, 8]),
        max_sequences=st.sampled_from([4, 3, 5, 6, 2, 1]),
        bits=st.sampled_from([None, None, None, None, None, None, 0, 1, 2, 4]),
        prefix_cache=st.sampled_from([True] * 9 + [False]),
        partial_hits=st.sampled_from([True] * 4 + [False]),
        policy=st.sampled_from([None, *POLICIES]),
        keep_free=st.sampled_from([0, 0, 0, 1, 2, 5]),
    )
    def start(
        self,
        capacity: int,
        block_size: int,
        max_sequences: int,
        bits: int | None,
        prefix_cache: bool,
        partial_hits: bool,
        policy: str | None,
        keep_free: int,
    ) -> None:
        """Make a store and its model."""
        self.config = StoreConfig(
            capacity_blocks=capacity,
            block_size=block_size,
            max_sequences=max_sequences,
            max_tokens=MAX_TOKENS,
            secret=SECRET,
            block_bytes=10,
            prefix_cache=prefix_cache,
            partial_hits=partial_hits,
            keep_free=min(keep_free, capacity - 1),
        )
        self.distinct = bits is None
        self.digest: Callable[[bytes], bytes] = wide if bits is None else partial(narrow, bits)
        # Under a broken hash, a flushed block that is not free yet may have the key of another.
        self.directory = RecordingDirectory(strict=self.distinct)
        chosen = None if policy is None else POLICIES[policy]
        self.store = BlockStore(self.config, self.directory, self.clock, self.digest, chosen)
        self.model = StoreModel(self.config, self.key_of, model_of(self.store, chosen))
        self.kv = np.full((capacity, block_size), -1, np.int64)
        self.number: dict[Block, int] = {}

    def clock(self) -> float:
        """Return a time that stands still while something is done."""
        return self.now

    def key_of(self, root: RootName, above: bytes | None, tokens: Tokens) -> bytes:
        """Hash a block as the store does; the root must be of the present generation."""
        if above is None:
            entry, size = b"", self.config.block_size
            public = Namespace("", PUBLIC, *root.identity[1:3])
            for at in range(0, len(root.above), size):
                parent = entry or self.store.roots.key_of(public)
                entry = self.digest(parent + np.array(root.above[at : at + size], "<i4").tobytes())
            above = self.store.roots.key_of(Namespace("", *root.identity), entry)
        return self.digest(above + np.array(tokens, "<i4").tobytes())

    def prompt(self, draw: Draw) -> Tokens:
        """Make a prompt that begins like an earlier one."""
        old = self.prompts[-1 - draw.pick % len(self.prompts)]
        prompt = (old[: max(0, len(old) - draw.cut)] + draw.suffix)[:MAX_TOKENS]
        if prompt not in self.prompts:
            self.prompts.append(prompt)
        return prompt

    def pick(self, draw: Draw) -> SequenceId:
        """Choose an open sequence."""
        numbers = sorted(self.model.sequences)
        return SequenceId(numbers[draw.pick % len(numbers)])

    def agree(self, sequence: SequenceId) -> None:
        """Hold the block tables of store and model against each other."""
        blocks = self.model.sequences[sequence].blocks
        table = self.store.table_of(sequence).tolist()
        assert len(blocks) == len(table)
        for block, number in zip(blocks, table, strict=True):
            assert self.number.setdefault(block, number) == number
        live = {self.number[b] for b in self.model.live}
        assert len(live) == len(self.model.live), "two blocks share a number"

    @rule(
        action=st.sampled_from([name for name, weight in ACTIONS.items() for _ in range(weight)]),
        draw=draws_,
    )
    def act(self, action: str, draw: Draw) -> None:
        """Do one thing."""
        if (
            action in ("fork", "fork_and_advance", "advance", "release")
            and not self.model.sequences
        ):
            action = "serve"
        if action != "cut_off" and not draw.stays_cut_off:
            self.directory.current = self.model.current = True
        # Long enough, now and then, for an account to be idle, and for a pin to end.
        self.now += 400.0 if draw.waits else 1.0
        self.model.now = self.now
        self.store.pinned()
        self.model.expire()
        getattr(self, f"do_{action}")(draw)

    # --- looking ---

    def do_look_up(self, draw: Draw) -> None:
        """Look at a prompt and at the blocks: right, and without a trace."""
        ns, prompt = draw.ns, self.prompt(draw)
        before = snapshot(self.store)
        found = self.store.lookup(ns, np.array(prompt, np.int32))
        keys = self.store.keys_of(ns, np.array(prompt, np.int32))
        listed = list_blocks(self.store, limit=self.config.capacity_blocks).blocks
        explanation = explain(self.store, ns, np.array(prompt, np.int32)) if prompt else None
        assert snapshot(self.store) == before
        assert {b.block for b in listed} == {
            self.number[b] for b in self.model.live if b.state != "private"
        }
        match = self.model.match(ns, prompt)
        if explanation is not None:
            assert explanation.full_block_tokens == len(match.blocks) * self.config.block_size
            assert explanation.partial_tokens == match.partial_tokens
        assert found.full_blocks == len(match.blocks)
        assert found.partial_tokens == match.partial_tokens
        assert found.leader == match.leader
        assert all(type(x) is int for x in (found.full_blocks, found.partial_tokens))
        above: bytes | None = None
        expected, size, chain = [], self.config.block_size, self.model.chain_of(ns, prompt)
        for i in range(len(prompt) // size):
            above = above if i != chain.entry else None
            above = self.key_of(chain.root_of(i), above, prompt[i * size : (i + 1) * size])
            expected.append(above)
        assert keys == expected

    # --- sequences ---

    def do_serve(self, draw: Draw) -> None:
        """Admit a prompt, mostly after making room for it, and mostly run it."""
        prompt = self.prompt(draw)
        if not draw.crowd:
            prompt = prompt[: self.config.capacity_blocks * self.config.block_size]
            needed = -(-len(prompt) // self.config.block_size)
            full = self.config.max_sequences
            while self.model.sequences and (
                self.model.available(draw.ns.domain)[0] < needed
                or len(self.model.sequences) == full
            ):
                self.do_release(draw)
        self.admit(draw.ns, prompt, read=not draw.no_read, write=not draw.no_write)
        if draw.runs:
            self.run_step([3] * 6, fails=False)

    def admit(self, ns: Namespace, prompt: Tokens, *, read: bool, write: bool) -> None:
        """Admit a prompt: what is cached is adopted; or nothing changes."""
        if not prompt:
            return
        before = snapshot(self.store)
        got = self.store.admit(ns, np.array(prompt, np.int32), read=read, write=write)
        expected = self.model.admit(ns, prompt, read, write)
        if isinstance(got, Admission):
            assert isinstance(expected, Match), expected
            assert got.full_tokens == len(expected.blocks) * self.config.block_size
            assert got.partial_tokens == expected.partial_tokens
            assert got.computed <= len(prompt)
            self.model.open(got.sequence, ns, prompt, expected, write)
            self.agree(got.sequence)
        else:
            assert snapshot(self.store) == before
            assert describe(got) == expected

    def do_fork_and_advance(self, draw: Draw) -> None:
        """Fork a sequence and let both go on, each in its own way."""
        parent = self.pick(draw)
        child = self.fork(parent)
        for sequence, tokens in ((parent, draw.suffix), (child, draw.other)):
            if sequence is not None:
                self.extend(sequence, tokens)
                self.reserve(sequence, MAX_TOKENS)

    def do_fork(self, draw: Draw) -> None:
        """Fork a sequence."""
        self.fork(self.pick(draw))

    def fork(self, parent: SequenceId) -> SequenceId | None:
        """Fork this sequence; or nothing changes."""
        before = snapshot(self.store)
        child = self.store.fork(parent)
        if isinstance(child, Shortage):
            assert len(self.model.sequences) == self.config.max_sequences
            assert snapshot(self.store) == before
            assert describe(child) == ("shortage", "sequences", 1, 0)
            return None
        self.model.fork(parent, child)
        self.agree(child)
        return child

    def do_advance(self, draw: Draw) -> None:
        """Append tokens to a sequence, and make some of its positions writable."""
        sequence = self.pick(draw)
        self.extend(sequence, draw.suffix)
        if draw.more:
            self.reserve(sequence, draw.more)

    def extend(self, sequence: SequenceId, suffix: Tokens) -> None:
        """Append tokens to this sequence."""
        s = self.model.sequences[sequence]
        for token in suffix:
            if len(s.tokens) == MAX_TOKENS:
                before = snapshot(self.store)
                try:
                    self.store.extend(sequence, token)
                except ValueError:
                    assert snapshot(self.store) == before
                    return
                raise AssertionError("a sequence grew over its limit")
            self.store.extend(sequence, token)
            s.tokens += (token,)
            if s.tokens not in self.prompts:
                self.prompts.append(s.tokens)

    def reserve(self, sequence: SequenceId, more: int) -> None:
        """Make more positions of a sequence writable; or nothing changes."""
        s = self.model.sequences[sequence]
        stop = min(s.computed + more, len(s.tokens))
        before = snapshot(self.store)
        got = self.store.reserve(sequence, stop)
        expected = self.model.reserve(sequence, stop)
        if got is not None:
            assert snapshot(self.store) == before
            assert describe(got) == expected
        else:
            assert expected is None
            self.agree(sequence)

    def do_release(self, draw: Draw) -> None:
        """Close a sequence."""
        sequence = self.pick(draw)
        self.store.release(sequence)
        self.model.release(sequence)

    def do_run_step(self, draw: Draw) -> None:
        """Run a step."""
        self.run_step(draw.shares, fails=False)

    def do_fail_step(self, draw: Draw) -> None:
        """Run a step that fails."""
        self.run_step(draw.shares, fails=True)

    def run_step(self, shares: list[int], fails: bool) -> None:
        """Run what is reserved, whole or in part: copies, writes, commits; or fail on the way."""
        copies = self.store.take_copies()
        executed = list(self.model.copies.values())
        self.model.copies.clear()
        assert {(int(c.source), int(c.destination), c.tokens) for c in copies} == {
            (self.number[a], self.number[b], n) for a, b, n in executed
        }
        order = [int(copy.destination) for copy in copies]
        executed.sort(key=lambda c: order.index(self.number[c[1]]))
        plan = {}
        for share, (number, s) in zip(shares, sorted(self.model.sequences.items()), strict=False):
            stop = s.computed + -(-(s.reserved - s.computed) * share // 3)
            if stop > s.computed:
                plan[SequenceId(number)] = stop
        if fails:
            self._fail(copies, executed, plan)
        else:
            self._run_to_the_end(copies, executed, plan)

    def _run_to_the_end(
        self, copies: Sequence[Copy], executed: list[Executed], plan: dict[SequenceId, int]
    ) -> None:
        destinations = {c.destination for c in copies}
        assert len(destinations) == len(copies)
        assert destinations.isdisjoint(c.source for c in copies)
        for source, destination, tokens in copies:
            self.kv[destination, :tokens] = self.kv[source, :tokens]
        for sequence, stop in plan.items():
            self._write(sequence, stop)
        for sequence, stop in plan.items():
            self.store.commit(sequence, stop)
            self.model.commit(sequence, stop)
            self.agree(sequence)
        self.store.settle()
        self.model.settle(executed, ran=True)

    def _write(self, sequence: SequenceId, stop: int) -> None:
        """Write what a step computes, from one position before it to see that one left alone."""
        s, size = self.model.sequences[sequence], self.config.block_size
        start = max(0, s.computed - 1)
        slots = self.store.slots(sequence, start, stop).tolist()
        for position, slot in zip(range(start, stop), slots, strict=True):
            if position < s.computed:
                assert slot == -1
                continue
            block = s.blocks[position // size]
            assert block.state == "private"
            assert block.references == 1
            assert slot == self.number[block] * size + position % size
            root = s.chain.root_of(position // size)
            self.kv[slot // size, slot % size] = value_of(root, s.tokens[: position + 1])

    def _fail(
        self, copies: Sequence[Copy], executed: list[Executed], plan: dict[SequenceId, int]
    ) -> None:
        """Leave rubbish in all that the step was to write, then release who was in it."""
        for _, destination, _ in copies:
            self.kv[destination] = -2
        for sequence, stop in plan.items():
            computed = self.model.sequences[sequence].computed
            slots = self.store.slots(sequence, computed, stop)
            self.kv[slots // self.config.block_size, slots % self.config.block_size] = -2
        self.store.settle(ran=False)
        self.model.settle(executed, ran=False)
        spoilt = {destination for _, destination, _ in executed}
        for number, s in tuple(self.model.sequences.items()):
            if number in plan or not spoilt.isdisjoint(s.blocks):
                self.store.release(SequenceId(number))
                self.model.release(number)

    # --- the world outside ---

    def do_cut_off(self, _: Draw) -> None:
        """Lose touch with the directory."""
        self.directory.current = self.model.current = False

    def do_flush(self, draw: Draw) -> None:
        """Flush something."""
        kind, ns = draw.kind, draw.ns
        self.flushes += 1
        prefix = self.prompt(replace(draw, suffix=())) if kind is FlushKind.PREFIX else ()
        flush = Flush(
            flush_id=FlushId(f"f{self.flushes}"),
            kind=kind,
            nonce=self.flushes.to_bytes(16, "big"),
            domain=ns.domain,
            adapter=ns.adapter,
            adapter_digest=ns.adapter_digest,
            salt=ns.salt,
            prefix=np.array(prefix, "<i4").tobytes(),
        )
        report = self.store.flush(flush)
        gone = self.model.flush(flush)
        assert report.blocks == len(gone)
        assert report.bytes == 10 * len(gone)
        assert report.in_use == sum(b.references > 0 or b.pins > 0 for b in gone)
        by_name = Counter(self.store.accounts.names[self.number_of(b.account)] for b in gone)
        assert report.blocks_by_tenant == by_name

    def number_of(self, account: bytes) -> int:
        """Return the store's number of an account."""
        return 1 + self.model.shares.number(account)

    # --- operators ---

    def do_set_quotas(self, draw: Draw) -> None:
        """Put quotas in force, or nothing changes."""
        before = snapshot(self.store)
        public = self.model.public_blocks()
        if self.model.shares.fits(draw.quotas, public):
            self.store.set_quotas(draw.quotas)
            self.model.shares.quotas = draw.quotas
            for domain in draw.quotas:
                self.model.shares.open(domain)
            return
        try:
            self.store.set_quotas(draw.quotas)
        except ValueError:
            assert snapshot(self.store) == before
            return
        raise AssertionError("reserves are more than the pool")

    def do_declare(self, draw: Draw) -> None:
        """Let all share a prefix; or nothing changes."""
        prompt, ns, model = self.prompt(draw), draw.ns, self.model
        adapter, size = (ns.adapter, ns.adapter_digest), self.config.block_size
        before = snapshot(self.store)
        whole = prompt[: len(prompt) // size * size]
        model.declared.append((adapter, whole))
        model.shares.public, old = model.public_blocks(), model.shares.public
        fits = model.shares.fits(model.shares.quotas, model.shares.public)
        if whole and fits:
            made = self.store.declare_public(np.array(prompt, np.int32), *adapter)
            assert (made.tokens, made.blocks) == (len(whole), len(whole) // size)
            if model.declared.count((adapter, whole)) > 1:
                model.declared.pop()
            return
        model.declared.pop()
        model.shares.public = old
        try:
            self.store.declare_public(np.array(prompt, np.int32), *adapter)
        except ValueError:
            assert snapshot(self.store) == before
            return
        raise AssertionError("a public prefix was taken for which there is no room")

    def do_withdraw(self, draw: Draw) -> None:
        """Share a prefix no more."""
        if not self.model.declared:
            return
        number = draw.pick % len(self.model.declared)
        (adapter, digest), prefix = self.model.declared[number]
        above: bytes | None = None
        root = self.model.root_of(Namespace("", PUBLIC, adapter, digest))
        for at in range(0, len(prefix), self.config.block_size):
            above = self.key_of(root, above, prefix[at : at + self.config.block_size])
        assert above is not None
        keys = [p.key for p in self.store.public_prefixes()]
        assert above.hex() in keys
        if keys.count(above.hex()) > 1:
            return  # a broken hash gives two prefixes one name
        self.store.withdraw_public(above.hex())
        self.model.withdraw(number)
        self.model.shares.public = self.model.public_blocks()

    def do_pin(self, draw: Draw) -> None:
        """Pin what is there of a prompt; or nothing changes."""
        ns, prompt = draw.ns, self.prompt(draw)
        terms = PinTerms(draw.seconds, draw.more or None, draw.priority)
        before = snapshot(self.store)
        pin = self.model.pin(ns, prompt, terms)
        if isinstance(pin, str):
            try:
                self.store.pin(ns, np.array(prompt, np.int32), terms)
            except ValueError:
                assert snapshot(self.store) == before
                return
            raise AssertionError("a pin over its account's budget was made")
        made = self.store.pin(ns, np.array(prompt, np.int32), terms)
        assert made.blocks == (0 if pin is None else len(pin.blocks))
        if pin is None:
            assert snapshot(self.store) == before
        else:
            assert made.pin_id == pin.number

    def do_unpin(self, draw: Draw) -> None:
        """End a pin."""
        if self.model.pins:
            pin = self.model.pins[draw.pick % len(self.model.pins)]
            self.store.unpin(pin.number)
            self.model.unpin(pin)

    # --- what always holds ---

    @invariant()
    def clean(self) -> None:
        """Find nothing in an audit, with neither of its halves."""
        violations = violations_of(self.store)
        assert violations == (), violations
        assert is_clean(self.store)

    @invariant()
    def counted(self) -> None:
        """Hold the store's counts against the model's."""
        model, pool = self.model, self.store.pool_counts()
        assert pool.free + pool.stale == model.free
        assert pool.tails == len(model.tails)
        kept = [b for b in model.live if b.kept and not b.references and not b.pins]
        assert pool.cached == len(model.tails) + len(model.cached) + len(kept)
        held = pool.free + pool.in_use + pool.cached + pool.stale + pool.quarantined
        assert held == pool.capacity == self.config.capacity_blocks
        assert pool.evicted == model.evicted
        pins = {p.pin_id: p.blocks for p in self.store.pinned()}
        assert pins == {p.number: len(p.blocks) for p in model.pins}
        tenants = self.store.tenant_counts()
        assert set(tenants) == set(model.counts)
        for name, counts in tenants.items():
            expected = model.counts[name]
            owned = [b for b in model.live if b.state == "published" and b.owner == name]
            assert counts.lookup == expected.lookup
            assert counts.hit_full == expected.full
            assert counts.hit_partial == expected.partial
            assert counts.evicted_blocks == expected.evicted
            assert counts.cached_blocks == len(owned)

    @invariant()
    def charged(self) -> None:
        """Hold what accounts are charged with, and have lost, against the model's."""
        rows, shares = self.store.pool.accounts, self.model.shares
        assert len(rows) == 1 + len(shares.domains)
        held = self.model.held
        for domain in shares.domains:
            row = rows[self.number_of(domain)]
            assert row[ops.HELD] == held[domain]
            assert row[ops.RESERVE] == shares.reserve(domain)
        assert self.store.accounts.lost == {
            (self.number_of(of), self.number_of(by)): n for (of, by), n in shares.lost.items()
        }

    @invariant()
    def told(self) -> None:
        """Hold what the directory was told against what is published, or flushed just now."""
        stale = self.directory.held - set(self.model.index)
        if self.distinct:
            assert self.directory.held >= set(self.model.index)
            assert len(stale) <= self.store.pool.stale + self.store.pool_counts().in_use
        if self.distinct and not self.store.pool.stale and not self.store.roots.dead:
            assert not stale

    @invariant()
    def known(self) -> None:
        """Tokens and who computes what are the model's."""
        for number, s in self.model.sequences.items():
            assert tuple(self.store.tokens_of(SequenceId(number)).tolist()) == s.tokens
        leads = {n for n, s in self.model.sequences.items() if s.leads is not None}
        assert set(self.store.leaders.all().values()) == leads

    @invariant()
    def content(self) -> None:
        """Whoever reads the cache through its table reads its own prefix, and nothing else."""
        size = self.config.block_size
        pending = {int(c.destination) for c in self.store.copies.open()}
        for number, s in self.model.sequences.items():
            table = self.store.table_of(SequenceId(number)).tolist()
            for position in range(s.computed):
                if table[position // size] not in pending:
                    found = self.kv[table[position // size], position % size]
                    root = s.chain.root_of(position // size)
                    assert found == value_of(root, s.tokens[: position + 1])
        for block in self.model.live:
            if block.state != "private":
                root, path = path_of(block)
                path = root.above + path
                for i in range(len(block.tokens)):
                    stop = len(path) - len(block.tokens) + i + 1
                    assert self.kv[self.number[block], i] == value_of(root, path[:stop])


def describe(got: object) -> object:
    """Say what a refused call answered, in the model's words."""
    if isinstance(got, Following):
        return ("following", got.leader)
    if isinstance(got, Shortage):
        return ("shortage", got.what, got.needed, got.available)
    return got
