"""Damage to any number of a store's arrays, and what both halves of an audit must make of it."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from stemkv.kvstore.audit import audit, is_clean
from stemkv.kvstore.properties.scene import STORES, make_scene
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.violations import violations_of

ARRAYS: Mapping[str, Callable[[BlockStore], npt.NDArray[np.generic]]] = {
    "meta": lambda store: store.pool.meta,
    "keys": lambda store: store.pool.keys,
    "tokens": lambda store: store.pool.tokens,
    "table": lambda store: store.pool.table,
    "roots": lambda store: store.pool.roots,
    "accounts": lambda store: store.pool.accounts,
    "rows": lambda store: store.sequence_arrays.rows,
    "tables": lambda store: store.sequence_arrays.tables,
    "history": lambda store: store.sequence_arrays.history,
}

_VALUES = st.one_of(
    st.integers(-4, 30),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63), 23 << 32, 5 << 32 | 3]),
    st.integers(-(2**63), 2**63 - 1),
)

# Which array, which of its numbers, what is put there, and how: as it is, added, or from elsewhere
# in the array.
Harm = tuple[str, int, int, str]

HARM: st.SearchStrategy[Harm] = st.tuples(
    st.sampled_from(sorted(ARRAYS)),
    st.integers(0, 2**16),
    _VALUES,
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


def halves_agree_on_damage(kind: str, harm: list[Harm]) -> None:
    """Check that whatever numbers become, both halves say the same, and come to an end."""
    store = make_scene(STORES[kind]()).store
    for one in harm:
        damage(store, *one)
    audited(store)
