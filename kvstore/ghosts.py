"""What left the index lately: enough to answer "it was here, and went for that reason"."""

from dataclasses import dataclass

import numpy as np

from stemkv.kvstore import victims
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.ops import U64

FLUSHED = -1
"""Stands in for the tenant whose need it was, when the cause was a flush."""


@dataclass(frozen=True, slots=True)
class Ghost:
    """One block that left: when (seconds of the store's clock), for whom (owner, or FLUSHED)."""

    seconds: float
    cause: int


class GhostLog:
    """A ring of the last `capacity` blocks that left the index."""

    def __init__(self, capacity: int) -> None:
        self._keys = np.zeros((capacity, 2), np.uint64)
        self._seconds = np.zeros(capacity, np.float64)
        self._cause = np.zeros(capacity, np.int32)
        self._written = 0

    def add(self, keys: U64, seconds: float, cause: int) -> None:
        """Note keys uint64 [blocks, 2] that left now."""
        victims.note_departures(
            self._keys, self._seconds, self._cause, self._written, keys, seconds, cause
        )
        self._written += len(keys)

    def find(self, key: BlockKey) -> Ghost | None:
        """Return the latest departure of a key, None if it is not within the window."""
        low, high = np.frombuffer(key, np.uint64)
        capacity = len(self._seconds)
        filled = min(self._written, capacity)
        at = np.flatnonzero((self._keys[:filled, 0] == low) & (self._keys[:filled, 1] == high))
        if not len(at):
            return None
        age = (self._written - 1 - at) % capacity
        newest = int(at[np.argmin(age)])
        return Ghost(float(self._seconds[newest]), int(self._cause[newest]))
