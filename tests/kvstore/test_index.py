"""The open-addressing index against a dict, with keys that crowd together."""

import numpy as np
import pytest
from hypothesis import given

from stemkv.kvstore import ops
from stemkv.kvstore.properties.index import (
    BLOCKS,
    CHANGES,
    SLOTS,
    Changes,
    index_agrees_with_a_dict,
)


@given(CHANGES)
def test_index_agrees_with_a_dict(changes: Changes) -> None:
    """Entering and deleting in any order, every key is found that should be, and no other."""
    index_agrees_with_a_dict(changes)


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
