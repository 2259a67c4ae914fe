"""The stream of events: order, numbers, bounds, and gaps that are counted."""

from itertools import count
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import Clock

from stemkv.kvstore.events import EventStream
from stemkv.kvstore.ids import BlockKey
from stemkv.kvstore.ops import U64
from stemkv.kvstore.pool import Pool
from stemkv.kvstore.views import CacheEvent, EventKind, EventPage

KINDS: tuple[EventKind, ...] = get_args(EventKind)
SOME = st.integers(1, 12)


def rows(*numbers: int) -> U64:
    """Make keys that are numbers in both halves."""
    return np.array([[n, n + (1 << 63)] for n in numbers], np.uint64)


def hexed(number: int) -> str:
    """Write the key that `rows` makes as hex."""
    return (number.to_bytes(8, "little") + (number + (1 << 63)).to_bytes(8, "little")).hex()


def stream(capacity: int = 8) -> tuple[EventStream, list[str], Clock]:
    """Make a stream with two accounts."""
    names, clock = ["ann", "bob"], Clock()
    return EventStream(capacity, names, clock), names, clock


def test_says_what_happened() -> None:
    """An event has its number, kind, key, account and time, across batches."""
    events, names, clock = stream()
    events.record("stored", 1, rows(5, 6))
    clock.now = 2.5
    names.append("cat")
    events.record("adopted", 2, rows(7))
    assert events.read(0, 10) == EventPage(
        (
            CacheEvent(0, "stored", hexed(5), "bob", 0.0),
            CacheEvent(1, "stored", hexed(6), "bob", 0.0),
            CacheEvent(2, "adopted", hexed(7), "cat", 2.5),
        ),
        3,
        0,
    )


def test_a_key_is_written_as_the_pool_writes_it() -> None:
    """The hex of an event's key is the hex of the block's key, wherever else it is shown."""
    pool = Pool(4, 4)
    pool.keys[2] = np.frombuffer(bytes(range(16)), np.uint64)
    events, _, _ = stream()
    events.record("removed", 0, pool.keys_of(np.array([2], np.int32)))
    (event,) = events.read(0, 1).events
    assert event.key == pool.key(2).hex() == BlockKey(bytes(range(16))).hex()


def test_a_tail_has_no_key() -> None:
    """A copy of a tail shows "", a block whose key is zeros by chance shows it elsewhere."""
    events, _, _ = stream()
    events.record("copied", 0, np.zeros((1, 2), np.uint64))
    events.record("copied", 0, rows(1))
    events.record("stored", 0, np.zeros((1, 2), np.uint64))
    assert [e.key for e in events.read(0, 9).events] == ["", hexed(1), "00" * 16]


def test_what_is_recorded_stays() -> None:
    """Writing to the array afterwards changes no event, and a view's order is kept."""
    events, _, _ = stream()
    keys = rows(1, 2, 3)
    events.record("stored", 0, keys[::-1])
    keys[:] = 0
    assert [e.key for e in events.read(0, 9).events] == [hexed(3), hexed(2), hexed(1)]


def test_from_now_on() -> None:
    """Start -1 returns nothing, and the number from which a reader sees what comes."""
    events, _, _ = stream()
    assert events.read(-1, 1) == EventPage((), 0, 0)
    events.record("stored", 0, rows(1, 2))
    assert events.read(-1, 1) == EventPage((), 2, 0)
    assert events.read(2, 5) == EventPage((), 2, 0)
    events.record("flushed", 0, rows(3))
    assert [e.number for e in events.read(2, 5).events] == [2]


def test_a_gap_is_counted() -> None:
    """Exactly the last `capacity` events are kept, and a slower reader is told how many it lost."""
    events, _, _ = stream(4)
    events.record("stored", 0, rows(0, 1, 2))
    events.record("stored", 0, rows(3, 4, 5))
    page = events.read(1, 2)
    assert [e.key for e in page.events] == [hexed(2), hexed(3)]
    assert (page.next, page.missed) == (4, 1)
    assert [e.key for e in events.read(4, 2).events] == [hexed(4), hexed(5)]


def test_more_at_once_than_is_kept() -> None:
    """Of a batch larger than the stream the end stays, under its right numbers."""
    events, _, _ = stream(3)
    events.record("flushed", 0, rows(*range(10)))
    page = events.read(0, 100)
    assert [(e.number, e.key) for e in page.events] == [(n, hexed(n)) for n in (7, 8, 9)]
    assert (page.next, page.missed) == (10, 7)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_memory_is_bounded(size: int) -> None:
    """However large the batches are, less than twice `capacity` keys are held, in few batches."""
    events, _, _ = stream(16)
    for _ in range(500):
        events.record("stored", 0, np.zeros((size, 2), np.uint64))
        batches = events._batches
        assert sum(len(batch.keys) for batch in batches) < 2 * 16 * 16
        assert len(batches) <= 16


def test_one_event_is_kept_where_one_is_asked_for() -> None:
    """The smallest stream holds the last event and counts those before it."""
    events, _, _ = stream(1)
    assert events.on
    events.record("stored", 0, rows(5, 6))
    assert events.read(0, 10) == EventPage((CacheEvent(1, "stored", hexed(6), "ann", 0.0),), 2, 1)


def test_switched_off() -> None:
    """A stream of capacity 0 says so, numbers nothing and returns nothing."""
    events, _, _ = stream(0)
    assert not events.on
    assert stream()[0].on
    events.record("stored", 0, rows(1, 2))
    assert events.read(0, 5) == events.read(-1, 5) == EventPage((), 0, 0)


def test_an_empty_batch_is_nothing() -> None:
    """Recording no block leaves no trace, whatever the account."""
    events, _, _ = stream()
    events.record("stored", 99, np.empty((0, 2), np.uint64))
    events.record("stored", 0, rows(1))
    assert [e.number for e in events.read(0, 5).events] == [0]


@pytest.mark.parametrize(
    ("start", "limit", "message"),
    [
        (0, 0, "limit: 0 is less than 1"),
        (-2, 1, "start: -2 is less than -1"),
        (4, 1, "start: 4 is more than 3, the next event's number"),
    ],
)
def test_refuses(start: int, limit: int, message: str) -> None:
    """What cannot be asked is refused by the field's name and value."""
    events, _, _ = stream()
    events.record("stored", 0, rows(1, 2, 3))
    with pytest.raises(ValueError, match=message):
        events.read(start, limit)


def test_refuses_a_negative_capacity() -> None:
    """A stream cannot keep less than nothing."""
    with pytest.raises(ValueError, match="capacity: -1 is less than 0"):
        stream(-1)


@given(
    capacity=SOME,
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("record"), st.sampled_from(KINDS), st.integers(0, 1), SOME),
            st.tuples(st.just("read"), st.integers(0, 2), SOME),
        ),
        max_size=60,
    ),
)
def test_each_event_is_seen_once_or_counted(
    capacity: int, calls: list[tuple[str, EventKind, int, int] | tuple[str, int, int]]
) -> None:
    """Readers that follow `next` see every event once and in order, but for counted gaps."""
    events, names, clock = stream(capacity)
    written: list[CacheEvent] = []
    numbers = count(1)
    at = [0, 0, 0]
    for call in calls:
        clock.now += 1
        if len(call) == 4:
            _, kind, account, blocks = call
            keys = [next(numbers) for _ in range(blocks)]
            events.record(kind, account, rows(*keys))
            written += [
                CacheEvent(len(written) + i, kind, hexed(key), names[account], clock.now)
                for i, key in enumerate(keys)
            ]
            continue
        _, reader, limit = call
        page = events.read(at[reader], limit)
        seen = at[reader] + page.missed
        # No event that is still kept may be called lost.
        assert seen == max(at[reader], len(written) - capacity)
        assert list(page.events) == written[seen : seen + limit]
        assert page.next == seen + len(page.events)
        at[reader] = page.next
    for start in at:
        seen = max(start, len(written) - capacity)
        rest = events.read(start, len(written) + 1)
        assert (list(rest.events), rest.missed) == (written[seen:], seen - start)
