"""The audit finds what is planted, each kind by its own words."""

import numpy as np
import pytest

from stemkv.kvstore.audit import audit, is_clean
from stemkv.kvstore.properties.faults import FAULTS
from stemkv.kvstore.properties.scene import ANN, STORES, Scene, compute, make_scene


@pytest.fixture
def scene() -> Scene:
    """Make the scene; the audit finds nothing in it."""
    return make_scene(STORES["compiled hash"]())


@pytest.mark.parametrize("name", FAULTS)
def test_audit_finds_what_is_planted(scene: Scene, name: str) -> None:
    """Each fault gives a violation in the words that are meant for it."""
    plant, words = FAULTS[name]
    plant(scene)
    assert not is_clean(scene.store)
    assert any(words in violation for violation in audit(scene.store)), audit(scene.store)


def test_a_clean_store_stays_clean(scene: Scene) -> None:
    """When all of the scene's sequences have run and left, the audit finds nothing."""
    store = scene.store
    compute(store, scene.leader, scene.waiting)
    for sequence in (scene.sequence, scene.leader, scene.waiting):
        store.release(sequence)
    assert audit(store) == ()
    assert store.lookup(ANN, np.arange(10, dtype=np.int32)).full_blocks == 2
