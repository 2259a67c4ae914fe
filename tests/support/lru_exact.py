"""LRU by two plain methods: caches that are simulated, and distances of a whole trace."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numba
import numpy as np
import numpy.typing as npt

from stemkv.engine.traces import Trace

NEVER = np.int64(2**62)
"""Distance of a block that was not used before."""


def simulated_hits(chains: Iterable[tuple[Sequence[int], int]], capacity: int) -> int:
    """Count hits of one cache. chains: blocks in order, and how many of them are looked up first.

    Then all are used, the last first, and what was used longest ago goes.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for blocks, looked_up in chains:
        hits += sum(block in cache for block in blocks[:looked_up])
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def distances(trace: Trace) -> npt.NDArray[np.int64]:
    """Return, for each access, how many other blocks were used since its block was, or NEVER.

    An access hits in a cache that holds more blocks than that.
    """
    return _distances(trace.offsets, trace.blocks, trace.distinct)


@numba.njit  # type: ignore[misc]
def _distances(
    offsets: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64], distinct: int
) -> npt.NDArray[np.int64]:
    """Count marks of last uses by a Fenwick tree over all accesses in order."""
    end = len(blocks) + 1
    tree = np.zeros(end, np.int32)
    used = np.zeros(distinct, np.int64)
    found = np.full(len(blocks), NEVER)
    now = live = 0
    for r in range(len(offsets) - 1):
        for i in range(offsets[r], offsets[r + 1]):
            at = used[blocks[i]]
            if at:
                found[i] = live
                while at > 0:
                    found[i] -= tree[at]
                    at -= at & -at
        for i in range(offsets[r + 1] - 1, offsets[r] - 1, -1):
            at = used[blocks[i]]
            live += at == 0
            while 0 < at < end:
                tree[at] -= 1
                at += at & -at
            now += 1
            used[blocks[i]] = at = now
            while at < end:
                tree[at] += 1
                at += at & -at
    return found
