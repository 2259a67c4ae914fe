"""Rule 13 for requests that run: why no more of a prompt was reused, as its lookup saw it."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cores import BOB, collect, continuation, hash_core, request, run

from stemkv.engine import misses
from stemkv.engine.core import EngineCore
from stemkv.engine.messages import GetStats
from stemkv.engine.request import Event, Started
from stemkv.kvstore.views import Explanation


def started(core: EngineCore, prompt: list[int], **changes: Any) -> Started:
    """Run one request and return its `Started`."""
    outcome = run(core, request("r", prompt, **({"max_tokens": 1} | changes)))["r"]
    assert outcome.started is not None
    return outcome.started


def miss(core: EngineCore, prompt: list[int], **changes: Any) -> Explanation:
    """Run one request that misses, and return why."""
    explanation = started(core, prompt, **changes).miss
    assert explanation is not None
    return explanation


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return how many explanations have been made."""
    made: list[Explanation] = []
    real = misses.explain

    def counted(*args: Any, **options: Any) -> Explanation:
        made.append(real(*args, **options))
        return made[-1]

    monkeypatch.setattr(misses, "explain", counted)
    return lambda: len(made)


def test_says_which_token_differs() -> None:
    """A request that leaves a cached prompt is told where, with both tokens."""
    core, _ = hash_core()
    assert miss(core, list(range(16))).reason == "not_seen"
    found = started(core, [*range(10), 99, 11, 12, 13, 14, 15])
    assert found.miss is not None
    assert found.cached_tokens == found.miss.position == 10
    assert (found.miss.reason, found.miss.full_block_tokens) == ("token_differs", 8)
    where = (found.miss.differing_position, found.miss.expected_token, found.miss.found_token)
    assert where == (10, 10, 99)


def test_nothing_to_say() -> None:
    """A prompt that was reused whole, and one that may not read the cache, have no explanation."""
    core, _ = hash_core()
    prompt = list(range(12))
    assert started(core, prompt, cache_read=False).miss is None
    assert started(core, prompt).miss is None
    assert started(core, prompt).cached_tokens == 11


def test_switched_off(count: Callable[[], int]) -> None:
    """Where nobody asks, nothing is worked out."""
    core, _ = hash_core(explain_misses=False)
    assert started(core, list(range(12))).miss is None
    assert count() == 0


def test_another_tenant_learns_nothing() -> None:
    """What one has cached is no reason for another's miss."""
    core, _ = hash_core()
    started(core, list(range(12)))
    assert miss(core, [*range(11), 99], namespace=BOB).reason == "not_seen"


def test_seen_before_the_admission_makes_room() -> None:
    """The sibling that a prompt differs from is named, though it gives way to that prompt."""
    core, _ = hash_core(blocks=4)
    started(core, [*range(15)])
    found = miss(core, [*range(9), *range(50, 56)])
    assert (found.reason, found.differing_position) == ("token_differs", 9)
    assert core.admin(GetStats()).evicted_blocks > 0
    gone = miss(core, [*range(15)])
    assert (gone.reason, gone.evicted_for) == ("evicted", "alice")


def test_a_follower_is_told_what_it_found_in_the_end() -> None:
    """Waiting for a leader is no miss; what the leader does not leave behind is one."""
    core, _ = hash_core(max_batch_tokens=8)
    outcomes = run(
        core,
        request("leader", list(range(16)), max_tokens=1),
        request("same", list(range(16)), max_tokens=1),
        request("other", [*range(14), 70, 71], max_tokens=1),
    )
    seen = {name: outcome.started for name, outcome in outcomes.items()}
    assert seen["leader"] is not None
    assert seen["leader"].miss is not None
    assert seen["leader"].miss.reason == "not_seen"
    assert seen["same"] is not None
    assert seen["same"].miss is None
    assert seen["other"] is not None
    assert seen["other"].miss is not None
    assert seen["other"].miss.reason == "token_differs"
    assert seen["other"].miss.position == seen["other"].cached_tokens == 14


def _wait_for_blocks(core: EngineCore) -> list[Event]:
    """Let a request of 20 tokens wait while another one holds more than half of 9 blocks."""
    events = [*core.submit(request("long", list(range(100, 120)), max_tokens=10))]
    events += core.step()
    events += core.step()
    events += core.submit(request("waits", list(range(20)), max_tokens=1))
    for _ in range(3):
        events += core.step()
        assert core.admin(GetStats()).waiting == 1
    return events


def test_worked_out_once_for_one_that_waits_for_blocks(count: Callable[[], int]) -> None:
    """A request that is short of blocks at every step is explained at the first."""
    core, _ = hash_core(blocks=9)
    events = _wait_for_blocks(core)
    while core.has_work():
        events += core.step()
    begun = collect(events)["waits"].started
    assert begun is not None
    assert begun.miss is not None
    assert count() == 2


def test_worked_out_again_if_it_found_more(count: Callable[[], int]) -> None:
    """What a waiting request is told in the end fits what it reused in the end."""
    core, _ = hash_core(blocks=9)
    begin = list(range(8))
    events = [*core.submit(request("long", begin, max_tokens=14))]
    events += core.step()
    # It goes on as the other one's answer does, whose blocks are there one after the other.
    known = [*begin, *continuation(begin, 8, core.info.vocab_size)]
    events += core.submit(request("waits", [*known, *[9] * 19], max_tokens=1))
    steps = 1
    while core.has_work():
        events += core.step()
        steps += 1
    begun = collect(events)["waits"].started
    assert begun is not None
    assert begun.miss is not None
    assert begun.cached_tokens == begun.miss.full_block_tokens == begun.miss.position == 16
    # Of the one, and of the other with 8, 12 and 16 tokens cached.
    assert count() == 4 < steps


def test_a_preempted_request_is_not_explained_again(count: Callable[[], int]) -> None:
    """What comes back after preemption has been explained at its first admission."""
    core, _ = hash_core(blocks=8)
    run(
        core,
        request("a", list(range(10)), max_tokens=16),
        request("b", list(range(50, 60)), max_tokens=16),
    )
    assert core.admin(GetStats()).preemptions > 0
    assert count() == 2


def test_several_choices_are_one_request(count: Callable[[], int]) -> None:
    """The choices of a request share one prefill and one explanation."""
    core, _ = hash_core()
    assert miss(core, list(range(10)), n=3).reason == "not_seen"
    assert count() == 1


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


@settings(max_examples=40)
@given(st.lists(PROMPTS, min_size=1, max_size=8), st.integers(4, 10))
def test_the_explanation_fits_what_was_reused(prompts: list[list[int]], blocks: int) -> None:
    """Whatever was cached, the explanation begins where reuse ended, and a whole hit has none.

    Nor has a hit that would have been whole, had there been room for the source of its copy.
    """
    core, _ = hash_core(blocks=blocks, max_tokens=16)
    for prompt in prompts:
        begun = started(core, prompt)
        if begun.miss is None:
            left = len(prompt) - 1 - begun.cached_tokens
            assert left == 0 or (left < 4 and begun.cached_tokens % 4 == 0)
            continue
        told = begun.miss
        assert told.prompt_tokens == len(prompt)
        assert told.position == begun.cached_tokens
        assert told.position == min(told.full_block_tokens + told.partial_tokens, len(prompt) - 1)
        if told.differing_position is not None:
            assert told.found_token == prompt[told.differing_position] != told.expected_token
