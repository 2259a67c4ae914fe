"""`MissRatioCurves`: what share of an account's blocks would hit with other sizes of cache.

Each account is followed as if it had the cache to itself, with leaf-first LRU, at `FACTORS` of the
pool. Only blocks whose keys say so are followed, a share `rate` of all, against sizes that are
smaller by the same share (SHARDS, Waldspurger et al., FAST 2015); one stack of them answers for
all sizes (`curve_ops`).

**Estimate.** All looked-up blocks are counted, the misses among the sampled ones are scaled up by
1 / rate, and the rest are hits (the paper's SHARDS-adj). Whether the few blocks that everyone uses
are in the sample hardly matters so: they are looked up often, but missed seldom. On chats below one
system prompt, this is off by 0.006 where the plain ratio of sampled hits to lookups is by 0.046.

**Error.** The sampled blocks are cut by their keys into groups, each a sample of its own with
stacks of its own, and the group estimates' spread gives the interval (t distribution). That counts
that all lookups of a block are in the sample or none (the variance is that over blocks, not over
lookups), and that where a cache ends is known from the sample too, alike for a whole chain. Of a
sample that is a large share of all, the variance is smaller by that share: with the rate at 1,
nothing is estimated and the error is 0. To the half width is added how far the groups' mean is from
the whole's estimate, since small samples are biased where a curve bends. On the published traces
and on Zipf's law, 92 to 99 % of points are within it (100 samples a size, 95 % over all sizes).
Below `_ENOUGH` sampled blocks no error is given.

**Rate.** It ends at the one with which the sample just holds the largest size, and no account
needs more: what lies deeper misses at all sizes. An account starts with up to `_FIRST_RATE`, so
that small ones are seen with more precision, and halves its rate whenever its sample is full, as
SHARDS with a fixed sample does. The sample's memory grows by doubling.

**Bytes.** At most 36 a sampled block and 4 to 8 for its bucket, and 2,800 an account for the rest:
220,000 an account at the most with the sizes here, 4,000 at the start. All accounts together stay
below max_bytes, as long as one fits in; those without use for longest are dropped, and would start
anew.
"""

import math
from collections import OrderedDict

import numpy as np

from stemkv.kvstore import curve_ops
from stemkv.kvstore.curve_ops import GROUPS, SIZES, STACKS, Stacks
from stemkv.kvstore.ops import I32, U64
from stemkv.kvstore.views import MissRatioPoint

FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Sizes of cache, as factors of the pool."""

_FIRST_RATE = 1 / 16
_FIRST_BLOCKS = 32
_ROOM = 1.25
"""Room in the sample for each block of the largest size, so that groups reach their depth too."""

_LEAST_SAMPLE = 1024
"""Below, a group's smallest cache has under 6 blocks and says nothing of the whole's."""

_OBJECT_BYTES = 1200
"""Bytes of an account's Python objects, beside what is in its arrays."""

_ENOUGH = 64
_T_QUANTILE = 2.131
"""97.5 % quantile of the t distribution with GROUPS - 1 = 15 degrees of freedom."""


class _Account:
    """One account's sample, its rate, and all blocks that it looked up."""

    def __init__(self, rate: float, depths: I32) -> None:
        self.rate = rate
        self.limit = _limit(rate)
        self.looked_up = 0
        self.stacks = curve_ops.make_stacks(_FIRST_BLOCKS, depths)

    @property
    def bytes(self) -> int:
        return _OBJECT_BYTES + sum(array.nbytes for array in self.stacks)

    @property
    def blocks(self) -> int:
        """Sampled blocks that there is room for."""
        return len(self.stacks.keys) - STACKS

    def move_to(self, stacks: Stacks, rate: float) -> None:
        self.rate, self.limit = rate, _limit(rate)
        curve_ops.move(self.stacks, stacks, self.limit)
        self.stacks = stacks


class MissRatioCurves:
    """Curves of all accounts, since each one's first use.

    pool_blocks: what the factors refer to. sample_blocks: sampled blocks an account, at most; the
    curves are exact for pools of at most a fifth of it. max_bytes: bound on all accounts.
    """

    def __init__(
        self, pool_blocks: int, sample_blocks: int = 5120, max_bytes: int = 64 << 20
    ) -> None:
        assert pool_blocks > 0
        assert sample_blocks >= _LEAST_SAMPLE
        self._sizes = [int(factor * pool_blocks) for factor in FACTORS]
        self._last_rate = min(1.0, sample_blocks / _ROOM / self._sizes[-1])
        doublings = max(0, math.floor(math.log2(_FIRST_RATE / self._last_rate)))
        self._first_rate = self._last_rate * 2**doublings
        self._sample_blocks = sample_blocks
        self._max_bytes = max_bytes
        self._accounts: OrderedDict[int, _Account] = OrderedDict()
        self.bytes = 0
        """Bytes of memory of all accounts."""

    def use(self, account: int, keys: U64, looked_up: int) -> None:
        """Note that a sequence of this account is done with a chain of blocks.

        keys: uint64 [blocks, 2], low half first, from the chain's start; of one use, the end goes
        first. The first looked_up of them were looked for; the others only enter.
        """
        assert looked_up <= len(keys)
        of = self._accounts.get(account)
        if of is None:
            of = self._accounts[account] = _Account(
                self._first_rate, self._depths(self._first_rate)
            )
            self._count_bytes(of.bytes)
        else:
            self._accounts.move_to_end(account)
        of.looked_up += looked_up
        end = curve_ops.sampled_end(keys, of.limit)
        if end:
            chain, asked = keys[:end], min(looked_up, end)
            end = curve_ops.use(of.stacks, chain, asked, of.limit, self._is_full(of))
        while end:
            self._make_room(of)
            end = curve_ops.enter(of.stacks, keys, end, of.limit, self._is_full(of))

    def report(self) -> dict[int, tuple[MissRatioPoint, ...]]:
        """Return a point for each of `FACTORS`, of each account that is followed."""
        return {account: _points(of) for account, of in self._accounts.items()}

    def _is_full(self, of: _Account) -> bool:
        """Whether an account's sample neither grows nor gets coarser any more."""
        return of.rate <= self._last_rate and of.blocks >= self._sample_blocks

    def _make_room(self, of: _Account) -> None:
        """Double an account's sample, or halve its rate."""
        rate, blocks, held = of.rate, of.blocks, of.bytes
        if blocks < self._sample_blocks:
            blocks = min(2 * blocks, self._sample_blocks)
        else:
            rate /= 2
        of.move_to(curve_ops.make_stacks(blocks, self._depths(rate)), rate)
        self._count_bytes(of.bytes - held)

    def _count_bytes(self, more: int) -> None:
        """Note more bytes of the account that is used last, and drop others for them."""
        self.bytes += more
        while self.bytes > self._max_bytes and len(self._accounts) > 1:
            self.bytes -= self._accounts.popitem(last=False)[1].bytes

    def _depths(self, rate: float) -> I32:
        """Return how many sampled blocks each size holds, of the whole and of one group."""
        whole = [round(rate * size) for size in self._sizes]
        group = [max(1, round(rate * size / GROUPS)) for size in self._sizes]
        return np.array([whole, group], np.int32)


def _limit(rate: float) -> np.uint64:
    """Return the highest high half of a key that is in the sample."""
    return np.uint64(int(rate * 2**64) - 1)


def _points(of: _Account) -> tuple[MissRatioPoint, ...]:
    """Estimate an account's curve, and its error from how the groups differ."""
    if of.looked_up == 0:
        return tuple(MissRatioPoint(factor, 0.0, None) for factor in FACTORS)
    misses = of.stacks.misses / of.looked_up
    errors: list[float | None] = [None] * SIZES
    if of.rate == 1:
        errors = [0.0] * SIZES
    elif of.stacks.taken[0] - STACKS >= _ENOUGH:
        groups = GROUPS * misses[1:]
        half_width = _T_QUANTILE * groups.std(axis=0, ddof=1) * math.sqrt((1 - of.rate) / GROUPS)
        errors = (half_width + np.abs(groups.mean(axis=0) - misses[0])).tolist()
    points = zip(FACTORS, np.clip(1 - misses[0], 0, 1).tolist(), errors, strict=True)
    return tuple(MissRatioPoint(factor, share, error) for factor, share, error in points)
