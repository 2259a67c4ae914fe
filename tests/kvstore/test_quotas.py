"""Reserves, caps and weights: what one account can do to another, and what it cannot (rule 11)."""

from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import pytest
from support.stores import (
    ANN,
    BOB,
    CAT,
    DAN,
    GROUP,
    SECRET,
    Clock,
    cache,
    grow,
    hit,
    make_store,
    open_,
    run,
    tokens,
)

from stemkv.kvstore.accounts import IDLE_SECONDS
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.properties.eviction_model import POLICIES
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.properties.snapshot import snapshot
from stemkv.kvstore.quotas import OPERATOR, Quota, quota_of_group
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission, Shortage
from stemkv.kvstore.views import AccountCounts

SIZE = 4
POLICY_NAMES = [None, *POLICIES]


def made(
    capacity: int, policy: str | None = None, keep_free: int = 0, clock: Clock | None = None
) -> BlockStore:
    """Make a store under a policy of eviction, None for the pool's own lists."""
    config = StoreConfig(
        capacity_blocks=capacity,
        block_size=SIZE,
        max_sequences=16,
        max_tokens=capacity * SIZE,
        secret=SECRET,
        keep_free=keep_free,
    )
    chosen = None if policy is None else POLICIES[policy]
    return BlockStore(config, RecordingDirectory(), clock or Clock(), policy=chosen)


def prompt(number: int, blocks: int) -> list[int]:
    """Make a prompt of whole blocks that no other number begins like."""
    return [number * 1000 + i for i in range(blocks * SIZE)]


def account(store: BlockStore, ns: Namespace) -> AccountCounts:
    """Return an account's counts, all zero for one that was never used."""
    nothing = AccountCounts(0, 0, 0, 0, 0, 0, 0, 1.0, 0.0)
    return store.account_counts().get(ns.group or ns.tenant, nothing)


def thrash(store: BlockStore, ns: Namespace, times: int, blocks: int) -> Iterator[None]:
    """Serve prompts that are never the same; a step each."""
    for n in range(times):
        cache(store, prompt(100 + n, blocks), ns)
        yield


# --- reserves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_free", [0, 3])
@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("blocks", [1, 3, 20])
def test_ten_times_the_pool_pushes_nobody_below_the_reserve(
    policy: str | None, keep_free: int, blocks: int
) -> None:
    """A tenant that runs through ten pools leaves another its reserve, and all of its prompt."""
    store = made(40, policy, keep_free)
    store.set_quotas({BOB.domain: Quota(reserve=0.25)})
    cache(store, prompt(1, 10), BOB)
    for _ in thrash(store, ANN, 400 // blocks, blocks):
        assert account(store, BOB).held >= 10
        assert sum(account(store, BOB).evicted_for.values()) == 0
    assert hit(store, prompt(1, 10), BOB) == (10, 0)
    assert store.pool_counts().evicted > 300


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_what_is_above_the_reserve_may_go_and_no_more(policy: str | None) -> None:
    """Of a tenant that holds more than its reserve, just the reserve is left in the end."""
    clock = Clock()
    store = made(40, policy, clock=clock)
    store.set_quotas({BOB.domain: Quota(reserve=0.25)})
    cache(store, prompt(1, 25), BOB)
    clock.now = IDLE_SECONDS + 1
    for _ in thrash(store, ANN, 100, 4):
        clock.now += 1
    assert account(store, BOB).held == 10
    assert account(store, BOB).evicted_for == {"ann": 15}
    assert hit(store, prompt(1, 25), BOB) == (10, 0)


def test_a_reserve_counts_what_is_in_use() -> None:
    """What a tenant runs fills its reserve, so that nothing more is kept for it beside."""
    store = made(16)
    store.set_quotas({BOB.domain: Quota(reserve=0.5)})
    running = open_(store, prompt(1, 8), BOB)
    assert isinstance(store.admit(ANN, tokens(prompt(2, 8))), Admission)
    assert account(store, BOB).in_use == 8
    assert store.admit(BOB, tokens(prompt(3, 1))) == Shortage("blocks", 1, 0)
    run(store, running)


def test_what_others_run_never_fills_an_unfilled_reserve() -> None:
    """An admission that would is refused as a quota's matter; the owner's succeeds at once."""
    store = made(16)
    store.set_quotas({BOB.domain: Quota(reserve=0.5)})
    open_(store, prompt(1, 6))
    before = snapshot(store)
    assert store.admit(ANN, tokens(prompt(2, 3))) == Shortage("quota", 3, 2)
    assert snapshot(store) == before
    open_(store, prompt(2, 2))
    assert store.admit(ANN, tokens(prompt(3, 1))) == Shortage("quota", 1, 0)
    open_(store, prompt(4, 8), BOB)


def test_what_others_cache_may_fill_an_unfilled_reserve() -> None:
    """Idle room is used; its owner gets it back at once."""
    store = made(16)
    store.set_quotas({BOB.domain: Quota(reserve=0.5)})
    for n in range(4):
        cache(store, prompt(n, 4))
    assert account(store, ANN).cached == 16
    cache(store, prompt(9, 8), BOB)
    assert (account(store, BOB).held, account(store, ANN).held) == (8, 8)
    assert account(store, ANN).evicted_for == {"bob": 8}


def test_prompts_that_are_cached_whole_leave_a_reserve_alone_too() -> None:
    """Adopting what lies in another's unfilled reserve takes that room, so it may be refused."""
    store = made(16)
    store.set_quotas({BOB.domain: Quota(reserve=0.5)})
    for n in range(4):
        cache(store, prompt(n, 4))
    open_(store, prompt(0, 4))
    open_(store, prompt(1, 4))
    before = snapshot(store)
    for n in (2, 3):
        assert store.admit(ANN, tokens(prompt(n, 4))) == Shortage("quota", 4, 0)
    assert snapshot(store) == before
    open_(store, prompt(1, 4))
    open_(store, prompt(9, 8), BOB)


def test_a_running_sequence_grows_no_further_into_a_reserve() -> None:
    """To reserve more positions is refused as a quota's matter, and changes nothing."""
    store = made(8)
    store.set_quotas({BOB.domain: Quota(reserve=0.5)})
    sequence = open_(store, prompt(1, 4))
    run(store, sequence)
    grow(store, sequence, 7)
    before = snapshot(store)
    assert store.reserve(sequence, 4 * SIZE + 1) == Shortage("quota", 1, 0)
    assert store.reserve_all(np.array([sequence], np.int32)) == 0
    assert snapshot(store) == before


# --- caps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_free", [0, 3])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_cap_holds_at_every_moment(policy: str | None, keep_free: int) -> None:
    """Running, cached or both, in an empty pool or a full one: never more than the cap."""
    store = made(40, policy, keep_free)
    store.set_quotas({ANN.domain: Quota(cap=0.25)})
    most = 0
    for n in range(30):
        running = open_(store, prompt(n, 2 + n % 5))
        most = max(most, account(store, ANN).held)
        run(store, running)
        grow(store, running, *range(SIZE * (n % 4)))
        run(store, running)
        most = max(most, account(store, ANN).held)
        store.release(running)
        most = max(most, account(store, ANN).held)
        if n == 15:
            cache(store, prompt(99, 29), BOB)
    assert most == 10
    assert account(store, BOB).held > 20
    assert isinstance(store.admit(ANN, tokens(prompt(50, 11))), Shortage)


def test_at_its_cap_an_account_loses_its_own() -> None:
    """With half of the pool free, what is capped still makes room among its own blocks."""
    store = made(16)
    store.set_quotas({ANN.domain: Quota(cap=0.25)})
    cache(store, prompt(1, 3))
    cache(store, prompt(2, 4))
    assert (account(store, ANN).held, store.pool_counts().free) == (4, 12)
    assert account(store, ANN).evicted_for == {"ann": 3}


def test_a_lowered_cap_is_made_good_when_blocks_are_next_needed() -> None:
    """What is above a new cap stays until then; nothing that runs is taken."""
    store = made(16)
    cache(store, prompt(1, 8))
    store.set_quotas({ANN.domain: Quota(cap=0.25)})
    assert hit(store, prompt(1, 8)) == (8, 0)
    cache(store, prompt(2, 1))
    assert account(store, ANN).held == 4
    store.set_quotas({})
    running = open_(store, prompt(3, 8))
    run(store, running)
    store.set_quotas({ANN.domain: Quota(cap=0.25)})
    assert store.admit(ANN, tokens(prompt(4, 1))) == Shortage("quota", 1, 0)
    assert account(store, ANN).in_use == 8


def test_a_cap_of_less_than_a_block_is_one_block() -> None:
    """A tenant with any cap at all can run something."""
    store = made(16)
    store.set_quotas({ANN.domain: Quota(cap=0.001)})
    cache(store, prompt(1, 1))
    assert store.limit(ANN) == 1


# --- fair shares ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("blocks", [1, 4, 10])
def test_thrashing_tenants_end_up_with_shares_by_weight(policy: str | None, blocks: int) -> None:
    """Weights of 3 to 1 give about three quarters and one quarter, whoever asks last."""
    store = made(80, policy)
    store.set_quotas({ANN.domain: Quota(weight=3.0), BOB.domain: Quota(weight=1.0)})
    for n in range(200 // blocks):
        cache(store, prompt(n, blocks), ANN)
        cache(store, prompt(n, blocks), BOB)
        if n * blocks > 120:
            assert abs(account(store, ANN).held - 60) <= blocks
            assert abs(account(store, BOB).held - 20) <= blocks


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("blocks", [1, 4, 12])
def test_who_stays_within_its_share_loses_nothing_to_a_thrasher(
    policy: str | None, blocks: int
) -> None:
    """As long as it uses the cache; however large the other's requests are."""
    clock = Clock()
    store = made(24, policy, clock=clock)
    cache(store, prompt(1, 12), BOB)
    for _ in thrash(store, ANN, 60, blocks):
        clock.now += 1
    assert account(store, BOB).share == 12
    assert hit(store, prompt(1, 12), BOB) == (12, 0)
    assert account(store, BOB).evicted_for == {}


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_an_idle_accounts_blocks_go_after_a_while(policy: str | None) -> None:
    """Who does not use the cache any more has its reserve left as its share, and no sooner."""
    clock = Clock()
    store = made(24, policy, clock=clock)
    store.set_quotas({BOB.domain: Quota(reserve=0.125)})
    cache(store, prompt(1, 12), BOB)
    clock.now = IDLE_SECONDS
    for _ in thrash(store, ANN, 30, 2):
        assert account(store, BOB).held == 12
    clock.now += 1
    for _ in thrash(store, ANN, 30, 2):
        pass
    assert account(store, BOB).held == account(store, BOB).share == 3


def test_an_account_that_was_never_used_has_no_share() -> None:
    """A quota alone, even in a process's first minutes, takes nothing from those who are there."""
    store = made(16)
    store.set_quotas({BOB.domain: Quota(weight=9.0), CAT.domain: Quota()})
    cache(store, prompt(1, 4))
    assert account(store, ANN).share == 16


@pytest.mark.parametrize("quotas", [{}, {ANN.domain: Quota(weight=7.0)}, {ANN.domain: Quota(0.5)}])
def test_one_tenant_alone_gets_the_whole_pool_as_a_plain_lru(quotas: dict[bytes, Quota]) -> None:
    """Its hits are those of an LRU list of the pool's size."""
    store = made(12)
    store.set_quotas(quotas)
    lru: OrderedDict[int, None] = OrderedDict()
    rng = np.random.default_rng(7)
    for n in rng.zipf(1.3, 600).clip(max=40).tolist():
        assert hit(store, prompt(n, 1)) == ((1, 0) if n in lru else (0, 0))
        lru[n] = None
        lru.move_to_end(n)
        if len(lru) > 12:
            lru.popitem(last=False)
        cache(store, prompt(n, 1))
    assert account(store, ANN).held == 12


def test_groups_are_charged_together() -> None:
    """Members of a sharing group fill one cap, and what one computed the other hits."""
    cat, dan = (Namespace(n.tenant, GROUP, group="g") for n in (CAT, DAN))
    store = made(16)
    store.set_quotas({GROUP: quota_of_group([Quota(cap=0.125), Quota(cap=0.125)])})
    cache(store, prompt(1, 3), cat)
    assert hit(store, prompt(1, 3), dan) == (3, 0)
    cache(store, prompt(2, 3), dan)
    counts = account(store, cat)
    assert (counts.held, counts.cap) == (4, 4)
    assert counts.evicted_for == {"g": 2}
    assert set(store.account_counts()) == {"g"}


# --- what is refused ------------------------------------------------------------------------------


def test_reserves_over_the_pool_are_refused_with_numbers() -> None:
    """The message says how many blocks were asked for, and how many there are."""
    store = made(16)
    store.set_quotas({ANN.domain: Quota(reserve=0.25)})
    store.declare_public(tokens(prompt(1, 2)))
    before = snapshot(store)
    with pytest.raises(ValueError, match=r"^reserve: 18 blocks \(2 of them for .*the pool's 16$"):
        store.set_quotas({ANN.domain: Quota(0.5), BOB.domain: Quota(0.5), GROUP: Quota()})
    with pytest.raises(ValueError, match=r"^reserve: 17 blocks \(13 of them for .*the pool's 16$"):
        store.declare_public(tokens(prompt(2, 11)))
    assert snapshot(store) == before
    assert store.accounts.find(BOB.domain) is None
    store.set_quotas({ANN.domain: Quota(0.5), BOB.domain: Quota(0.375)})


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"reserve": -0.1}, "^reserve: -0.1 is not a share"),
        ({"reserve": 1.5}, "^reserve: 1.5 is not a share"),
        ({"reserve": float("nan")}, "^reserve: nan is not a share"),
        ({"cap": 2.0}, "^cap: 2.0 is not a share"),
        ({"cap": 0.0}, "^cap: 0 leaves no room"),
        ({"pins": -1.0}, "^pins: -1.0 is not a share"),
        ({"weight": 0.0}, "^weight: 0.0 is not a positive number"),
        ({"weight": float("inf")}, "^weight: inf is not a positive number"),
        ({"reserve": 0.5, "cap": 0.25}, "^reserve: 0.5 is over the cap, 0.25"),
    ],
)
def test_what_is_no_quota_is_refused(terms: dict[str, float], message: str) -> None:
    """The error names the field and the value that was wrong."""
    with pytest.raises(ValueError, match=message):
        Quota(**terms)


def test_reserves_of_shares_that_do_not_divide_add_up() -> None:
    """Three thirds fit a pool of any size, and no block is lost to a sum of decimals."""
    for capacity in (1, 2, 3, 7, 10, 99, 100):
        store = made(capacity)
        thirds = {domain: Quota(reserve=1 / 3) for domain in (ANN.domain, BOB.domain, GROUP)}
        store.set_quotas(thirds)
        store.set_quotas({ANN.domain: Quota(reserve=0.1 + 0.2), BOB.domain: Quota(reserve=0.7)})
        assert account(made_of(store, 10), ANN).reserve in (0, 3)


def made_of(store: BlockStore, capacity: int) -> BlockStore:
    """Return a store of a size with one reserve of three tenths, in use by its tenant."""
    del store
    other = made(capacity)
    other.set_quotas({ANN.domain: Quota(reserve=0.1 + 0.2)})
    cache(other, prompt(1, 1))
    return other


# --- what the state machine is too small for ------------------------------------------------------


def test_thousands_of_accounts_open_while_blocks_are_held_and_cached() -> None:
    """Lists keep their blocks when the arrays grow under them."""
    store = make_store(64, SIZE, max_sequences=4)
    store.set_quotas({ANN.domain: Quota(0.125), BOB.domain: Quota(0.125)})
    running: list[SequenceId] = [open_(store, prompt(1, 4))]
    run(store, *running)
    kept = prompt(2, 4)
    cache(store, kept, BOB)
    cache(store, prompt(3, 2)[:-1], BOB)
    for n in range(2000):
        name = f"t{n}"
        cache_quietly(store, prompt(n % 50, 1), Namespace(name, domain_of(SECRET, tenant=name)))
        if n % 7 == 0:
            assert hit(store, kept, BOB) == (4, 0)
            cache_quietly(store, kept, BOB)
    grow(store, running[0], *range(9))
    run(store, *running)
    store.release(running[0])
    assert hit(store, prompt(1, 4)) == (4, 0)
    counts = store.account_counts()
    assert len(counts) == 2002
    pool = store.pool_counts()
    assert sum(c.held for c in counts.values()) == pool.capacity - pool.free


def cache_quietly(store: BlockStore, text: list[int], ns: Namespace) -> None:
    """Compute a prompt and let it go, without an audit."""
    sequence = open_(store, text, ns)
    store.take_copies()
    store.commit(sequence, len(text))
    store.settle()
    store.release(sequence)


def test_ages_hold_when_their_count_wraps() -> None:
    """Across 2**31 lettings-go, the least recently used still goes first, whoever's it is."""
    store = made(8)
    store.pool.accounts[0, 6] = 2**31 - 5
    store.set_quotas({ANN.domain: Quota(weight=1.0), BOB.domain: Quota(weight=1.0)})
    for n in range(4):
        cache(store, prompt(n, 1), ANN)
        cache(store, prompt(n, 1), BOB)
    third = Namespace("eve", domain_of(SECRET, tenant="eve"))
    order = []
    for n in range(8):
        open_(store, prompt(n, 1), third)
        order += [
            (ns.tenant, m)
            for m in range(4)
            for ns in (ANN, BOB)
            if hit(store, prompt(m, 1), ns) == (0, 0) and (ns.tenant, m) not in order
        ]
    assert order == [(name, m) for m in range(4) for name in ("ann", "bob")]


def test_the_operators_account_is_shown_once_it_has_something() -> None:
    """A service without public prefixes shows tenants alone."""
    store = made(8)
    cache(store, prompt(1, 1))
    assert set(store.account_counts()) == {"ann"}
    store.declare_public(tokens(prompt(2, 1)))
    assert set(store.account_counts()) == {"ann", OPERATOR}


def test_what_is_above_a_cap_is_shared_by_the_others() -> None:
    """No share is above its cap; the rest goes to the others by their weights, and they keep it."""
    store = made(40)
    store.set_quotas(
        {
            ANN.domain: Quota(reserve=0.1, cap=0.5, weight=2.0),
            BOB.domain: Quota(weight=0.5),
            GROUP: Quota(weight=0.5),
        }
    )
    for ns in (ANN, BOB, CAT):
        cache(store, prompt(1, 2), ns)
    assert [account(store, ns).share for ns in (ANN, BOB, CAT)] == [20, 10, 10]
    cache(store, prompt(2, 8), BOB)
    for _ in thrash(store, ANN, 20, 3):
        pass
    for _ in thrash(store, CAT, 20, 3):
        pass
    assert account(store, BOB).held == 10
