"""The directory: which worker holds which published blocks, and which flushes were ordered.

It holds metadata only and is never asked on the path of a step: the engine's thread calls only
what returns at once. `announce`, `acknowledgements` and `locate` may wait for a network; they are
called on any other thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stemkv.kvstore.flush import Flush
from stemkv.kvstore.ids import BlockKey, FlushId, WorkerId


class DirectoryUnavailable(Exception):
    """The shared directory cannot be reached, or gave no answer in time."""


class DirectoryMismatch(Exception):
    """The deployment's secret or model fingerprint differs from this process's own."""


@dataclass(frozen=True, slots=True)
class WorkerHolding:
    """How much of a prompt one worker holds: the leading run of the keys asked for."""

    worker: WorkerId
    blocks: int


class Directory(Protocol):
    """What a store tells others of itself, and what it reads of them."""

    @property
    def worker(self) -> WorkerId:
        """Name of this process in the directory."""
        ...

    @property
    def current(self) -> bool:
        """Whether every flush that others were told is done could have reached this worker.

        False once the worker's own lease has lapsed (it was cut off) until it has read the
        flushes that it missed. While False, the store must not hit.
        """
        ...

    @property
    def listens(self) -> bool:
        """Whether `record` is of any use; constant."""
        ...

    def record(self, stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        """Note blocks published and blocks that left the index, in this order. Never blocks."""
        ...

    def nonces(self) -> Mapping[str, bytes]:
        """Return every scope's nonce known to the deployment, as of joining: scope -> 16 bytes."""
        ...

    def expect(self, flush: Flush) -> None:
        """Note a flush that was carried out here, before it is announced. Never blocks.

        Until `announce` returns, no other flush of its scope is pending: which of them stands in
        the end is not known before.
        """
        ...

    def announce(self, flush: Flush) -> None:
        """Order a flush from every worker; raises DirectoryUnavailable when it cannot be stored.

        One at a time, in the order in which they were carried out here.
        """
        ...

    def pending_flushes(self) -> tuple[Flush, ...]:
        """Flushes ordered by others, in order, not acknowledged here yet. Never blocks."""
        ...

    def acknowledge(self, flush_id: FlushId) -> None:
        """Say that this worker has carried a flush out. Never blocks."""
        ...

    def acknowledgements(
        self, flush_id: FlushId, *, wait_seconds: float
    ) -> Mapping[WorkerId, bool]:
        """Who of the live workers has carried a flush out, after waiting at most wait_seconds.

        Raises DirectoryUnavailable.
        """
        ...

    def locate(self, keys: Sequence[BlockKey]) -> tuple[WorkerHolding, ...]:
        """Which workers hold how long a leading run of these keys, longest first.

        Raises DirectoryUnavailable.
        """
        ...

    def close(self) -> None:
        """Withdraw all that this worker holds and stop."""
        ...
