"""The properties that the auditor's tool runs, each on a few examples of its own choosing."""

import pytest

from stemkv.kvstore.properties.running import Budget, run_property
from stemkv.kvstore.properties.suite import LIMITS, PROPERTIES, RULES, Property


@pytest.mark.parametrize(
    "property_", [p for p in PROPERTIES if p.name != "store"], ids=lambda p: p.name
)
def test_property_holds(property_: Property) -> None:
    """Each property but the state machine, which has a test of its own, holds."""
    outcome = run_property(property_, Budget(examples=100, steps=1, seed=1))
    assert outcome.failure is None, outcome.failure
    assert outcome.absent == property_.absent
    assert outcome.absent or outcome.examples >= 30


def test_every_rule_is_held_or_said_not_to_be() -> None:
    """Each rule of the design is some property's, or the report says why not."""
    held = {number for property_ in PROPERTIES for number in property_.rules}
    assert held <= set(RULES)
    assert set(LIMITS) <= set(RULES)
    assert held | set(LIMITS) == set(RULES) == set(range(1, 15))
    assert len({property_.name for property_ in PROPERTIES}) == len(PROPERTIES)


def test_parts_are_parts_of_their_property() -> None:
    """What narrows a failure down to fewer rules is there under its name."""
    parts = [(p.body, name) for p in PROPERTIES for name in p.parts]
    assert parts
    for body, name in parts:
        assert callable(getattr(body, name))
