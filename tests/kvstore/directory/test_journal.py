"""A worker's place in the log of flushes: order, gaps, and what has to be carried out."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.flushes import flush

from stemkv.kvstore.directory.journal import FlushJournal, LogEntry, LogGapError, Snapshot
from stemkv.kvstore.flush import Flush, FlushKind, scope_of
from stemkv.kvstore.ids import FlushId

EPOCH = b"e1"


def entry(number: int, order: Flush) -> LogEntry:
    """Return the log's entry of a flush."""
    return LogEntry(str(number).encode(), number, order)


def started(number: int = 0, **scopes: Flush) -> FlushJournal:
    """Return a journal of a worker that has just joined."""
    journal = FlushJournal()
    journal.begin(Snapshot(EPOCH, number, b"0-0", scopes))
    return journal


def test_others_flushes_are_pending_in_order_until_acknowledged() -> None:
    """What others order is pending in the log's order, and leaves when acknowledged."""
    journal = started()
    first, second = flush(name="a"), flush(FlushKind.PREFIX, "b")
    assert journal.take([entry(1, first), entry(2, second)]) == []
    assert journal.pending() == (first, second)
    assert journal.clear
    journal.acknowledge(first.flush_id)
    assert journal.pending() == (second,)


@pytest.mark.parametrize("kind", [kind for kind in FlushKind if kind is not FlushKind.PREFIX])
def test_others_flushes_of_a_scope_wait_for_the_own_ones_place(kind: FlushKind) -> None:
    """While it is announced, those before it are not carried out, and those after it are then."""
    journal = started()
    own, before, after = flush(kind), flush(kind), flush(kind)
    elsewhere = flush(FlushKind.TENANT, "b")
    journal.expect(own)
    journal.take([entry(1, before), entry(2, own), entry(3, after), entry(4, elsewhere)])
    assert journal.pending() == (elsewhere,)
    assert journal.announced(own, EPOCH, 2) == [before.flush_id]
    assert journal.pending() == (elsewhere,)
    journal.expect_no_more(own)
    assert journal.pending() == (after, elsewhere)


def test_an_own_flush_of_a_prefix_is_not_carried_out_twice() -> None:
    """Read from the log before its announcement returned, it is known for one's own."""
    journal = started()
    own, other = flush(FlushKind.PREFIX), flush(FlushKind.PREFIX)
    journal.expect(own)
    journal.take([entry(1, other), entry(2, own)])
    assert journal.pending() == (other,)
    journal.announced(own, EPOCH, 2)
    journal.expect_no_more(own)
    assert journal.pending() == (other,)


def test_a_flush_that_could_not_be_announced_holds_nothing_back() -> None:
    """When the announcement has failed, others' flushes of the scope are carried out."""
    journal = started()
    own, other = flush(), flush()
    journal.expect(own)
    journal.take([entry(1, other)])
    assert journal.pending() == ()
    journal.expect_no_more(own)
    assert journal.pending() == (other,)


def test_an_own_flush_read_back_early_does_not_leave_the_worker_behind() -> None:
    """One that was held when its announcement returned does not keep the journal from clear."""
    journal = started()
    own = flush()
    journal.expect(own)
    journal.take([entry(1, own)])
    journal.hold()
    assert not journal.clear
    journal.announced(own, EPOCH, 1)
    assert journal.clear


@pytest.mark.parametrize("number", [1, 3, 9])
def test_gaps_are_found(number: int) -> None:
    """An entry that does not follow the last one read is a gap, and is not taken."""
    journal = started(number=1)
    with pytest.raises(LogGapError):
        journal.take([entry(number, flush())])
    assert journal.pending() == ()
    journal.take([entry(2, flush())])


def test_missing_end_and_rollback_are_found() -> None:
    """A log that ends before, or a count that went back behind, what is known is a gap."""
    journal = started(number=5)
    journal.check_end(5)
    journal.check_not_back(5)
    journal.check_not_back(6)
    with pytest.raises(LogGapError):
        journal.check_end(6)
    with pytest.raises(LogGapError):
        journal.check_not_back(4)


@pytest.mark.parametrize("is_read_first", [True, False])
def test_own_flush_is_not_pending(is_read_first: bool) -> None:
    """A worker's own flush is not handed back, whether it reads it before or after its reply."""
    journal = started()
    own = flush()
    if is_read_first:
        journal.take([entry(1, own)])
        journal.announced(own, EPOCH, 1)
    else:
        journal.announced(own, EPOCH, 1)
        journal.take([entry(1, own)])
    assert journal.pending() == ()
    journal.take([entry(2, flush())])
    assert len(journal.pending()) == 1


def test_numbers_of_another_log_are_not_mixed_up() -> None:
    """A reply from before the log was lost covers nothing of the new one."""
    journal = started()
    journal.announced(flush(), b"e0", 100)
    other = flush()
    assert journal.take([entry(1, other)]) == []
    assert journal.pending() == (other,)


def test_holding_waits_for_all_that_was_missed() -> None:
    """After being cut off a worker is clear once all that was pending then is acknowledged."""
    journal = started()
    missed = [flush(name="a"), flush(name="b")]
    journal.take([entry(1, missed[0]), entry(2, missed[1])])
    journal.hold()
    journal.take([entry(3, flush(name="c"))])
    assert not journal.clear
    journal.acknowledge(missed[1].flush_id)
    assert not journal.clear
    journal.acknowledge(missed[0].flush_id)
    assert journal.clear
    assert len(journal.pending()) == 1


def test_adopting_makes_flushes_of_every_difference() -> None:
    """A log that does not continue turns each scope that differs into a flush, all first."""
    known = flush(FlushKind.TENANT, "same")
    old_all, new_all = flush(FlushKind.ALL), flush(FlushKind.ALL)
    missed = flush(FlushKind.ADAPTER, "x")
    same = scope_of(known)
    assert same is not None
    journal = started(number=7, **{"all": old_all, same: known})
    journal.adopt(Snapshot(b"e2", 3, b"9-9", {"adapter/x": missed, "all": new_all, same: known}))
    assert journal.pending() == (new_all, missed)
    assert (journal.epoch, journal.number, journal.stream_id) == (b"e2", 3, b"9-9")
    journal.take([entry(4, flush())])


@dataclass(eq=False)
class Worker:
    """One worker as a model: its journal, its nonces, and how far it has read."""

    journal: FlushJournal = field(default_factory=started)
    nonces: dict[str, bytes] = field(default_factory=dict)
    covered: set[FlushId] = field(default_factory=set)

    def carry_out(self, order: Flush) -> None:
        """Put a nonce in force, as a store does."""
        scope = scope_of(order)
        if scope is not None:
            self.nonces[scope] = order.nonce

    def follow(self) -> None:
        """Carry out the first pending flush."""
        for order in self.journal.pending()[:1]:
            self.carry_out(order)
            self.journal.acknowledge(order.flush_id)
            self.covered.add(order.flush_id)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["order", "reply", "read", "follow"]),
        st.integers(0, 2),
        st.sampled_from([FlushKind.ALL, FlushKind.TENANT, FlushKind.PREFIX]),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_all_workers_end_with_the_logs_nonces(actions: list[tuple[str, int, FlushKind]]) -> None:
    """However orders, replies, reading and work interleave, every worker ends up the same.

    And every worker has carried out, or covered by a later one of its own, each flush.
    """
    workers = [Worker() for _ in range(3)]
    log: list[LogEntry] = []
    replies: dict[int, tuple[Flush, int]] = {}

    def reply(index: int) -> None:
        if index in replies:
            order, number = replies.pop(index)
            worker = workers[index]
            worker.covered.update(worker.journal.announced(order, EPOCH, number))
            worker.covered.add(order.flush_id)

    def read(index: int, count: int) -> None:
        worker = workers[index]
        entries = log[worker.journal.number : worker.journal.number + count]
        worker.covered.update(worker.journal.take(entries))

    for action, index, kind in actions:
        if action == "order" and index not in replies:
            order = flush(kind)
            workers[index].carry_out(order)
            log.append(entry(len(log) + 1, order))
            replies[index] = (order, len(log))
        elif action == "reply":
            reply(index)
        elif action == "read":
            read(index, 2)
        elif action == "follow" and index not in replies:  # its thread waits for the reply
            workers[index].follow()
    expected: dict[str, bytes] = {}
    for each in log:
        scope = scope_of(each.flush)
        if scope is not None:
            expected[scope] = each.flush.nonce
    for index, worker in enumerate(workers):
        reply(index)
        read(index, len(log))
        while worker.journal.pending():
            worker.follow()
        assert worker.nonces == expected
        assert worker.covered == {each.flush.flush_id for each in log}
