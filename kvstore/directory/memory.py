"""`MemoryDirectory`: several stores in one process, or one that wants its own blocks located."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stemkv.kvstore.directory.journal import FlushJournal, LogEntry, Snapshot
from stemkv.kvstore.directory.protocol import WorkerHolding
from stemkv.kvstore.directory.runs import leading_run, longest_first
from stemkv.kvstore.directory.worker_id import new_worker_id
from stemkv.kvstore.flush import Flush, scope_of
from stemkv.kvstore.ids import BlockKey, FlushId, WorkerId

_EPOCH = b"memory"
_REMEMBERED_FLUSHES = 1024


@dataclass(slots=True, eq=False)
class _Member:
    journal: FlushJournal
    held: set[BlockKey] = field(default_factory=set)


class MemoryHub:
    """What the directories of one process share. Safe for several threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.members: dict[WorkerId, _Member] = {}
        self.scopes: dict[str, Flush] = {}
        self.number = 0
        self.acknowledged: dict[FlushId, set[WorkerId]] = {}


class MemoryDirectory:
    """`Directory` in this process's memory; see there for the methods.

    hub: shared by the directories that shall see each other; None makes one of its own.
    """

    def __init__(self, hub: MemoryHub | None = None, worker: WorkerId | None = None) -> None:
        self._hub = hub if hub is not None else MemoryHub()
        self._worker = worker or new_worker_id()
        self._journal = FlushJournal()
        with self._hub.changed:
            self._journal.begin(Snapshot(_EPOCH, self._hub.number, b"", self._hub.scopes))
            self._nonces = {scope: flush.nonce for scope, flush in self._hub.scopes.items()}
            self._hub.members[self._worker] = _Member(self._journal)

    @property
    def worker(self) -> WorkerId:
        """Name of this store."""
        return self._worker

    @property
    def current(self) -> bool:
        """Always: nothing can cut a store off from its own process."""
        return True

    @property
    def listens(self) -> bool:
        """Always."""
        return True

    def record(self, stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        """Note blocks published and blocks that left the index."""
        with self._hub.changed:
            member = self._hub.members.get(self._worker)
            if member is not None:
                member.held.update(stored)
                member.held.difference_update(removed)

    def nonces(self) -> Mapping[str, bytes]:
        """Return every scope's nonce, as of joining."""
        return self._nonces

    def expect(self, flush: Flush) -> None:
        """Hold others' flushes of its scope back until it is announced."""
        self._journal.expect(flush)

    def announce(self, flush: Flush) -> None:
        """Order a flush from every store of the hub; this one has carried it out."""
        scope = scope_of(flush)
        with self._hub.changed:
            self._hub.number += 1
            entry = LogEntry(b"", self._hub.number, flush)
            if scope is not None:
                self._hub.scopes[scope] = flush
            for flush_id in self._journal.announced(flush, _EPOCH, entry.number):
                self._note(flush_id)
            self._note(flush.flush_id)
            for member in self._hub.members.values():
                member.journal.take([entry])
        self._journal.expect_no_more(flush)

    def pending_flushes(self) -> tuple[Flush, ...]:
        """Return flushes ordered by others that this store has not acknowledged."""
        return self._journal.pending()

    def acknowledge(self, flush_id: FlushId) -> None:
        """Say that this store has carried a flush out."""
        self._journal.acknowledge(flush_id)
        with self._hub.changed:
            self._note(flush_id)

    def acknowledgements(
        self, flush_id: FlushId, *, wait_seconds: float
    ) -> Mapping[WorkerId, bool]:
        """Who of the hub's stores has carried a flush out, after waiting at most so long."""
        deadline = time.monotonic() + wait_seconds
        with self._hub.changed:
            while True:
                done = self._hub.acknowledged.get(flush_id, set())
                told = {worker: worker in done for worker in self._hub.members}
                remaining = deadline - time.monotonic()
                if all(told.values()) or remaining <= 0:
                    return told
                self._hub.changed.wait(remaining)

    def locate(self, keys: Sequence[BlockKey]) -> tuple[WorkerHolding, ...]:
        """Which stores hold how long a leading run of these keys, longest first."""
        with self._hub.changed:
            runs = [
                WorkerHolding(worker, leading_run(key in member.held for key in keys))
                for worker, member in self._hub.members.items()
            ]
        return longest_first(runs)

    def close(self) -> None:
        """Leave the hub."""
        with self._hub.changed:
            self._hub.members.pop(self._worker, None)
            self._hub.changed.notify_all()

    def _note(self, flush_id: FlushId) -> None:
        acknowledged = self._hub.acknowledged
        acknowledged.setdefault(flush_id, set()).add(self._worker)
        if len(acknowledged) > _REMEMBERED_FLUSHES:
            del acknowledged[next(iter(acknowledged))]  # the oldest
        self._hub.changed.notify_all()
