"""The audit's quick half and its wordy half agree on every store, however damaged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemkv.kvstore.properties.damage import HARM, Harm, arrays_of, audited, halves_agree_on_damage
from stemkv.kvstore.properties.scene import STORES, make_scene


@pytest.mark.parametrize("name", STORES)
def test_both_halves_find_nothing_in_a_store_in_order(name: str) -> None:
    """A store that nobody has touched is clean to both."""
    assert audited(make_scene(STORES[name]()).store)


@pytest.mark.parametrize("name", STORES)
@settings(max_examples=300, deadline=None)
@given(harm=st.lists(HARM, min_size=1, max_size=3))
def test_both_halves_agree_on_any_damage(name: str, harm: list[Harm]) -> None:
    """Whatever up to three numbers of the arrays become, both say the same, and come to an end."""
    halves_agree_on_damage(name, harm)


@pytest.mark.parametrize("name", STORES)
def test_both_halves_agree_on_every_number_of_every_row(name: str) -> None:
    """Each number of the block rows, the lists' ends, the index and the tables, one by one."""
    store = make_scene(STORES[name]()).store
    found, capacity = 0, store.pool.capacity
    for name, array in arrays_of(store).items():
        if name in ("keys", "tokens", "history"):
            continue
        flat = array.reshape(-1)
        for i in range(flat.size):
            old = flat[i].copy()
            for value in (-2, 0, 1, capacity - 1, capacity, 2**31 - 1):
                flat[i] = value
                found += not audited(store)
            flat[i] = old
    assert audited(store)
    assert found > 1000
