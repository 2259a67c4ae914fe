"""LRFU as a score: the logarithm of what the paper defines."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemkv.policies.eviction.lrfu import lrfu
from stemkv.policies.eviction.lru import recency
from stemkv.policies.eviction.protocol import AGAIN, FIRST, Scored

times = st.lists(st.floats(0, 500), min_size=1, max_size=12).map(sorted)


def score_of(policy: Scored, uses: list[float]) -> float:
    """Score a block that was used at these times."""
    row = np.zeros(policy.columns)
    row[0] = -np.inf
    for i, use in enumerate(uses):
        row[0] = policy.score(row, AGAIN if i else FIRST, use)
    return float(row[0])


@settings(deadline=None)
@given(times, st.sampled_from([1.0, 15.0, 60.0, 240.0]))
def test_the_score_is_the_logarithm_of_the_sum_that_halves(
    uses: list[float], half_life: float
) -> None:
    """At any later time, 2 to the score less what all lose is the sum of the uses' weights."""
    now = uses[-1] + 7.0
    expected = sum(2.0 ** ((use - now) / half_life) for use in uses)
    got = 2.0 ** (score_of(lrfu(half_life), uses) - now / half_life)
    assert got == pytest.approx(expected, rel=1e-9)


def test_a_short_half_life_orders_by_recency_and_a_long_one_by_frequency() -> None:
    """Four old uses lose to a new one if uses are soon forgotten, and win if they are not."""
    often, lately = [0.0, 1.0, 2.0, 3.0], [100.0]
    assert score_of(lrfu(5.0), often) < score_of(lrfu(5.0), lately)
    assert score_of(lrfu(1000.0), often) > score_of(lrfu(1000.0), lately)


def test_scores_stay_finite_over_a_year() -> None:
    """Years of seconds overflow nothing: the score grows with time, not with its power."""
    year = 365.0 * 86400
    uses = [year + i for i in range(100)]
    assert math.isfinite(score_of(lrfu(1.0), uses))
    assert score_of(lrfu(1.0), [*uses, year + 100]) > score_of(lrfu(1.0), uses)


@settings(deadline=None)
@given(times)
def test_recency_is_the_time_of_the_last_use(uses: list[float]) -> None:
    """LRU as a score knows nothing of earlier uses."""
    assert score_of(recency, uses) == uses[-1]


@pytest.mark.parametrize("half_life", [0.0, -1.0, math.inf, math.nan])
def test_a_half_life_that_is_none_is_refused(half_life: float) -> None:
    """What would divide by nothing is refused when the policy is made."""
    with pytest.raises(ValueError, match="half_life_seconds"):
        lrfu(half_life)
