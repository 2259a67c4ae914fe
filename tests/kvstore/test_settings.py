"""What a store can be made with, and what is refused, field by field."""

from typing import Any

import pytest

from stemkv.kvstore.config import MAX_CAPACITY_BLOCKS, StoreConfig
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.quotas import Quota, quota_of_group


def config(**changed: Any) -> StoreConfig:
    """Make settings of a small store, some of them changed."""
    settings: dict[str, Any] = {
        "capacity_blocks": 8,
        "block_size": 4,
        "max_sequences": 2,
        "max_tokens": 16,
        "secret": b"s",
    }
    return StoreConfig(**settings | changed)


@pytest.mark.parametrize("name", ["capacity_blocks", "block_size", "max_sequences", "max_tokens"])
def test_sizes_start_at_one(name: str) -> None:
    """Each size may be 1; less is refused, and the message names the field and the value."""
    assert getattr(config(**{name: 1}), name) == 1
    for value in (0, -1):
        with pytest.raises(ValueError, match=rf"^{name}: {value} is less than 1$"):
            config(**{name: value})


@pytest.mark.parametrize(
    ("name", "most", "message"),
    [
        ("capacity_blocks", 2**30, f"capacity_blocks: {2**30 + 1} is over {2**30}"),
        ("keep_free", 7, r"keep_free: 8 is not in 0\.\.7"),
    ],
)
def test_limits_are_allowed_and_no_more(name: str, most: int, message: str) -> None:
    """What is at a limit is a setting, one more is none."""
    assert MAX_CAPACITY_BLOCKS == 2**30
    assert getattr(config(**{name: most}), name) == most
    with pytest.raises(ValueError, match=f"^{message}$"):
        config(**{name: most + 1})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("keep_free", r"keep_free: -1 is not in 0\.\.7"),
        ("event_blocks", "event_blocks: -1 is less than 0"),
    ],
)
def test_none_is_allowed_and_less_is_not(name: str, message: str) -> None:
    """0 keeps nothing free and no events; nothing is less than that."""
    assert getattr(config(**{name: 0}), name) == 0
    with pytest.raises(ValueError, match=f"^{message}$"):
        config(**{name: -1})


@pytest.mark.parametrize("name", ["hash_function", "eviction"])
def test_names_must_be_known(name: str) -> None:
    """An unknown hash function or policy is refused with the names that there are."""
    with pytest.raises(ValueError, match=rf"^{name}: 'best' is not one of .*(sha256|lru)"):
        config(**{name: "best"})


def test_what_costs_something_is_off_unless_asked_for() -> None:
    """By default no events, curves or comparisons are kept, and the cache works in full."""
    made = config()
    assert (made.block_bytes, made.keep_free, made.event_blocks) == (0, 0, 0)
    assert (made.compare_policies, made.curves) == (False, False)
    assert (made.prefix_cache, made.partial_hits) == (True, True)
    assert (made.hash_function, made.eviction) == ("xxh3_128", "lru")


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (4, 1), (5, 2), (16, 4), (17, 5)])
def test_the_longest_table_holds_the_longest_sequence(tokens: int, blocks: int) -> None:
    """A block that is begun counts as one."""
    assert config(max_tokens=tokens).blocks_per_sequence == blocks


def test_a_groups_quota_is_its_members_together_up_to_the_pool() -> None:
    """Reserve, cap and pins add up to the whole at most, weights without a limit."""
    members = [Quota(0.25, 0.5, 2.0, 0.125), Quota(0.5, 0.5, 0.5, 0.0)]
    assert quota_of_group(members[:1]) == members[0]
    assert quota_of_group(members) == Quota(0.75, 1.0, 2.5, 0.125)
    assert quota_of_group([Quota(0.75, 0.875, 1.0, 0.75)] * 3) == Quota(1.0, 1.0, 3.0, 1.0)
    with pytest.raises(ValueError, match=r"^members: "):
        quota_of_group([])


@pytest.mark.parametrize("name", ["reserve", "cap", "pins"])
def test_shares_are_from_nothing_to_all(name: str) -> None:
    """0 and 1 are shares (but a cap of 0), what is beyond them is not."""
    assert getattr(Quota(**{name: 1.0}), name) == 1
    if name != "cap":
        assert getattr(Quota(**{name: 0.0}), name) == 0
    for value in (-0.001, 1.001, float("nan")):
        with pytest.raises(ValueError, match=f"^{name}: {value} is not a share of the pool"):
            Quota(**{name: value})


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"priority": -0.01}, r"priority: -0.01 is not in 0\.\.1"),
        ({"priority": 1.01}, r"priority: 1.01 is not in 0\.\.1"),
        ({"max_blocks": 0}, "max_blocks: 0 is less than 1"),
        ({"seconds": 0.0}, r"seconds: 0.0 is not a positive number of seconds"),
        ({"seconds": float("inf")}, r"seconds: inf is not a positive number of seconds"),
        ({"half_life_seconds": -1.0}, r"half_life_seconds: -1.0 is not a positive number"),
    ],
)
def test_what_is_no_pin_is_refused(terms: dict[str, Any], message: str) -> None:
    """Time, budget and priority are refused with their field and value; their ends are allowed."""
    for end in ({"priority": 0.0}, {"priority": 1.0}, {"max_blocks": 1}, {"seconds": 0.001}):
        assert PinTerms(**{"seconds": 60.0} | end)
    with pytest.raises(ValueError, match=f"^{message}"):
        PinTerms(**{"seconds": 60.0} | terms)
