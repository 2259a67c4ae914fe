"""A store with something of everything in it, for faults to be planted into."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.properties.eviction_model import POLICIES
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission
from stemkv.policies.eviction import EvictionPolicy

CAPACITY_BLOCKS = 24
_SECRET = b"a secret of scenes"
ANN, BOB = (Namespace(name, domain_of(_SECRET, tenant=name)) for name in ("ann", "bob"))


def _store(hash_function: str, policy: EvictionPolicy | None) -> BlockStore:
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
    "compiled hash": lambda: _store("xxh3_128", None),
    "hash in Python": lambda: _store("sha256", None),
    "eviction by score": lambda: _store("xxh3_128", POLICIES["lrfu"]),
}
"""Empty stores of the kinds that an audit goes through on different paths."""


@dataclass(frozen=True)
class Scene:
    """The store, and what is where in it.

    cached: a chain of two blocks that nothing holds, then a tail. sibling: another child of the
    chain's first block. private: an open sequence's block that is not published. sequence: that
    sequence; its first two blocks are cached[0] and sibling. leader: one in the middle of its
    prompt. waiting: one with a planned copy.
    """

    store: BlockStore
    cached: list[int]
    sibling: int
    private: int
    sequence: SequenceId
    leader: SequenceId
    waiting: SequenceId


def make_scene(store: BlockStore) -> Scene:
    """Make the scene in an empty store of `STORES`; an audit finds nothing in it."""
    cached = _cache(store, range(10), ANN)
    sequence = open_sequence(store, [*range(4), 60, 61, 62, 63, 64, 65], ANN)
    compute(store, sequence)
    first, sibling, private = store.table_of(sequence).tolist()
    assert first == cached[0]
    leader = open_sequence(store, range(40, 52), BOB)
    store.commit(leader, 4)
    _cache(store, range(80, 88), BOB)
    waiting = open_sequence(store, [*range(80, 86), 99], BOB)
    assert len(store.copies.open()) == 1
    assert audit(store) == ()
    return Scene(store, cached, sibling, private, sequence, leader, waiting)


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
    assert audit(store) == ()


def _cache(store: BlockStore, prompt: Iterable[int], namespace: Namespace) -> list[int]:
    """Compute a prompt and let it go; returns its block table."""
    sequence = open_sequence(store, prompt, namespace)
    compute(store, sequence)
    table = [int(b) for b in store.table_of(sequence)]
    store.release(sequence)
    return table
