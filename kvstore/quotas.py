"""What an account may hold of the pool: reserve, cap, weight (rule 11).

An account is a tenant domain: a tenant of its own, or a sharing group, which is charged with all
that its members share. One more, `OPERATOR`, is charged with public prefixes.
"""

import math
from dataclasses import dataclass

OPERATOR = "(operator)"
"""Name of the account of public prefixes; no tenant or group can have it."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Shares of the pool, 0 to 1. The default is what an account without a quota has.

    reserve: what is never taken from it for another's sake, and never filled by what others run;
    counts what is in use. cap: what it never exceeds. weight: how the pool beyond all reserves is
    shared among the accounts that use it, as a ratio. pins: how much of it may be pinned.
    Raises ValueError that names the field.
    """

    reserve: float = 0.0
    cap: float = 1.0
    weight: float = 1.0
    pins: float = 0.25

    def __post_init__(self) -> None:
        """Refuse what is no share."""
        for name in ("reserve", "cap", "pins"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: {value} is not a share of the pool, 0 to 1")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"weight: {self.weight} is not a positive number")
        if self.cap == 0:
            raise ValueError("cap: 0 leaves no room for any request")
        if self.reserve > self.cap:
            raise ValueError(f"reserve: {self.reserve} is over the cap, {self.cap}")


def quota_of_group(members: list[Quota]) -> Quota:
    """Return what a sharing group has: the sum of what its members would have each.

    Reserves, caps and pins above the whole pool are cut to it. Raises ValueError for no members.
    """
    if not members:
        raise ValueError("members: a group without members has no quota")
    return Quota(
        reserve=min(1.0, sum(q.reserve for q in members)),
        cap=min(1.0, sum(q.cap for q in members)),
        weight=sum(q.weight for q in members),
        pins=min(1.0, sum(q.pins for q in members)),
    )
