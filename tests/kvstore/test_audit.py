"""The audit finds what is planted, each kind by its own words."""

import numpy as np
import pytest

from stemkv.kvstore.audit import audit
from stemkv.kvstore.properties.faults import FAULTS, audit_finds_the_fault
from stemkv.kvstore.properties.scene import ANN, STORES, compute, make_scene


@pytest.mark.parametrize("name", FAULTS)
def test_audit_finds_what_is_planted(name: str) -> None:
    """Each fault gives a violation in the words that are meant for it."""
    audit_finds_the_fault(name)


def test_a_clean_store_stays_clean() -> None:
    """When all of the scene's sequences have run and left, the audit finds nothing."""
    scene = make_scene(STORES["compiled hash"]())
    store = scene.store
    compute(store, scene.leader, scene.waiting)
    for sequence in (scene.sequence, scene.leader, scene.waiting):
        store.release(sequence)
    assert audit(store) == ()
    assert store.lookup(ANN, np.arange(10, dtype=np.int32)).full_blocks == 2
