"""`History`: rows that scores keep a block, by its key, also for a while after it was evicted."""

from collections.abc import Callable, Sequence
from functools import cache

import numba
import numpy as np

from stemkv.kvstore import scoring
from stemkv.kvstore.ops import F64, I32, I64, U64
from stemkv.policies.eviction.protocol import FIRST, Score, Scored

Loop = Callable[[F64, I32, I32, float], None]


class History:
    """One slot a block, and in it a row for each candidate.

    Slots that are let go are taken for new blocks when no other is left, the oldest first.
    """

    def __init__(self, candidates: Sequence[Scored], slots: int) -> None:
        self.keyed = scoring.make_keyed(slots)
        self.rows = [np.zeros((slots, c.columns)) for c in candidates]
        self._loops = [_loop(c.score) for c in candidates]

    @property
    def bytes(self) -> int:
        """Bytes of memory."""
        keyed = self.keyed
        arrays: tuple[F64 | I32 | I64 | U64, ...] = (
            keyed.keys,
            keyed.table,
            keyed.links,
            *self.rows,
        )
        return sum(int(array.nbytes) for array in arrays)

    def use(self, keys: U64, now: float) -> tuple[I32, I32]:
        """Note that blocks uint64 [blocks, 2] are used now; return their slots, and events.

        The slots are kept for them until they are let go. Fewer than all slots may be kept.
        """
        slots, events = np.empty((2, len(keys)), np.int32)
        scoring.recall(self.keyed, keys, slots, events)
        for rows, loop in zip(self.rows, self._loops, strict=True):
            loop(rows, slots, events, now)
        return slots, events

    def restore(self, keys: U64, now: float) -> I32:
        """Return the slots of blocks that are cached, as `use` does; only new rows are scored."""
        slots, events = np.empty((2, len(keys)), np.int32)
        scoring.recall(self.keyed, keys, slots, events)
        new = events == FIRST
        for rows, loop in zip(self.rows, self._loops, strict=True):
            loop(rows, slots[new], events[new], now)
        return slots

    def let_go(self, slots: I32) -> None:
        """Let these slots (NONE: nothing) be taken for others, the last one first."""
        scoring.let_go(self.keyed.links, slots)


@cache
def _loop(score: Score) -> Loop:
    """Return a loop that applies a score to rows; it is compiled once a process."""

    def run(rows: F64, slots: I32, events: I32, now: float) -> None:
        for i in range(slots.shape[0]):
            row = rows[slots[i]]
            if events[i] == FIRST:
                row[:] = 0.0
                row[0] = -np.inf
            row[0] = score(row, events[i], now)

    loop: Loop = numba.njit(nogil=True, error_model="numpy")(run)
    return loop
