"""What accounts are told to have held, lost and saved: exact, by a clock that stands still."""

from dataclasses import replace

import numpy as np
import pytest
from support.stores import (
    ANN,
    BOB,
    CAT,
    DAN,
    Clock,
    cache,
    flush_of,
    grow,
    make_store,
    open_,
    run,
    tokens,
)

from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.quotas import OPERATOR
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission
from stemkv.kvstore.views import TenantCounts


def seconds(store: BlockStore, name: str = "ann") -> float:
    """Return an account's block-seconds."""
    return store.account_counts()[name].block_seconds


@pytest.mark.parametrize("batched", [False, True])
def test_block_seconds_follow_a_sequence_that_grows(batched: bool) -> None:
    """Each block counts from when it is taken, in use or cached alike."""
    clock = Clock()
    store = make_store(16, clock=clock)
    sequence = open_(store, range(8))
    run(store, sequence)
    clock.now = 10
    grow(store, sequence, *range(8))
    if batched:
        assert store.reserve_all(np.array([sequence], np.int32)) == 1
        store.take_copies()
        store.commit_all(np.array([sequence], np.int32))
        store.settle()
    else:
        run(store, sequence)
    clock.now = 15
    assert seconds(store) == 2 * 10 + 4 * 5
    store.release(sequence)
    clock.now = 20
    assert seconds(store) == 2 * 10 + 4 * 10


@pytest.mark.parametrize("kind", [k for k in FlushKind if k is not FlushKind.PREFIX])
def test_block_seconds_end_with_a_flush(kind: FlushKind) -> None:
    """What was held until then counts, though nobody did anything in between."""
    clock = Clock()
    store = make_store(16, clock=clock)
    cache(store, range(8))
    clock.now = 100
    store.flush(flush_of(kind))
    clock.now = 200
    store.reclaim()
    assert seconds(store) == 200


def test_block_seconds_end_with_a_flush_by_prefix_and_with_eviction() -> None:
    """Blocks that go one by one count as long as they were there."""
    clock = Clock()
    store = make_store(4, clock=clock)
    cache(store, range(16))
    clock.now = 10
    store.flush(flush_of(FlushKind.PREFIX, prefix=range(13)))
    clock.now = 20
    cache(store, [50] * 8, BOB)
    clock.now = 30
    assert seconds(store) == 4 * 10 + 3 * 10 + 2 * 10
    assert seconds(store, "bob") == 2 * 10


def test_block_seconds_of_public_blocks_are_the_operators() -> None:
    """A tenant is charged for its own alone, the operator from when public blocks are taken."""
    clock = Clock()
    store = make_store(16, clock=clock)
    key = store.declare_public(tokens(range(8))).key
    sequence = open_(store, range(12))
    clock.now = 10
    run(store, sequence)
    clock.now = 20
    store.release(sequence)
    clock.now = 30
    store.withdraw_public(key)
    clock.now = 40
    assert seconds(store) == 1 * 30
    assert store.accounts.names[1] == OPERATOR
    store.declare_public(tokens(range(8)))
    assert seconds(store, OPERATOR) == 2 * 30


def test_the_pools_whole_time_is_somebodys() -> None:
    """Block-seconds of all accounts are what the blocks in use and cached come to."""
    clock = Clock()
    store = make_store(16, clock=clock)
    rng = np.random.default_rng(3)
    expected = 0.0
    for n in range(60):
        ns = (ANN, BOB, CAT, DAN)[n % 4]
        cache(store, rng.integers(0, 3, int(rng.integers(1, 20))).tolist(), ns)
        counts = store.pool_counts()
        passed = float(rng.integers(1, 9))
        expected += passed * (counts.in_use + counts.cached)
        clock.now += passed
    assert sum(c.block_seconds for c in store.account_counts().values()) == expected


def test_losses_are_counted_by_whose_need_it_was() -> None:
    """Each account has what it lost to itself and to each of the others."""
    store = make_store(8)
    eve = Namespace("eve", b"e" * 32)
    cache(store, range(16), ANN)
    cache(store, range(16), BOB)
    cache(store, [9] * 8, eve)
    cache(store, [8] * 8, eve)
    counts = store.account_counts()
    lost = {name: dict(c.evicted_for) for name, c in counts.items()}
    assert sum(sum(of.values()) for of in lost.values()) == store.pool_counts().evicted == 4
    assert set(lost["ann"]) | set(lost["bob"]) == {"eve"}
    cache(store, range(100, 132), ANN)
    counts = store.account_counts()
    assert sum(sum(c.evicted_for.values()) for c in counts.values()) == 12
    assert sum(c.evicted_for.get("ann", 0) for c in counts.values()) == 8
    assert counts["eve"].evicted_for == {"ann": 4}


def test_saved_tokens_are_those_that_were_not_computed() -> None:
    """Full blocks and parts of blocks apart; the last token of a prompt is always computed."""
    store = make_store(32)
    cache(store, range(10))
    for text, full, partial in ([*range(10), 7], 8, 2), ([*range(10)], 8, 1), ([*range(8)], 7, 0):
        before = store.tenant_counts()["ann"]
        cache(store, text)
        after = store.tenant_counts()["ann"]
        assert after.lookup - before.lookup == len(text)
        assert after.hit_full - before.hit_full == full
        assert after.hit_partial - before.hit_partial == partial


def test_members_of_a_group_are_counted_one_by_one() -> None:
    """They share an account, and each has its own lookups and hits."""
    store = make_store(32)
    cat, dan = (replace(ns, group="g") for ns in (CAT, DAN))
    cache(store, range(8), cat)
    cache(store, range(8), dan)
    counts = store.tenant_counts()
    assert (counts["cat"].hit_full, counts["dan"].hit_full) == (0, 7)
    assert (counts["cat"].cached_blocks, counts["dan"].cached_blocks) == (2, 0)
    assert store.account_counts()["g"].held == 2


def test_who_comes_back_after_preemption_is_counted_apart() -> None:
    """It is no further lookup, and what it finds is no further saving."""
    store = make_store(16)
    cache(store, range(8))
    got = store.admit(ANN, tokens(range(12)), again=True)
    assert isinstance(got, Admission)
    counts = store.tenant_counts()["ann"]
    assert counts == TenantCounts(
        lookup=8,
        hit_full=0,
        hit_partial=0,
        cached_blocks=2,
        evicted_blocks=0,
        resumed=1,
        resumed_lookup=12,
        resumed_hit=8,
    )
    refused = store.admit(BOB, tokens(range(1000, 1064)), again=True)
    assert not isinstance(refused, Admission)
    assert "bob" not in store.tenant_counts()
