"""`RedisDirectory`: workers on several machines that see each other through Redis.

One background thread keeps the lease, reads the flushes and tells what is held. The engine's
thread only touches memory; `announce`, `acknowledgements` and `locate` wait for Redis, and are
called on another.

Safety. A flush is done when every live worker has acknowledged it, and live is who has a lease.
So a worker may reuse blocks only while it knows that it has one:
  - It counts its lease from before it asked for it, by its own clock, and ends it earlier.
  - Once the lease has ended, or the connection was lost (Redis may have been restarted empty,
    and have forgotten who is live), it registers anew, reads the flushes since the last one that
    it knows, and is current again when the store has carried them out.
  - If the log does not continue where it stopped (data lost, rolled back or trimmed), everything
    may have been flushed: there is a new epoch, with a new random nonce for all.
What remains: Redis restarts empty while a worker is cut off without noticing (no reset reaches
it), and within that worker's lease another one, which started after the restart and so never
heard of it, is told that a flush is done.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stemkv.kvstore.directory.holdings import Holdings
from stemkv.kvstore.directory.journal import FlushJournal, LogEntry, LogGapError
from stemkv.kvstore.directory.lease import Lease, boot_clock
from stemkv.kvstore.directory.protocol import (
    DirectoryMismatch,
    DirectoryUnavailable,
    WorkerHolding,
)
from stemkv.kvstore.directory.redis_calls import Identity, RedisCalls
from stemkv.kvstore.directory.runs import leading_run, longest_first
from stemkv.kvstore.directory.worker_id import new_worker_id
from stemkv.kvstore.flush import Flush
from stemkv.kvstore.ids import BlockKey, FlushId, WorkerId

logger = logging.getLogger(__name__)

_BATCHES_A_ROUND = 16
# so that a long list of news keeps neither the lease nor the flushes waiting


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """What rarely needs changing.

    worker: None makes a new name. queue_keys: changes that may wait to be told before
    everything is told anew. batch_keys: keys of one call (Lua unpacks at most some thousands).
    listen_seconds: how long one wait for flushes lasts, so how old news of blocks may be.
    lease_margin: share of the lease that the worker does not count on, for clocks that drift.
    """

    worker: WorkerId | None = None
    queue_keys: int = 100_000
    batch_keys: int = 1000
    listen_seconds: float = 0.05
    lease_margin: float = 0.1
    clock: Callable[[], float] = boot_clock


class RedisDirectory:
    """`Directory` in Redis; see there for the methods.

    lease_seconds: how long after its last sign of life a worker is believed to be alive. If Redis
    is away, the worker starts cut off and joins when it can. Raises DirectoryMismatch,
    ValueError (url).
    """

    def __init__(
        self,
        url: str,
        *,
        deployment: str,
        secret: bytes,
        fingerprint: str,
        lease_seconds: float = 10.0,
        options: RedisOptions | None = None,
    ) -> None:
        self._options = options or RedisOptions()
        self._clock = self._options.clock
        self._lease = Lease(lease_seconds, self._options.lease_margin, self._clock)
        self._worker = self._options.worker or new_worker_id()
        identity = Identity(
            deployment, secret, fingerprint, self._worker, max(1, round(lease_seconds * 1000))
        )
        timeout = max(0.25, min(2.0, lease_seconds / 3))
        self._calls = RedisCalls(url, identity, timeout, reconnects=0)
        self._admin_calls = RedisCalls(url, identity, timeout, reconnects=1)
        self._secret = secret
        self._keeps_secret = False
        self._journal = FlushJournal()
        self._holdings = Holdings(self._options.queue_keys)
        self._lock = threading.Lock()
        self._to_acknowledge: deque[FlushId] = deque()
        self._to_announce: deque[Flush] = deque()
        self._peers: frozenset[WorkerId] = frozenset()
        self._orphans: dict[WorkerId, float] = {}
        self._trouble: str | None = None
        self._closing = threading.Event()
        try:
            self._join()
        except DirectoryUnavailable as error:
            self._lost(str(error))
        except DirectoryMismatch:
            self._close_calls()
            raise
        self._nonces = {scope: flush.nonce for scope, flush in self._journal.scopes.items()}
        self._thread = threading.Thread(target=self._run, name="stemkv-directory", daemon=True)
        self._thread.start()

    # Called by the engine's thread, and by the one that carries its admin calls out.

    @property
    def worker(self) -> WorkerId:
        """Name of this process in the directory."""
        return self._worker

    @property
    def current(self) -> bool:
        """Whether the worker has a lease, and has carried out what it missed without one."""
        # in this order: joining holds the journal before it takes the lease
        return self._lease.held and self._journal.clear

    @property
    def listens(self) -> bool:
        """Always."""
        return True

    def record(self, stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        """Note blocks published and blocks that left the index; told in the background."""
        self._holdings.record(stored, removed)

    def nonces(self) -> Mapping[str, bytes]:
        """Return every scope's nonce, as of joining; none if Redis was away then."""
        return self._nonces

    def expect(self, flush: Flush) -> None:
        """Hold others' flushes of its scope back until it is announced."""
        self._journal.expect(flush)

    def announce(self, flush: Flush) -> None:
        """Order a flush from every other worker; this one has carried it out.

        Raises DirectoryUnavailable when it could not be stored; it is then ordered as soon as
        Redis is back.
        """
        try:
            epoch, number = self._admin_calls.announce(flush, acknowledge=True)
            covered = self._journal.announced(flush, epoch, number)
        except DirectoryUnavailable:
            with self._lock:
                self._to_announce.append(flush)
            raise
        finally:
            self._journal.expect_no_more(flush)
        with self._lock:
            self._to_acknowledge.extend(covered)

    def pending_flushes(self) -> tuple[Flush, ...]:
        """Return flushes ordered by others, in order, that were not acknowledged here."""
        return self._journal.pending()

    def acknowledge(self, flush_id: FlushId) -> None:
        """Say that this worker has carried a flush out; told in the background."""
        with self._lock:
            self._to_acknowledge.append(flush_id)
        self._journal.acknowledge(flush_id)

    def acknowledgements(
        self, flush_id: FlushId, *, wait_seconds: float
    ) -> Mapping[WorkerId, bool]:
        """Who of the live workers has carried a flush out; raises DirectoryUnavailable.

        After a loss of Redis's data, workers that were live before it count until their lease
        has ended or they are back.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            live, done = self._admin_calls.acknowledgements(flush_id)
            told = {worker: worker in done for worker in live | self._missing()}
            remaining = deadline - time.monotonic()
            if all(told.values()) or remaining <= 0:
                return told
            time.sleep(min(remaining, 0.02))

    def locate(self, keys: Sequence[BlockKey]) -> tuple[WorkerHolding, ...]:
        """Which live workers hold how long a leading run; raises DirectoryUnavailable."""
        open_runs = dict.fromkeys(self._admin_calls.live_workers(), 0)
        runs = dict(open_runs)
        batch = self._options.batch_keys
        for start in range(0, len(keys), batch):
            chunk = keys[start : start + batch]
            held = self._admin_calls.held(list(open_runs), chunk)
            for worker, flags in zip(tuple(open_runs), held, strict=True):
                length = leading_run(flags)
                runs[worker] += length
                if length < len(chunk):
                    del open_runs[worker]
            if not open_runs:
                break
        return longest_first(WorkerHolding(worker, blocks) for worker, blocks in runs.items())

    def close(self) -> None:
        """Withdraw all that this worker holds and stop; never raises."""
        self._closing.set()
        self._thread.join()
        self._close_calls()

    def _close_calls(self) -> None:
        self._calls.close()
        self._admin_calls.close()

    # Done by the background thread (`_join` and `_lost` first by the constructor).

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                self._round()
                failures = 0
                continue
            except DirectoryUnavailable as error:
                self._lost(str(error))
            except DirectoryMismatch as error:
                self._lost(str(error), logging.ERROR)
            except Exception as error:
                logger.exception("the directory's thread failed; it joins anew")
                self._lost(f"{type(error).__name__}: {error}")
            failures += 1
            longest = min(self._lease.seconds / 3, 5.0)
            self._closing.wait(min(0.05 * 2.0 ** min(failures, 10), longest))
        self._leave()

    def _round(self) -> None:
        try:
            if not self._lease.given:
                self._join()
            if self._clock() >= self._lease.next_renewal:
                self._beat()
            if self._lease.given:
                self._tell()
                self._listen()
        except LogGapError as gap:
            logger.warning("flushes may have been missed (%s): every worker begins anew", gap)
            assert self._journal.epoch is not None
            self._lease.forget()
            self._calls.renew_epoch(self._journal.epoch)

    def _join(self) -> None:
        """Register and catch up; afterwards current as soon as what was missed is carried out."""
        journal = self._journal
        self._check_secret()
        asked = self._clock()
        snapshot = self._calls.join(journal.epoch, journal.scopes)
        if journal.epoch is None and self._trouble is None:
            journal.begin(snapshot)
        elif journal.epoch == snapshot.epoch:
            self._catch_up(snapshot.number)
        else:
            if journal.epoch is not None:
                logger.warning("redis has lost the flushes: what was cached before is given up")
            until = self._clock() + self._lease.seconds
            with self._lock:
                self._orphans = dict.fromkeys(self._peers - {self._worker}, until)
            journal.adopt(snapshot)
        # before there is a lease, so that there is no moment of being current too early
        journal.hold()
        self._holdings.restart()
        self._lease.extend(asked)
        if self._trouble is not None:
            logger.info("directory: redis is back; joined as %s", self._worker)
            self._trouble = None

    def _check_secret(self) -> None:
        """Compare the secret with the one that the deployment keeps in Redis, if it does."""
        kept = self._calls.shared_secret()
        if kept is not None and kept != self._secret:
            raise DirectoryMismatch("the deployment keeps another secret in redis")
        if kept is not None:
            self._keeps_secret = True
        elif self._keeps_secret:
            self._calls.restore_secret()

    def _beat(self) -> None:
        asked = self._clock()
        pulse = self._calls.heartbeat()
        if not pulse.alive or not self._lease.held or pulse.epoch != self._journal.epoch:
            self._lease.forget()  # the next round joins
            return
        self._catch_up(pulse.number)
        with self._lock:
            self._peers = pulse.workers
        self._lease.extend(asked)

    def _catch_up(self, number: int) -> None:
        """Read the log up to a number that Redis has told; raises LogGapError."""
        self._journal.check_not_back(number)
        while self._journal.number < number:
            entries = self._calls.read_log(self._journal.stream_id)
            if not entries:
                break
            self._take(entries)
        self._journal.check_end(number)

    def _listen(self) -> None:
        wait = max(
            0.001, min(self._options.listen_seconds, self._lease.next_renewal - self._clock())
        )
        self._take(self._calls.read_log(self._journal.stream_id, block_seconds=wait))

    def _take(self, entries: Sequence[LogEntry]) -> None:
        done = self._journal.take(entries)
        with self._lock:
            self._to_acknowledge.extend(done)

    def _tell(self) -> None:
        """Send what has gathered: acknowledgements, flushes that were held up, holdings."""
        while self._to_announce:
            # read back like another's, for others may have come between
            self._calls.announce(self._to_announce[0], acknowledge=False)
            self._to_announce.popleft()
        with self._lock:
            flush_ids = tuple(self._to_acknowledge)
        if flush_ids:
            self._calls.acknowledge(flush_ids)
            with self._lock:
                for _ in flush_ids:
                    self._to_acknowledge.popleft()
        for _ in range(_BATCHES_A_ROUND):
            changes = self._holdings.next_changes(self._options.batch_keys)
            if changes is None:
                break
            if not self._calls.record(changes):
                self._lease.forget()  # joining tells everything anew
                break

    def _lost(self, reason: str, level: int = logging.WARNING) -> None:
        self._lease.forget()
        if self._trouble is None or (level > logging.WARNING and self._trouble != reason):
            logger.log(level, "directory cut off, nothing is reused meanwhile: %s", reason)
            self._trouble = reason

    def _missing(self) -> set[WorkerId]:
        now = self._clock()
        with self._lock:
            return {worker for worker, until in self._orphans.items() if now < until}

    def _leave(self) -> None:
        self._lease.forget()
        try:
            self._calls.withdraw()
        except DirectoryUnavailable as error:
            logger.warning("directory: left without withdrawing (the lease will end): %s", error)
