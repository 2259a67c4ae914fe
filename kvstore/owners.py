"""Tenants as the store knows them: small numbers in the block rows, and counts."""

from dataclasses import dataclass, field

from stemkv.kvstore.ops import NONE


@dataclass(slots=True)
class OwnerCounts:
    """Counts of one tenant since the start: tokens looked up and hit, blocks evicted."""

    lookup: int = 0
    hit_full: int = 0
    hit_partial: int = 0
    evicted: int = 0


@dataclass(slots=True, eq=False)
class Owners:
    """Every tenant that ever opened a sequence here; a number is never used again."""

    names: list[str] = field(default_factory=list)
    counts: list[OwnerCounts] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def find(self, tenant: str) -> int:
        """Return a tenant's number, NONE if it has none."""
        return self._numbers.get(tenant, NONE)

    def get(self, tenant: str) -> int:
        """Return a tenant's number, given to it if need be."""
        if tenant not in self._numbers:
            self._numbers[tenant] = len(self.names)
            self.names.append(tenant)
            self.counts.append(OwnerCounts())
        return self._numbers[tenant]
