"""The order in which unreferenced blocks give way: along the pool's own lists, or by a score.

Tails go first under any policy. Among published blocks only leaves are candidates, so that what
stays is prefix-closed (rule 8) whatever a score says.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from stemkv.kvstore import ops, scoring
from stemkv.kvstore.history import History
from stemkv.kvstore.ops import I32, NONE, PIN, REF, STATE
from stemkv.kvstore.pool import Pool
from stemkv.kvstore.shadows import Shadows, depth_first
from stemkv.policies.eviction import EvictionPolicy
from stemkv.policies.eviction.adaptive import Adaptive, adaptive
from stemkv.policies.eviction.lru import lru
from stemkv.policies.eviction.protocol import ListPolicy, Scored

_REMEMBERED = 4
"""Evicted blocks whose rows are kept, for each block of the pool."""

_REMEMBERED_AT_LEAST = 1024


class Order(Protocol):
    """Who goes next. Told of every use, and of whatever leaves the index."""

    by_list: bool
    """Whether it is that of the pool's lists."""

    watches: bool
    """Whether it is to be told of uses; `use` and `let_go` may be left out if not."""

    shadows: Shadows | None
    """What other policies would hit, if that is counted."""

    def use(self, blocks: I32, looked_up: int) -> None:
        """Note that a sequence is done with its chain, which it still holds.

        looked_up: how many of the blocks were its prompt's.
        """
        ...

    def let_go(self, blocks: I32) -> None:
        """Note that the sequence holds it no more."""
        ...

    def forget(self, blocks: I32, *, flushed: bool) -> None:
        """Note that published blocks leave the index: as the last victims named, or flushed."""
        ...

    def victims(self, wanted: int) -> I32:
        """Name unreferenced blocks, which go at once; there must be as many."""
        ...

    def violations(self) -> Iterator[str]:
        """Check the order's own structure, and say in words what is wrong."""
        ...


def make_order(
    policy: EvictionPolicy, pool: Pool, kept: int, clock: Callable[[], float], compare: bool
) -> Order:
    """Return the order that a policy asks for.

    kept: blocks that may be cached. compare: count what the candidates of `adaptive` would hit.
    """
    counted = policy if isinstance(policy, Adaptive) else adaptive
    shadows = None
    if compare or isinstance(policy, Adaptive):
        shadows = Shadows(counted.candidates, kept, counted.sample_blocks, counted.memory_seconds)
    if isinstance(policy, Scored):
        return ScoredOrder(Adaptive({"": policy}), pool, shadows, clock)
    if isinstance(policy, Adaptive):
        return ScoredOrder(policy, pool, shadows, clock)
    return ListOrder(pool, policy, shadows, clock)


class ListOrder:
    """The pool's own lists: blocks are linked as they are let go, and uses only counted."""

    by_list = True

    def __init__(
        self, pool: Pool, policy: ListPolicy, shadows: Shadows | None, clock: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._policy = policy
        self.shadows = shadows
        self.watches = shadows is not None
        self._clock = clock
        self._now = -np.inf
        self._uses = 0

    def use(self, blocks: I32, looked_up: int) -> None:
        """Count what other policies would have hit of a chain."""
        blocks = blocks[: scoring.leading_published(self._pool.meta, blocks)]
        if self.shadows is not None and len(blocks):
            self._uses += 1
            self._now = max(self._now, self._clock())
            self.shadows.use(self._pool.keys[blocks], looked_up, self._now, self._uses)

    def let_go(self, blocks: I32) -> None:
        """Do nothing."""

    def forget(self, blocks: I32, *, flushed: bool) -> None:
        """Do nothing."""

    def victims(self, wanted: int) -> I32:
        """Name them along the lists."""
        meta, n = self._pool.meta, self._pool.capacity
        tails, cached = n + ops.TAIL_LIST, n + ops.CACHED_LIST
        return np.asarray(self._policy(meta[:, ops.NEXT], tails, cached, wanted))

    def violations(self) -> Iterator[str]:
        """Find nothing: the lists are the pool's."""
        return iter(())


class ScoredOrder:
    """Leaves by score. With several candidates, shadow caches say which of them to follow."""

    by_list = False
    watches = True

    def __init__(
        self, policy: Adaptive, pool: Pool, shadows: Shadows | None, clock: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._pool = pool
        self._clock = clock
        candidates = policy.candidates
        self.followed = 0
        self.now = -np.inf
        self.tick = 0
        remembered = max(_REMEMBERED * pool.capacity, _REMEMBERED_AT_LEAST)
        self.history = History(list(candidates.values()), pool.capacity + remembered)
        self.shadows = shadows
        self._heap = scoring.make_heap(pool.capacity)
        self._slots = np.full(pool.capacity, NONE, np.int32)
        self._gone = np.zeros(pool.capacity, np.bool_)
        self._aside = np.empty(pool.capacity, np.int32)
        # Cut branches leave new leaves behind; flushes are rare enough to look at all blocks.
        self._stale = False

    def use(self, blocks: I32, looked_up: int) -> None:
        """Score a chain's published blocks, under all candidates."""
        blocks = blocks[: scoring.leading_published(self._pool.meta, blocks)]
        if not len(blocks):
            return
        self.now = max(self.now, self._clock())
        self.tick += 1
        keys = self._pool.keys[blocks]
        slots, _ = self.history.use(keys, self.now)
        self._slots[blocks] = slots
        ties = depth_first(self.tick, np.arange(len(blocks)))
        scoring.rank(self._heap, blocks, self.history.rows[self.followed], slots, ties)
        if self.shadows is None or not self.shadows.use(keys, looked_up, self.now, self.tick):
            return
        if len(self._policy.candidates) > 1:
            self._choose(self.shadows)

    def let_go(self, blocks: I32) -> None:
        """Make the chain's end a candidate; nothing else of it can be a leaf."""
        n = scoring.leading_published(self._pool.meta, blocks)
        if n:
            scoring.offer(self._pool.meta, self._heap, self._gone, blocks[n - 1])

    def forget(self, blocks: I32, *, flushed: bool) -> None:
        """Keep the rows of these blocks for a while."""
        self.history.let_go(self._slots[blocks])
        self._slots[blocks] = NONE
        self._stale |= flushed

    def victims(self, wanted: int) -> I32:
        """Name tails, the least recently used first, then leaves, the lowest first."""
        pool, victims = self._pool, np.empty(wanted, np.int32)
        tails = min(wanted, int(pool.count[ops.TAIL_LIST]))
        if tails:
            n = pool.capacity
            ends = n + ops.TAIL_LIST, n + ops.CACHED_LIST
            victims[:tails] = lru(pool.meta[:, ops.NEXT], *ends, tails)
        if self._stale:
            self._rebuild()
        named = scoring.name_victims(pool.meta, self._heap, self._gone, self._aside, victims, tails)
        assert named == wanted, "an unreferenced block has no unreferenced leaf below it"
        return victims

    def _choose(self, shadows: Shadows) -> None:
        best = self._policy.choose(shadows.recent_hits, shadows.recent_lookups, self.followed)
        if best != self.followed:
            self.followed = best
            self._heap.score[:] = self._scores()
            self._rebuild()

    def _scores(self) -> ops.F64:
        """Return each block's score under the candidate that is followed, -inf without one."""
        scores: ops.F64 = self.history.rows[self.followed][self._slots, 0]
        scores[self._slots == NONE] = -np.inf
        return scores

    def _rebuild(self) -> None:
        scoring.offer_all(self._pool.meta, self._heap, self._gone)
        self._stale = False

    def violations(self) -> Iterator[str]:
        """Check that the heap is one, that every leaf is in it, and that scores are the rows'."""
        heap, meta, slots = self._heap, self._pool.meta[: self._pool.capacity], self._slots
        size = int(heap.size[0])
        items = heap.items[: max(size, 0)]
        known = ((items >= 0) & (items < self._pool.capacity)).all()
        places = np.flatnonzero(heap.at != NONE)
        if not known or len(places) != size or (heap.at[items] != np.arange(size)).any():
            yield "order of eviction: the heap and the places in it disagree"
            return
        if ((slots < NONE) | (slots >= len(self.history.keyed.keys))).any():
            yield "order of eviction: a block's score is nowhere"
            return
        above = items[(np.arange(1, size) - 1) >> 1]
        here, score, tie = items[1:], heap.score, heap.tie
        tied = (score[here] == score[above]) & (tie[here] < tie[above])
        for b in here[tied | (score[here] < score[above])]:
            yield f"order of eviction: block {b} stands behind one that goes later"
        if self._gone.any():
            yield "order of eviction: marks of victims were left"
        published = meta[:, STATE] == ops.PUBLISHED
        idle = published & (meta[:, REF] == 0) & (meta[:, PIN] == 0)
        leaves = idle & (meta[:, ops.FIRST_CHILD] == NONE)
        for b in np.flatnonzero(leaves & (heap.at == NONE)) if not self._stale else ():
            yield f"block {b} is a leaf that nothing holds, and no candidate for eviction"
        for b in np.flatnonzero(idle & (slots == NONE)):
            yield f"block {b} was used, and has no score"
        scored = np.flatnonzero(published & (slots != NONE))
        strange = (self.history.keyed.keys[slots[scored]] != self._pool.keys[scored]).any(axis=1)
        for b in scored[strange]:
            yield f"block {b} has the score of another"
        wrong = idle & (heap.score != self._scores())
        for b in np.flatnonzero(wrong):
            yield f"block {b} is ordered by a score that is not its own"
