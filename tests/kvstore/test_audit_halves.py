"""The audit's quick half and its wordy half agree on every store, however damaged."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audit_scene import make_scene
from support.stores import SECRET, Clock, make_store

from stemkv.kvstore.audit import audit, is_clean
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.properties.eviction_model import POLICIES
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.violations import violations_of

Array = npt.NDArray[np.int64]


def _scored() -> BlockStore:
    config = StoreConfig(
        capacity_blocks=24, block_size=4, max_sequences=8, max_tokens=64, secret=SECRET
    )
    return BlockStore(config, RecordingDirectory(), Clock(), None, POLICIES["lrfu"])


STORES: Mapping[str, Callable[[], BlockStore]] = {
    "compiled hash": lambda: make_store(24),
    "hash in Python": lambda: make_store(24, hash_function="sha256"),
    "eviction by score": _scored,
}

ARRAYS: Mapping[str, Callable[[BlockStore], npt.NDArray[np.generic]]] = {
    "meta": lambda store: store.pool.meta,
    "keys": lambda store: store.pool.keys,
    "tokens": lambda store: store.pool.tokens,
    "table": lambda store: store.pool.table,
    "heads": lambda store: store.pool.heads,
    "count": lambda store: store.pool.count,
    "rows": lambda store: store.sequence_arrays.rows,
    "tables": lambda store: store.sequence_arrays.tables,
    "history": lambda store: store.sequence_arrays.history,
}

VALUES = st.one_of(
    st.integers(-4, 30),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63), 23 << 32, 5 << 32 | 3]),
    st.integers(-(2**63), 2**63 - 1),
)

# Which array, which of its numbers, what is put there, and how: as it is, added, or from elsewhere
# in the array.
DAMAGE = st.tuples(
    st.sampled_from(sorted(ARRAYS)),
    st.integers(0, 2**16),
    VALUES,
    st.sampled_from(["set", "add", "flip", "copy"]),
)


def damage(store: BlockStore, name: str, place: int, value: int, how: str) -> None:
    """Change one number of an array to one that its type can hold."""
    flat = ARRAYS[name](store).reshape(-1)
    i = place % flat.size
    old = int(flat[i])
    new = {
        "set": value,
        "add": old + value,
        "flip": old ^ (1 << value % (8 * flat.itemsize)),
        "copy": int(flat[(i + value) % flat.size]),
    }[how]
    flat[i : i + 1] = np.array([new % 2**64], np.uint64).astype(flat.dtype)


def audited(store: BlockStore) -> bool:
    """Return whether a store is clean, which both halves must say alike."""
    quick, words = is_clean(store), violations_of(store)
    assert quick == (words == ()), words
    assert audit(store) == words
    return quick


@pytest.mark.parametrize("name", STORES)
def test_both_halves_find_nothing_in_a_store_in_order(name: str) -> None:
    """A store that nobody has touched is clean to both."""
    assert audited(make_scene(STORES[name]()).store)


@pytest.mark.parametrize("name", STORES)
@settings(max_examples=300, deadline=None)
@given(harm=st.lists(DAMAGE, min_size=1, max_size=3))
def test_both_halves_agree_on_any_damage(name: str, harm: list[tuple[str, int, int, str]]) -> None:
    """Whatever up to three numbers of the arrays become, both say the same, and come to an end."""
    store = make_scene(STORES[name]()).store
    for one in harm:
        damage(store, *one)
    audited(store)


@pytest.mark.parametrize("name", STORES)
def test_both_halves_agree_on_every_number_of_every_row(name: str) -> None:
    """Each number of the block rows, the lists' ends, the index and the tables, one by one."""
    store = make_scene(STORES[name]()).store
    found = 0
    for array in ("meta", "table", "heads", "count", "rows", "tables"):
        flat = ARRAYS[array](store).reshape(-1)
        for i in range(flat.size):
            old = flat[i].copy()
            for value in (-2, -1, 0, 1, 23, 24, 27, 2**31 - 1):
                flat[i] = value
                found += not audited(store)
            flat[i] = old
    assert audited(store)
    assert found > 1000
