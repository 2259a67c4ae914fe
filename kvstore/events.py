"""`EventStream`: what happened to blocks lately, numbered, so that a reader sees what it missed."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stemkv.kvstore.ops import U64
from stemkv.kvstore.views import CacheEvent, EventKind, EventPage

_KEY_BYTES = 16
_NO_KEY = bytes(_KEY_BYTES)


class _Batch(NamedTuple):
    """Events that were recorded together: numbers first to first + len(keys) / 16 - 1."""

    first: int
    kind: EventKind
    account: int
    keys: bytes
    seconds: float

    @property
    def stop(self) -> int:
        """Number of the first event after it."""
        return self.first + len(self.keys) // _KEY_BYTES


class EventStream:
    """The last `capacity` events of a store; 0 keeps none, and nothing is numbered.

    names: accounts' names by number, a list that may grow. clock gives seconds. on: whether
    events are kept, so that whoever records need not make keys for nothing. Calls come from the
    store's thread. Raises ValueError if capacity is negative.
    """

    def __init__(self, capacity: int, names: Sequence[str], clock: Callable[[], float]) -> None:
        if capacity < 0:
            raise ValueError(f"capacity: {capacity} is less than 0")
        self.on = capacity > 0
        self._capacity = capacity
        self._names = names
        self._clock = clock
        # No batch is empty, so there are at most `capacity` of them, and as each is cut to
        # `capacity`, together they hold less than twice that many keys.
        self._batches: deque[_Batch] = deque()
        self._next = 0

    def record(self, kind: EventKind, account: int, keys: U64) -> None:
        """Note that the same thing happened to blocks of one account just now.

        keys: uint64 [blocks, 2], low half first, as `Pool.keys_of` gives them; zeros for a tail,
        which has none. Order is kept. The array may be written to afterwards.
        """
        if not self.on or not len(keys):
            return
        assert 0 <= account < len(self._names), account
        first = self._next
        self._next = first + len(keys)
        kept = keys[-self._capacity :]
        self._batches.append(
            _Batch(self._next - len(kept), kind, account, kept.tobytes(), self._clock())
        )
        oldest = self._next - self._capacity
        while self._batches[0].stop <= oldest:
            self._batches.popleft()

    def read(self, start: int, limit: int) -> EventPage:
        """Return at most `limit` events of number `start` and above, oldest first.

        start -1: none, and the number of what comes from now on. Events that are not kept any
        more are counted in `missed`; `next` is where to go on. Raises ValueError if limit is less
        than 1, or start less than -1 or more than the number of the next event.
        """
        if limit < 1:
            raise ValueError(f"limit: {limit} is less than 1")
        if start < -1:
            raise ValueError(f"start: {start} is less than -1")
        if start > self._next:
            raise ValueError(f"start: {start} is more than {self._next}, the next event's number")
        if start == -1:
            return EventPage((), self._next, 0)
        oldest = max(start, self._next - self._capacity) if self.on else start
        stop = min(oldest + limit, self._next)
        events: list[CacheEvent] = []
        at = bisect_right(self._batches, oldest, key=_first) - 1
        while oldest + len(events) < stop:
            events += self._listed(self._batches[at], oldest + len(events), stop)
            at += 1
        return EventPage(tuple(events), stop, oldest - start)

    def _listed(self, batch: _Batch, start: int, stop: int) -> list[CacheEvent]:
        """Return the events of a batch with numbers start to stop - 1, as far as it has them."""
        account = self._names[batch.account]
        return [
            CacheEvent(number, batch.kind, _hex(batch, number), account, batch.seconds)
            for number in range(start, min(stop, batch.stop))
        ]


def _first(batch: _Batch) -> int:
    return batch.first


def _hex(batch: _Batch, number: int) -> str:
    """Return an event's key as hex, "" if the block had none."""
    at = (number - batch.first) * _KEY_BYTES
    key = batch.keys[at : at + _KEY_BYTES]
    return "" if batch.kind == "copied" and key == _NO_KEY else key.hex()
