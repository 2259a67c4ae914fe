"""Pins: prefixes that an operator keeps in the cache for a time.

A pinned block that nothing holds is kept off the lists of eviction. Pins never starve the pool:
when nothing else is left to evict, they give way, the one of the lowest priority first.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore.eviction import Order
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.ops import I32
from stemkv.kvstore.pool import Pool
from stemkv.kvstore.roots import Root
from stemkv.kvstore.views import PinInfo


@dataclass(slots=True, eq=False)
class Pin:
    """One pin on a chain's blocks (int32), which are all of one root.

    since, ends: seconds of the store's clock.
    """

    number: int
    namespace: Namespace
    root: Root
    blocks: I32
    since: float
    ends: float
    terms: "PinTerms"

    def priority(self, now: float) -> float:
        """Return the priority as of now."""
        if self.terms.half_life_seconds is None:
            return self.terms.priority
        return float(
            self.terms.priority * 2.0 ** ((self.since - now) / self.terms.half_life_seconds)
        )


@dataclass(frozen=True, slots=True)
class PinTerms:
    """How long a pin lasts, and when it gives way; see `DoPin`. Raises ValueError, with a field."""

    seconds: float
    max_blocks: int | None = None
    priority: float = 1.0
    half_life_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no time, budget or priority."""
        for name in ("seconds", "half_life_seconds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: {value} is not a positive number of seconds")
        if self.max_blocks is not None and self.max_blocks < 1:
            raise ValueError(f"max_blocks: {self.max_blocks} is less than 1")
        if not 0 <= self.priority <= 1:
            raise ValueError(f"priority: {self.priority} is not in 0..1")


@dataclass(slots=True, eq=False)
class Pins:
    """All pins, by number."""

    pool: Pool
    order: Order
    clock: Callable[[], float]
    _pins: dict[int, Pin] = field(default_factory=dict)
    _made: int = 0
    _first_end: float = math.inf

    def __bool__(self) -> bool:
        """Whether there is any pin."""
        return bool(self._pins)

    def __iter__(self) -> Iterator[Pin]:
        """Iterate over the pins."""
        return iter(tuple(self._pins.values()))

    def add(self, namespace: Namespace, root: Root, blocks: I32, terms: PinTerms) -> Pin:
        """Pin a chain's blocks."""
        now = self.clock()
        self._made += 1
        pin = Pin(self._made, namespace, root, blocks, now, now + terms.seconds, terms)
        self._pins[pin.number] = pin
        self._first_end = min(self._first_end, pin.ends)
        self.pool.keep(blocks)
        return pin

    def remove(self, number: int) -> None:
        """End a pin; raises ValueError if there is none."""
        pin = self._pins.pop(number, None)
        if pin is None:
            raise ValueError(f"pin_id: there is no pin {number}")
        self._let_go(pin)

    def expire(self) -> None:
        """End the pins whose time is over."""
        if not self._pins:
            return
        now = self.clock()
        if now < self._first_end:
            return
        for pin in self:
            if pin.ends <= now:
                self.remove(pin.number)
        self._first_end = min((pin.ends for pin in self), default=math.inf)

    def blocks_of(self, account: int) -> int:
        """How many blocks of an account pins keep; a block of two pins counts twice."""
        return sum(len(pin.blocks) for pin in self if pin.root.account == account)

    def give_way(self, helps: Callable[[int], bool]) -> bool:
        """End the pin of the lowest priority among those of accounts that this helps with."""
        now = self.clock()
        pins = [pin for pin in self if helps(pin.root.account)]
        if not pins:
            return False
        self.remove(min(pins, key=lambda pin: (pin.priority(now), pin.ends, pin.number)).number)
        return True

    def forget_dead(self) -> None:
        """Forget the pins whose root a flush has killed: their blocks are stale."""
        for pin in self:
            if not pin.root.alive:
                del self._pins[pin.number]

    def forget(self, gone: I32) -> None:
        """Shorten pins by blocks that are cut off the tree, whose counts of pins are reset."""
        if not self._pins or not len(gone):
            return
        for pin in self:
            here = np.isin(pin.blocks, gone)
            if here.any():
                pin.blocks = pin.blocks[: int(here.argmax())]
                if not len(pin.blocks):
                    del self._pins[pin.number]

    def shorten(self, pin: Pin, blocks: int) -> None:
        """Let a pin keep only so many blocks, none to end it; counts are left as they are."""
        pin.blocks = pin.blocks[:blocks]
        if not blocks:
            del self._pins[pin.number]

    def describe(self, pin: Pin) -> PinInfo:
        """Return what an operator sees of a pin."""
        now = self.clock()
        return PinInfo(
            pin_id=pin.number,
            tenant=pin.namespace.tenant,
            adapter=pin.namespace.adapter,
            salt=pin.namespace.salt,
            blocks=len(pin.blocks),
            tokens=len(pin.blocks) * self.pool.block_size,
            seconds_left=max(0.0, pin.ends - now),
            priority=pin.priority(now),
        )

    def _let_go(self, pin: Pin) -> None:
        self.pool.keep_no_more(pin.blocks)
        self.order.let_go(pin.blocks)
