"""Shadow caches: what they count, for how long, and in which order they let blocks go."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lru_exact import simulated_hits

from stemkv.kvstore.shadows import Shadows, depth_first
from stemkv.policies.eviction.lru import recency

LRU = {"lru": recency}
KEYS = np.arange(20, dtype=np.uint64).reshape(10, 2)


def test_shares_are_hits_of_lookups_from_the_first_on() -> None:
    """Nothing looked up is a share of 0, and one lookup that hits is a share of 1."""
    shadows = Shadows(LRU, 8, 8, 60.0)
    assert shadows.hit_shares() == {"lru": 0.0}
    shadows.use(KEYS[:1], 0, 0.0, 0)
    assert shadows.hit_shares() == {"lru": 0.0}
    shadows.use(KEYS[:1], 1, 1.0, 1)
    assert shadows.hit_shares() == {"lru": 1.0}
    shadows.use(KEYS[1:4], 3, 2.0, 2)
    assert shadows.hit_shares() == {"lru": 0.25}


def test_recent_counts_halve_after_the_memory() -> None:
    """What was counted that long ago counts half, twice as long ago a quarter; sums do not fade."""
    shadows = Shadows(LRU, 8, 8, 60.0)
    shadows.use(KEYS[:4], 4, 100.0, 0)
    shadows.use(KEYS[:4], 4, 160.0, 1)
    assert [shadows.recent_lookups, *shadows.recent_hits] == pytest.approx([2 + 4, 4])
    shadows.use(KEYS[4:5], 1, 280.0, 2)
    assert [shadows.recent_lookups, *shadows.recent_hits] == pytest.approx([1.5 + 1, 1])
    assert (shadows.lookups, shadows.hits) == (9, [4])


def test_of_one_use_the_deepest_goes_first_and_earlier_uses_before() -> None:
    """A tie is broken by the use, then by the depth, up to places of a very long chain."""
    places = [0, 1, 2, 2**30 - 1]
    ties = {
        (tick, place): int(depth_first(tick, [place])[0]) for tick in (1, 2) for place in places
    }
    order = sorted(ties, key=lambda use: ties[use])
    assert order == list(product((1, 2), reversed(places)))


def test_a_full_shadow_cache_loses_the_end_of_its_oldest_chain() -> None:
    """Blocks of one use have one score under LRU: the beginning of the chain stays."""
    shadows = Shadows(LRU, 4, 4, 60.0)
    shadows.use(KEYS[:4], 4, 0.0, 0)
    shadows.use(KEYS[4:6], 2, 1.0, 1)
    shadows.use(KEYS[:4], 4, 2.0, 2)
    assert shadows.hits == [2]


@pytest.mark.parametrize("pool", [8, 16, 64])
def test_a_sample_is_a_share_of_the_keys_and_of_the_pool(pool: int) -> None:
    """Blocks whose hash is in the lowest 8 / pool of all are followed, and no others."""
    shadows = Shadows(LRU, pool, 8, 60.0)
    first_out = 2**64 * 8 // pool
    highs = {high for high in (0, first_out - 1, first_out, 2**64 - 1) if high < 2**64}
    for high in highs:
        used = shadows.use(np.array([[1, high]], np.uint64), 1, 0.0, 0)
        assert used == (high < first_out)


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.text("01", min_size=1, max_size=5), st.integers(0, 5)), max_size=40),
)
def test_a_shadow_of_all_blocks_hits_as_a_simulated_cache_does(
    capacity: int, uses: list[tuple[str, int]]
) -> None:
    """Where every block is in the sample, LRU's count is exact, whatever comes and comes back."""
    shadows = Shadows(LRU, capacity, capacity, 60.0)
    chains = [
        ([int("1" + word[: i + 1], 2) for i in range(len(word))][:capacity], asked)
        for word, asked in uses
    ]
    chains = [(blocks, min(asked, len(blocks))) for blocks, asked in chains]
    for tick, (blocks, asked) in enumerate(chains):
        keys = np.array([[block, block] for block in blocks], np.uint64)
        shadows.use(keys, asked, float(tick), tick)
    assert shadows.lookups == sum(asked for _, asked in chains)
    assert shadows.hits == [simulated_hits(chains, capacity)]


@pytest.mark.parametrize("capacity", [2, 3, 5, 8])
def test_a_shadow_stays_exact_when_rows_are_taken_for_other_blocks(capacity: int) -> None:
    """Over many more blocks than it remembers, what comes back after long is a stranger."""
    draws = np.random.default_rng(capacity)
    blocks = (draws.zipf(1.2, 1500) % (20 * capacity)).tolist()
    shadows = Shadows(LRU, capacity, capacity, 60.0)
    for tick, block in enumerate(blocks):
        shadows.use(np.array([[block, block]], np.uint64), 1, float(tick), tick)
    assert shadows.hits == [simulated_hits([([block], 1) for block in blocks], capacity)]
