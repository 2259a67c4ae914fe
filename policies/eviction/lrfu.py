"""LRFU (Lee et al., IEEE ToC 2001): every use counts one, and counts half after a half-life.

A block's combined recency and frequency at time t is the sum over its uses of 2^-((t - use) / H).
All blocks decay alike, so their order does not depend on t: we keep the sum's logarithm at time 0,
log2(sum of 2^(use / H)), which changes only when the block is used and never overflows.
"""

import math
from functools import cache

import numba

from stemkv.policies.eviction.protocol import Row, Scored

_NEGLIGIBLE = 60.0
"""2^-60 added to 1 is lost in a float64."""


@cache
def lrfu(half_life_seconds: float) -> Scored:
    """Return LRFU with a half-life; near 0 it is LRU, and without end it is LFU."""
    if not 0 < half_life_seconds < math.inf:
        raise ValueError(f"half_life_seconds: {half_life_seconds} is not positive and finite")

    @numba.njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
    def score(row: Row, event: int, now: float) -> float:  # noqa: ARG001 - the shape of a score
        former, use = float(row[0]), now / half_life_seconds
        high, low = max(former, use), min(former, use)
        if high - low > _NEGLIGIBLE:
            return high
        return high + math.log2(1.0 + math.pow(2.0, low - high))

    return Scored(score)
