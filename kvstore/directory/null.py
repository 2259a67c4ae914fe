"""`NullDirectory`: nobody else is there, and nobody looks."""

from collections.abc import Mapping, Sequence

from stemkv.kvstore.directory.protocol import WorkerHolding
from stemkv.kvstore.directory.worker_id import new_worker_id
from stemkv.kvstore.flush import Flush
from stemkv.kvstore.ids import BlockKey, FlushId, WorkerId


class NullDirectory:
    """`Directory` that keeps nothing; see there for the methods."""

    def __init__(self, worker: WorkerId | None = None) -> None:
        self._worker = worker or new_worker_id()

    @property
    def worker(self) -> WorkerId:
        """Name of this process."""
        return self._worker

    @property
    def current(self) -> bool:
        """Always: no flush comes from elsewhere."""
        return True

    @property
    def listens(self) -> bool:
        """Never: nobody looks."""
        return False

    def record(self, stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        """Do nothing."""

    def nonces(self) -> Mapping[str, bytes]:
        """Return none: nothing was flushed before."""
        return {}

    def expect(self, flush: Flush) -> None:
        """Do nothing."""

    def announce(self, flush: Flush) -> None:
        """Do nothing: there is nobody to tell."""

    def pending_flushes(self) -> tuple[Flush, ...]:
        """Return none."""
        return ()

    def acknowledge(self, flush_id: FlushId) -> None:
        """Do nothing."""

    def acknowledgements(
        self, flush_id: FlushId, *, wait_seconds: float
    ) -> Mapping[WorkerId, bool]:
        """Return none: nobody was told."""
        del flush_id, wait_seconds
        return {}

    def locate(self, keys: Sequence[BlockKey]) -> tuple[WorkerHolding, ...]:
        """Return none: nothing was recorded."""
        del keys
        return ()

    def close(self) -> None:
        """Do nothing."""
