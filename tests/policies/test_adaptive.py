"""Which candidate is followed: the one that leads clearly."""

from stemkv.policies.eviction.adaptive import adaptive


def test_without_evidence_nothing_changes() -> None:
    """No lookups, no lead: what is followed stays."""
    for followed in range(4):
        assert adaptive.choose([0.0] * 4, 0.0, followed) == followed


def test_a_lead_must_exceed_a_number_of_hits() -> None:
    """Of few lookups, chance may give a few hits more."""
    assert adaptive.choose([10.0, 18.0, 0.0, 0.0], 100.0, 0) == 0
    assert adaptive.choose([10.0, 18.1, 0.0, 0.0], 100.0, 0) == 1


def test_a_lead_must_exceed_a_share_of_the_lookups() -> None:
    """Of many lookups, a small lead is not worth a change."""
    assert adaptive.choose([1000.0, 1019.0, 0.0, 0.0], 10_000.0, 0) == 0
    assert adaptive.choose([1000.0, 1021.0, 0.0, 0.0], 10_000.0, 0) == 1


def test_the_best_is_followed_not_the_first_better_one() -> None:
    """Of several that lead, the one with most hits is taken, and left again when it falls back."""
    assert adaptive.choose([10.0, 40.0, 60.0, 50.0], 100.0, 0) == 2
    assert adaptive.choose([90.0, 40.0, 60.0, 50.0], 100.0, 2) == 0
