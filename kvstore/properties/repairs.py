"""A repair makes a damaged store whole, and it serves on."""

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.audit import audit
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.properties.checks import assert_clean
from stemkv.kvstore.properties.damage import Harm, arrays_of, damage
from stemkv.kvstore.properties.faults import FAULTS, scene_with
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.properties.scene import ANN, BOB, STORES, make_scene
from stemkv.kvstore.repair import repair
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission


def lenient(store: BlockStore) -> BlockStore:
    """Let a store's directory bear with removals of what it was never told of."""
    assert isinstance(store.directory, RecordingDirectory)
    store.directory.strict = False
    return store


def fault_is_repaired(name: str, kind: str) -> None:
    """Check that a repair takes a planted fault away, if it is one to a store of this kind."""
    store = lenient(scene_with(FAULTS[name], kind).store)
    repaired(store)
    assert isinstance(store.directory, RecordingDirectory)
    published = store.pool.meta[: store.pool.capacity, ops.STATE] == ops.PUBLISHED
    assert store.directory.held == {store.pool.key(b) for b in np.flatnonzero(published).tolist()}
    serve_on(store)


def damage_is_repaired(kind: str, harm: list[Harm]) -> None:
    """Check that a repair puts right whatever becomes of the arrays, tables of sequences apart."""
    store = lenient(make_scene(STORES[kind]()).store)
    tables = [*arrays_of(store)].index("tables")
    for one in harm:
        if one[0] % len(arrays_of(store)) != tables:
            damage(store, *one)
    repaired(store)
    serve_on(store)


def repaired(store: BlockStore) -> None:
    """Repair a store, and release whom it names: clean before and after."""
    found = audit(store)
    out = store.pool_counts().quarantined
    report = repair(store)
    assert report.violations == tuple(map(str, found))
    assert_clean(store)
    if found:
        meta = store.pool.meta[: store.pool.capacity]
        assert (meta[list(report.quarantined), ops.STATE] == ops.QUARANTINED).all()
        assert store.pool_counts().quarantined == (meta[:, ops.STATE] == ops.QUARANTINED).sum()
        assert store.pool_counts().quarantined >= len(report.quarantined)
    else:
        assert store.pool_counts().quarantined == out
    for sequence in report.sequences:
        assert not store.sequences[SequenceId(sequence)].writes
        store.release(SequenceId(sequence))
        assert_clean(store)


def serve_on(store: BlockStore) -> None:
    """Run what is open to its end, then more prompts than the pool has room for."""
    for sequence in tuple(store.sequences):
        if store.reserve(sequence, store.sequences[sequence].length) is not None:
            store.release(sequence)
    store.take_copies()
    for sequence, state in store.sequences.items():
        store.commit(sequence, state.reserved)
    store.settle()
    assert_clean(store)
    for sequence in tuple(store.sequences):
        store.release(sequence)
        assert_clean(store)
    for i in range(16):
        start = i % 7 * 10
        got = store.admit((ANN, BOB)[i % 2], np.arange(start, start + 13, dtype=np.int32))
        if isinstance(got, Admission):
            store.take_copies()
            store.commit(got.sequence, 13)
            store.settle()
            store.release(got.sequence)
        assert_clean(store)
