"""Which flushes a worker has heard of, and which it still has to carry out. Does no I/O.

A flush has a number in the deployment's log, without gaps. The order in the log decides which
nonce of a scope stands in the end, on every worker.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stemkv.kvstore.flush import Flush, scope_of
from stemkv.kvstore.ids import FlushId

ALL_SCOPE = "all"


class LogGapError(Exception):
    """Flushes between two that were read, or at the end, are missing from the log."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One flush as the log has it. stream_id: the log's own name of the entry's place."""

    stream_id: bytes
    number: int
    flush: Flush


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The deployment's flushes at one moment.

    epoch: random name of the data's life; another one means that the log was lost. number and
    stream_id: the last entry of the log. scopes: the last flush of each scope.
    """

    epoch: bytes
    number: int
    stream_id: bytes
    scopes: Mapping[str, Flush]


class FlushJournal:
    """A worker's place in the log, and the flushes that it has not acknowledged.

    Reading (`begin`, `adopt`, `take`, `hold`) is done by one thread; `expect`, `pending` and
    `acknowledge` are called by the engine's, `announced` and `expect_no_more` by any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[FlushId, tuple[int, Flush]] = {}
        self._held: set[FlushId] = set()
        self._own: dict[FlushId, int] = {}
        self._expected: dict[FlushId, str | None] = {}
        self._superseded: dict[str, int] = {}
        self.scopes: dict[str, Flush] = {}
        self.epoch: bytes | None = None
        self.number = 0
        self.stream_id = b"0-0"

    @property
    def clear(self) -> bool:
        """Whether everything that was missed while cut off has been carried out."""
        return not self._held

    def begin(self, snapshot: Snapshot) -> None:
        """Take the deployment's nonces as one's own: nothing is cached yet under others."""
        self.scopes = dict(snapshot.scopes)
        with self._lock:
            self._place(snapshot)

    def adopt(self, snapshot: Snapshot) -> None:
        """Go over to a deployment whose log does not continue what was read so far.

        Every scope whose nonce differs from one's own becomes a flush to carry out, that of all
        first; a new epoch's differs always, so nothing from before is reused.
        """
        names = sorted(snapshot.scopes, key=lambda scope: (scope != ALL_SCOPE, scope))
        with self._lock:
            for scope in names:
                flush, known = snapshot.scopes[scope], self.scopes.get(scope)
                if known is None or known.nonce != flush.nonce:
                    self._pending[flush.flush_id] = (snapshot.number, flush)
            self._own.clear()
            self._superseded.clear()
            self._place(snapshot)
        self.scopes.update(snapshot.scopes)

    def take(self, entries: Iterable[LogEntry]) -> list[FlushId]:
        """Queue what others ordered; returns those that need no carrying out any more.

        Raises LogGapError at the first entry that does not follow the one before.
        """
        done: list[FlushId] = []
        for entry in entries:
            if entry.number != self.number + 1:
                raise LogGapError(f"flush {entry.number} follows {self.number}")
            flush = entry.flush
            scope = scope_of(flush)
            with self._lock:
                if self._own.pop(flush.flush_id, None) is not None:
                    pass
                elif scope is not None and entry.number < self._superseded.get(scope, 0):
                    # This worker's own, later flush of the scope covers it; carried out now,
                    # it would put the older nonce in the place of the newer.
                    done.append(flush.flush_id)
                else:
                    self._pending[flush.flush_id] = (entry.number, flush)
            if scope is not None:
                self.scopes[scope] = flush
            self.number, self.stream_id = entry.number, entry.stream_id
        return done

    def check_end(self, number: int) -> None:
        """Raise LogGapError unless this is the last number read, or an earlier look at it."""
        if self.number < number:
            raise LogGapError(f"flush {number} was ordered, and the log ends at {self.number}")

    def check_not_back(self, number: int) -> None:
        """Raise LogGapError if the deployment has counted fewer flushes than were read."""
        if number < self.number:
            raise LogGapError(f"flush {self.number} was read, and the log ends at {number}")

    def hold(self) -> None:
        """Be not clear until all that is pending now has been acknowledged."""
        with self._lock:
            self._held = set(self._pending)

    def expect(self, flush: Flush) -> None:
        """Note this worker's own flush, carried out here already, before its place is known."""
        with self._lock:
            self._expected[flush.flush_id] = scope_of(flush)

    def expect_no_more(self, flush: Flush) -> None:
        """Let what waited for an announcement go on, whether that has come off or not."""
        with self._lock:
            self._expected.pop(flush.flush_id, None)

    def announced(self, flush: Flush, epoch: bytes, number: int) -> list[FlushId]:
        """Note this worker's own flush, carried out here already, and its place in the log.

        Returns earlier flushes of the same scope, which it covers.
        """
        scope = scope_of(flush)
        with self._lock:
            if epoch != self.epoch:
                return []  # numbers of another log; `adopt` brings the flush, or `take` does
            if flush.flush_id in self._pending:  # read before the announcement returned
                self._settle(flush.flush_id)
            else:
                self._own[flush.flush_id] = number
            if scope is None:
                return []
            self._superseded[scope] = number
            covered = [
                flush_id
                for flush_id, (earlier, other) in self._pending.items()
                if earlier < number and scope_of(other) == scope
            ]
            for flush_id in covered:
                self._settle(flush_id)
            return covered

    def pending(self) -> tuple[Flush, ...]:
        """Return what is to be carried out, in order; see `expect` for what has to wait."""
        if not self._pending:  # asked at every step
            return ()
        with self._lock:
            orders = [flush for _, flush in self._pending.values()]
            if not self._expected:
                return tuple(orders)
            unsettled = set(self._expected.values())
            return tuple(
                order
                for order in orders
                if order.flush_id not in self._expected
                and ((scope := scope_of(order)) is None or scope not in unsettled)
            )

    def acknowledge(self, flush_id: FlushId) -> None:
        """Note that a flush has been carried out."""
        with self._lock:
            self._settle(flush_id)

    def _settle(self, flush_id: FlushId) -> None:
        self._pending.pop(flush_id, None)
        self._held.discard(flush_id)

    def _place(self, snapshot: Snapshot) -> None:
        self.epoch = snapshot.epoch
        self.number, self.stream_id = snapshot.number, snapshot.stream_id
