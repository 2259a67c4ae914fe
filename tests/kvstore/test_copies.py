"""Forks and copy-on-write: rule 5, and who answers for a copy that has not run."""

import pytest
from support.stores import ANN, BOB, cache, flush_of, grow, hit, make_store, open_, run, tokens

from stemkv.kvstore.audit import audit
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Shortage


def forked(store: BlockStore, length: int = 6) -> tuple[SequenceId, SequenceId]:
    """Compute a prompt of this length, and fork it."""
    first = open_(store, range(length))
    run(store, first)
    second = store.fork(first)
    assert not isinstance(second, Shortage)
    return first, second


def test_a_fork_shares_all_blocks_until_somebody_writes() -> None:
    """The first to write gets a copy of the shared block; the other keeps the original."""
    store = make_store()
    first, second = forked(store)
    shared = store.table_of(first).tolist()
    assert store.table_of(second).tolist() == shared
    grow(store, first, 61)
    grow(store, second, 62)
    assert store.reserve(first, 7) is None
    own = store.table_of(first).tolist()
    assert own[0] == shared[0]
    assert own[1] != shared[1]
    assert store.reserve(second, 7) is None
    assert store.table_of(second).tolist() == shared
    assert store.take_copies() == ((shared[1], own[1], 2),)
    store.settle()


def test_a_fork_takes_back_what_was_reserved() -> None:
    """Positions reserved before a fork are not exclusive: they have no slots any more."""
    store = make_store()
    first = open_(store, range(6))
    run(store, first)
    grow(store, first, 6)
    assert store.reserve(first, 7) is None
    second = store.fork(first)
    assert not isinstance(second, Shortage)
    with pytest.raises(AssertionError, match="reserved"):
        store.slots(first, 6, 7)
    assert store.reserve(first, 7) is None
    assert len(store.take_copies()) == 1
    store.settle()
    assert audit(store) == ()


def test_a_full_block_is_never_copied() -> None:
    """At a block boundary a fork writes to a new block, and copies nothing."""
    store = make_store()
    first, second = forked(store, 8)
    for sequence in (first, second):
        grow(store, sequence, 8)
        assert store.reserve(sequence, 9) is None
    assert store.take_copies() == ()
    a, b = store.table_of(first).tolist(), store.table_of(second).tolist()
    assert a[:2] == b[:2]
    assert a[2] != b[2]


def test_reserved_blocks_that_are_not_written_yet_are_not_copied() -> None:
    """A fork in the middle of a prompt shares reserved blocks; who writes gets fresh ones."""
    store = make_store()
    first = open_(store, range(12))
    store.commit(first, 4)
    second = store.fork(first)
    assert not isinstance(second, Shortage)
    assert store.reserve(first, 12) is None
    assert store.take_copies() == ()
    assert store.reserve(second, 12) is None
    run(store, first, second)
    assert store.table_of(first).tolist() == store.table_of(second).tolist()


def test_a_copy_of_a_copy_that_has_not_run_comes_from_the_first_source() -> None:
    """A fork of a sequence that waits for a copy copies from the same source: no chains."""
    store = make_store()
    source = cache(store, range(8))[1]
    got = store.admit(ANN, tokens([*range(6), 99]))
    assert isinstance(got, Admission)
    second = store.fork(got.sequence)
    assert not isinstance(second, Shortage)
    assert store.reserve(second, 7) is None
    waiting, own = (int(store.table_of(s)[1]) for s in (got.sequence, second))
    assert store.take_copies() == ((source, waiting, 2), (source, own, 2))
    assert audit(store) == ()
    store.settle()


def test_a_copy_outlives_the_sequence_that_planned_it() -> None:
    """If a fork still holds the destination, the copy is made though its planner has left."""
    store = make_store()
    source = cache(store, range(8))[1]
    got = store.admit(ANN, tokens([*range(6), 99]))
    assert isinstance(got, Admission)
    second = store.fork(got.sequence)
    assert not isinstance(second, Shortage)
    destination = int(store.table_of(second)[1])
    store.release(got.sequence)
    assert audit(store) == ()
    assert store.take_copies() == ((source, destination, 2),)
    store.settle()


def test_a_copy_that_nobody_waits_for_is_not_made() -> None:
    """When the last holder of a destination leaves, the copy goes, and its source with it."""
    store = make_store()
    cache(store, range(8))
    before = store.pool_counts()
    sequence = open_(store, [*range(6), 99])
    assert store.pool_counts().cached == before.cached - 2
    store.release(sequence)
    assert store.pool_counts() == before
    assert store.take_copies() == ()
    assert audit(store) == ()


def test_no_tail_is_kept_of_a_copy_that_was_not_made() -> None:
    """A fork that leaves before its copy ran leaves nothing behind: its block holds rubbish."""
    store = make_store()
    first, second = forked(store)
    grow(store, second, 99)
    assert store.reserve(second, 7) is None
    store.release(second)
    assert store.pool_counts().tails == 0
    assert hit(store, range(6)) == (1, 0)
    store.release(first)
    assert hit(store, range(6)) == (1, 2)


def test_no_tail_is_kept_of_a_copy_whose_source_was_flushed() -> None:
    """A prompt that leaves before its copy ran leaves nothing, though its source is gone too."""
    store = make_store()
    cache(store, range(8))
    sequence = open_(store, [*range(6), 99])
    store.flush(flush_of(FlushKind.PREFIX, ANN, range(8)))
    store.release(sequence)
    assert store.pool_counts().tails == 0
    assert audit(store) == ()


def test_sources_stay_held_until_the_step_has_run() -> None:
    """A source is no free block between take_copies and settle, and cannot be evicted."""
    store = make_store(4)
    cache(store, range(8))
    sequence = open_(store, [*range(6), 99])
    assert store.pool_counts().in_use == 3
    store.take_copies()
    assert store.pool_counts().in_use == 3
    store.commit(sequence, 7)
    store.settle()
    assert store.pool_counts().in_use == 2
    assert hit(store, range(8)) == (2, 0)


def test_a_failed_step_spoils_who_has_a_copy_of_it() -> None:
    """After a step that failed, nothing is published by who holds a destination of its copies."""
    store = make_store()
    first, second = forked(store)
    grow(store, second, 99)
    assert store.reserve(second, 7) is None
    store.take_copies()
    store.settle(ran=False)
    store.release(second)
    assert store.pool_counts().tails == 0
    store.release(first)
    assert hit(store, range(6)) == (1, 2)
    assert audit(store) == ()


def test_a_failed_step_without_copies_spoils_nobody() -> None:
    """Who has no copy in a failed step keeps what it had computed before."""
    store = make_store()
    first, second = forked(store)
    store.take_copies()
    store.settle(ran=False)
    store.release(second)
    store.release(first)
    assert hit(store, range(6)) == (1, 2)


@pytest.mark.parametrize("call", ["admit", "fork", "reserve", "release"])
def test_a_step_under_way_is_not_disturbed(call: str) -> None:
    """Between take_copies and settle the calls that plan or free are a programmer's error."""
    store = make_store()
    cache(store, range(8))
    sequence = open_(store, [*range(6), 99])
    store.take_copies()
    calls = {
        "admit": lambda: store.admit(ANN, tokens([1])),
        "fork": lambda: store.fork(sequence),
        "reserve": lambda: store.reserve(sequence, 7),
        "release": lambda: store.release(sequence),
    }
    with pytest.raises(AssertionError, match="under way"):
        calls[call]()


def test_a_shortage_of_sequences_changes_nothing() -> None:
    """Neither admission nor fork leaves a trace when there is no room for a sequence."""
    store = make_store(max_sequences=1)
    first = open_(store, range(6))
    run(store, first)
    before = snapshot(store)
    assert store.fork(first) == Shortage("sequences", 1, 0)
    assert store.admit(ANN, tokens([5])) == Shortage("sequences", 1, 0)
    assert snapshot(store) == before


def test_a_shortage_of_blocks_says_what_is_missing_and_changes_nothing() -> None:
    """The numbers count what would be adopted, too; a new tenant leaves no trace."""
    store = make_store(4)
    cache(store, range(8))
    before = snapshot(store)
    wanted = store.admit(ANN, tokens([*range(8), *range(50, 62)]))
    assert wanted == Shortage("blocks", 5, 4)
    other = store.admit(BOB, tokens(range(20)))
    assert other == Shortage("blocks", 5, 4)
    assert snapshot(store) == before
    first = open_(store, range(13))
    run(store, first)
    second = store.fork(first)
    assert not isinstance(second, Shortage)
    grow(store, second, 99)
    before = snapshot(store)
    assert store.reserve(second, 14) == Shortage("blocks", 1, 0)
    assert snapshot(store) == before


def test_a_copy_is_given_up_where_its_source_would_not_fit() -> None:
    """If holding the source leaves too few blocks, the prompt is admitted without the copy."""
    store = make_store(2)
    cache(store, range(8))
    got = store.admit(ANN, tokens([0, 1, 2, 3, 4, 5, 99]))
    assert isinstance(got, Admission)
    assert (got.full_tokens, got.partial_tokens) == (4, 0)
    assert audit(store) == ()
