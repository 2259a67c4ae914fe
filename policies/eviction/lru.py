"""Least recently used, tails first: the default, as a walk along a list and as a score."""

import numba
import numpy as np
import numpy.typing as npt

from stemkv.policies.eviction.protocol import ListPolicy, Row, Scored


def _lru(
    following: npt.NDArray[np.int32], tails: int, cached: int, wanted: int
) -> npt.NDArray[np.int32]:
    victims = np.empty(wanted, np.int32)
    at, end = following[tails], tails
    for i in range(wanted):
        if at == end and end == tails:
            at, end = following[cached], cached
        victims[i] = at
        at = following[at]
    return victims


lru: ListPolicy = numba.njit(cache=True, nogil=True, error_model="numpy")(_lru)
"""Least recently used; tails, which save less than a block, before all published blocks."""


@numba.njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _last_use(row: Row, event: int, now: float) -> float:  # noqa: ARG001 - the shape of a score
    return now


recency = Scored(_last_use)
"""The same order as a score, for comparison with others."""
