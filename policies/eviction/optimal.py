"""What eviction could reach at best, with knowledge of the future: a bound, not a policy.

Belady (1966), with the right not to keep what was just used, on chains: of blocks that are used
again at the same time the deeper goes first, so that what is cached stays prefix-closed.
"""

import heapq

import numba
import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

_DEPTH_BITS = 24


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _next_uses(offsets: I64, blocks: I64) -> I64:
    """Return, for each access, the number of the request that uses the block next, or requests."""
    requests = offsets.shape[0] - 1
    upcoming = np.full(blocks.max() + 1 if blocks.size else 0, requests, np.int64)
    following = np.empty(blocks.size, np.int64)
    for r in range(requests - 1, -1, -1):
        for a in range(offsets[r], offsets[r + 1]):
            following[a] = upcoming[blocks[a]]
            upcoming[blocks[a]] = r
    return following


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def optimal_hits(offsets: I64, blocks: I64, capacity: int) -> int:
    """Return how many blocks hit at best, from a cold start.

    offsets: int64 [requests + 1], where each request's chain starts in blocks. blocks: int64, a
    number from 0 for each distinct block, no block twice in a chain, and always below the same
    parent. capacity: in blocks.
    """
    requests = offsets.shape[0] - 1
    following = _next_uses(offsets, blocks)
    due = np.full(blocks.max() + 1 if blocks.size else 0, -1, np.int64)
    # Each entry names a cached block by its next use, the latest and deepest first.
    latest = [np.int64(0) for _ in range(0)]
    cached, hits = 0, 0
    for r in range(requests):
        start, stop = offsets[r], offsets[r + 1]
        for a in range(start, stop):
            if due[blocks[a]] < 0:
                break
            hits += 1
        for a in range(start, stop):
            cached += int(following[a] < requests) - int(due[blocks[a]] >= 0)
            due[blocks[a]] = following[a] if following[a] < requests else -1
            if due[blocks[a]] >= 0:
                # The depth is that of the block in the request that uses it next: the same.
                heapq.heappush(latest, -((following[a] << _DEPTH_BITS) | (a - start)))
        while cached > capacity:
            entry = -heapq.heappop(latest)
            request = entry >> _DEPTH_BITS
            b = blocks[offsets[request] + (entry & ((1 << _DEPTH_BITS) - 1))]
            if due[b] == request:
                due[b] = -1
                cached -= 1
        if len(latest) > 4 * (capacity + stop - start):
            # Entries of uses that have passed lie at the bottom, and would stay for ever.
            latest = [entry for entry in latest if (-entry) >> _DEPTH_BITS > r]
            heapq.heapify(latest)
    return hits


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def number_chains(offsets: I64, ids: I64) -> I64:
    """Return a number from 0 for each access: the same for the same id below the same parent.

    offsets: int64 [requests + 1], where each request's chain starts in ids. ids: int64.
    """
    known = {(np.int64(-1), np.int64(-1)): np.int64(-1)}
    numbers = np.empty(ids.size, np.int64)
    count = np.int64(0)
    for r in range(offsets.shape[0] - 1):
        parent = np.int64(-1)
        for a in range(offsets[r], offsets[r + 1]):
            place = (parent, ids[a])
            if place in known and known[place] >= 0:
                parent = known[place]
            else:
                known[place] = count
                parent = count
                count += 1
            numbers[a] = parent
    return numbers
