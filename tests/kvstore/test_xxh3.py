"""The hash inside compiled loops against the xxhash package."""

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stemkv.kvstore import chains, ops
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.jit import COMPILES
from stemkv.kvstore.keys import HASH_FUNCTIONS, as_bytes, chain
from stemkv.kvstore.xxh3 import MAX_WORDS, MIN_WORDS, xxh3_128

pytestmark = [
    pytest.mark.skipif(not COMPILES, reason="used only where it is compiled"),
]


@pytest.mark.parametrize("words", range(MIN_WORDS, MAX_WORDS + 1))
def test_every_length_hashes_as_the_package_does(words: int) -> None:
    """Random words, all zeros and all ones, of every length that it takes."""
    rng = np.random.default_rng(words)
    for data in (
        rng.integers(0, 2**64, words, np.uint64),
        np.zeros(words, np.uint64),
        np.full(words, 2**64 - 1, np.uint64),
    ):
        low, high = xxh3_128(data)
        assert int(high) << 64 | int(low) == xxhash.xxh3_128_intdigest(data.tobytes())


@given(
    key=st.binary(min_size=16, max_size=16),
    size=st.sampled_from([2, 4, 8, 16, 32, 64, 128]),
    seed=st.integers(0, 2**32 - 1),
)
def test_child_keys_are_those_of_the_chain(key: bytes, size: int, seed: int) -> None:
    """A block's key made in the loop is the one that `chain` gives, negative tokens included."""
    tokens = np.random.default_rng(seed).integers(-(2**31), 2**31, 3 * size).astype(np.int32)
    words = np.empty(2 + size // 2, np.uint64)
    keys = np.zeros((1, 2), np.uint64)
    roots = np.zeros((1, ops.ROOT_COLUMNS), np.int64)
    roots[0, [ops.KEY_LOW, ops.KEY_HIGH]] = np.frombuffer(key, np.int64)
    made: list[bytes] = []
    for i in range(3):
        keys[0] = chains.child_key(keys, roots, tokens, i * size, 0 if i else -2, words)
        made.append(keys[0].tobytes())
    assert made == chain(HASH_FUNCTIONS["xxh3_128"], BlockKey(key), as_bytes(tokens), size)
