"""A flush by nonce takes no longer for what is cached; its memory comes back when it is needed."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.stores import ANN, BOB, SECRET, Clock, cache, directory_of, flush_of, hit, open_, run
from support.stores import make_store as make_small_store

from stemkv.kvstore import ops
from stemkv.kvstore.allocation import _SWEPT_ROWS
from stemkv.kvstore.audit import audit
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.properties.eviction_model import POLICIES
from stemkv.kvstore.properties.recording_directory import RecordingDirectory
from stemkv.kvstore.quotas import Quota
from stemkv.kvstore.store import BlockStore

SIZE = 4
BY_NONCE = [kind for kind in FlushKind if kind is not FlushKind.PREFIX]


def make_store(capacity: int, policy: str | None = None) -> BlockStore:
    """Make a store of any size."""
    config = StoreConfig(
        capacity_blocks=capacity,
        block_size=SIZE,
        max_sequences=4,
        max_tokens=1 << 12,
        secret=SECRET,
    )
    chosen = None if policy is None else POLICIES[policy]
    return BlockStore(config, RecordingDirectory(), Clock(), policy=chosen)


def fill(store: BlockStore, blocks: int, ns: Namespace = ANN) -> None:
    """Cache so many blocks, in prompts of up to 1,000."""
    for start in range(0, blocks, 1000):
        text = np.arange(start, start + min(1000, blocks - start)).repeat(SIZE)
        sequence = open_(store, text.tolist(), ns)
        store.take_copies()
        store.commit(sequence, len(text))
        store.settle()
        store.release(sequence)


def conserved(store: BlockStore) -> bool:
    """Whether the blocks by state add up to the pool (rule 10)."""
    c = store.pool_counts()
    return c.free + c.in_use + c.cached + c.stale + c.quarantined == c.capacity


def calls_of(action: Callable[[], object]) -> int:
    """Count the lines of Python that an action runs."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("kind", BY_NONCE)
def test_a_flush_touches_no_row_of_what_is_cached(kind: FlushKind) -> None:
    """It changes as little, and runs as many lines, with 100,000 blocks cached as with 100."""
    lines = []
    for blocks in (100, 100_000):
        store = make_store(blocks + 1)
        fill(store, blocks)
        before = store.pool.meta.copy(), store.pool.table.copy(), store.pool.keys.copy()
        flush = flush_of(kind)
        lines.append(calls_of(lambda store=store, flush=flush: store.flush(flush)))
        assert store.pool_counts().stale == blocks
        assert np.array_equal(store.pool.meta, before[0])
        assert np.array_equal(store.pool.table, before[1])
        assert np.array_equal(store.pool.keys, before[2])
    assert lines[0] == lines[1]


@pytest.mark.parametrize("policy", [None, *POLICIES])
def test_stale_blocks_are_taken_before_anything_live_is_evicted(policy: str | None) -> None:
    """As long as a flush has left any, nobody loses a block that could be hit."""
    store = make_store(16, policy)
    cache(store, range(32), BOB)
    cache(store, range(30), ANN)
    store.flush(flush_of(FlushKind.TENANT, ANN))
    assert store.pool_counts().stale == 8
    cache(store, range(100, 128), ANN)
    assert store.pool_counts().evicted == 0
    assert hit(store, range(32), BOB) == (8, 0)
    cache(store, range(200, 208), ANN)
    assert store.pool_counts().evicted == 1


@pytest.mark.parametrize("kind", BY_NONCE)
def test_blocks_by_state_add_up_at_each_moment(kind: FlushKind) -> None:
    """Cached, pinned, tails and in use: before, after, and while it is swept."""
    store = make_small_store(24)
    store.set_quotas({ANN.domain: Quota(pins=1.0)})
    cache(store, range(18))
    cache(store, range(100, 112))
    store.pin(ANN, np.arange(100, 112, dtype=np.int32), PinTerms(1000.0))
    running = open_(store, [*range(18), 50, 51, 52])
    run(store, running)
    cache(store, range(8), BOB)
    report = store.flush(flush_of(kind, ANN))
    of_bob = 2 if kind in (FlushKind.ALL, FlushKind.ADAPTER) else 0
    assert report.blocks - report.in_use == store.pool_counts().stale
    assert report.in_use == 5
    assert report.blocks_by_tenant.get("bob", 0) == of_bob
    assert conserved(store)
    assert audit(store) == ()
    store.release(running)
    assert conserved(store)
    store.reclaim()
    assert conserved(store)
    assert store.pool_counts().stale == 0
    assert store.pool_counts().free == 24 - 2 * (not of_bob)
    assert audit(store) == ()


def test_a_sweep_goes_in_small_steps() -> None:
    """Each looks at a bounded number of rows, and goes on where the last one stopped."""
    blocks = 3 * _SWEPT_ROWS
    store = make_store(blocks)
    fill(store, blocks)
    store.flush(flush_of(FlushKind.TENANT))
    stale = [store.pool_counts().stale]
    while stale[-1]:
        store.reclaim()
        stale.append(store.pool_counts().stale)
        assert conserved(store)
    assert stale == [blocks, 2 * _SWEPT_ROWS, _SWEPT_ROWS, 0]
    assert store.pool_counts().free == blocks
    assert not store.roots.dead
    assert directory_of(store).held == set()


def test_each_step_and_each_release_sweeps_a_little() -> None:
    """A service that runs gets its memory back without asking for it."""
    blocks = 2 * _SWEPT_ROWS
    store = make_store(blocks + 8)
    fill(store, blocks)
    store.flush(flush_of(FlushKind.TENANT, ANN))
    sequence = open_(store, range(8), BOB)
    store.take_copies()
    store.commit(sequence, 8)
    store.settle()
    assert store.pool_counts().stale <= _SWEPT_ROWS
    store.release(sequence)
    store.reclaim()
    assert store.pool_counts().stale == 0


def test_flushes_on_flushes() -> None:
    """What several generations have left is swept together, and hit by none."""
    store = make_small_store(16)
    for n in range(30):
        cache(store, range(4 * (1 + n % 5)))
        store.flush(flush_of(BY_NONCE[n % 4], ANN, nonce=n.to_bytes(16, "big")))
        assert hit(store, range(20)) == (0, 0)
        assert conserved(store)
    assert store.pool_counts().evicted == 0
    store.reclaim()
    assert store.pool_counts().free == 16
    assert len(store.roots) + len(store.roots.dead) <= 1
    assert np.count_nonzero(store.pool.roots[:, ops.CHARGED]) == 0
    assert directory_of(store).held == set()
