"""The order in which unreferenced blocks give way: along the pool's own lists, or by a score.

Tails go first under any policy. Among published blocks only leaves are candidates, so that what
stays is prefix-closed (rule 8) whatever a score says. Whose blocks give way is not the policy's
question but the quotas': see `victims`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from stemkv.kvstore import leaf_heaps, ops, scoring
from stemkv.kvstore.history import History
from stemkv.kvstore.ops import I32, I64, NONE, PIN, REF, STATE
from stemkv.kvstore.pool import Departed, Pool
from stemkv.kvstore.shadows import Shadows, depth_first
from stemkv.policies.eviction import EvictionPolicy
from stemkv.policies.eviction.adaptive import Adaptive, adaptive
from stemkv.policies.eviction.protocol import Scored

_REMEMBERED = 4
"""Evicted blocks whose rows are kept, for each block of the pool."""

_REMEMBERED_AT_LEAST = 1024


class Eviction(NamedTuple):
    """What an eviction is for.

    wanted: blocks. account: who asks. own: how many of them are to be its own, the first ones.
    used_since: accounts that used the cache at that time or later share what is not reserved.
    """

    wanted: int
    account: int
    own: int
    used_since: float


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
        """Note that a sequence or a pin holds a chain no more."""
        ...

    def forget(self, blocks: I32, *, flushed: bool) -> None:
        """Note that published blocks have left the index: evicted just now, or flushed."""
        ...

    def evict(self, eviction: Eviction, evicted: I64) -> Departed:
        """Evict blocks; fewer than wanted if no more may go. evicted: counts by owner to add to."""
        ...

    def restore(self, published: I32) -> None:
        """Begin anew from the pool's rows: these blocks are published, and nothing else is."""
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
    return ListOrder(pool, shadows, clock)


class ListOrder:
    """The pool's own lists: blocks are linked as they are let go, and uses only counted."""

    by_list = True

    def __init__(self, pool: Pool, shadows: Shadows | None, clock: Callable[[], float]) -> None:
        self._pool = pool
        self.shadows = shadows
        self.watches = shadows is not None
        self._clock = clock
        self._now = -np.inf
        self._uses = 0

    def use(self, blocks: I32, looked_up: int) -> None:
        """Count what other policies would have hit of a chain."""
        blocks = blocks[: scoring.leading_live(self._pool.meta, self._pool.roots, blocks)]
        if self.shadows is not None and len(blocks):
            self._uses += 1
            self._now = max(self._now, self._clock())
            self.shadows.use(self._pool.keys[blocks], looked_up, self._now, self._uses)

    def let_go(self, blocks: I32) -> None:
        """Do nothing."""

    def forget(self, blocks: I32, *, flushed: bool) -> None:
        """Do nothing."""

    def evict(self, eviction: Eviction, evicted: I64) -> Departed:
        """Evict along the lists."""
        return self._pool.evict_by_age(*eviction, evicted)

    def restore(self, published: I32) -> None:
        """Do nothing: the lists are the pool's."""

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
        self._leaves = leaf_heaps.make_leaves(pool.capacity, len(pool.accounts))
        self._slots = np.full(pool.capacity, NONE, np.int32)
        # Cut branches leave new leaves behind; flushes are rare enough to look at all blocks.
        self._stale = False

    def use(self, blocks: I32, looked_up: int) -> None:
        """Score a chain's published blocks, under all candidates."""
        pool = self._pool
        blocks = blocks[: scoring.leading_live(pool.meta, pool.roots, blocks)]
        if not len(blocks):
            return
        self._keep_up()
        self.now = max(self.now, self._clock())
        self.tick += 1
        keys = pool.keys[blocks]
        slots, _ = self.history.use(keys, self.now)
        self._slots[blocks] = slots
        ties = depth_first(self.tick, np.arange(len(blocks)))
        rows = self.history.rows[self.followed]
        leaf_heaps.rank_blocks(pool.meta, pool.roots, self._leaves, blocks, rows, slots, ties)
        if self.shadows is None or not self.shadows.use(keys, looked_up, self.now, self.tick):
            return
        if len(self._policy.candidates) > 1:
            self._choose(self.shadows)

    def let_go(self, blocks: I32) -> None:
        """Make the chain's ends candidates: its last block, and that of the public part."""
        meta = self._pool.meta
        shown, child = meta[blocks, STATE] == ops.PUBLISHED, meta[blocks, ops.FIRST_CHILD]
        ends = blocks[shown & (child < 0)]
        if len(ends):
            self._keep_up()
        for end in ends:
            leaf_heaps.offer(meta, self._pool.roots, self._leaves, end)

    def forget(self, blocks: I32, *, flushed: bool) -> None:
        """Keep the rows of these blocks for a while."""
        self.history.let_go(self._slots[blocks])
        self._slots[blocks] = NONE
        self._stale |= flushed

    def evict(self, eviction: Eviction, evicted: I64) -> Departed:
        """Evict tails, the least recently used first, then leaves, the lowest first."""
        self._keep_up()
        pool = self._pool
        out, departed = np.empty((2, eviction.wanted), np.int32)
        n, left = leaf_heaps.evict_by_score(
            pool.meta,
            pool.roots,
            pool.accounts,
            pool.table,
            pool.keys,
            pool.terms,
            self._leaves,
            eviction.account,
            eviction.own,
            eviction.used_since,
            evicted,
            pool.lost,
            departed,
            out,
        )
        return Departed(out[:n], departed[:left])

    def _keep_up(self) -> None:
        """Have a heap for every account, and none of what a flush has taken in them."""
        missing = len(self._pool.accounts) - len(self._leaves.top)
        if missing:
            top = np.append(self._leaves.top, np.full(missing, NONE, np.int32))
            self._leaves = self._leaves._replace(top=top)
        if self._stale:
            self._rebuild()

    def _choose(self, shadows: Shadows) -> None:
        best = self._policy.choose(shadows.recent_hits, shadows.recent_lookups, self.followed)
        if best != self.followed:
            self.followed = best
            self._leaves.score[:] = self._scores()
            self._rebuild()

    def _scores(self) -> ops.F64:
        """Return each block's score under the candidate that is followed, -inf without one."""
        scores: ops.F64 = self.history.rows[self.followed][self._slots, 0]
        scores[self._slots == NONE] = -np.inf
        return scores

    def _rebuild(self) -> None:
        leaf_heaps.offer_all(self._pool.meta, self._pool.roots, self._leaves)
        self._stale = False

    def restore(self, published: I32) -> None:
        """Give blocks the rows of their keys, which may be new; heaps are made when next used."""
        slots = self._slots
        inside = (slots >= 0) & (slots < self.history.keyed.filled[0])
        self.history.let_go(slots[inside])
        self.now = max(self.now, self._clock())
        self.tick += 1
        slots[:] = NONE
        slots[published] = self.history.restore(self._pool.keys[published], self.now)
        self._leaves.score[:] = self._scores()
        self._leaves.tie[published] = depth_first(self.tick, np.arange(len(published)))
        self._stale = True

    def violations(self) -> Iterator[str]:
        """Check that heaps are heaps, every leaf is in its own, and scores are the rows'."""
        pool, leaves, slots = self._pool, self._leaves, self._slots
        if ((slots < NONE) | (slots >= len(self.history.keyed.keys))).any():
            yield "order of eviction: a block's score is nowhere"
            return
        live = pool.live() & (pool.meta[: pool.capacity, STATE] == ops.PUBLISHED)
        if not self._stale:
            broken = leaf_heaps.first_broken(pool.meta, pool.roots, leaves)
            if broken != NONE:
                yield f"order of eviction: block {broken} stands where it does not belong"
                return
            alone = leaf_heaps.first_left_out(pool.meta, pool.roots, leaves)
            if alone != NONE:
                yield f"block {alone} is a leaf that nothing holds, and no candidate for eviction"
        meta = pool.meta[: pool.capacity]
        idle = live & (meta[:, REF] == 0) & (meta[:, PIN] == 0)
        for b in np.flatnonzero(idle & (slots == NONE)):
            yield f"block {b} was used, and has no score"
        for b in np.flatnonzero((slots != NONE) & (meta[:, STATE] != ops.PUBLISHED)):
            yield f"block {b} has a score, and is not published"
        scored = np.flatnonzero(live & (slots != NONE))
        strange = (self.history.keyed.keys[slots[scored]] != pool.keys[scored]).any(axis=1)
        for b in scored[strange]:
            yield f"block {b} has the score of another"
        wrong = live & (slots != NONE) & (leaves.score != self._scores())
        for b in np.flatnonzero(wrong):
            yield f"block {b} is ordered by a score that is not its own"
