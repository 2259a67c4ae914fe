"""What the scheduler is told of accounts: what each may have, and who can make room for whom."""

import pytest
from support.stores import ANN, BOB, CAT, cache, make_store, open_, tokens

from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.properties.repairs import lenient
from stemkv.kvstore.quotas import Quota
from stemkv.kvstore.repair import repair
from stemkv.kvstore.values import Admission


def test_a_limit_is_the_reserve_and_what_is_nobodys_up_to_the_cap() -> None:
    """What others or the operator have reserved is out of reach, whether they use it or not."""
    store = make_store(16)
    assert [store.limit(ns) for ns in (ANN, BOB, CAT)] == [16, 16, 16]
    store.set_quotas({ANN.domain: Quota(reserve=0.25, cap=0.5), BOB.domain: Quota(reserve=0.5)})
    assert [store.limit(ns) for ns in (ANN, BOB, CAT)] == [8, 12, 4]
    store.declare_public(tokens(range(8)))
    assert [store.limit(ns) for ns in (ANN, BOB, CAT)] == [6, 10, 2]


def test_a_limit_counts_no_block_that_is_out_of_service() -> None:
    """What a repair has put into quarantine nobody can have."""
    store = make_store(16)
    store.pool.tokens[cache(store, range(8))[1], 0] += 1
    repair(lenient(store))
    quarantined = store.pool_counts().quarantined
    assert quarantined > 0
    assert store.limit(ANN) == 16 - quarantined


def test_blocks_are_reserved_as_far_as_the_reserve_goes() -> None:
    """What is in use and what is asked for count together; without a reserve nothing is."""
    store = make_store(16)
    store.set_quotas({ANN.domain: Quota(reserve=0.25)})
    assert [store.is_reserved(ANN, n) for n in (4, 5)] == [True, False]
    open_(store, range(12))
    assert [store.is_reserved(ANN, n) for n in (1, 2)] == [True, False]
    open_(store, range(4), BOB)
    assert not store.is_reserved(BOB, 1)
    assert not store.is_reserved(CAT, 0)


@pytest.mark.parametrize(("blocks", "helps"), [(3, False), (4, False), (5, True)])
def test_room_is_made_by_those_beyond_their_reserve(blocks: int, helps: bool) -> None:
    """Ending a request gives others what is beyond its reserve, its own account all."""
    store = make_store(16)
    store.set_quotas({ANN.domain: Quota(reserve=0.25), BOB.domain: Quota(cap=0.125)})
    ann = open_(store, range(4 * blocks))
    bob, cat = open_(store, range(4), BOB), open_(store, range(4), CAT)
    assert store.makes_room(ann, cat) is helps
    assert store.makes_room(ann, bob) is helps
    assert store.makes_room(ann, ann)
    open_(store, range(100, 104), BOB)
    assert not store.makes_room(ann, bob), "bob is at his cap"
    assert store.makes_room(bob, bob)


def test_public_blocks_are_not_paid_for() -> None:
    """A request pays for its blocks from where the public ones end."""
    store = make_store(16)
    assert [store.own_blocks(ANN, tokens(range(16)), n) for n in (16, 17, 20)] == [4, 5, 5]
    assert store.declare_public(tokens(range(8))).cached_blocks == 0
    assert [store.own_blocks(ANN, tokens(range(16)), n) for n in (16, 17, 20)] == [2, 3, 3]
    assert store.own_blocks(ANN, tokens(range(1, 17)), 16) == 4


def test_pinned_blocks_count_as_cached() -> None:
    """A block that nothing but a pin holds is idle, and never in use."""
    store = make_store(16)
    cache(store, range(14))
    open_(store, range(100, 108))
    store.pin(ANN, tokens(range(8)), PinTerms(seconds=60.0))
    counts = store.account_counts()["ann"]
    assert (counts.in_use, counts.cached) == (2, 4)


@pytest.mark.parametrize("before", [0, 1])
def test_a_copy_is_given_up_where_its_source_is_needed(before: int) -> None:
    """A prompt that takes the whole pool copies nothing, whichever block the copy would read."""
    store = make_store(3 + before)
    held = [open_(store, [90]) for _ in range(before)]
    assert cache(store, range(4)) == [before]
    got = store.admit(ANN, tokens([0, 1, 9, 9, *range(50, 58)]))
    assert isinstance(got, Admission)
    assert (got.full_tokens, got.partial_tokens) == (0, 0)
    assert store.take_copies() == ()
    assert len(held) == before
