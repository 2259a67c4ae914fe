"""Tenants as the store knows them: small numbers in the block rows, and counts."""

from dataclasses import dataclass, field

import numpy as np

from stemkv.kvstore.ops import I64, NONE
from stemkv.kvstore.quotas import OPERATOR


@dataclass(slots=True)
class OwnerCounts:
    """Counts of one tenant since the start: tokens looked up and hit.

    resumed: how often requests came back after preemption; their tokens are counted apart.
    """

    lookup: int = 0
    hit_full: int = 0
    hit_partial: int = 0
    resumed: int = 0
    resumed_lookup: int = 0
    resumed_hit: int = 0


@dataclass(slots=True, eq=False)
class Owners:
    """Every tenant that ever opened a sequence here; a number is never used again.

    The first is the operator, who owns public blocks.
    evicted: how many blocks each has lost, int64 [at least as many as there are names].
    """

    names: list[str] = field(default_factory=list)
    counts: list[OwnerCounts] = field(default_factory=list)
    evicted: I64 = field(default_factory=lambda: np.zeros(16, np.int64))
    _numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Give the operator its number."""
        assert self.get(OPERATOR) == self.operator

    @property
    def operator(self) -> int:
        """Number of the operator."""
        return 0

    def find(self, tenant: str) -> int:
        """Return a tenant's number, NONE if it has none."""
        return self._numbers.get(tenant, NONE)

    def get(self, tenant: str) -> int:
        """Return a tenant's number, given to it if need be."""
        if tenant not in self._numbers:
            self._numbers[tenant] = len(self.names)
            self.names.append(tenant)
            self.counts.append(OwnerCounts())
            if len(self.names) > len(self.evicted):
                self.evicted = np.concatenate([self.evicted, np.zeros_like(self.evicted)])
        return self._numbers[tenant]
