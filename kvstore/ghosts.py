"""What left the index lately: enough to answer "it was here, and went for that reason"."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stemkv.kvstore import victims
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.ops import F64, I32, U64

FLUSHED = -1
"""Stands in for the tenant whose need it was, when the cause was a flush."""


@dataclass(frozen=True, slots=True)
class Ghost:
    """One block that left: when (seconds of the store's clock), for whom (owner, or FLUSHED)."""

    seconds: float
    cause: int


class Ring(NamedTuple):
    """The last departures, in the order of writing and round: low and high halves of the keys.

    seconds: float64, when. cause: int32, for whom.
    """

    low: U64
    high: U64
    seconds: F64
    cause: I32


class GhostLog:
    """A ring of the last `capacity` blocks that left the index. written: since the start."""

    def __init__(self, capacity: int) -> None:
        self.ring = Ring(
            np.zeros(capacity, np.uint64),
            np.zeros(capacity, np.uint64),
            np.zeros(capacity, np.float64),
            np.zeros(capacity, np.int32),
        )
        self.written = 0

    def add(self, keys: U64, seconds: float, cause: int) -> None:
        """Note keys uint64 [blocks, 2] that left now."""
        victims.note_departures(*self.ring, self.written, keys, len(keys), seconds, cause)
        self.written += len(keys)

    def find(self, key: BlockKey) -> Ghost | None:
        """Return the latest departure of a key, None if it is not within the window."""
        low, high = np.frombuffer(key, np.uint64)
        ring = self.ring
        capacity = len(ring.low)
        at = np.flatnonzero(ring.low[: min(self.written, capacity)] == low)
        at = at[ring.high[at] == high]
        if not len(at):
            return None
        age = (self.written - 1 - at) % capacity
        newest = int(at[np.argmin(age)])
        return Ghost(float(ring.seconds[newest]), int(ring.cause[newest]))
