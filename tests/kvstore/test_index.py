"""The open-addressing index against a dict, with keys that crowd together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stemkv.kvstore import ops

BLOCKS, SLOTS = 8, 16

# Home slots of one index: a crowd, a crowd that wraps around the end, and anything.
homes_ = st.one_of(
    st.sampled_from([3, 4, 19]), st.sampled_from([14, 15, 0, 31]), st.integers(0, 63)
)


@given(st.lists(st.tuples(st.integers(0, BLOCKS - 1), homes_), max_size=60))
def test_index_agrees_with_a_dict(changes: list[tuple[int, int]]) -> None:
    """Entering and deleting in any order, every key is found that should be, and no other."""
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


@pytest.mark.parametrize("first", range(SLOTS))
def test_a_full_run_closes_up_wherever_it_stands(first: int) -> None:
    """Deleting the head of a run of equal homes leaves the others reachable, across the end too."""
    table = np.full(SLOTS, ops.NONE, np.int64)
    keys = np.zeros((BLOCKS, 2), np.uint64)
    for block in range(BLOCKS):
        keys[block] = (first + SLOTS * block, 0)
        ops.insert_key(table, keys, block)
    for gone in range(BLOCKS):
        ops.delete_key(table, keys, gone)
        for block in range(BLOCKS):
            found = ops.find_key(table, keys, keys[block, 0], keys[block, 1])
            assert found == (block if block > gone else ops.NONE)
