"""The open-addressing index against a dict, with keys that crowd together."""

import numpy as np
from hypothesis import strategies as st

from stemkv.kvstore import ops

BLOCKS, SLOTS = 8, 16

# Home slots of one index: a crowd, a crowd that wraps around the end, and anything.
_HOMES = st.one_of(
    st.sampled_from([3, 4, 19]), st.sampled_from([14, 15, 0, 31]), st.integers(0, 63)
)

Changes = list[tuple[int, int]]
CHANGES: st.SearchStrategy[Changes] = st.lists(
    st.tuples(st.integers(0, BLOCKS - 1), _HOMES), max_size=60
)
"""Blocks to take out if they are in, else to enter at a home slot."""


def index_agrees_with_a_dict(changes: Changes) -> None:
    """Check that, entering and deleting in any order, the right keys are found and no others."""
    table = np.full(SLOTS, ops.NONE, np.int64)
    keys = np.zeros((BLOCKS, 2), np.uint64)
    there: dict[int, int] = {}
    for block, low in changes:
        if block in there:
            ops.delete_key(table, keys, block)
            del there[block]
        elif low not in there.values():
            keys[block] = (low, 7)
            ops.insert_key(table, keys, block)
            there[block] = low
        expected = {low: block for block, low in there.items()}
        for any_low in range(64):
            found = ops.find_key(table, keys, np.uint64(any_low), np.uint64(7))
            assert found == expected.get(any_low, ops.NONE)
        assert ops.find_key(table, keys, np.uint64(low), np.uint64(8)) == ops.NONE
        assert sorted((table[table >= 0] & 0xFFFFFFFF).tolist()) == sorted(there)
