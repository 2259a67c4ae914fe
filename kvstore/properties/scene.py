"""A store with something of everything in it, for faults to be planted into."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import FlushId, SequenceId
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.properties.checks import assert_clean
from stemkv.kvstore.properties.eviction_model import POLICIES
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.quotas import Quota
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission
from stemkv.policies.eviction import EvictionPolicy

CAPACITY_BLOCKS = 30
_SECRET = b"a secret of scenes"
ANN, BOB = (Namespace(name, domain_of(_SECRET, tenant=name)) for name in ("ann", "bob"))
_SALTED = replace(BOB, salt="salt")
_PUBLIC = range(100, 108)


def empty_store(hash_function: str, policy: EvictionPolicy | None) -> BlockStore:
    """Return a store for a scene."""
    config = StoreConfig(
        capacity_blocks=CAPACITY_BLOCKS,
        block_size=4,
        max_sequences=8,
        max_tokens=64,
        secret=_SECRET,
        hash_function=hash_function,
    )
    return BlockStore(config, RecordingDirectory(), lambda: 0.0, None, policy)


STORES: Mapping[str, Callable[[], BlockStore]] = {
    "compiled hash": lambda: empty_store("xxh3_128", None),
    "hash in Python": lambda: empty_store("sha256", None),
    "eviction by score": lambda: empty_store("xxh3_128", POLICIES["lrfu"]),
}
"""Empty stores of the kinds that an audit goes through on different paths."""


@dataclass(frozen=True)
class Scene:
    """The store, and what is where in it.

    cached: a chain of two blocks that nothing holds, then a tail. sibling: another child of the
    chain's first block. private: an open sequence's block that is not published. sequence: that
    sequence; its first two blocks are cached[0] and sibling. leader: one in the middle of its
    prompt. waiting: one with a planned copy. pinned: a chain of two blocks that a pin keeps.
    guest: a sequence whose first two blocks are public. stale: a flushed block that nothing holds.
    mourner: a sequence that holds flushed blocks. leaves: two chains of one block of bob's that
    nothing holds. out: a block that is out of service.
    """

    store: BlockStore
    cached: list[int]
    sibling: int
    private: int
    sequence: SequenceId
    leader: SequenceId
    waiting: SequenceId
    pinned: list[int]
    guest: SequenceId
    stale: int
    mourner: SequenceId
    leaves: list[int]
    out: int


def make_scene(store: BlockStore) -> Scene:
    """Make the scene in an empty store of `STORES`; an audit finds nothing in it."""
    store.set_quotas({ANN.domain: Quota(reserve=0.25), BOB.domain: Quota(cap=0.75)})
    store.declare_public(np.array(_PUBLIC, np.int32))
    cached = _cache(store, range(10), ANN)
    sequence = open_sequence(store, [*range(4), 60, 61, 62, 63, 64, 65], ANN)
    compute(store, sequence)
    first, sibling, private = store.table_of(sequence).tolist()
    assert first == cached[0]
    pinned = _cache(store, range(20, 28), ANN)
    store.pin(ANN, np.arange(20, 28, dtype=np.int32), PinTerms(1e6))
    guest = open_sequence(store, [*_PUBLIC, *range(5)], BOB)
    compute(store, guest)
    flushed = _cache(store, range(200, 208), _SALTED)
    mourner = open_sequence(store, [*range(200, 204), *range(300, 306)], _SALTED)
    compute(store, mourner)
    leader = open_sequence(store, range(40, 52), BOB)
    store.commit(leader, 4)
    _cache(store, range(80, 88), BOB)
    leaves = [_cache(store, range(n, n + 4), BOB)[0] for n in (400, 500)]
    waiting = open_sequence(store, [*range(80, 86), 99], BOB)
    assert len(store.copies.open()) == 1
    # Last of all, since the next step sweeps what is stale.
    store.flush(Flush(FlushId("f"), FlushKind.SALT, b"n" * 16, BOB.domain, salt=_SALTED.salt))
    scene = Scene(
        store=store,
        cached=cached,
        sibling=sibling,
        private=private,
        sequence=sequence,
        leader=leader,
        waiting=waiting,
        pinned=pinned,
        guest=guest,
        stale=flushed[1],
        mourner=mourner,
        leaves=leaves,
        out=_put_out_of_service(store),
    )
    counts = store.pool_counts()
    assert (counts.stale, counts.quarantined) == (1, 1)
    assert_clean(store)
    return scene


def _put_out_of_service(store: BlockStore) -> int:
    """Quarantine a free block by hand."""
    meta, accounts = store.pool.meta, store.pool.accounts
    b = int(meta[-1 - ops.FREE_LIST, ops.PREV])
    ops.unlink(meta, b)
    meta[b, ops.STATE] = ops.QUARANTINED
    accounts[ops.POOL, [ops.FREED, ops.OUT]] += (-1, 1)
    return b


def open_sequence(store: BlockStore, prompt: Iterable[int], namespace: Namespace) -> SequenceId:
    """Admit a prompt that must fit."""
    got = store.admit(namespace, np.array([*prompt], np.int32))
    assert isinstance(got, Admission), got
    return got.sequence


def compute(store: BlockStore, *sequences: SequenceId) -> None:
    """Run a step that computes all that these sequences know."""
    for sequence in sequences:
        assert store.reserve(sequence, store.sequences[sequence].length) is None
    store.take_copies()
    for sequence in sequences:
        store.commit(sequence, store.sequences[sequence].length)
    store.settle()
    assert_clean(store)


def _cache(store: BlockStore, prompt: Iterable[int], namespace: Namespace) -> list[int]:
    """Compute a prompt and let it go; returns its block table."""
    sequence = open_sequence(store, prompt, namespace)
    compute(store, sequence)
    table = [int(b) for b in store.table_of(sequence)]
    store.release(sequence)
    return table
