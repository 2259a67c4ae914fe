"""Least recently used, tails first: the default, as the store's own order and as a score."""

from dataclasses import dataclass

import numba

from stemkv.policies.eviction.protocol import Row, Scored


@dataclass(frozen=True, slots=True)
class Recency:
    """The order in which blocks were let go, which the store keeps anyway: uses cost nothing."""


lru = Recency()
"""Least recently used; tails, which save less than a block, before all published blocks."""


@numba.njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _last_use(row: Row, event: int, now: float) -> float:  # noqa: ARG001 - the shape of a score
    return now


recency = Scored(_last_use)
"""The same order as a score, for comparison with others."""
