"""What an eviction policy is.

`lru.Recency` stands for the store's own order of unreferenced blocks, which costs nothing while
blocks are used. Any other is scored: it gives every block a number when it is used; the block that
nothing holds, has no cached children and has the lowest number goes first. The store keeps the
numbers, the order, and the rows of blocks that went lately, so that one that comes back is not a
stranger.

Prefixes stay closed under any score, because only leaves are candidates.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float64]

FIRST, AGAIN = 0, 1
"""Events: the first use of a block that the store knows of (its row is new), or a further one."""

Score = Callable[[Row, int, float], float]
"""score(row, event, now) -> the block's new score.

row: float64 [columns], one block's; row[0] holds the score given last (-inf in a new row), the
others (0 in a new row) are for the score to write to. event: FIRST or AGAIN. now: seconds, never
less than in an earlier call. numba compiles it; it must not raise, nor return NaN.
"""


@dataclass(frozen=True, slots=True)
class Scored:
    """A policy that is one score. columns: float64 values a block, at least 1."""

    score: Score
    columns: int = 1
