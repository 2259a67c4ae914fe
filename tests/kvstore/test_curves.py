"""Miss-ratio curves: exact where all is followed, within the stated error where it is sampled."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lru_exact import distances, simulated_hits
from support.stores import grow, open_, run, tokens

from stemkv.engine.traces import Trace, read_trace
from stemkv.kvstore import curve_ops
from stemkv.kvstore import curves as curves_module
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.curves import FACTORS, MissRatioCurves
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.views import MissRatioPoint

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces"
CONVERSATION, SYNTHETIC = "mooncake_conversation.jsonl.gz", "mooncake_synthetic.jsonl.gz"

U64 = npt.NDArray[np.uint64]
Chain = tuple[Sequence[int], int]
LEAST_COVERED = 0.91
"""Over hundreds of samples 94 to 97 % are; of the few tens here, whose points of one curve are
alike, three samples more may be off by chance."""
Judged = list[tuple[float, float]]
"""How far the estimate was off, and the error that was stated."""


def mixed(x: U64) -> U64:
    """Hash 64 bits to 64 bits (the finalizer of MurmurHash3)."""
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ (x >> np.uint64(33))) * np.uint64(multiplier)
    return x ^ (x >> np.uint64(33))


def keys_of(blocks: Sequence[int] | npt.NDArray[np.int64], salt: int = 0) -> U64:
    """Return keys uint64 [blocks, 2]; other salts put other blocks into the sample."""
    numbers = np.asarray(blocks, np.uint64)
    return np.stack([numbers, mixed(mixed(numbers) + np.uint64(salt + 1))], axis=1)


def shared(name: str) -> Trace:
    """Read a published trace, if it is there."""
    if not (TRACES / name).is_file():
        pytest.skip(f"{name} is not beside the repository, in shared/traces")
    return read_trace(TRACES / name)


def curve_of(trace: Trace, pool: int, salt: int) -> tuple[MissRatioPoint, ...]:
    """Replay a trace as one account's."""
    curves = MissRatioCurves(pool)
    keys = keys_of(trace.blocks, salt)
    for start, end in pairwise(trace.offsets.tolist()):
        curves.use(0, keys[start:end], end - start)
    return curves.report()[0]


def judge(trace: Trace, pools: Sequence[int], samples: int) -> Judged:
    """Compare the curves of a trace with its exact ones, by so many other samples for each pool."""
    exact = distances(trace)
    judged = []
    for pool in pools:
        truth = [float((exact < int(factor * pool)).mean()) for factor in FACTORS]
        for number in range(samples):
            for point, share in zip(curve_of(trace, pool, pool + number), truth, strict=True):
                assert point.error is not None
                judged.append((abs(point.hit_share - share), point.error))
    return judged


def covered(judged: Judged) -> float:
    """Return the share of cases that are within their error."""
    return float(np.mean([off <= error for off, error in judged]))


def random_chains(count: int, distinct: int, seed: int) -> list[Chain]:
    """Draw chains that share prefixes; of some, only a part is looked up."""
    draw = np.random.default_rng(seed)
    chains: list[Chain] = []
    for _ in range(count):
        length = int(draw.integers(1, 20))
        first = int(distinct * draw.random() ** 3) // 20 * 20
        chains.append((list(range(first, first + length)), int(draw.integers(0, length + 1))))
    return chains


def use_all(curves: MissRatioCurves, account: int, chains: Sequence[Chain]) -> None:
    """Have an account use chains."""
    for blocks, looked_up in chains:
        curves.use(account, keys_of(blocks), looked_up)


def exact_shares(chains: Sequence[Chain], pool: int) -> list[float]:
    """Simulate each of the sizes by itself."""
    lookups = max(1, sum(looked_up for _, looked_up in chains))
    return [simulated_hits(chains, int(factor * pool)) / lookups for factor in FACTORS]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.text("01", min_size=1, max_size=5), st.integers(0, 5)), max_size=30),
    st.integers(1, 6),
)
def test_a_small_pool_has_exact_curves(words: list[tuple[str, int]], pool: int) -> None:
    """Where all blocks are followed, each size hits as a simulated cache does, with error 0."""
    chains = [
        ([int("1" + word[: i + 1], 2) for i in range(len(word))], min(asked, len(word)))
        for word, asked in words
    ]
    curves = MissRatioCurves(pool)
    use_all(curves, 3, chains)
    points = curves.report().get(3, ())
    assert [p.hit_share for p in points] == pytest.approx(
        exact_shares(chains, pool) if chains else []
    )
    asked = any(looked_up for _, looked_up in chains)
    assert all(p.error == (0 if asked else None) for p in points)


def test_curves_stay_exact_while_the_sample_grows_and_its_oldest_leave() -> None:
    """More blocks than there is room for: those that go are beyond every size."""
    chains = random_chains(3000, 6000, seed=1)
    curves = MissRatioCurves(200, sample_blocks=1024)
    use_all(curves, 0, chains)
    assert len({block for blocks, _ in chains for block in blocks}) > 2048
    points = curves.report()[0]
    assert [p.hit_share for p in points] == pytest.approx(exact_shares(chains, 200))
    assert [p.error for p in points] == [0, 0, 0, 0]


def test_a_sample_follows_small_caches_of_its_blocks() -> None:
    """The misses of sampled blocks in caches that are smaller by the rate, scaled up by it."""
    chains = random_chains(6000, 30_000, seed=2)
    pool = 1024  # 4 x 1,024 blocks against the 1,024 / 1.25 that are followed: a rate of a fifth
    limit = int(2**64 * 0.2) - 1
    sampled: list[Chain] = []
    for blocks, looked_up in chains:
        kept = (keys_of(blocks)[:, 1] <= np.uint64(limit)).tolist()
        chosen = [block for block, is_in in zip(blocks, kept, strict=True) if is_in]
        sampled.append((chosen, sum(kept[:looked_up])))
    asked = sum(looked_up for _, looked_up in chains)
    asked_of_sample = sum(looked_up for _, looked_up in sampled)
    curves = MissRatioCurves(pool, sample_blocks=1024)
    use_all(curves, 0, chains)
    for point in curves.report()[0]:
        misses = asked_of_sample - simulated_hits(sampled, round(0.2 * int(point.factor * pool)))
        assert point.hit_share == pytest.approx(1 - misses / 0.2 / asked)


def test_exact_distances_give_the_published_hit_counts() -> None:
    """What the curves are compared with gives the figures of the traces' own page."""
    for name, capacity, hits in ((CONVERSATION, 9139, 56_479), (SYNTHETIC, 8784, 47_907)):
        assert (distances(shared(name)) < capacity).sum() == hits


@pytest.mark.parametrize(
    ("name", "pools"),
    [(CONVERSATION, (2000, 9139, 36_558, 100_000)), (SYNTHETIC, (1500, 8784, 30_000))],
)
def test_chats_are_within_the_error(name: str, pools: Sequence[int]) -> None:
    """On real chats, points are as near to the exact curve as they say."""
    judged = judge(shared(name), pools, samples=20)
    assert covered(judged) >= LEAST_COVERED
    assert np.mean([error for _, error in judged]) < 0.025


@pytest.mark.slow
def test_agents_are_within_the_error() -> None:
    """The same on long sessions of coding agents, where small changes of size matter most."""
    judged = judge(shared("agentic.npz"), (1778, 3557, 7114, 17_785), samples=4)
    assert covered(judged) >= LEAST_COVERED
    assert np.mean([error for _, error in judged]) < 0.015


def zipf_trace(seed: int) -> Trace:
    """Draw 20,000 requests: one of 3,000 prompts by Zipf's law, then blocks of its own.

    All start with the same 8 blocks; prompts have 20 blocks in common with none else.
    """
    draw = np.random.default_rng(seed)
    weights = 1 / np.arange(1, 3001) ** 0.9
    prompts = draw.choice(3000, 20_000, p=weights / weights.sum())
    chains = [
        np.r_[0:8, 8 + 20 * p : 28 + 20 * p, 70_000 + 4 * r : 70_004 + 4 * r]
        for r, p in enumerate(prompts)
    ]
    offsets = np.concatenate([[0], np.cumsum([len(chain) for chain in chains])])
    return Trace(offsets, np.concatenate(chains), np.arange(20_000.0))


def test_zipf_is_within_the_error_while_the_rate_falls() -> None:
    """Prompts by Zipf's law below one that all share; 140,000 blocks, so that rates are halved."""
    judged = judge(zipf_trace(5), (3000, 20_000, 100_000), samples=15)
    assert covered(judged) >= LEAST_COVERED
    assert np.mean([error for _, error in judged]) < 0.04


def new_chains(count: int, length: int, seed: int) -> Iterator[U64]:
    """Draw keys of chains that are all different."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        yield draw.integers(0, 2**64, (length, 2), np.uint64)


@pytest.mark.parametrize("pool", [100, 1000, 50_000])
def test_an_account_keeps_to_its_bytes(pool: int) -> None:
    """An endless stream of new blocks never takes more than is stated, at any rate.

    The rate does not fall below the one with which four pools fit into the sample.
    """
    curves = MissRatioCurves(pool)
    most = 0
    for keys in new_chains(3000, 500, seed=3):
        curves.use(0, keys, 500)
        most = max(most, curves.bytes)
    assert most == curves.bytes <= 220_000
    assert [p.hit_share for p in curves.report()[0]] == pytest.approx([0, 0, 0, 0], abs=0.06)
    assert curves._accounts[0].rate == pytest.approx(min(1, 5120 / 1.25 / (4 * pool)))


def test_thousands_of_accounts_keep_to_the_bytes_of_all() -> None:
    """When the bound is reached, those unused for longest go; one that goes on is not cut short."""
    curves = MissRatioCurves(1000, max_bytes=4 << 20)
    always = keys_of(range(64))
    for account, keys in enumerate(new_chains(3000, 64, seed=4), start=1):
        curves.use(0, always, 64)
        curves.use(account, keys, 64)
        assert curves.bytes <= 4 << 20
    kept = sorted(curves.report())
    assert len(kept) > 500
    assert kept == [0, *range(3002 - len(kept), 3001)]
    assert curves.report()[0][0].hit_share == pytest.approx(1 - 1 / 3000)


def test_the_account_in_use_is_kept_whatever_it_takes() -> None:
    """A bound that is below what one account needs leaves that one, and no other."""
    curves = MissRatioCurves(1000, max_bytes=1)
    for account in (1, 2):
        curves.use(account, keys_of(range(4)), 4)
        assert list(curves.report()) == [account]
    assert curves.bytes == curves._accounts[2].bytes


def test_the_error_is_a_t_interval_of_the_groups_and_their_bias() -> None:
    """As stated: 97.5 % of t, 15 degrees of freedom, less for what is sampled; plus the bias."""
    of = curves_module._Account(0.25, np.ones((2, 4), np.int32))
    of.looked_up = 1000
    of.stacks.taken[0] = curve_ops.STACKS + curves_module._ENOUGH
    of.stacks.misses[0] = 620
    of.stacks.misses[1:] = np.arange(30, 46)[:, None]
    groups = [16 * n / 1000 for n in range(30, 46)]
    expected = 2.131 * stdev(groups) / 4 * 0.75**0.5 + abs(mean(groups) - 0.62)
    for point in curves_module._points(of):
        assert point.hit_share == pytest.approx(0.38)
        assert point.error == pytest.approx(expected, rel=1e-3)
    of.stacks.taken[0] -= 1
    assert [point.error for point in curves_module._points(of)] == [None] * 4


def test_a_store_counts_prompts_own_blocks() -> None:
    """A store asked for curves counts each prompt's full blocks once, what is generated never."""
    config = StoreConfig(
        capacity_blocks=8, block_size=4, max_sequences=2, max_tokens=64, secret=b"s", curves=True
    )
    store = BlockStore(config, NullDirectory(), lambda: 0.0)
    assert store.miss_ratio_curves() == {}
    for _ in range(4):
        sequence = open_(store, range(10))
        grow(store, sequence, *range(10, 16))
        run(store, sequence)
        store.release(sequence)
    assert store.curves is not None
    assert store.curves._accounts[store.accounts.names.index("ann")].looked_up == 4 * 2
    shares = [point.hit_share for point in store.miss_ratio_curves()["ann"]]
    assert [point.factor for point in store.miss_ratio_curves()["ann"]] == list(FACTORS)
    # Of the 4 blocks of a chain, all but the first round's 2 lookups hit from 2 blocks on.
    assert shares == pytest.approx([0.75] * 4)
    assert BlockStore(replace(config, curves=False), NullDirectory(), float).curves is None


def test_curves_leave_out_what_is_public() -> None:
    """A tenant's curve is of its own blocks; below a public prefix, of those after it."""
    config = StoreConfig(
        capacity_blocks=8, block_size=4, max_sequences=2, max_tokens=64, secret=b"s", curves=True
    )
    store = BlockStore(config, NullDirectory(), lambda: 0.0)
    store.declare_public(tokens(range(4)))
    for _ in range(2):
        sequence = open_(store, range(12))
        grow(store, sequence, *range(12, 20))
        run(store, sequence)
        store.release(sequence)
    assert store.curves is not None
    assert store.curves._accounts[store.accounts.names.index("ann")].looked_up == 2 * 2


def test_a_small_account_is_seen_with_more_precision() -> None:
    """Below a pool of a million blocks, 4,000 blocks of an account are enough for an error."""
    curves = MissRatioCurves(1_000_000)
    for keys in new_chains(10, 400, seed=7):
        curves.use(0, keys, 400)
    assert all(p.error is not None for p in curves.report()[0])


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 40), max_size=80),
    st.integers(1, 12),
    st.lists(st.integers(0, 9), min_size=4, max_size=4, unique=True).map(sorted),
    st.lists(st.integers(1, 5), min_size=4, max_size=4, unique=True).map(sorted),
)
def test_zones_are_depths(blocks: list[int], room: int, whole: list[int], group: list[int]) -> None:
    """On each stack, a block's zone is the first size that is deeper than it is, at any eviction.

    Half of the blocks are of one group, so that what leaves may be marked there.
    """
    stacks = curve_ops.make_stacks(room, np.array([whole, group], np.int32))
    order: list[int] = []
    for block in blocks:
        key = block if block % 2 else 1000 * 16 + 16 * block
        order = [key, *(other for other in order if other != key)][:room]
        assert curve_ops.touch(stacks, np.uint64(key), may_evict=True)
    seen: dict[int, int] = {}
    for depth, key in enumerate(order):
        row = curve_ops.find(stacks, np.uint64(key))
        depth_in_group = seen.get(key % 16, 0)
        seen[key % 16] = depth_in_group + 1
        places = ((depth, whole), (depth_in_group, group))
        zones = [sum(size <= place for size in sizes) for place, sizes in places]
        assert stacks.rows[row, [curve_ops.ZONE, curve_ops.ZONE + 1]].tolist() == zones
    assert stacks.marks[0, curve_ops.LENGTH] == len(order)


def test_accounts_do_not_matter_to_each_other() -> None:
    """Interleaved, with equal blocks in part, each account's curve is what it is alone."""
    of = {account: random_chains(800, 3000, seed=account) for account in (1, 2)}
    together = MissRatioCurves(1500)
    for one, other in zip(of[1], of[2], strict=True):
        use_all(together, 1, [one])
        use_all(together, 2, [other])
    for account, chains in of.items():
        alone = MissRatioCurves(1500)
        use_all(alone, account, chains)
        assert alone.report()[account] == together.report()[account]


def test_little_seen_has_no_error() -> None:
    """A few blocks of a large pool say nothing of an error; nothing looked up, nothing at all."""
    curves = MissRatioCurves(100_000)
    for keys in new_chains(10, 100, seed=6):
        curves.use(0, keys, 100)
        curves.use(1, keys, 0)
    assert all(p.error is None for p in curves.report()[0])
    assert curves.report()[1] == tuple(MissRatioPoint(f, 0.0, None) for f in FACTORS)


@pytest.mark.slow
def test_loops_as_plain_python_do_the_same() -> None:
    """NUMBA_DISABLE_JIT=1 passes the comparison with simulated caches."""
    here = Path(__file__).relative_to(ROOT)
    names = "small_pool or zones_are_depths or matter_to_each_other"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", names, str(here)],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "3 passed" in ran.stdout
