"""Blocks for those who need them: what is available, who gives way, and who is told of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.ghosts import GhostLog
from stemkv.kvstore.ops import I32
from stemkv.kvstore.owners import Owners
from stemkv.kvstore.pool import NO_BLOCKS, Pool
from stemkv.kvstore.values import Shortage
from stemkv.policies.eviction import EvictionPolicy


@dataclass(slots=True, eq=False)
class Allocator:
    """Hands out blocks, evicting as need be. evicted: blocks since the start, tails included."""

    pool: Pool
    owners: Owners
    ghosts: GhostLog
    directory: Directory
    clock: Callable[[], float]
    policy: EvictionPolicy
    evicted: int = field(init=False, default=0)

    def shortage(self, needed: int, adopted: int = 0) -> Shortage | None:
        """Say what is missing if `needed` blocks are taken after `adopted` unheld ones are held."""
        available = self.pool.available - adopted
        return Shortage("blocks", needed, available) if needed > available else None

    def take(self, wanted: int, owner: int) -> I32:
        """Take blocks that are known to be available, evicting for `owner` as need be."""
        evict = wanted - self.pool.free
        return self.pool.take(wanted, self._choose(evict, owner) if evict > 0 else NO_BLOCKS)

    def forget(self, blocks: I32, cause: int) -> None:
        """Note that these published blocks leave the index: for an owner, or FLUSHED."""
        if len(blocks):
            self.ghosts.add(self.pool.keys, blocks, self.clock(), cause)
            self.directory.record((), self.pool.keys_of(blocks))

    def _choose(self, wanted: int, owner: int) -> I32:
        meta, n = self.pool.meta, self.pool.capacity
        tails, cached = n + ops.TAIL_LIST, n + ops.CACHED_LIST
        victims = np.asarray(self.policy(meta[:, ops.NEXT], tails, cached, wanted))
        self.evicted += wanted
        published = np.empty(wanted, np.int32)
        count = ops.sort_out(meta, victims, self.owners.evicted, published)
        self.forget(published[:count], owner)
        return victims
