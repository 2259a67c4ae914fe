"""After a repair the store is whole again and serves on, and it says what that took."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemkv.kvstore import ops
from stemkv.kvstore.audit import audit
from stemkv.kvstore.properties.damage import HARM, Harm
from stemkv.kvstore.properties.eviction_model import POLICIES
from stemkv.kvstore.properties.faults import FAULTS, scene_with
from stemkv.kvstore.properties.repairs import (
    damage_is_repaired,
    fault_is_repaired,
    lenient,
    repaired,
    serve_on,
)
from stemkv.kvstore.properties.scene import ANN, STORES, empty_store, make_scene
from stemkv.kvstore.repair import RepairError, repair
from stemkv.kvstore.views import RepairReport

BEYOND = ("root is gone", "sequence lost", "leader lost")
"""Faults in what a repair has to start from."""

KINDS = [
    (name, kind)
    for name, fault in FAULTS.items()
    if name not in BEYOND
    for kind in ([fault.store] if fault.store != "compiled hash" else STORES)
    if (name, kind) != ("order of eviction", "eviction by score")  # no fault without lists
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_fault_is_repaired(name: str, kind: str) -> None:
    """Whatever is planted, the audit is clean after a repair, and while the store serves on."""
    fault_is_repaired(name, kind)


@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=150, deadline=None)
@given(harm=st.lists(HARM, min_size=1, max_size=8))
def test_any_damage_is_repaired(kind: str, harm: list[Harm]) -> None:
    """Up to eight numbers may become anything, tables of sequences apart."""
    damage_is_repaired(kind, harm)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["content", "list link", "root's cached", "too few blocks"])
def test_repairs_under_every_policy(policy: str, name: str) -> None:
    """Scores and heaps are whole again too, whatever gives the scores."""
    scene = make_scene(empty_store("xxh3_128", POLICIES[policy]))
    FAULTS[name].plant(scene)
    repaired(lenient(scene.store))
    serve_on(scene.store)


@pytest.mark.parametrize("name", BEYOND)
def test_what_cannot_be_repaired_is_refused(name: str) -> None:
    """With sequences or roots gone, there is nothing to build on, and the error says so."""
    with pytest.raises(RepairError, match=r"not all sequences|a root that there is not"):
        repair(scene_with(FAULTS[name]).store)


@pytest.mark.parametrize("kind", STORES)
def test_a_store_in_order_is_left_alone(kind: str) -> None:
    """Nothing is dropped where nothing was found, tails neither."""
    store = make_scene(STORES[kind]()).store
    before = store.pool.meta.copy(), store.pool.accounts.copy(), store.pool.table.copy()
    assert repair(store) == RepairReport()
    after = store.pool.meta, store.pool.accounts, store.pool.table
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_bad_block_takes_its_branch_along() -> None:
    """What hangs on a quarantined block is dropped; other chains are found as before."""
    scene = scene_with(FAULTS["content"])
    store = lenient(scene.store)
    report = repair(store)
    assert report.quarantined == (scene.cached[1],)
    assert report.dropped == 1  # its tail
    assert report.sequences == ()
    assert store.lookup(ANN, np.arange(10, dtype=np.int32)).full_blocks == 1
    assert store.lookup(ANN, np.arange(20, 28, dtype=np.int32)).full_blocks == 2
    counts = store.pool_counts()
    assert (counts.quarantined, counts.stale) == (2, 0)


def test_a_bad_block_in_use_stays_with_its_holder() -> None:
    """Its sequence is named and publishes no more; after the release the block stays out."""
    scene = scene_with(FAULTS["reference too many"])
    store = lenient(scene.store)
    report = repair(store)
    assert report.quarantined == (scene.private,)
    assert report.sequences == (scene.sequence,)
    assert not store.sequences[scene.sequence].writes
    assert scene.private in store.table_of(scene.sequence)
    store.release(scene.sequence)
    assert store.pool.meta[scene.private, ops.STATE] == ops.QUARANTINED
    assert audit(store) == ()


def test_a_sequence_that_is_wrong_itself_holds_nothing_after() -> None:
    """One whose table names no block is emptied; the others go on."""
    scene = scene_with(FAULTS["no block in the table"])
    store = lenient(scene.store)
    report = repair(store)
    assert report.sequences == (scene.sequence,)
    assert len(store.table_of(scene.sequence)) == 0
    assert store.sequences[scene.leader].writes
    assert store.leaders.leads(scene.leader)


def test_a_lost_copy_ends_whose_block_it_would_have_filled() -> None:
    """Without its planned copy, a block would be read with nothing in it."""
    scene = scene_with(FAULTS["copy to nowhere"])
    report = repair(lenient(scene.store))
    assert report.sequences == (scene.waiting,)


def test_rows_of_roots_are_written_anew_at_no_cost() -> None:
    """A root's key and account are known elsewhere: no block is blamed for its row."""
    for name in ("root's key", "root of another account", "reserves over the pool"):
        store = lenient(scene_with(FAULTS[name]).store)
        report = repair(store)
        assert report.violations
        assert (report.quarantined, report.dropped, report.sequences) == ((), 0, ())


def test_pins_and_public_prefixes_survive() -> None:
    """They keep what verifies; a pin ends where its chain does."""
    scene = scene_with(FAULTS["not in the index"])
    store = lenient(scene.store)
    repair(store)
    assert [pin.blocks for pin in store.pinned()] == [2]
    assert [prefix.cached_blocks for prefix in store.public_prefixes()] == [2]
    scene = make_scene(STORES["compiled hash"]())
    store = lenient(scene.store)
    store.pool.tokens[scene.pinned[1], 0] += 1
    assert repair(store).quarantined == (scene.pinned[1],)
    assert [pin.blocks for pin in store.pinned()] == [1]
    serve_on(store)


def test_eviction_goes_on_in_the_old_order() -> None:
    """What was let go first is still evicted first after a repair."""
    scene = scene_with(FAULTS["root's cached"])
    store = lenient(scene.store)
    account = store.accounts.names.index("bob")
    head = -1 - int(ops.cached_list(account))

    def listed() -> list[int]:
        found, b = [], int(store.pool.meta[head, ops.NEXT])
        while b >= 0:
            found.append(b)
            b = int(store.pool.meta[b, ops.NEXT])
        return found

    before = [b for b in listed() if b != scene.stale]
    assert len(before) == 2
    repair(store)
    assert listed() == before


def test_events_and_ghosts_tell_of_what_is_dropped() -> None:
    """Whoever follows the cache hears of quarantined published blocks as removed."""
    scene = make_scene(STORES["compiled hash"]())
    store = lenient(scene.store)
    key = store.pool.key(scene.cached[1])
    store.pool.meta[scene.cached[1], ops.OWNER] = 9
    repair(store)
    assert key not in store.directory.held
    assert store.ghosts.find(key) is not None
