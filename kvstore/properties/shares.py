"""What accounts may hold and must give, written as plainly as can be."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stemkv.kvstore.accounts import IDLE_SECONDS
from stemkv.kvstore.quotas import Quota
from stemkv.kvstore.roots import PUBLIC


@dataclass(eq=False)
class Shares:
    """The accounts of a model, by domain, in the order in which they were opened.

    public: blocks that are set aside for public prefixes. last_use: seconds. lost: blocks by the
    account that lost them and the one that needed them.
    """

    capacity: int
    public: int = 0
    domains: list[bytes] = field(default_factory=lambda: [PUBLIC])
    quotas: Mapping[bytes, Quota] = field(default_factory=dict)
    last_use: dict[bytes, float] = field(default_factory=dict)
    lost: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)

    def open(self, domain: bytes) -> None:
        """Have an account for a domain."""
        if domain not in self.domains:
            self.domains.append(domain)

    def number(self, domain: bytes) -> int:
        """Return an account's place in the order of opening."""
        return self.domains.index(domain)

    def blocks(self, share: float) -> int:
        """Return a share of the pool in whole blocks."""
        return int(share * self.capacity + 1e-6)

    def quota(self, domain: bytes) -> Quota:
        """Return a domain's quota."""
        return self.quotas.get(domain, Quota())

    def reserve(self, domain: bytes) -> int:
        """Return what is set aside for a domain."""
        return self.public if domain == PUBLIC else self.blocks(self.quota(domain).reserve)

    def cap(self, domain: bytes) -> int:
        """Return what a domain may hold at most."""
        if domain == PUBLIC:
            return self.public
        return max(1, self.blocks(self.quota(domain).cap))

    def fits(self, quotas: Mapping[bytes, Quota], public: int) -> bool:
        """Whether reserves and public prefixes are together no more than the pool."""
        return sum(self.blocks(q.reserve) for q in quotas.values()) + public <= self.capacity

    def available(self, domain: bytes, in_use: Mapping[bytes, int]) -> tuple[int, int]:
        """Return how many blocks a domain could be given, and how many without quotas."""
        whole = self.capacity - sum(in_use.values())
        others = (d for d in {*self.domains, *in_use} if d != domain)
        set_aside = sum(max(in_use.get(d, 0), self.reserve(d)) for d in others)
        own = in_use.get(domain, 0)
        room = self.capacity - own - set_aside
        if domain in self.domains:
            room = min(room, self.cap(domain) - own)
        return max(0, room), max(0, whole)

    def fair_floors(
        self, domain: bytes, in_use: Mapping[bytes, int], now: float
    ) -> dict[bytes, int]:
        """Return what each account keeps while another wants more, as long as that is enough."""
        users = [d for d in self.domains if self._uses(d, domain, in_use, now)]
        beyond = max(0, self.capacity - sum(map(self.reserve, self.domains)))
        floors = {d: self.reserve(d) for d in self.domains}
        while True:
            weights = sum(self._weight(d) for d in users)
            if weights == 0:
                return floors
            parts = {d: int(beyond * (self._weight(d) / weights)) for d in users}
            capped = {d for d in users if self.reserve(d) + parts[d] > self.cap(d)}
            if not capped:
                return {d: floor + parts.get(d, 0) for d, floor in floors.items()}
            # What they cannot have is shared by the others.
            for d in capped:
                floors[d] = self.cap(d)
                beyond -= self.cap(d) - self.reserve(d)
            users = [d for d in users if d not in capped]

    def lowest_floors(self, domain: bytes) -> dict[bytes, int]:
        """Return what each account keeps in any case; the one that asks, nothing."""
        return {d: 0 if d == domain else self.reserve(d) for d in self.domains}

    def own_floors(self, domain: bytes, held: Mapping[bytes, int]) -> dict[bytes, int]:
        """Return what each account keeps where only the one that asks may lose anything."""
        return {d: 0 if d == domain else held.get(d, 0) for d in self.domains}

    def obtainable(
        self, domain: bytes, idle: Mapping[bytes, int], held: Mapping[bytes, int]
    ) -> int:
        """Return how many idle blocks eviction may take for a domain."""

        def spare(d: bytes) -> int:
            return max(0, held.get(d, 0) - self.reserve(d))

        return sum(n if d == domain else min(n, spare(d)) for d, n in idle.items() if d != PUBLIC)

    def _weight(self, domain: bytes) -> float:
        return 0.0 if domain == PUBLIC else self.quota(domain).weight

    def _uses(self, d: bytes, asking: bytes, in_use: Mapping[bytes, int], now: float) -> bool:
        return (
            d == asking
            or in_use.get(d, 0) > 0
            or self.last_use.get(d, -math.inf) >= now - IDLE_SECONDS
        )


def count(domains: Iterable[bytes]) -> Counter[bytes]:
    """Count blocks by domain."""
    return Counter(domains)
