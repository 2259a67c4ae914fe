"""Blocks for those who need them: what is available, who gives way, and who is told of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore import ops
from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.eviction import Order
from stemkv.kvstore.ghosts import FLUSHED, GhostLog
from stemkv.kvstore.keys import PackedKeys
from stemkv.kvstore.ops import I32, U64
from stemkv.kvstore.owners import Owners
from stemkv.kvstore.pool import NO_BLOCKS, Pool
from stemkv.kvstore.values import Shortage


@dataclass(slots=True, eq=False)
class Allocator:
    """Hands out blocks, evicting as need be.

    keep_free: blocks that are free again whenever a sequence ends. evicted: blocks since the start,
    tails included.
    """

    pool: Pool
    owners: Owners
    ghosts: GhostLog
    directory: Directory
    clock: Callable[[], float]
    order: Order
    keep_free: int
    evicted: int = field(init=False, default=0)

    def shortage(self, needed: int, adopted: int = 0) -> Shortage | None:
        """Say what is missing if `needed` blocks are taken after `adopted` unheld ones are held."""
        available = self.pool.available - adopted
        return Shortage("blocks", needed, available) if needed > available else None

    def take(self, wanted: int, owner: int) -> I32:
        """Take blocks that are known to be available, evicting for `owner` as need be."""
        if not wanted:
            return NO_BLOCKS
        evict = wanted - self.pool.free
        if evict <= 0:
            return self.pool.take(wanted, NO_BLOCKS)
        if self.order.by_list:
            self.evicted += evict
            blocks, departed = self.pool.take_oldest(wanted, self.owners.evicted)
            self._tell(departed, owner)
            return blocks
        return self.pool.take(wanted, self._choose(evict, owner))

    def tidy(self, owner: int) -> None:
        """Evict until keep_free blocks are free, or nothing is left that could be evicted.

        What an owner wrote a moment ago is not retained if it would be the first to go anyway.
        """
        free = self.pool.free
        evict = min(self.keep_free, self.pool.available) - free
        if evict > 0:
            self.pool.evict(self._choose(evict, owner))

    def forget(self, blocks: I32, cause: int) -> None:
        """Note that these published blocks leave the index: for an owner, or FLUSHED.

        A flush that took tails alone has an empty list, and may have left new leaves all the same.
        """
        self._tell(self.pool.keys_of(blocks), cause)
        self.order.forget(blocks, flushed=cause == FLUSHED)

    def _tell(self, keys: U64, cause: int) -> None:
        if len(keys):
            self.ghosts.add(keys, self.clock(), cause)
            self.directory.record((), PackedKeys(keys.tobytes()))

    def _choose(self, wanted: int, owner: int) -> I32:
        meta = self.pool.meta
        victims = self.order.victims(wanted)
        self.evicted += wanted
        published = np.empty(wanted, np.int32)
        count = ops.sort_out(meta, victims, self.owners.evicted, published)
        self.forget(published[:count], owner)
        return victims
