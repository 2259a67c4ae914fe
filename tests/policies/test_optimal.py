"""The offline bound, against exhaustive search on small traces."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemkv.policies.eviction import optimal
from stemkv.policies.eviction.optimal import number_chains, optimal_hits

Chains = list[tuple[int, ...]]


def hits_at_best(chains: Chains, capacity: int) -> int:
    """Try every prefix-closed set that could be kept after each request."""
    best = {frozenset[tuple[int, ...]](): 0}
    for chain in chains:
        prefixes = [chain[: i + 1] for i in range(len(chain))]
        after: dict[frozenset[tuple[int, ...]], int] = {}
        for kept, hits in best.items():
            run = next((i for i, p in enumerate(prefixes) if p not in kept), len(prefixes))
            known = sorted(kept | set(prefixes))
            for size in range(min(capacity, len(known)) + 1):
                for chosen in combinations(known, size):
                    held = frozenset(chosen)
                    if all(len(p) == 1 or p[:-1] in held for p in held):
                        after[held] = max(after.get(held, 0), hits + run)
        best = after
    return max(best.values())


def bound(chains: Chains, capacity: int) -> int:
    """Compute the bound with the code under test."""
    offsets = np.cumsum([0, *(len(chain) for chain in chains)])
    ids = np.array([b for chain in chains for b in chain], np.int64)
    return int(optimal_hits(offsets, number_chains(offsets, ids), capacity))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6
    ),
    st.integers(1, 3),
)
def test_no_choice_of_what_to_keep_hits_more_and_one_hits_as_much(
    chains: Chains, capacity: int
) -> None:
    """The bound is what the best of all prefix-closed choices reaches, exactly."""
    assert bound(chains, capacity) == hits_at_best(chains, capacity)


def test_plain_python_computes_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler, where numpy's booleans are no numbers, the bound is the same."""
    draw = np.random.default_rng(3)
    offsets = np.arange(0, 181, 3)
    ids = number_chains(offsets, draw.integers(0, 3, 180))
    compiled = [optimal_hits(offsets, ids, capacity) for capacity in (2, 5, 9)]
    for loop in (optimal_hits, optimal._next_uses):
        monkeypatch.setattr(optimal, loop.__name__, getattr(loop, "py_func", loop))
    assert [optimal.optimal_hits(offsets, ids, capacity) for capacity in (2, 5, 9)] == compiled
    assert 0 < compiled[0] < compiled[1] < compiled[2]


def test_what_is_used_once_is_not_kept() -> None:
    """A scan between two uses costs nothing: it is declined."""
    chains = [(1, 2), *((100 + i,) for i in range(50)), (1, 2)]
    assert bound(chains, 2) == 2
    assert bound(chains, 1) == 1


def test_equal_ids_below_different_parents_are_different_blocks() -> None:
    """A block is its id and all before it, so that its number differs too."""
    offsets = np.array([0, 2, 4, 6])
    numbers = number_chains(offsets, np.array([1, 9, 2, 9, 1, 9]))
    assert numbers.tolist() == [0, 1, 2, 3, 0, 1]
