"""Rule 12: what a flush takes, what it leaves, and what becomes of those who are running."""

from dataclasses import replace

import pytest
from support.stores import (
    ANN,
    BOB,
    CAT,
    DAN,
    cache,
    directory_of,
    flush_of,
    grow,
    hit,
    make_store,
    open_,
    run,
    tokens,
)

from stemkv.kvstore.audit import audit
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.store import BlockStore

SALTED = replace(ANN, salt="s")
ADAPTED = replace(ANN, adapter="x", adapter_digest=b"1")
BOB_ADAPTED = replace(BOB, adapter="x", adapter_digest=b"1")
BOB_SALTED = replace(BOB, salt="s")
SPACES = {
    "ann": ANN,
    "bob": BOB,
    "salted": SALTED,
    "adapted": ADAPTED,
    "bob adapted": BOB_ADAPTED,
    "bob salted": BOB_SALTED,
}


def full_store() -> BlockStore:
    """Make a store in which every namespace has the same two blocks cached."""
    store = make_store(32)
    for namespace in SPACES.values():
        cache(store, range(8), namespace)
    return store


@pytest.mark.parametrize(
    ("kind", "namespace", "gone"),
    [
        (FlushKind.ALL, ANN, set(SPACES)),
        (FlushKind.TENANT, ANN, {"ann", "salted", "adapted"}),
        (FlushKind.ADAPTER, ADAPTED, {"adapted", "bob adapted"}),
        (FlushKind.ADAPTER, ANN, {"ann", "bob", "salted", "bob salted"}),
        (FlushKind.SALT, SALTED, {"salted"}),
        (FlushKind.SALT, ANN, {"ann", "adapted"}),
        (FlushKind.PREFIX, ANN, {"ann"}),
        (FlushKind.PREFIX, SALTED, {"salted"}),
        (FlushKind.PREFIX, ADAPTED, {"adapted"}),
    ],
)
def test_a_flush_takes_what_it_names_and_nothing_else(
    kind: FlushKind, namespace: Namespace, gone: set[str]
) -> None:
    """Every namespace that the flush concerns finds nothing, every other one all that it had."""
    store = full_store()
    report = store.flush(flush_of(kind, namespace, range(4)))
    found = {name: hit(store, range(8), ns)[0] for name, ns in SPACES.items()}
    assert found == {name: 0 if name in gone else 2 for name in SPACES}
    assert report.blocks == 2 * len(gone)
    assert report.bytes == 200 * len(gone)
    assert report.in_use == 0
    of_ann = 2 * len(gone & {"ann", "salted", "adapted"})
    expected = {"ann": of_ann, "bob": report.blocks - of_ann}
    assert report.blocks_by_tenant == {name: n for name, n in expected.items() if n}
    assert store.pool_counts().stale == (0 if kind is FlushKind.PREFIX else report.blocks)
    assert audit(store) == ()
    store.reclaim()
    assert store.pool_counts().stale == 0
    assert len(directory_of(store).held) == 2 * (len(SPACES) - len(gone))
    assert audit(store) == ()


def test_a_flushed_namespace_starts_again_under_other_keys() -> None:
    """The new generation's keys are new, so nothing of the old one is ever found again."""
    store = make_store()
    old = store.keys_of(ANN, tokens(range(8)))
    cache(store, range(8))
    store.flush(flush_of(FlushKind.TENANT))
    new = store.keys_of(ANN, tokens(range(8)))
    assert set(old).isdisjoint(new)
    cache(store, range(8))
    assert directory_of(store).held == set(new)
    assert hit(store, range(8)) == (2, 0)


def test_a_flush_of_what_was_never_used_counts_too() -> None:
    """A nonce is in force for namespaces that nothing was opened in yet."""
    store = make_store()
    old = store.keys_of(ANN, tokens(range(8)))
    assert store.flush(flush_of(FlushKind.ALL)).blocks == 0
    assert store.keys_of(ANN, tokens(range(8))) != old


def test_nonces_are_read_from_the_directory() -> None:
    """A worker that joins later has the same keys as one that carried the flush out."""
    store = make_store()
    for kind in (FlushKind.ALL, FlushKind.TENANT, FlushKind.SALT, FlushKind.ADAPTER):
        store.flush(flush_of(kind, ANN, nonce=kind.encode().ljust(16)))
    joined = BlockStore(store.config, RecordingDirectory(known_nonces=dict(store.roots.nonces)))
    assert joined.keys_of(ANN, tokens(range(8))) == store.keys_of(ANN, tokens(range(8)))


@pytest.mark.parametrize(
    ("prefix", "left"),
    [
        ([], (0, 0)),
        (range(1), (0, 0)),
        (range(4), (0, 0)),
        (range(5), (1, 0)),
        (range(8), (1, 0)),
        (range(9), (2, 0)),
        (range(10), (2, 0)),
        (range(11), (2, 2)),
        ([0, 1, 2, 99], (2, 2)),
        ([*range(4), 99], (2, 2)),
    ],
)
def test_a_prefix_flush_takes_the_block_with_its_last_token(
    prefix: list[int], left: tuple[int, int]
) -> None:
    """What begins with the prefix goes, down to tails; what ends before it, or differs, stays."""
    store = make_store()
    cache(store, range(10))
    store.flush(flush_of(FlushKind.PREFIX, ANN, prefix))
    assert hit(store, range(10)) == left
    assert audit(store) == ()


def test_a_prefix_flush_takes_every_branch_below_it() -> None:
    """All continuations of the prefix go, whichever sequence they came from."""
    store = make_store(32)
    cache(store, range(12))
    cache(store, [*range(6), 60, 61, 62])
    cache(store, [*range(4), 70, 71, 72, 73])
    report = store.flush(flush_of(FlushKind.PREFIX, ANN, range(6)))
    assert report.blocks == 4
    assert hit(store, range(12)) == (1, 0)
    assert hit(store, [*range(4), 70, 71, 72, 73]) == (2, 0)


def test_a_prefix_flush_of_a_group_concerns_all_its_members() -> None:
    """What one member computed is flushed by the domain that they share."""
    store = make_store()
    cache(store, range(8), CAT)
    assert store.flush(flush_of(FlushKind.PREFIX, DAN, range(2))).blocks_by_tenant == {"cat": 2}
    assert hit(store, range(8), CAT) == (0, 0)


@pytest.mark.parametrize("kind", [*FlushKind])
def test_a_running_sequence_keeps_its_blocks_and_publishes_no_more(kind: FlushKind) -> None:
    """It goes on with the very same blocks; when it ends, all of them are free."""
    store = make_store()
    sequence = open_(store, range(10))
    run(store, sequence)
    table = store.table_of(sequence).tolist()
    report = store.flush(flush_of(kind, ANN, range(3)))
    assert (report.blocks, report.in_use) == (2, 2)
    assert store.table_of(sequence).tolist() == table
    grow(store, sequence, 10, 11, 12)
    run(store, sequence)
    assert store.table_of(sequence).tolist()[:3] == table
    assert hit(store, range(13)) == (0, 0)
    store.release(sequence)
    store.reclaim()
    counts = store.pool_counts()
    assert (counts.free, counts.cached) == (16, 0)
    assert directory_of(store).held == set()


def test_a_fork_of_a_silenced_sequence_is_silent_too() -> None:
    """Flushed content does not come back by way of a fork."""
    store = make_store()
    first = open_(store, range(8))
    run(store, first)
    store.flush(flush_of(FlushKind.ALL))
    second = store.fork(first)
    assert isinstance(second, int)
    store.release(first)
    grow(store, second, 8, 9, 10, 11)
    run(store, second)
    store.release(second)
    assert store.pool_counts().cached == 0
    store.reclaim()
    assert store.pool_counts().free == 16


def test_a_sequence_that_does_not_begin_with_the_prefix_goes_on() -> None:
    """Others in the namespace publish as before."""
    store = make_store()
    sequence = open_(store, range(8))
    store.flush(flush_of(FlushKind.PREFIX, ANN, [0, 1, 99]))
    run(store, sequence)
    assert hit(store, range(8)) == (2, 0)


def test_a_flush_in_the_middle_of_a_copy() -> None:
    """A source that is flushed under a copy stays in place until the step has run, then is free."""
    store = make_store()
    cache(store, range(8))
    sequence = open_(store, [*range(6), 99])
    report = store.flush(flush_of(FlushKind.ALL))
    assert (report.blocks, report.in_use) == (2, 2)
    copies = store.take_copies()
    assert len(copies) == 1
    assert audit(store) == ()
    store.commit(sequence, 7)
    store.settle()
    assert store.pool_counts().in_use == 2
    store.release(sequence)
    assert audit(store) == ()
    store.reclaim()
    assert store.pool_counts().free == 16
    assert audit(store) == ()
