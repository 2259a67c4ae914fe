"""Eviction by score: leaves only, the lowest first, one that comes back is known, and the audit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stores import ANN, Clock, cache, flush_of, hit, make_store, open_, run

from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.eviction import ScoredOrder
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.ops import PUBLISHED, STATE
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.shadows import Shadows
from stemkv.kvstore.store import BlockStore
from stemkv.policies.eviction import EVICTION, EvictionPolicy
from stemkv.policies.eviction.adaptive import Adaptive, adaptive
from stemkv.policies.eviction.lrfu import lrfu
from stemkv.policies.eviction.lru import recency


def store_with(
    policy: EvictionPolicy | str, capacity: int, *, keep_free: int = 0, clock: Clock | None = None
) -> BlockStore:
    """Make a store of blocks of 4 tokens with a policy, by its name or one of the test's."""
    config = StoreConfig(
        capacity_blocks=capacity,
        block_size=4,
        max_sequences=8,
        max_tokens=256,
        secret=b"s",
        eviction=policy if isinstance(policy, str) else "lru",
        keep_free=keep_free,
    )
    own = None if isinstance(policy, str) else policy
    return BlockStore(config, RecordingDirectory(), clock or Clock(), policy=own)


def order_of(store: BlockStore) -> ScoredOrder:
    """Return the order of a store whose policy is a score."""
    assert isinstance(store.order, ScoredOrder)
    return store.order


def prompt(name: int, blocks: int = 1) -> range:
    """Make a prompt of whole blocks that shares nothing with those of other names."""
    return range(1000 * name, 1000 * name + 4 * blocks)


def test_what_was_used_often_outlives_what_was_used_lately() -> None:
    """With a long half-life three uses beat a newer one, where LRU keeps the newer."""
    for policy, survivor in ((lrfu(1000.0), 1), (recency, 2)):
        clock = Clock()
        store = store_with(policy, 2, clock=clock)
        for name in (1, 1, 1, 2):
            clock.now += 1
            cache(store, prompt(name))
        open_(store, [7], write=False)
        assert [hit(store, prompt(name))[0] for name in (1, 2)] == [survivor == 1, survivor == 2]


def test_a_block_that_comes_back_is_known() -> None:
    """Uses before an eviction count: the row is kept, by the block's key."""
    clock = Clock()
    store = store_with(lrfu(1000.0), 2, clock=clock)
    for name in (1, 1, 1):
        clock.now += 1
        cache(store, prompt(name))
    run(store, gone := open_(store, prompt(9, 2)))
    store.release(gone)
    assert hit(store, prompt(1)) == (0, 0)
    cache(store, prompt(1))
    cache(store, prompt(2))
    cache(store, prompt(3))
    assert hit(store, prompt(1)) == (1, 0)


def test_the_deepest_of_equals_goes_first() -> None:
    """Blocks of one chain have one score, and the chain shrinks from its end."""
    store = store_with(lrfu(60.0), 4)
    cache(store, prompt(1, 4))
    for left in (3, 2, 1):
        open_(store, [left], write=False)
        assert hit(store, prompt(1, 4)) == (left, 0)


def test_as_a_score_recency_evicts_as_the_list_does() -> None:
    """The default's list and the same policy as a score keep the same blocks."""
    draws = np.random.default_rng(5)
    clock = Clock()
    stores = [store_with(policy, 12, clock=clock) for policy in ("lru", recency)]
    for _ in range(200):
        clock.now += float(draws.random() < 0.5)
        name, blocks = int(draws.integers(6)), int(draws.integers(1, 5))
        hits = [hit(store, prompt(name, blocks)) for store in stores]
        assert hits[0] == hits[1]
        for store in stores:
            cache(store, prompt(name, blocks))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=40),
    st.integers(0, 2**32),
    st.integers(0, 5),
)
def test_any_score_leaves_prefixes_closed(
    uses: list[tuple[int, int]], seed: int, keep_free: int
) -> None:
    """Whatever numbers a policy gives, what is cached is prefix-closed and the audit is clean."""
    store = store_with(adaptive, 8, keep_free=keep_free)
    order, draws = order_of(store), np.random.default_rng(seed)
    rows = order.history.rows[0]
    loop: Callable[..., None] = lambda _, slots, *__: rows.__setitem__(  # noqa: E731
        (slots, 0), draws.integers(0, 3, len(slots))
    )
    order.history._loops[0] = loop
    for name, blocks in uses:
        cache(store, prompt(name, blocks))
        assert store.pool_counts().free >= keep_free
    assert audit(store) == ()


def test_what_a_scan_wrote_makes_way_for_what_is_worth_more() -> None:
    """With room kept free a scan is not retained, and pushes nothing out."""
    clock = Clock()
    store = store_with(lrfu(1000.0), 6, keep_free=4, clock=clock)
    for _ in range(3):
        clock.now += 1
        cache(store, prompt(1, 2))
    for name in range(2, 9):
        clock.now += 1
        cache(store, prompt(name, 4))
    assert hit(store, prompt(1, 2)) == (2, 0)
    assert hit(store, prompt(8, 4)) == (0, 0)
    assert store.pool_counts().free == 4


def test_blocks_are_kept_free_under_the_default_policy_too() -> None:
    """keep_free holds whenever a sequence has ended; the oldest go."""
    store = store_with("lru", 6, keep_free=3)
    cache(store, prompt(1, 3))
    cache(store, prompt(2, 2))
    assert store.pool_counts().free == 3
    assert [hit(store, prompt(1, 3)), hit(store, prompt(2, 2))] == [(1, 0), (2, 0)]


@pytest.mark.parametrize("keep_free", [-1, 16])
def test_a_pool_that_may_keep_nothing_is_refused(keep_free: int) -> None:
    """keep_free must leave a block to be cached."""
    with pytest.raises(ValueError, match="keep_free"):
        replace(make_store(16).config, keep_free=keep_free)


def test_a_flush_leaves_new_leaves_that_can_be_evicted() -> None:
    """After a branch was cut, the block that it hung on is a candidate."""
    store = store_with(lrfu(60.0), 4)
    cache(store, prompt(1, 4))
    store.flush(flush_of(FlushKind.PREFIX, ANN, prompt(1, 4)[:12]))
    assert audit(store) == ()
    assert hit(store, prompt(1, 4)) == (2, 0)
    open_(store, prompt(2, 4), write=False)
    assert hit(store, prompt(1, 4)) == (0, 0)


def test_a_flush_of_tails_alone_leaves_new_leaves_too() -> None:
    """After the tails below a block were cut, the block is a candidate, though no key has gone."""
    store = store_with(lrfu(60.0), 4)
    cache(store, [*prompt(1), 7, 8])
    report = store.flush(flush_of(FlushKind.PREFIX, ANN, [*prompt(1), 7]))
    assert report.blocks == 1
    assert audit(store) == ()
    assert hit(store, [*prompt(1), 7, 8]) == (1, 0)
    open_(store, prompt(2, 4), write=False)
    assert hit(store, prompt(1)) == (0, 0)


def test_adaptive_follows_what_hits() -> None:
    """Where a scan flushes LRU between uses, another candidate leads and keeps what comes back."""
    clock = Clock()
    store = store_with("adaptive", 40, keep_free=8, clock=clock)
    hits = []
    for i in range(3000):
        clock.now += 1.0
        name = i // 3 % 16 if i % 3 == 0 else 1000 + i
        if i % 3 == 0:
            hits.append(hit(store, prompt(name))[0])
        _serve(store, name)
    assert order_of(store).followed != 0
    assert sum(hits[:32]) == 0
    assert np.mean(hits[-320:]) > 0.9
    assert audit(store) == ()


def _serve(store: BlockStore, name: int) -> None:
    """Do as `cache`, without the audits."""
    sequence = open_(store, prompt(name))
    store.take_copies()
    store.commit(sequence, 4)
    store.settle()
    store.release(sequence)


def test_shadows_measure_what_a_whole_cache_would_hit() -> None:
    """A sample of one block in eight tells hit shares to within three points."""
    draws = np.random.default_rng(3)
    policies = {"lru": recency, "lrfu": lrfu(500.0)}
    sample, whole = (Shadows(policies, 2048, n, 600.0) for n in (256, 2048))
    keys = draws.integers(0, 2**64, (20_000, 2), np.uint64, endpoint=False)
    for tick in range(60_000):
        block = int(draws.zipf(1.1)) % 20_000
        for shadows in (sample, whole):
            shadows.use(keys[block : block + 1], 1, float(tick), tick)
    assert whole.lookups == 60_000
    assert 0.08 < sample.lookups / whole.lookups < 0.18
    for name, share in whole.hit_shares().items():
        assert 0.2 < share < 0.95
        assert sample.hit_shares()[name] == pytest.approx(share, abs=0.12)
    assert whole.hit_shares()["lrfu"] != whole.hit_shares()["lru"]


def test_generated_blocks_are_used_but_not_looked_up() -> None:
    """Only a prompt's blocks count as lookups, so that shares speak of prompts."""
    shadows = Shadows({"lru": recency}, 8, 8, 60.0)
    keys = np.arange(10, dtype=np.uint64).reshape(5, 2)
    shadows.use(keys, 3, 0.0, 0)
    shadows.use(keys, 3, 1.0, 1)
    assert (shadows.lookups, shadows.hits) == (6, [3])


@pytest.mark.parametrize("name", list(EVICTION))
def test_every_policy_in_the_registry_runs(name: str) -> None:
    """A registered policy serves a store that is full, and the audit stays clean."""
    store = store_with(name, 8)
    for i in range(30):
        cache(store, prompt(i % 5, 1 + i % 3))
    assert store.pool_counts().evicted > 0


def test_the_audit_sees_a_broken_order() -> None:
    """A leaf that is no candidate, and a score that is not the row's, are both found."""
    store = store_with(Adaptive({"lrfu": lrfu(60.0)}), 8)
    cache(store, prompt(1, 2))
    cache(store, prompt(2, 2))
    leaves = order_of(store)._leaves
    account = int(leaves.top.argmax())
    leaf = int(leaves.top[account])
    kept = float(leaves.score[leaf])
    leaves.score[leaf] = kept - 1.0
    assert any("a score that is not its own" in str(v) for v in audit(store))
    leaves.score[leaf] = kept
    assert audit(store) == ()
    leaves.top[account] = -1
    assert any("order of eviction" in str(v) for v in audit(store))


def test_a_leaf_that_a_copy_read_is_a_candidate_afterwards() -> None:
    """A block whose sequence ends while a copy still pins it can be evicted once it does not."""
    store = store_with(lrfu(60.0), 4)
    first = open_(store, prompt(1))
    run(store, first)
    second = open_(store, [*prompt(1)[:3], 77])
    store.release(first)
    store.take_copies()
    store.commit(second, 4)
    store.settle()
    assert audit(store) == ()
    store.release(second)
    open_(store, prompt(2, 4), write=False)
    assert hit(store, prompt(1)) == (0, 0)


@pytest.mark.parametrize("policy", ["lru", lrfu(60.0), "adaptive"])
def test_a_store_can_count_what_other_policies_would_hit(policy: EvictionPolicy | str) -> None:
    """Under any policy the shares of all candidates are told, LRU's as a store with LRU has it."""
    clock = Clock()
    stores = []
    for compare in (True, False):
        config = replace(store_with("lru", 8).config, compare_policies=compare)
        if isinstance(policy, str):
            config = replace(config, eviction=policy)
        own = None if isinstance(policy, str) else policy
        stores.append(BlockStore(config, RecordingDirectory(), clock, policy=own))
    plain = store_with("lru", 8, clock=clock)
    draws, hits = np.random.default_rng(2), 0
    for _ in range(300):
        clock.now += 1.0
        name = int(draws.zipf(1.5)) % 30
        hits += hit(plain, prompt(name))[0]
        for store in (*stores, plain):
            _serve(store, name)
    shares = stores[0].policy_hit_shares()
    assert list(shares) == list(adaptive.candidates)
    assert shares["lru"] == pytest.approx(hits / 300)
    assert 0 < shares["lrfu-60"] < 1
    assert stores[1].policy_hit_shares() == (shares if policy == "adaptive" else {})
    tables = [sorted(store.pool.keys_of(_published(store)).tolist()) for store in stores]
    assert tables[0] == tables[1]


def _published(store: BlockStore) -> np.ndarray:
    """Return the published blocks."""
    return np.flatnonzero(store.pool.meta[:8, STATE] == PUBLISHED).astype(np.int32)
