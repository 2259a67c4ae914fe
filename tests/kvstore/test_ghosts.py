"""The ring of blocks that left."""

import numpy as np

from stemkv.kvstore.ghosts import FLUSHED, Ghost, GhostLog
from stemkv.kvstore.ids import BlockKey


def rows(*numbers: int) -> "np.ndarray[tuple[int, int], np.dtype[np.uint64]]":
    """Make keys that are numbers."""
    return np.array([[n, 0] for n in numbers], np.uint64)


def key(number: int) -> BlockKey:
    """Make the key that is a number."""
    return BlockKey(number.to_bytes(16, "little"))


def test_finds_when_and_why() -> None:
    """What was noted is found, in plain numbers; what was not is None."""
    log = GhostLog(4)
    log.add(rows(1, 2), 1.5, 7)
    log.add(rows(3), 2.5, FLUSHED)
    assert log.find(key(2)) == Ghost(1.5, 7)
    assert log.find(key(3)) == Ghost(2.5, FLUSHED)
    assert log.find(key(4)) is None
    ghost = log.find(key(1))
    assert ghost is not None
    assert (type(ghost.seconds), type(ghost.cause)) == (float, int)


def test_an_empty_log_knows_no_key_of_zeros() -> None:
    """Rows that were never written are not departures."""
    assert GhostLog(4).find(key(0)) is None


def test_the_latest_departure_counts() -> None:
    """A key that left twice is said to have left the second time, across the ring's end too."""
    log = GhostLog(4)
    for now in range(10):
        log.add(rows(1), float(now), now)
        assert log.find(key(1)) == Ghost(float(now), now)


def test_the_oldest_are_forgotten_first() -> None:
    """The ring holds the last `capacity` departures, one at a time or many at once."""
    log = GhostLog(4)
    for n in range(1, 7):
        log.add(rows(n), float(n), n)
    assert [log.find(key(n)) is not None for n in range(1, 7)] == [False] * 2 + [True] * 4
    log.add(rows(*range(10, 17)), 9.0, 1)
    assert [log.find(key(n)) is not None for n in range(10, 17)] == [False] * 3 + [True] * 4
    assert log.find(key(6)) is None
