"""The queue of news about blocks is bounded and never tells something wrong."""

from hypothesis import given
from hypothesis import strategies as st
from support.flushes import keys

from stemkv.kvstore.directory.holdings import Changes, Holdings
from stemkv.kvstore.ids import BlockKey


def apply(told: set[BlockKey], changes: Changes) -> None:
    """Do what the directory does with changes."""
    if changes.restart:
        told.clear()
    told.update(changes.stored)
    told.difference_update(changes.removed)


def drain(holdings: Holdings, told: set[BlockKey], limit_keys: int = 3) -> int:
    """Tell all that waits; returns in how many batches."""
    batches = 0
    while (changes := holdings.next_changes(limit_keys)) is not None:
        assert len(changes.stored) + len(changes.removed) <= limit_keys
        apply(told, changes)
        batches += 1
    return batches


KEYS = keys(8)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("record"),
            st.lists(st.sampled_from(KEYS), max_size=4),
            st.lists(st.sampled_from(KEYS), max_size=4),
        ),
        st.tuples(st.just("tell")),
        st.tuples(st.just("lose")),
    ),
    max_size=30,
)


@given(STEPS)
def test_what_is_told_ends_as_what_is_held(steps: list[tuple[object, ...]]) -> None:
    """However recording, telling, overflow and loss interleave, what was told ends up right."""
    holdings, held, told = Holdings(limit_keys=5), set[BlockKey](), set[BlockKey]()
    for step in steps:
        match step:
            case ("record", list(stored), list(removed)):
                holdings.record(stored, removed)
                held.update(stored)
                held.difference_update(removed)
            case ("tell",):
                changes = holdings.next_changes(2)
                if changes is not None:
                    apply(told, changes)
            case ("lose",):
                told.clear()
                holdings.restart()
    drain(holdings, told)
    assert told == held


def test_overflow_tells_everything_anew() -> None:
    """When more changes wait than may, they are given up for one full account."""
    holdings = Holdings(limit_keys=10)
    holdings.record(keys(8), ())
    told: set[BlockKey] = set()
    drain(holdings, told)
    holdings.record(keys(20), ())
    changes = holdings.next_changes(100)
    assert changes is not None
    assert changes.restart
    assert set(changes.stored) == set(keys(20))


def test_a_block_that_comes_and_goes_is_one_change() -> None:
    """Churn of the same blocks does not fill the queue."""
    holdings = Holdings(limit_keys=10)
    for _ in range(100):
        holdings.record(keys(5), keys(5))
    changes = holdings.next_changes(100)
    assert changes == Changes((), changes.removed if changes else (), restart=False)
    assert changes is not None
    assert set(changes.removed) == set(keys(5))


def test_restart_with_nothing_held_still_clears() -> None:
    """A worker that holds nothing still makes the directory forget what it told before."""
    holdings = Holdings(limit_keys=10)
    holdings.restart()
    assert holdings.next_changes(5) == Changes((), (), restart=True)
    assert holdings.next_changes(5) is None
