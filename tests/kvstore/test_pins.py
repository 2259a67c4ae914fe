"""Pins: what an operator keeps stays for its time, gives way last, and starves nobody."""

from dataclasses import replace

import pytest
from support.stores import (
    ANN,
    BOB,
    SECRET,
    Clock,
    cache,
    directory_of,
    flush_of,
    hit,
    open_,
    run,
    tokens,
)

from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.properties.eviction_model import POLICIES
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.quotas import Quota
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Shortage

SIZE = 4
LONG = PinTerms(seconds=1000.0)
POLICY_NAMES = [None, *POLICIES]


def made(
    capacity: int = 16, policy: str | None = None, *, budget: float = 1.0, keep_free: int = 0
) -> tuple[BlockStore, Clock]:
    """Make a store where ann and bob may pin a share of it, and its clock."""
    clock = Clock()
    config = StoreConfig(
        capacity_blocks=capacity,
        block_size=SIZE,
        max_sequences=16,
        max_tokens=capacity * SIZE,
        secret=SECRET,
        keep_free=keep_free,
    )
    chosen = None if policy is None else POLICIES[policy]
    store = BlockStore(config, RecordingDirectory(), clock, policy=chosen)
    store.set_quotas({ns.domain: Quota(pins=budget) for ns in (ANN, BOB)})
    return store, clock


def prompt(number: int, blocks: int) -> list[int]:
    """Make a prompt of whole blocks that no other number begins like."""
    return [number * 1000 + i for i in range(blocks * SIZE)]


def pinned_blocks(store: BlockStore) -> dict[int, int]:
    """Return how many blocks each pin holds, by number."""
    return {pin.pin_id: pin.blocks for pin in store.pinned()}


@pytest.mark.parametrize("keep_free", [0, 4])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_what_is_pinned_stays_while_others_thrash(policy: str | None, keep_free: int) -> None:
    """As long as anything else can go, it is that which goes."""
    store, clock = made(16, policy, keep_free=keep_free)
    cache(store, prompt(1, 4))
    made_ = store.pin(ANN, tokens(prompt(1, 4)), LONG)
    assert (made_.blocks, made_.tokens, made_.tenant) == (4, 16, "ann")
    for n in range(60):
        clock.now += 15
        cache(store, prompt(100 + n, 1 + n % 8), BOB)
        assert hit(store, prompt(1, 4)) == (4, 0)
    assert store.account_counts()["ann"].pinned == 4


def test_a_pin_ends_with_its_time() -> None:
    """Until the last moment it holds; from then on its blocks go as any other."""
    store, clock = made(8)
    cache(store, prompt(1, 4))
    first = store.pin(ANN, tokens(prompt(1, 4)), PinTerms(seconds=50.0))
    clock.now = 49.0
    assert store.pinned() == (replace(first, seconds_left=1.0),)
    cache(store, prompt(2, 4), BOB)
    assert hit(store, prompt(1, 4)) == (4, 0)
    clock.now = 50.0
    assert store.pinned() == ()
    store.reclaim()
    assert store.account_counts()["ann"].pinned == 0
    clock.now = 5000.0
    cache(store, prompt(3, 8), BOB)
    assert hit(store, prompt(1, 4)) == (0, 0)


def test_the_lowest_priority_as_of_now_gives_way_first() -> None:
    """A priority that decays is overtaken by a lower one that does not."""
    store, clock = made(12)
    terms = {
        1: PinTerms(1e6, priority=0.3),
        2: PinTerms(1e6, priority=1.0, half_life_seconds=100.0),
        3: PinTerms(1e6, priority=0.6),
    }
    numbers = {}
    for n, each in terms.items():
        cache(store, prompt(n, 4))
        numbers[n] = store.pin(ANN, tokens(prompt(n, 4)), each).pin_id
    clock.now = 300.0
    assert [round(p.priority, 3) for p in store.pinned()] == [0.3, 0.125, 0.6]
    left = [1, 2, 3]
    for gone in (2, 1, 3):
        held = open_(store, prompt(10 + gone, 4), BOB)
        left.remove(gone)
        assert set(pinned_blocks(store)) == {numbers[n] for n in left}
        run(store, held)
    assert audit(store) == ()


def test_equal_priorities_give_way_by_their_end_and_then_their_age() -> None:
    """What would end soonest anyway goes first."""
    store, _ = made(12)
    for n, seconds in ((1, 100.0), (2, 50.0), (3, 100.0)):
        cache(store, prompt(n, 4))
        store.pin(ANN, tokens(prompt(n, 4)), PinTerms(seconds))
    gone = []
    for n in range(3):
        before = set(pinned_blocks(store))
        open_(store, prompt(10 + n, 4), BOB)
        gone += sorted(before - set(pinned_blocks(store)))
    assert gone == [2, 1, 3]


def test_pins_give_way_only_when_nothing_else_is_left() -> None:
    """Down to the last block that is not pinned, pins stay; one block more takes one pin."""
    store, _ = made(12)
    cache(store, prompt(1, 4))
    cache(store, prompt(2, 4))
    store.pin(ANN, tokens(prompt(1, 4)), LONG)
    cache(store, prompt(3, 4))
    open_(store, prompt(4, 8), BOB)
    assert pinned_blocks(store) == {1: 4}
    open_(store, prompt(5, 1), BOB)
    assert pinned_blocks(store) == {}
    assert hit(store, prompt(1, 4)) == (3, 0)


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("blocks", range(1, 13))
def test_pins_never_make_an_admission_fail(policy: str | None, blocks: int) -> None:
    """Whatever is admitted without pins is admitted with all of the cache pinned."""
    answers = []
    for pins in (False, True):
        store, _ = made(12, policy)
        store.set_quotas({ANN.domain: Quota(0.25, pins=1.0), BOB.domain: Quota(cap=0.75, pins=1)})
        for n, ns in ((1, ANN), (2, ANN), (3, BOB)):
            cache(store, prompt(n, 4), ns)
            if pins:
                store.pin(ns, tokens(prompt(n, 4)), LONG)
        got = store.admit(BOB, tokens(prompt(9, blocks)))
        answers.append(got if isinstance(got, Shortage) else type(got))
        assert audit(store) == ()
        assert store.account_counts()["ann"].held >= 3
    assert answers[0] == answers[1]
    assert (answers[0] is Admission) == (blocks <= 9)


def test_at_its_cap_an_accounts_own_pins_give_way() -> None:
    """Others' pins, which would not help, stay."""
    store, _ = made(16)
    store.set_quotas({ANN.domain: Quota(pins=1.0), BOB.domain: Quota(cap=0.25, pins=1.0)})
    for n, ns in ((1, ANN), (2, BOB)):
        cache(store, prompt(n, 4), ns)
        store.pin(ns, tokens(prompt(n, 4)), replace(LONG, priority=0.1 * n))
    cache(store, prompt(3, 2), BOB)
    assert [pin.tenant for pin in store.pinned()] == ["ann"]


def test_a_pin_over_the_budget_is_refused_with_numbers() -> None:
    """A block of two pins counts twice; public blocks count not at all; nothing has changed."""
    store, _ = made(16, budget=0.25)
    store.declare_public(tokens(prompt(1, 2)))
    text = [*prompt(1, 2), *prompt(2, 4)]
    cache(store, text)
    store.pin(ANN, tokens(text), PinTerms(9.0, max_blocks=1))
    before = snapshot(store)
    with pytest.raises(ValueError, match=r"^pins: 4 blocks more than the 1 that .* account's 4$"):
        store.pin(ANN, tokens(text), LONG)
    assert snapshot(store) == before
    assert store.pin(ANN, tokens(text), PinTerms(9.0, max_blocks=3)).blocks == 3
    with pytest.raises(ValueError, match=r"^pins: 1 blocks more than the 4 "):
        store.pin(ANN, tokens(text), PinTerms(9.0, max_blocks=1))
    cache(store, text, BOB)
    assert store.pin(BOB, tokens(text), LONG).blocks == 4


@pytest.mark.parametrize(
    ("text", "why"),
    [(prompt(7, 2), "never seen"), (prompt(1, 1)[:3], "shorter than a block"), ([], "empty")],
)
def test_with_nothing_there_no_pin_is_made(text: list[int], why: str) -> None:
    """The reply says 0 blocks, whatever the reason."""
    store, _ = made()
    cache(store, prompt(1, 2))
    before = snapshot(store)
    assert store.pin(ANN, tokens(text), LONG).blocks == 0, why
    assert store.pinned() == ()
    assert snapshot(store) == before


def test_a_pin_is_its_own_tenants_alone() -> None:
    """The same text pinned for another finds nothing of it."""
    store, _ = made()
    cache(store, prompt(1, 2))
    assert store.pin(BOB, tokens(prompt(1, 2)), LONG).blocks == 0
    assert store.pin(replace(ANN, salt="s"), tokens(prompt(1, 2)), LONG).blocks == 0


def test_unpin_ends_a_pin_once() -> None:
    """Its blocks may go again; a second time there is no such pin."""
    store, _ = made(8)
    cache(store, prompt(1, 4))
    number = store.pin(ANN, tokens(prompt(1, 4)), LONG).pin_id
    store.unpin(number)
    with pytest.raises(ValueError, match=f"^pin_id: there is no pin {number}$"):
        store.unpin(number)
    open_(store, prompt(2, 8))
    assert hit(store, prompt(1, 4)) == (0, 0)


def test_overlapping_pins_each_hold_their_own() -> None:
    """What two pins keep is free to go when both have ended, whichever ends first."""
    for first, second in ((1, 2), (2, 1)):
        store, _ = made(12)
        cache(store, prompt(1, 6))
        assert store.pin(ANN, tokens(prompt(1, 3)), LONG).pin_id == 1
        assert store.pin(ANN, tokens(prompt(1, 6)), LONG).pin_id == 2
        store.unpin(first)
        assert audit(store) == ()
        assert store.account_counts()["ann"].pinned == (6 if first == 1 else 3)
        cache(store, prompt(2, 9 if first == 2 else 6), BOB)
        assert hit(store, prompt(1, 6))[0] == (6 if first == 1 else 3)
        store.unpin(second)
        assert store.account_counts()["ann"].pinned == 0


def test_a_pin_on_what_runs_holds_when_it_has_ended() -> None:
    """And one that ends meanwhile lets nothing go that is still in use."""
    store, clock = made(8)
    running = open_(store, prompt(1, 4))
    run(store, running)
    store.pin(ANN, tokens(prompt(1, 4)), LONG)
    store.pin(ANN, tokens(prompt(1, 4)), PinTerms(5.0))
    assert store.account_counts()["ann"].pinned == 0
    clock.now = 10.0
    store.release(running)
    assert store.account_counts()["ann"].pinned == 4
    again = open_(store, prompt(1, 4))
    store.unpin(1)
    assert isinstance(store.admit(BOB, tokens(prompt(2, 5))), Shortage)
    assert store.account_counts()["ann"].in_use == 4
    store.release(again)
    assert audit(store) == ()


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("kind", FlushKind)
def test_a_flush_takes_what_is_pinned(kind: FlushKind, in_use: bool) -> None:
    """By every kind: the pin is gone, and its blocks are free as soon as nobody runs on them."""
    store, _ = made(16)
    cache(store, prompt(1, 4))
    store.pin(ANN, tokens(prompt(1, 4)), LONG)
    store.pin(ANN, tokens(prompt(1, 2)), LONG)
    running = open_(store, [*prompt(1, 4), 1]) if in_use else None
    report = store.flush(flush_of(kind, ANN, prompt(1, 1)[:2]))
    assert (report.blocks, report.in_use) == (4, 4 * in_use)
    assert store.pinned() == ()
    assert hit(store, prompt(1, 4)) == (0, 0)
    assert audit(store) == ()
    if running is not None:
        run(store, running)
        store.release(running)
    store.reclaim()
    assert audit(store) == ()
    assert store.pool_counts().free == 16
    assert directory_of(store).held == set()
    cache(store, prompt(1, 4))
    assert store.pin(ANN, tokens(prompt(1, 4)), LONG).pin_id == 3


def test_a_flush_of_a_part_leaves_the_pin_on_the_rest() -> None:
    """A pin on a chain whose end is flushed keeps the beginning."""
    store, _ = made(16)
    cache(store, prompt(1, 4))
    store.pin(ANN, tokens(prompt(1, 4)), LONG)
    store.flush(flush_of(FlushKind.PREFIX, ANN, prompt(1, 3)[:-1]))
    assert pinned_blocks(store) == {1: 2}
    cache(store, prompt(2, 14), BOB)
    assert hit(store, prompt(1, 4)) == (2, 0)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"seconds": 0.0}, "^seconds: 0.0 is not a positive number"),
        ({"seconds": float("inf")}, "^seconds: inf is not a positive number"),
        ({"seconds": 1.0, "half_life_seconds": -1.0}, "^half_life_seconds: -1.0 is not"),
        ({"seconds": 1.0, "max_blocks": 0}, "^max_blocks: 0 is less than 1"),
        ({"seconds": 1.0, "priority": 1.5}, "^priority: 1.5 is not in 0..1"),
        ({"seconds": 1.0, "priority": float("nan")}, "^priority: nan is not in 0..1"),
    ],
)
def test_what_are_no_terms_is_refused(terms: dict[str, float], message: str) -> None:
    """The error names the field and the value that was wrong."""
    with pytest.raises(ValueError, match=message):
        PinTerms(**terms)  # type: ignore[arg-type]
