"""Replay of a trace through the block store, to see what a policy of eviction would hit.

Each block of the trace becomes a small block of tokens made from its number. A request is admitted,
"computed", and released before the next one comes; what counts as hit is what its admission
adopts. The store's clock shows the trace's times.

A size is what the cache may keep from one request to the next: the pool has as many blocks more as
the longest request needs while it runs, and the store is told to keep those free.
"""

from dataclasses import dataclass

import numpy as np

from stemkv.engine.traces import Trace
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.store import BlockStore
from stemkv.kvstore.values import Admission
from stemkv.policies.eviction.optimal import optimal_hits

_BLOCK_TOKENS = 2
_TENANT = Namespace("trace", b"")


@dataclass(frozen=True, slots=True)
class Result:
    """Hits, in blocks of the trace, that a policy ("optimum": none online) has at a size."""

    policy: str
    size: int
    hits: int
    accesses: int

    @property
    def percent(self) -> float:
        """Hits in 100 accesses."""
        return 100 * self.hits / self.accesses


def simulate(trace: Trace, policy: str, size: int) -> Result:
    """Replay a trace from a cold start; raises ValueError for a size or policy that is none."""
    now = 0.0
    # A prompt's last token is always computed, so that each gets one that is no block of its own.
    room = trace.longest + 1
    config = StoreConfig(
        capacity_blocks=size + room,
        block_size=_BLOCK_TOKENS,
        max_sequences=1,
        max_tokens=_BLOCK_TOKENS * room,
        secret=bytes(32),
        eviction=policy,
        keep_free=room,
        partial_hits=False,
    )
    store = BlockStore(config, NullDirectory(), clock=lambda: now)
    hits = 0
    for r, now in enumerate(trace.seconds.tolist()):  # noqa: B007 - read by the clock
        chain = trace.blocks[trace.offsets[r] : trace.offsets[r + 1]]
        prompt = np.zeros(_BLOCK_TOKENS * len(chain) + 1, np.int32)
        prompt[:-1] = np.repeat(chain, _BLOCK_TOKENS)
        admission = store.admit(_TENANT, prompt)
        assert isinstance(admission, Admission)
        hits += admission.full_tokens // _BLOCK_TOKENS
        store.take_copies()
        store.commit(admission.sequence, len(prompt))
        store.settle()
        store.release(admission.sequence)
    return Result(policy, size, hits, trace.accesses)


def optimum(trace: Trace, size: int) -> Result:
    """Return the offline bound: Belady with the right to decline, the deeper of equals first."""
    return Result("optimum", size, optimal_hits(trace.offsets, trace.blocks, size), trace.accesses)
