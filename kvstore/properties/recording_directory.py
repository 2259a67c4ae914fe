"""A directory that holds what it is told, and complains when the stream makes no sense."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stemkv.kvstore.directory.protocol import WorkerHolding
from stemkv.kvstore.flush import Flush
from stemkv.kvstore.ids import BlockKey, FlushId, WorkerId


@dataclass(slots=True)
class RecordingDirectory:
    """Replays every `record` into `held`; `current` is a plain switch.

    strict: complain. What a store that was damaged says may be more than it has said before.
    """

    worker: WorkerId = field(default_factory=lambda: WorkerId("worker"))
    current: bool = True
    strict: bool = True
    held: set[BlockKey] = field(default_factory=set)
    known_nonces: dict[str, bytes] = field(default_factory=dict)

    @property
    def listens(self) -> bool:
        """Always."""
        return True

    def record(self, stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        """Apply one entry; a block stored twice or removed unheard of is an error."""
        for key in stored:
            assert type(key) is bytes
            assert not self.strict or key not in self.held, f"{key.hex()} was stored twice"
            self.held.add(key)
        for key in removed:
            assert type(key) is bytes
            assert not self.strict or key in self.held, f"{key.hex()} was never stored"
            self.held.discard(key)

    def nonces(self) -> Mapping[str, bytes]:
        """Return `known_nonces`."""
        return self.known_nonces

    def expect(self, flush: Flush) -> None:
        """Do nothing: there is no other worker."""

    def announce(self, flush: Flush) -> None:
        """Do nothing: there is no other worker."""

    def pending_flushes(self) -> tuple[Flush, ...]:
        """Return none: there is no other worker."""
        return ()

    def acknowledge(self, flush_id: FlushId) -> None:
        """Do nothing: there is no other worker."""

    def acknowledgements(
        self, flush_id: FlushId, *, wait_seconds: float
    ) -> Mapping[WorkerId, bool]:
        """Return none: there is no other worker."""
        return {}

    def locate(self, keys: Sequence[BlockKey]) -> tuple[WorkerHolding, ...]:
        """Return the leading run of the keys that is held."""
        run = next((i for i, key in enumerate(keys) if key not in self.held), len(keys))
        return (WorkerHolding(self.worker, run),) if run else ()

    def close(self) -> None:
        """Forget everything."""
        self.held.clear()
