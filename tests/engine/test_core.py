"""The engine core over a model that is a hash of its context: any wrong block changes a token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cores import ALICE, BOB, collect, continuation, hash_core, request, run
from support.cores import make_core as make_core

from stemkv.engine.config import ConfigError, EngineConfig
from stemkv.engine.core import EngineCore, build_core
from stemkv.engine.messages import AdminError, DoFlush, DoLocate, GetAcknowledgements, GetStats
from stemkv.engine.plan import StepPlan
from stemkv.kvstore.directory.protocol import DirectoryUnavailable, WorkerHolding
from stemkv.kvstore.flush import Flush, FlushKind
from stemkv.kvstore.ids import BlockKey, FlushId, WorkerId
from stemkv.kvstore.properties.recording_directory import RecordingDirectory

VOCAB = 260


def expected(prompt: list[int], count: int, core: Any) -> list[int]:
    """Return what the model says after a prompt."""
    return continuation(prompt, count, core.info.vocab_size)


def test_one_request_and_its_repetition() -> None:
    """A prompt sent again is cached but for its last token, and answered alike."""
    core, runner = hash_core()
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    cold = run(core, request("cold", prompt, max_tokens=6))["cold"]
    rows = runner.rows_run
    warm = run(core, request("warm", prompt, max_tokens=6))["warm"]
    assert cold.tokens[0] == warm.tokens[0] == expected(prompt, 6, core)
    assert cold.started is not None
    assert cold.started.cached_tokens == 0
    assert warm.finished is not None
    assert warm.finished.usage.cached_tokens == len(prompt) - 1
    assert warm.finished.usage.completion_tokens == 6
    assert rows == len(prompt) + 5
    assert runner.rows_run - rows == 1 + 5
    counts = core.admin(GetStats()).tenants["alice"]
    assert (counts.lookup, counts.hit_full, counts.hit_partial) == (18, 8, 0)
    assert counts.computed == len(prompt) + 1


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 12])
def test_cached_prompt_of_any_length_runs_one_row(length: int) -> None:
    """Whatever part of a block a prompt ends in, its repetition prefills exactly one token."""
    core, runner = hash_core()
    prompt = list(range(20, 20 + length))
    run(core, request("a", prompt, max_tokens=1))
    rows = runner.rows_run
    outcome = run(core, request("b", prompt, max_tokens=3))["b"]
    assert runner.rows_run - rows == 3
    assert outcome.tokens[0] == expected(prompt, 3, core)


def test_conversation_goes_on_from_its_own_answer() -> None:
    """The next turn reuses the answer's blocks and the partly filled one behind them."""
    core, _ = hash_core()
    prompt = list(range(30, 40))
    answer = run(core, request("a", prompt, max_tokens=9))["a"].tokens[0]
    second = [*prompt, *answer, 1, 2, 3]
    outcome = run(core, request("b", second, max_tokens=2))["b"]
    assert outcome.finished is not None
    # The last token of the answer was drawn, never run.
    assert outcome.finished.usage.cached_tokens == len(prompt) + 8
    assert outcome.tokens[0] == expected(second, 2, core)


def test_identical_prompts_together_are_prefilled_once() -> None:
    """The second of two equal prompts follows the first instead of computing it again."""
    core, runner = hash_core(max_batch_tokens=8)
    prompt = list(range(50, 67))
    outcomes = run(core, request("a", prompt, max_tokens=2), request("b", prompt, max_tokens=2))
    assert outcomes["a"].tokens[0] == outcomes["b"].tokens[0] == expected(prompt, 2, core)
    # 17 rows and a decode for the first; the last token again and a decode for the second.
    assert runner.rows_run == 17 + 1 + 1 + 1


def test_follower_takes_over_when_its_leader_leaves() -> None:
    """An aborted leader leaves its follower to compute the rest itself."""
    core, _ = hash_core(max_batch_tokens=4)
    prompt = list(range(70, 90))
    core.submit(request("leader", prompt, max_tokens=2))
    core.submit(request("follower", prompt, max_tokens=2))
    events = core.step()
    stats = core.admin(GetStats())
    assert (stats.running, stats.waiting) == (1, 1)
    core.abort("leader")
    while core.has_work():
        events += core.step()
    assert collect(events)["follower"].tokens[0] == expected(prompt, 2, core)


def test_nobody_follows_one_that_does_not_publish() -> None:
    """A request that may not write is no leader."""
    core, _ = hash_core(max_batch_tokens=64)
    prompt = list(range(90, 110))
    core.submit(request("a", prompt, max_tokens=2, cache_write=False))
    core.submit(request("b", prompt, max_tokens=2))
    core.step()
    stats = core.admin(GetStats())
    assert (stats.running, stats.following) == (2, 0)


def test_reading_and_writing_can_be_refused() -> None:
    """cache_write false leaves nothing, cache_read false reuses nothing."""
    core, _ = hash_core()
    prompt = list(range(9))

    def cached(**flags: bool) -> int:
        finished = run(core, request("r", prompt, max_tokens=1, **flags))["r"].finished
        assert finished is not None
        return finished.usage.cached_tokens

    assert cached(cache_write=False) == 0
    assert cached() == 0
    assert cached(cache_read=False) == 0
    assert cached() == 8


def test_tenants_share_nothing_unless_they_share_a_domain() -> None:
    """Equal prompts of two tenants meet only inside one sharing group."""
    core, _ = hash_core()
    prompt = list(range(12))
    run(core, request("a", prompt, max_tokens=1))
    alone = run(core, request("b", prompt, max_tokens=1, namespace=BOB))["b"].finished
    grouped = replace(ALICE, tenant="carol")
    shared = run(core, request("c", prompt, max_tokens=1, namespace=grouped))["c"].finished
    assert alone is not None
    assert shared is not None
    assert (alone.usage.cached_tokens, shared.usage.cached_tokens) == (0, 11)


def test_prefix_cache_off_computes_everything() -> None:
    """Without the prefix cache nothing is reused and nothing stays."""
    core, _ = hash_core(prefix_cache=False)
    prompt = list(range(12))
    for _ in range(2):
        finished = run(core, request("r", prompt, max_tokens=2))["r"].finished
        assert finished is not None
        assert finished.usage.cached_tokens == 0
    assert core.admin(GetStats()).free_blocks == 32


def test_choices_fork_from_one_prefill() -> None:
    """N choices share the prompt's blocks and write to copies of the last one."""
    core, runner = hash_core()
    prompt = list(range(10))
    outcome = run(core, request("r", prompt, n=3, temperature=5.0, seed=7, max_tokens=5))["r"]
    prefill = runner.plans[0]
    assert prefill.query_lens == (10,)
    assert sum(len(plan.copies.source) for plan in runner.plans) == 2
    assert sorted(outcome.tokens) == [0, 1, 2]
    assert len({tuple(tokens) for tokens in outcome.tokens.values()}) == 3
    alone = run(core, request("r", prompt, temperature=5.0, seed=7, max_tokens=5))["r"]
    assert alone.tokens[0] == outcome.tokens[0]


def test_more_choices_than_sequences() -> None:
    """Choices that find no sequence wait, and come back through the cache with the same tokens."""
    core, _ = hash_core(max_running=2)
    wide, _ = hash_core(max_running=8)
    asked = request("r", list(range(10)), n=5, temperature=5.0, seed=7, max_tokens=5)
    assert run(core, asked)["r"].tokens == run(wide, asked)["r"].tokens


def test_preemption_changes_no_token() -> None:
    """With a fifth of the blocks that are needed, all requests end, with the same tokens."""
    prompts = [[*range(8), 100 + i, *range(10)] for i in range(6)]
    need = sum(-(-(len(p) + 14) // 4) for p in prompts)
    core, _ = hash_core(blocks=need // 5, max_tokens=40)
    asked = [request(f"r{i}", p, max_tokens=14) for i, p in enumerate(prompts)]
    outcomes = run(core, *asked)
    for i, prompt in enumerate(prompts):
        assert outcomes[f"r{i}"].tokens[0] == expected(prompt, 14, core)
    stats = core.admin(GetStats())
    assert stats.preemptions > 0
    assert stats.in_use_blocks == 0


def test_decodes_go_on_while_a_long_prompt_is_prefilled() -> None:
    """Every step of a long prefill also decodes for those who are being answered."""
    core, runner = hash_core(blocks=64, max_tokens=128, max_batch_tokens=8)
    core.submit(request("short", [1, 2, 3], max_tokens=30))
    core.step()
    core.submit(request("long", list(range(100)), max_tokens=2))
    for _ in range(10):
        core.step()
    for plan in runner.plans[1:11]:
        assert plan.query_lens == (1, 7)
        assert plan.decodes == 1


def test_more_decodes_than_budget_take_turns() -> None:
    """Where decodes alone exceed the budget, none of them starves."""
    core, _ = hash_core(max_batch_tokens=2, max_running=6)
    core.submit(request("r", [1], n=6, max_tokens=20))
    events = [event for _ in range(40) for event in core.step()]
    counts = [len(tokens) for tokens in collect(events)["r"].tokens.values()]
    assert len(counts) == 6
    assert max(counts) - min(counts) <= 2


def test_abort_frees_all_blocks_at_once() -> None:
    """After an abort nothing is in use, all choices included."""
    core, _ = hash_core()
    core.submit(request("r", list(range(10)), n=3, max_tokens=20))
    for _ in range(3):
        core.step()
    core.abort("r")
    stats = core.admin(GetStats())
    assert (stats.in_use_blocks, stats.running, stats.waiting) == (0, 0, 0)
    assert not core.has_work()
    core.abort("unknown")


def test_a_failed_step_fails_its_requests_and_the_engine_goes_on() -> None:
    """An exception in the model fails the requests of that step, with their blocks back."""
    core, runner = hash_core()
    runner.fail_on = lambda plan: len(runner.plans) == 2
    first = run(core, request("a", list(range(9)), max_tokens=9), request("b", [3], max_tokens=9))
    for name in ("a", "b"):
        failed = first[name].failed
        assert failed is not None
        assert failed.kind == "internal"
    assert core.admin(GetStats()).in_use_blocks == 0
    after = run(core, request("a", list(range(9)), max_tokens=4))["a"]
    assert after.tokens[0] == expected(list(range(9)), 4, core)


def test_a_failed_copy_is_not_taken_for_done() -> None:
    """If the step that copies a block fails, nobody ever reads the copy as written."""
    core, runner = hash_core()
    run(core, request("a", list(range(6)), max_tokens=1))
    runner.fail_on = lambda plan: len(plan.copies.source) > 0
    failed = run(core, request("b", [*range(6), 7], max_tokens=2))["b"].failed
    assert failed is not None
    runner.fail_on = lambda plan: False
    again = run(core, request("c", [*range(6), 7], max_tokens=2))["c"]
    assert again.tokens[0] == expected([*range(6), 7], 2, core)


def test_bad_logits_fail_one_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is not finite fails its request; the others of the step are answered."""
    core, runner = hash_core()
    original = runner.execute

    def poisoned(plan: StepPlan) -> Any:
        logits = original(plan)
        logits[np.array(plan.context_lens) == 5] = float("nan")
        return logits

    monkeypatch.setattr(runner, "execute", poisoned)
    outcomes = run(core, request("bad", [1, 2, 3], max_tokens=9), request("good", [9] * 6))
    assert outcomes["bad"].failed is not None
    assert "not finite" in outcomes["bad"].failed.message
    assert outcomes["good"].tokens[0] == expected([9] * 6, 16, core)
    assert core.admin(GetStats()).in_use_blocks == 0


class SlowDirectory(RecordingDirectory):
    """One that may be asked what waits for a network only where that holds up no step."""

    may_wait = False
    expected = 0

    def expect(self, flush: Flush) -> None:
        """Note it."""
        self.expected += 1

    def announce(self, flush: Flush) -> None:
        """Be out of reach, after a long wait."""
        assert self.may_wait
        raise DirectoryUnavailable("no answer")

    def acknowledgements(
        self, flush_id: FlushId, *, wait_seconds: float
    ) -> Mapping[WorkerId, bool]:
        """Be out of reach."""
        assert self.may_wait
        raise DirectoryUnavailable("no answer")

    def locate(self, keys: Sequence[BlockKey]) -> tuple[WorkerHolding, ...]:
        """Be out of reach."""
        assert self.may_wait
        raise DirectoryUnavailable("no answer")


def test_the_directory_is_asked_where_it_holds_up_no_step() -> None:
    """Calls that wait for it are only begun on the core's thread; a flush is done at once."""
    core, _ = hash_core()
    directory = SlowDirectory()
    core._store.directory = directory
    prompt = list(range(12))
    run(core, request("r", prompt, max_tokens=1))
    flush = core.admin(DoFlush(FlushKind.ALL))
    assert directory.expected == 1
    asked = [core.admin(GetAcknowledgements(FlushId("f"))), core.admin(DoLocate(ALICE, b""))]
    assert core.admin(GetStats()).cached_blocks == 0
    directory.may_wait = True
    report = flush.finish()
    assert (report.blocks, report.directory_error) == (3, "no answer")
    for later in asked:
        reply = later.finish()
        assert isinstance(reply, AdminError)
        assert (reply.kind, "no answer" in reply.message) == ("unavailable", True)


def test_flush_while_running_changes_no_token_and_leaves_nothing() -> None:
    """A running request keeps its flushed blocks, and publishes nothing further."""
    core, _ = hash_core()
    prompt = list(range(12))
    core.submit(request("r", prompt, max_tokens=12))
    events = [event for _ in range(4) for event in core.step()]
    report = core.admin(DoFlush(FlushKind.TENANT, ALICE)).finish()
    assert (report.blocks, report.in_use) == (3, 3)
    while core.has_work():
        events += core.step()
    assert collect(events)["r"].tokens[0] == expected(prompt, 12, core)
    stats = core.admin(GetStats())
    assert (stats.free_blocks, stats.cached_blocks) == (32, 0)
    finished = run(core, request("again", prompt))["again"].finished
    assert finished is not None
    assert finished.usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"prompt": []}, "prompt", "no tokens"),
        ({"prompt": [1, 999]}, "prompt", "999"),
        ({"prompt": [1, -4]}, "prompt", "-4"),
        ({"prompt": [1] * 64}, "prompt", "64 prompt tokens"),
        ({"prompt": [1] * 60, "max_tokens": 5}, "max_tokens", "5 output tokens"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens", "0 is less than 1"),
        ({"prompt": [1], "n": 0}, "n", "0 is less than 1"),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    changes: dict[str, Any], field: str, text: str
) -> None:
    """A hopeless request fails at submission, naming the field and the number."""
    core, _ = hash_core()
    prompt = changes.pop("prompt")
    (failed,) = core.submit(request("r", prompt, **changes))
    assert (failed.kind, failed.field) == ("rejected", field)
    assert text in failed.message
    assert not core.has_work()


def test_a_request_larger_than_the_pool_is_refused() -> None:
    """What the pool cannot hold even alone is refused, and what it just can is run."""
    core, _ = hash_core(blocks=5)
    (failed,) = core.submit(request("r", list(range(15)), max_tokens=7))
    assert failed.kind == "rejected"
    assert "6 cache blocks" in failed.message
    outcome = run(core, request("r", list(range(15)), max_tokens=6))["r"]
    assert outcome.tokens[0] == expected(list(range(15)), 6, core)


def test_the_queue_is_bounded() -> None:
    """Beyond max_queue waiting and max_running running requests, the answer is `overloaded`."""
    core, _ = hash_core(max_queue=2, max_running=1)
    for i in range(3):
        assert core.submit(request(f"r{i}", [1, i])) == ()
    (failed,) = core.submit(request("r3", [1]))
    assert failed.kind == "overloaded"


def test_a_request_id_in_use_is_refused() -> None:
    """Two open requests never have one id."""
    core, _ = hash_core()
    core.submit(request("r", [1]))
    (failed,) = core.submit(request("r", [2]))
    assert failed.field == "request_id"


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    """Draw requests with shared beginnings, arrival and abort steps, and a small engine."""
    stems = draw(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=14), min_size=1, max_size=3)
    )
    requests = []
    for i in range(draw(st.integers(1, 7))):
        prompt = [*draw(st.sampled_from(stems)), *draw(st.lists(st.integers(0, 2), max_size=6))]
        requests.append(
            (
                request(
                    f"r{i}",
                    prompt,
                    max_tokens=draw(st.integers(1, 10)),
                    n=draw(st.sampled_from([1, 1, 1, 2, 3])),
                    namespace=draw(st.sampled_from([ALICE, ALICE, BOB])),
                    cache_read=draw(st.sampled_from([True, True, False])),
                    cache_write=draw(st.sampled_from([True, True, False])),
                ),
                draw(st.integers(0, 20)),
                draw(st.none() | st.integers(0, 30)),
            )
        )
    return {
        "requests": requests,
        "flushes": draw(st.lists(st.integers(0, 40), max_size=2)),
        "blocks": draw(st.integers(8, 24)),
        "max_batch_tokens": draw(st.sampled_from([1, 3, 8, 64])),
        "max_running": draw(st.integers(1, 6)),
    }


@settings(max_examples=150, deadline=None, print_blob=True)
@given(workloads())
def test_any_workload_is_answered_as_if_alone(workload: dict[str, Any]) -> None:
    """Whatever is shared, forked, preempted, aborted or flushed, answers are the solo answers."""
    core, _ = hash_core(
        blocks=workload["blocks"],
        max_batch_tokens=workload["max_batch_tokens"],
        max_running=workload["max_running"],
    )
    events: list[Any] = []
    aborted = set()
    for step in range(600):
        for each, arrival, abort in workload["requests"]:
            if arrival == step:
                events += core.submit(each)
            if abort is not None and arrival + abort == step:
                core.abort(each.request_id)
                aborted.add(each.request_id)
        if step in workload["flushes"]:
            core.admin(DoFlush(FlushKind.ALL)).finish()
        if core.has_work():
            events += core.step()
    assert not core.has_work(), "work is left after 600 steps"
    outcomes = collect(events)
    for each, _, _ in workload["requests"]:
        outcome = outcomes[each.request_id]
        assert outcome.failed is None
        solo = expected(each.prompt.tolist(), each.sampling.max_tokens, core)
        for tokens in outcome.tokens.values():
            assert tokens == solo[: len(tokens)]
        if outcome.finished is not None:
            assert [len(t) for t in outcome.tokens.values()] == [len(solo)] * each.sampling.n
        else:
            assert each.request_id in aborted
    assert core.admin(GetStats()).in_use_blocks == 0


def test_a_policy_of_eviction_that_is_none_is_refused() -> None:
    """The error names the setting, its value and what would do, before a model is loaded."""
    config = EngineConfig(model="absent/model", secret=b"s" * 16, eviction="mru")
    with pytest.raises(ConfigError, match="eviction: 'mru' is not one of lru, adaptive"):
        build_core(config)


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_an_engine_says_what_each_policy_would_have_hit(
    make_core: Callable[..., EngineCore], eviction: str
) -> None:
    """Under any policy the operator sees the shares of all, counted from finished requests."""
    core = make_core(eviction=eviction)
    shares = core.admin(GetStats()).policy_hit_shares
    assert set(shares.values()) == {0.0}
    for name in ("cold", "warm"):
        run(core, request(name, list(range(5, 5 + 64)), max_tokens=2))
    shares = core.admin(GetStats()).policy_hit_shares
    assert list(shares) == ["lru", "lrfu-15", "lrfu-60", "lrfu-240"]
    assert set(shares.values()) == {0.5}
