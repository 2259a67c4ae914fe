"""Rules 2 and 3: nobody reads, copies or learns of what is another's."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from hypothesis import strategies as st

from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.explain import explain
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.keys import Digest
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.properties.checks import assert_clean
from stemkv.kvstore.properties.draws import narrow, wide
from stemkv.kvstore.properties.keys import TEXTS
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Copy, Following
from stemkv.kvstore.views import Explanation

_SECRET = b"isolation"
_MAX_TOKENS = 20
_GROUPS = {"c": "g", "d": "g"}

Identity = tuple[bytes, str, bytes, str]
Prompt = tuple[int, ...]

_PUBLIC: Identity = (b"public", "", b"", "")


def _namespace(tenant: str, adapter: str, digest: bytes, salt: str) -> Namespace:
    domain = domain_of(_SECRET, tenant=tenant, group=_GROUPS.get(tenant))
    return Namespace(tenant, domain, adapter, digest if adapter else b"", salt)


# Tenants a and b by themselves, c and d in one group; prompts of few tokens, so that they meet.
_PLAIN = [_namespace(tenant, "", b"", "") for tenant in "abcd"]
NAMESPACES: st.SearchStrategy[Namespace] = st.sampled_from(_PLAIN) | st.builds(
    _namespace,
    tenant=st.sampled_from("abcd"),
    adapter=TEXTS,
    digest=st.sampled_from([b"", b"1"]),
    salt=TEXTS,
)

PROMPTS: st.SearchStrategy[Prompt] = st.lists(
    st.integers(0, 1), min_size=1, max_size=_MAX_TOKENS
).map(tuple)


@dataclass(frozen=True)
class Visit:
    """One prompt that is admitted, run as far as told, and leaves at once or at the end."""

    namespace: Namespace
    prompt: Prompt
    unrun: int
    stays: bool


VISITS: st.SearchStrategy[list[Visit]] = st.lists(
    st.builds(
        Visit,
        namespace=NAMESPACES,
        prompt=PROMPTS,
        unrun=st.sampled_from([0, 0, 0, 1, 5]),
        stays=st.sampled_from([False, False, True]),
    ),
    min_size=2,
    max_size=12,
)

DECLARED: st.SearchStrategy[list[Prompt]] = st.lists(PROMPTS, max_size=2)
"""Prefixes that are made public before the first visit, in the namespace without an adapter."""

BITS: st.SearchStrategy[int | None] = st.sampled_from([None, 0, 1, 2, 4])
"""How much of a hash varies; None for all of it. With less, keys of different content are equal."""


def _identity(namespace: Namespace) -> Identity:
    return (namespace.domain, namespace.adapter, namespace.adapter_digest, namespace.salt)


def _make_store(capacity: int, block_size: int, digest: Digest | None) -> BlockStore:
    config = StoreConfig(
        capacity_blocks=capacity,
        block_size=block_size,
        max_sequences=16,
        max_tokens=_MAX_TOKENS,
        secret=_SECRET,
    )
    return BlockStore(config, NullDirectory(), lambda: 0.0, digest)


@dataclass
class _Ledger:
    """A store, and who wrote what into each position of each block, whatever the store says."""

    store: BlockStore
    public: list[Prompt] = field(default_factory=list)
    written: dict[tuple[int, int], tuple[Identity, Prompt]] = field(default_factory=dict)
    writer: dict[int, str] = field(default_factory=dict)
    open: dict[SequenceId, Identity] = field(default_factory=dict)
    visited: set[Identity] = field(default_factory=set)

    def declare(self, prompt: Prompt) -> None:
        """Make a prefix public, if there is room for it."""
        with suppress(ValueError):
            self.store.declare_public(np.array(prompt, np.int32))
            self.public.append(prompt)

    def public_blocks(self, namespace: Namespace, prompt: Prompt) -> int:
        """Count the leading blocks of a prompt that some public prefix begins with, too."""
        size, most = self.store.config.block_size, 0
        for public in () if namespace.adapter else self.public:
            blocks = min(len(prompt), len(public)) // size
            while prompt[: blocks * size] != public[: blocks * size]:
                blocks -= 1
            most = max(most, blocks)
        return most

    def visit(self, visit: Visit) -> None:
        """Admit a prompt, hold what it reuses against the ledger, run it and let it go."""
        identity, store = _identity(visit.namespace), self.store
        got = store.admit(visit.namespace, np.array(visit.prompt, np.int32))
        if isinstance(got, Following):
            public = self.public_blocks(visit.namespace, visit.prompt)
            assert public or self.open[got.leader] == identity, "it follows a stranger"
        if not isinstance(got, Admission):
            return
        self.visited.add(identity)
        self.open[got.sequence] = identity
        for copy in store.take_copies():
            self._copy(copy, visit.namespace.tenant)
        table = store.table_of(got.sequence).tolist()
        self._read(table, visit, got.computed)
        stop = max(got.computed, len(visit.prompt) - visit.unrun)
        self._write(table, visit, got.computed, stop)
        store.commit(got.sequence, stop)
        store.settle()
        self._read(store.table_of(got.sequence).tolist(), visit, stop)
        if not visit.stays:
            self.leave(got.sequence)

    def leave(self, sequence: SequenceId) -> None:
        """Close a sequence."""
        self.store.release(sequence)
        del self.open[sequence]

    def _copy(self, copy: Copy, tenant: str) -> None:
        source, destination, tokens = copy
        writer, (identity, _) = self.writer[source], self.written[source, 0]
        assert writer == tenant or identity == _PUBLIC, f"copied from {writer}'s block"
        for i in range(tokens):
            self.written[destination, i] = self.written[source, i]
        self.writer[destination] = tenant

    def _read(self, table: Sequence[int], visit: Visit, stop: int) -> None:
        size = self.store.config.block_size
        for position in range(stop):
            found = self.written[table[position // size], position % size]
            identity = self._identity_of(visit, position // size)
            assert found == (identity, visit.prompt[: position + 1]), "it reads another's block"

    def _write(self, table: Sequence[int], visit: Visit, start: int, stop: int) -> None:
        size = self.store.config.block_size
        for position in range(start, stop):
            place = (table[position // size], position % size)
            identity = self._identity_of(visit, position // size)
            self.written[place] = (identity, visit.prompt[: position + 1])
            self.writer[place[0]] = visit.namespace.tenant

    def _identity_of(self, visit: Visit, block: int) -> Identity:
        """Say whose a block of a visit's prompt is."""
        public = self.public_blocks(visit.namespace, visit.prompt)
        return _PUBLIC if block < public else _identity(visit.namespace)


def nobody_reads_anothers(
    capacity: int, block_size: int, bits: int | None, declared: list[Prompt], visits: list[Visit]
) -> None:
    """Check that only what the namespace itself computed is reused, however keys collide.

    A partial copy comes from the tenant's own block; a namespace that nobody computed in finds
    nothing, whatever was cached in others. Both but for what is public.
    """
    digest = wide if bits is None else partial(narrow, bits)
    ledger = _Ledger(_make_store(capacity, block_size, digest))
    for prompt in declared:
        ledger.declare(prompt)
    for visit in visits:
        ledger.visit(visit)
        assert_clean(ledger.store)
    for visit in visits:
        for tenant in "abcd":
            other = _namespace(tenant, "", b"", visit.namespace.salt + "?")
            if _identity(other) not in ledger.visited:
                found = ledger.store.lookup(other, np.array(visit.prompt, np.int32))
                public = ledger.public_blocks(other, visit.prompt)
                assert found.full_blocks <= public
                if found.full_blocks == public:
                    assert (found.partial_tokens, found.leader) == (0, None)
    for sequence in tuple(ledger.open):
        ledger.leave(sequence)
    assert_clean(ledger.store)


def a_tenant_sees_itself_alone(block_size: int, visits: list[Visit]) -> None:
    """Check that tenant a is answered as in a service of its own, where there is room for all."""
    mine = [visit for visit in visits if visit.namespace.tenant == "a"]
    assert _answers(block_size, visits) == _answers(block_size, mine)


Answer = tuple[Explanation, int, int]


def _answers(block_size: int, visits: Sequence[Visit]) -> list[Answer]:
    """Return what tenant a is told of each of its prompts, in a pool that is never full."""
    store = _make_store(len(visits) * _MAX_TOKENS + 1, block_size, None)
    answers = []
    for visit in visits:
        prompt = np.array(visit.prompt, np.int32)
        told = explain(store, visit.namespace, prompt)
        got = store.admit(visit.namespace, prompt)
        if not isinstance(got, Admission):
            continue
        store.take_copies()
        store.commit(got.sequence, max(got.computed, len(prompt) - visit.unrun))
        store.settle()
        if not visit.stays:
            store.release(got.sequence)
        if visit.namespace.tenant == "a":
            answers.append((told, got.full_tokens, got.partial_tokens))
    return answers
