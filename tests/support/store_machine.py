"""A hypothesis state machine that drives a block store and its model side by side.

A numpy array stands in for the cache: what a position's keys and values are depends on all tokens
up to it and on the root, so that a wrong hit, a wrong copy or a write to a shared block shows as
wrong content.
"""

import hashlib
from collections.abc import Callable
from functools import cache, partial

import numpy as np
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId, SequenceId
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Following, Shortage
from support.recording_directory import RecordingDirectory
from support.snapshot import snapshot
from support.store_model import Block, Match, RootName, StoreModel, Tokens, path_of

SECRET = b"0123456789abcdef"
MAX_TOKENS = 26

GROUP = domain_of(SECRET, tenant="", group="g")
A, B = (domain_of(SECRET, tenant=name) for name in "ab")
NAMESPACES = (
    Namespace("a", A),
    Namespace("b", B),
    Namespace("c", GROUP),
    Namespace("d", GROUP),
    Namespace("a", A, salt="s"),
    Namespace("a", A, adapter="x", adapter_digest=b"1"),
    Namespace("d", GROUP, adapter="x", adapter_digest=b"1", salt="s"),
)


def narrow(bits: int, data: bytes) -> bytes:
    """Hash to 16 bytes of which only the first `bits` bits vary."""
    number = int.from_bytes(hashlib.sha256(data).digest()[:8], "little") % (1 << bits)
    return number.to_bytes(16, "little")


def wide(data: bytes) -> bytes:
    """Hash to 16 bytes, all of them used."""
    return hashlib.sha256(data).digest()[:16]


@cache
def value_of(root: RootName, prefix: Tokens) -> int:
    """Return what the last position of a prefix holds in the cache."""
    return int.from_bytes(hashlib.sha256(repr((root, prefix)).encode()).digest()[:7], "little")


tokens_ = st.lists(st.integers(0, 1), max_size=9).map(tuple)
# The first ones more often: prompts must meet to share.
namespaces_ = st.sampled_from([*NAMESPACES[:4], NAMESPACES[0], NAMESPACES[2], *NAMESPACES])
shares_ = st.lists(st.sampled_from([3, 3, 3, 2, 1, 0]), min_size=6, max_size=6)
picks_ = st.integers(0, 30)


class StoreMachine(RuleBasedStateMachine):
    """Calls in any order that the store's contract allows."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.flushes = 0
        self.prompts: list[Tokens] = [()]

    @initialize(
        capacity=st.one_of(st.integers(1, 24), st.integers(8, 24)),
        block_size=st.sampled_from([4, 3, 2, 1, 5, 6, 7, 8]),
        max_sequences=st.sampled_from([4, 1, 2, 3, 5, 6]),
        bits=st.sampled_from([None, None, None, 0, 1, 2, 4]),
        prefix_cache=st.sampled_from([True] * 9 + [False]),
        partial_hits=st.sampled_from([True] * 4 + [False]),
    )
    def start(
        self,
        capacity: int,
        block_size: int,
        max_sequences: int,
        bits: int | None,
        prefix_cache: bool,
        partial_hits: bool,
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
        )
        self.digest: Callable[[bytes], bytes] = wide if bits is None else partial(narrow, bits)
        self.directory = RecordingDirectory()
        self.store = BlockStore(self.config, self.directory, self.clock, self.digest)
        self.model = StoreModel(self.config, self.key_of)
        self.kv = np.full((capacity, block_size), -1, np.int64)
        self.number: dict[Block, int] = {}

    def clock(self) -> float:
        """Return a time that never stands still."""
        self.now += 1.0
        return self.now

    def key_of(self, root: RootName, above: bytes | None, tokens: Tokens) -> bytes:
        """Hash a block as the store does; the root must be of the present generation."""
        (domain, adapter, adapter_digest, salt), *_ = root  # type: ignore[misc]
        if above is None:
            namespace = Namespace("", domain, adapter, adapter_digest, salt)
            above = self.store.roots.key_of(namespace)
        return self.digest(above + np.array(tokens, "<i4").tobytes())

    def prompt(self, pick: int, cut: int, suffix: Tokens) -> Tokens:
        """Make a prompt that begins like an earlier one."""
        old = self.prompts[pick % len(self.prompts)]
        prompt = (old[: len(old) - cut] + suffix)[:MAX_TOKENS]
        if prompt not in self.prompts:
            self.prompts.append(prompt)
        return prompt

    def pick(self, pick: int) -> SequenceId:
        """Choose an open sequence."""
        return SequenceId(sorted(self.model.sequences)[pick % len(self.model.sequences)])

    def agree(self, sequence: SequenceId) -> None:
        """Hold the block tables of store and model against each other."""
        blocks = self.model.sequences[sequence].blocks
        table = self.store.table_of(sequence).tolist()
        assert len(blocks) == len(table)
        for block, number in zip(blocks, table, strict=True):
            assert self.number.setdefault(block, number) == number
        live = {self.number[b] for b in self.model.live}
        assert len(live) == len(self.model.live), "two blocks share a number"

    # --- looking ---

    @rule(ns=namespaces_, pick=picks_, cut=st.integers(0, 6), suffix=tokens_)
    def look_up(self, ns: Namespace, pick: int, cut: int, suffix: Tokens) -> None:
        """Look a prompt and its keys up: right, and without a trace."""
        prompt = self.prompt(pick, cut, suffix)
        before = snapshot(self.store)
        found = self.store.lookup(ns, np.array(prompt, np.int32))
        keys = self.store.keys_of(ns, np.array(prompt, np.int32))
        assert snapshot(self.store) == before
        match = self.model.match(ns, prompt)
        assert found.full_blocks == len(match.blocks)
        assert found.partial_tokens == match.partial_tokens
        assert found.leader == match.leader
        assert all(type(x) is int for x in (found.full_blocks, found.partial_tokens))
        expected, above, size = [], None, self.config.block_size
        for at in range(0, len(prompt) - size + 1, size):
            above = self.key_of(self.model.root_of(ns), above, prompt[at : at + size])
            expected.append(above)
        assert keys == expected

    # --- sequences ---

    @rule(
        ns=namespaces_,
        pick=picks_,
        cut=st.integers(0, 6),
        suffix=tokens_,
        read=st.sampled_from([True] * 6 + [False]),
        write=st.sampled_from([True] * 6 + [False]),
    )
    def admit(
        self, ns: Namespace, pick: int, cut: int, suffix: Tokens, read: bool, write: bool
    ) -> None:
        """Admit a prompt: what is cached is adopted; or nothing changes."""
        prompt = self.prompt(pick, cut, suffix)
        if not prompt:
            return
        before = snapshot(self.store)
        got = self.store.admit(ns, np.array(prompt, np.int32), read=read, write=write)
        expected = self.model.admit(ns, prompt, read)
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

    @rule(ns=namespaces_, pick=picks_, cut=st.integers(0, 6), suffix=tokens_, shares=shares_)
    def admit_and_run(
        self, ns: Namespace, pick: int, cut: int, suffix: Tokens, shares: list[int]
    ) -> None:
        """Admit a prompt, and run all that is reserved."""
        self.admit(ns, pick, cut, suffix, read=True, write=True)
        self.run_step(shares, fails=1)

    @precondition(lambda self: self.model.sequences)
    @rule(pick=picks_, suffix=tokens_, other=tokens_)
    def fork_and_advance(self, pick: int, suffix: Tokens, other: Tokens) -> None:
        """Fork a sequence and let both go on, each in its own way."""
        parent = self.pick(pick)
        child = self.fork(parent)
        for sequence, tokens in ((parent, suffix), (child, other)):
            if sequence is not None:
                self.extend(sequence, tokens)
                self.reserve(sequence, MAX_TOKENS)

    @precondition(lambda self: self.model.sequences)
    @rule(pick=picks_)
    def fork_one(self, pick: int) -> None:
        """Fork a sequence."""
        self.fork(self.pick(pick))

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

    @precondition(lambda self: self.model.sequences)
    @rule(pick=picks_, suffix=tokens_, more=st.integers(0, 12))
    def advance(self, pick: int, suffix: Tokens, more: int) -> None:
        """Append tokens to a sequence, and make some of its positions writable."""
        sequence = self.pick(pick)
        self.extend(sequence, suffix)
        if more:
            self.reserve(sequence, more)

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

    @precondition(lambda self: self.model.sequences)
    @rule(pick=picks_)
    def release(self, pick: int) -> None:
        """Close a sequence."""
        sequence = self.pick(pick)
        self.store.release(sequence)
        self.model.release(sequence)

    @rule(shares=shares_, fails=st.sampled_from([1, 1, 1, 1, 1, 1, 1, 0]))
    def run_step(self, shares: list[int], fails: int) -> None:
        """Run what is reserved, whole or in part: copies, writes, commits; or fail on the way."""
        copies = self.store.take_copies()
        executed = list(self.model.copies.values())
        self.model.copies.clear()
        assert {(int(c.source), int(c.destination), c.tokens) for c in copies} == {
            (self.number[a], self.number[b], n) for a, b, n in executed
        }
        executed.sort(key=lambda c: [x.destination for x in copies].index(self.number[c[1]]))
        plan = {}
        for share, (number, s) in zip(shares, sorted(self.model.sequences.items()), strict=False):
            stop = s.computed + -(-(s.reserved - s.computed) * share // 3)
            if stop > s.computed:
                plan[SequenceId(number)] = stop
        if fails:
            self._run_to_the_end(copies, executed, plan)
        else:
            self._fail(copies, executed, plan)

    def _run_to_the_end(self, copies, executed, plan: dict[SequenceId, int]) -> None:
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
            self.kv[slot // size, slot % size] = value_of(s.root, s.tokens[: position + 1])

    def _fail(self, copies, executed, plan: dict[SequenceId, int]) -> None:
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

    @rule(
        kind=st.sampled_from([*[FlushKind.PREFIX] * 5, *FlushKind, None, None]),
        ns=namespaces_,
        pick=picks_,
        cut=st.integers(0, 8),
    )
    def disturb(self, kind: FlushKind | None, ns: Namespace, pick: int, cut: int) -> None:
        """Flush something, or lose touch with the directory, or find it again."""
        if kind is None:
            self.directory.current = self.model.current = not self.model.current
        else:
            self.flush(kind, ns, pick, cut)

    def flush(self, kind: FlushKind, ns: Namespace, pick: int, cut: int) -> None:
        """Flush this."""
        self.flushes += 1
        prefix = self.prompt(pick, cut, ()) if kind is FlushKind.PREFIX else ()
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
        note(f"prefix {prefix}")
        report = self.store.flush(flush)
        gone = self.model.flush(flush)
        assert report.blocks == len(gone)
        assert report.bytes == 10 * len(gone)
        assert report.in_use == sum(b.references > 0 or b.pins > 0 for b in gone)
        owners = [b.owner for b in gone]
        assert report.blocks_by_tenant == {name: owners.count(name) for name in set(owners)}

    # --- what always holds ---

    @invariant()
    def clean(self) -> None:
        """Find nothing in an audit."""
        assert audit(self.store) == ()

    @invariant()
    def counted(self) -> None:
        """Hold the store's counts against the model's."""
        model, pool = self.model, self.store.pool_counts()
        assert pool.free == model.free
        assert pool.tails == len(model.tails)
        assert pool.cached == len(model.tails) + len(model.cached)
        held = pool.free + pool.in_use + pool.cached + pool.stale + pool.quarantined
        assert held == pool.capacity == self.config.capacity_blocks
        assert pool.evicted == model.evicted
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
    def told(self) -> None:
        """Hold what the directory was told against what is published."""
        assert self.directory.held == set(self.model.index)

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
                    assert found == value_of(s.root, s.tokens[: position + 1])
        for block in self.model.live:
            if block.state != "private":
                root, path = path_of(block)
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
