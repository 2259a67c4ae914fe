"""Blocks for those who need them: what is available, who gives way, and who is told of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore import ops, victims
from stemkv.kvstore.accounts import IDLE_SECONDS, Accounts
from stemkv.kvstore.directory.protocol import Directory
from stemkv.kvstore.events import EventStream
from stemkv.kvstore.eviction import Eviction, Order
from stemkv.kvstore.ghosts import FLUSHED, GhostLog
from stemkv.kvstore.keys import PackedKeys
from stemkv.kvstore.ops import I32
from stemkv.kvstore.owners import Owners
from stemkv.kvstore.pins import Pins
from stemkv.kvstore.pool import NO_BLOCKS, Pool
from stemkv.kvstore.roots import Root, Roots
from stemkv.kvstore.values import Shortage
from stemkv.kvstore.views import EventKind

_SWEPT_ROWS = 4096
"""Rows that are looked at in one go for what flushes have left behind."""


@dataclass(slots=True, eq=False)
class Allocator:
    """Hands out blocks, evicting as need be.

    keep_free: blocks that are free again whenever a sequence ends. evicted: blocks since the start,
    tails included.
    """

    pool: Pool
    roots: Roots
    owners: Owners
    accounts: Accounts
    ghosts: GhostLog
    events: EventStream
    directory: Directory
    clock: Callable[[], float]
    order: Order
    pins: Pins
    keep_free: int
    evicted: int = field(init=False, default=0)
    _row: int = field(init=False, default=0)

    def shortage(self, needed: int, account: int, adopted: int = 0) -> Shortage | None:
        """Say what an account misses if `needed` blocks are taken after `adopted` of its idle ones.

        Adopting the operator's blocks takes nothing: they were nobody else's to have.
        """
        room, whole = self.pool.available(account)
        if needed + adopted <= room:
            return None
        if needed + adopted <= whole:
            return Shortage("quota", needed + adopted, max(0, room))
        return Shortage("blocks", needed + adopted, max(0, whole))

    def grant(self, wanted: int, root: Root, owner: int) -> I32 | None:
        """Take blocks for a root, evicting as need be; None if it may not have so many.

        owner: number of the tenant whose need it is.
        """
        if self.order.by_list:
            self.accounts.note_asking(root.account)
            answer, blocks, gone, departed, losers = self.pool.grant(
                wanted,
                (root.index, owner, self.clock(), IDLE_SECONDS),
                self.owners.evicted,
                self.ghosts,
            )
            if answer == victims.GRANTED:
                self.evicted += gone
                if len(departed):
                    if self.directory.listens:
                        self.directory.record((), PackedKeys(departed.tobytes()))
                    if self.events.on:
                        for account in np.unique(losers).tolist():
                            self.events.record("removed", account, departed[losers == account])
                return blocks
            if answer == victims.REFUSED:
                return None
        room, _ = self.pool.available(root.account)
        return self._take(wanted, root, owner) if wanted <= room else None

    def take(self, wanted: int, root: Root, owner: int) -> I32:
        """Take blocks that are known to be available, evicting as need be."""
        if not wanted:
            return NO_BLOCKS
        blocks = self.grant(wanted, root, owner)
        assert blocks is not None, "blocks were promised that there are not"
        return blocks

    def _take(self, wanted: int, root: Root, owner: int) -> I32:
        own, evict = self._to_evict(wanted, root.account)
        if evict > 0 and self.pool.stale:
            self.reclaim(self.pool.capacity)
            own, evict = self._to_evict(wanted, root.account)
        gone = NO_BLOCKS
        if evict > 0:
            self._let_pins_give_way(evict, own, root.account)
            gone = self._evict(evict, own, root.account, owner)
            assert len(gone) == evict, "blocks were promised that nobody may lose"
        return self.pool.take(wanted, gone, root.index)

    def tidy(self, account: int, owner: int) -> None:
        """Evict until keep_free blocks are free, or nothing is left that could be evicted.

        What an owner wrote a moment ago is not retained if it would be the first to go anyway.
        """
        if self.pool.free >= self.keep_free:
            return
        self.reclaim(self.pool.capacity)
        evict = min(self.keep_free - self.pool.free, self.pool.obtainable(account))
        if evict > 0:
            self.pool.free_all(self._evict(evict, 0, account, owner))

    def reclaim(self, rows: int = _SWEPT_ROWS) -> None:
        """Free what flushes have left behind, among the next so many rows."""
        if self.pool.stale:
            self._row, departed, of = self.pool.sweep(self._row, rows)
            for root in np.unique(of).tolist():
                died = self.roots[root].died
                assert died is not None
                self.forget(departed[of == root], FLUSHED, died)
        if self.roots.dead and not self.pool.stale:
            self.roots.free_dead()

    def forget(self, blocks: I32, cause: int, seconds: float) -> None:
        """Note that these published blocks have left the index: for an owner, or FLUSHED.

        A flush that took tails alone has an empty list, and may have left new leaves all the same.
        """
        if len(blocks):
            keys = self.pool.keys_of(blocks)
            self.ghosts.add(keys, seconds, cause)
            if self.directory.listens:
                self.directory.record((), PackedKeys(keys.tobytes()))
            if self.events.on:
                kind: EventKind = "flushed" if cause == FLUSHED else "removed"
                for account, mine in self.pool.by_account(blocks):
                    self.events.record(kind, account, self.pool.keys_of(mine))
        self.order.forget(blocks, flushed=cause == FLUSHED)

    def _to_evict(self, wanted: int, account: int) -> tuple[int, int]:
        """How many of its own blocks an account must lose for its cap's sake, and how many all."""
        row = self.pool.accounts[account]
        own = max(0, int(row[ops.HELD]) + wanted - int(row[ops.CAP]))
        return own, max(own, wanted - self.pool.free)

    def _let_pins_give_way(self, evict: int, own: int, account: int) -> None:
        accounts = self.pool.accounts

        def helps(other: int) -> bool:
            row = accounts[other]
            return other == account or bool(row[ops.HELD] > row[ops.RESERVE])

        def own_idle() -> int:
            return int(accounts[account, ops.CACHED] + accounts[account, ops.TAILS])

        while self.pins and own_idle() < own and self.pins.give_way(lambda a: a == account):
            pass
        while self.pins and self.pool.obtainable(account) < evict and self.pins.give_way(helps):
            pass

    def _evict(self, wanted: int, own: int, account: int, owner: int) -> I32:
        self.accounts.note_asking(account)
        eviction = Eviction(wanted, account, own, self.accounts.used_since)
        departed = self.order.evict(eviction, self.owners.evicted)
        self.evicted += len(departed.blocks)
        if len(departed.published):
            self.forget(departed.published, owner, self.clock())
        return departed.blocks
