"""A worker's lease, as the worker itself knows it."""

import threading
import time
from collections.abc import Callable


def boot_clock() -> float:
    """Seconds since the machine started, those asleep included: a lease runs on meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Until when others believe that this worker is alive, on the safe side.

    margin: share of the lease that the worker does not count on, for clocks that drift.
    """

    def __init__(self, seconds: float, margin: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._counted_seconds = seconds * (1.0 - margin)
        self._clock = clock
        self._lock = threading.Lock()
        self._until: float | None = None
        self.next_renewal = 0.0

    @property
    def held(self) -> bool:
        """Whether the lease has been given and has not ended."""
        with self._lock:
            return self._until is not None and self._clock() < self._until

    @property
    def given(self) -> bool:
        """Whether it has been given and not been forgotten since; it may have ended."""
        return self._until is not None

    def extend(self, asked: float) -> None:
        """Count the lease from the moment before it was asked for."""
        with self._lock:
            self._until = asked + self._counted_seconds
        self.next_renewal = asked + self.seconds / 3

    def forget(self) -> None:
        """Count on nothing until it is given anew."""
        with self._lock:
            self._until = None
