"""Who is evicted: which cached blocks give way when the free ones do not suffice.

A policy sees the store's two orders of unreferenced blocks, tails and published ones, each from
the least recently used to the most, and names its victims. It must name leaves first; in both
orders a block stands before its parent, so any prefix of an order will do.
"""

from collections.abc import Mapping
from typing import Protocol

import numba
import numpy as np
import numpy.typing as npt


class EvictionPolicy(Protocol):
    """Names `wanted` victims; there are at least as many unreferenced blocks."""

    def __call__(
        self, following: npt.NDArray[np.int32], tails: int, cached: int, wanted: int
    ) -> npt.NDArray[np.int32]:
        """Return int32 [wanted] block numbers, in the order in which they go.

        following: int32, the next block in a block's order. tails, cached: where each order's
        circle starts and ends (not a block itself).
        """
        ...


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


lru: EvictionPolicy = numba.njit(cache=True, nogil=True, error_model="numpy")(_lru)
"""Least recently used; tails, which save less than a block, before all published blocks."""

EVICTION: Mapping[str, EvictionPolicy] = {"lru": lru}
"""Name -> policy."""
