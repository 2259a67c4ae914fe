"""Damage to any number of a store's arrays, and what both halves of an audit must make of it."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from stemkv.kvstore.audit import audit, is_clean
from stemkv.kvstore.eviction import ScoredOrder
from stemkv.kvstore.properties.scene import STORES, make_scene
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.violations import violations_of

Array = npt.NDArray[np.generic]


def arrays_of(store: BlockStore) -> Mapping[str, Array]:
    """Return the arrays that are audited, by name; of floating-point ones the bits as integers."""
    arrays: dict[str, Array] = {
        "meta": store.pool.meta,
        "keys": store.pool.keys,
        "tokens": store.pool.tokens,
        "table": store.pool.table,
        "roots": store.pool.roots,
        "accounts": store.pool.accounts,
        "rows": store.sequence_arrays.rows,
        "tables": store.sequence_arrays.tables,
        "history": store.sequence_arrays.history,
    }
    if isinstance(store.order, ScoredOrder):
        leaves = store.order._leaves
        arrays |= {f"heaps' {name}": array for name, array in leaves._asdict().items()}
        arrays |= {"heaps' score": leaves.score.view(np.int64), "slots": store.order._slots}
    return arrays


_VALUES = st.one_of(
    st.integers(-4, 30),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63), 23 << 32, 5 << 32 | 3]),
    st.integers(-(2**63), 2**63 - 1),
)

# Which of the arrays, which of its numbers, what is put there, and how: as it is, added, or from
# elsewhere in the array.
Harm = tuple[int, int, int, str]

HARM: st.SearchStrategy[Harm] = st.tuples(
    st.integers(0, 2**8),
    st.integers(0, 2**16),
    _VALUES,
    st.sampled_from(["set", "add", "flip", "copy"]),
)


def damage(store: BlockStore, which: int, place: int, value: int, how: str) -> None:
    """Change one number of an array to one that its type can hold."""
    arrays = [*arrays_of(store).values()]
    flat = arrays[which % len(arrays)].reshape(-1)
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
