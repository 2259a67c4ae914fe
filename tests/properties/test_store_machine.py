"""The block store against its model, under calls in any order.

A failure prints the calls that lead to it and a `@reproduce_failure` line: put that line above
`test_store_agrees_with_its_model` to run the same example again.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from stemkv.kvstore.properties.machine import StoreMachine

QUICK = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=3000, stateful_step_count=80)


def test_store_agrees_with_its_model() -> None:
    """After any calls the store holds, finds, evicts and counts what the model does."""
    run_state_machine_as_test(StoreMachine, settings=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_store_agrees_with_its_model_for_long() -> None:
    """The same over more and longer runs."""
    run_state_machine_as_test(StoreMachine, settings=LONG)
