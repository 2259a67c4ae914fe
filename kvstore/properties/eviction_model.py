"""Who goes first under a policy of scores, as plainly as can be: a dict of rows by key."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numba
import numpy as np

from stemkv.kvstore.eviction import ScoredOrder
from stemkv.kvstore.store import BlockStore
from stemkv.policies.eviction.adaptive import Adaptive, adaptive
from stemkv.policies.eviction.lrfu import lrfu
from stemkv.policies.eviction.protocol import AGAIN, FIRST, Row, Scored


@numba.njit  # type: ignore[untyped-decorator]
def _erratic(row: Row, event: int, now: float) -> float:
    """Score a block as no sane policy would: up and down, with ties, children above parents."""
    row[1] += 1.0
    return float((now * 3.0 + row[1] * 2.0) % 5.0 - event)


POLICIES: Mapping[str, Scored | Adaptive] = {
    "lrfu": lrfu(5.0),
    "erratic": Scored(_erratic, columns=2),
    "fickle": replace(
        adaptive,
        candidates={"erratic": Scored(_erratic, columns=2), "lrfu": lrfu(5.0)},
        memory_seconds=10.0,
        margin=0.0,
        least=0.0,
    ),
}
"""Policies that tests run a store with; the last changes its mind at every chance."""


def model_of(store: BlockStore, policy: Scored | Adaptive | None) -> "EvictionModel | None":
    """Return the model that goes with a store's policy, None for the default one."""
    if policy is None:
        return None
    assert isinstance(store.order, ScoredOrder)
    candidates = {"": policy} if isinstance(policy, Scored) else policy.candidates
    return EvictionModel(candidates, store.order)


@dataclass(eq=False)
class EvictionModel:
    """The model. Time, and which of the candidates is followed, are asked of the store's order.

    Nothing is ever forgotten, so that it is right for few different blocks only.
    """

    candidates: Mapping[str, Scored]
    order: ScoredOrder
    rows: dict[bytes, list[Row]] = field(default_factory=dict)
    ties: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    uses: int = 0

    def use(self, keys: list[bytes]) -> None:
        """Take in that a chain was used."""
        self.uses += 1
        for depth, key in enumerate(keys):
            event = AGAIN if key in self.rows else FIRST
            if event == FIRST:
                self.rows[key] = [np.zeros(c.columns) for c in self.candidates.values()]
                for row in self.rows[key]:
                    row[0] = -np.inf
            for row, candidate in zip(self.rows[key], self.candidates.values(), strict=True):
                row[0] = candidate.score(row, event, self.order.now)
            self.ties[key] = (self.uses, -depth)

    def rank(self, key: bytes) -> tuple[float, tuple[int, int]]:
        """Return what a block is ordered by: the lowest goes first."""
        return float(self.rows[key][self.order.followed][0]), self.ties[key]
