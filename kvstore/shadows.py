"""`Shadows`: what each of several scores would hit, by small caches over a sample of the blocks.

A block is in the sample if the hash in its key says so, so that all of its uses are, and a cache
of a share r of the pool's size over a share r of the blocks hits like the pool would (SHARDS,
Waldspurger et al., FAST 2015). A block counts as hit when it is there: the pool keeps prefixes
closed, so that what precedes it would be there too.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from stemkv.kvstore import scoring
from stemkv.kvstore.history import History
from stemkv.kvstore.ops import U64
from stemkv.policies.eviction.protocol import Scored

_REMEMBERED = 8
"""Blocks that the history holds for each that a shadow cache holds."""


class Shadows:
    """One cache a candidate; all see the same uses. Blocks outside the sample cost a comparison.

    lookups, hits: counted since the start. recent_lookups, recent_hits: those of a time ago count
    half after memory_seconds.
    """

    def __init__(
        self,
        candidates: Mapping[str, Scored],
        pool_blocks: int,
        sample_blocks: int,
        memory_seconds: float,
    ) -> None:
        self.names = tuple(candidates)
        self.capacity = min(pool_blocks, sample_blocks)
        self._limit = np.uint64((2**64 * self.capacity // pool_blocks) - 1)
        slots = _REMEMBERED * self.capacity
        self._history = History(list(candidates.values()), slots)
        self._caches = [scoring.make_heap(slots) for _ in candidates]
        self._places = np.empty(self.capacity, np.int32)
        self._memory_seconds = memory_seconds
        self._last = 0.0
        self.lookups = 0
        self.hits = [0 for _ in candidates]
        self.recent_lookups = 0.0
        self.recent_hits = [0.0 for _ in candidates]

    @property
    def bytes(self) -> int:
        """Bytes of memory."""
        return self._history.bytes + sum(a.nbytes for heap in self._caches for a in heap)

    def use(self, keys: U64, looked_up: int, now: float, tick: int) -> bool:
        """Note that a chain of blocks is used; the first `looked_up` of them were looked for.

        Returns whether any was in the sample. tick: number of the use.
        """
        places = self._places[: scoring.sample(keys, self._limit, self._places)]
        if not len(places):
            return False
        self._fade(now)
        asked = int(np.searchsorted(places, looked_up))
        slots, events = self._history.use(keys[places], now)
        ties = depth_first(tick, places)
        self.lookups += asked
        self.recent_lookups += asked
        for k, cache in enumerate(self._caches):
            scoring.drop_strangers(cache, slots, events)
            hits = scoring.count_hits(cache, slots, asked)
            self.hits[k] += hits
            self.recent_hits[k] += hits
            scoring.rank(cache, slots, self._history.rows[k], slots, ties)
            scoring.insert(cache, slots, self.capacity)
        self._history.let_go(slots)
        return True

    def hit_shares(self) -> dict[str, float]:
        """Return, for each candidate, the share of looked-up blocks that it would have hit."""
        total = max(1, self.lookups)
        return {name: n / total for name, n in zip(self.names, self.hits, strict=True)}

    def _fade(self, now: float) -> None:
        factor = 2.0 ** ((self._last - now) / self._memory_seconds) if self.lookups else 1.0
        self._last = now
        self.recent_lookups *= factor
        self.recent_hits = [n * factor for n in self.recent_hits]


def depth_first(tick: int, places: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return what breaks ties: earlier uses go first, and of one use the deeper places."""
    return (np.int64(tick) << 30) - np.asarray(places, np.int64)
