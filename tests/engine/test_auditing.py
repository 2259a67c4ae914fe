"""A fault in the store of a running engine costs whoever holds what is wrong, and nobody else."""

import logging
from collections.abc import Callable

import pytest
from support.cores import BOB, SECRET, collect, continuation, hash_core, request, run

from stemkv.engine.config import ConfigError, EngineConfig
from stemkv.engine.core import AuditFailedError, EngineCore
from stemkv.engine.messages import AuditReport, DoAudit, EngineStats, GetStats
from stemkv.engine.request import Event
from stemkv.kvstore import ops
from stemkv.kvstore.repair import RepairError
from stemkv.kvstore.store import BlockStore

A = list(range(30, 45))
B = list(range(100, 117))


def store_of(core: EngineCore) -> BlockStore:
    """Return the store of a core."""
    return core._store


def table_of(core: EngineCore, request_id: str) -> list[int]:
    """Return the blocks that a running request holds."""
    sequence = core._jobs[request_id].tracks[0].sequence
    assert sequence is not None
    return [int(b) for b in store_of(core).table_of(sequence)]


def audited(core: EngineCore) -> AuditReport:
    """Ask for an audit."""
    report = core.admin(DoAudit())
    assert isinstance(report, AuditReport)
    return report


def quarantined(core: EngineCore) -> int:
    """Ask how many blocks are out of service."""
    stats = core.admin(GetStats())
    assert isinstance(stats, EngineStats)
    return stats.quarantined_blocks


def both_running() -> tuple[EngineCore, list[Event], int]:
    """Return a core in the middle of two requests, their events, and the size of the vocabulary."""
    core, _ = hash_core(blocks=32, debug_audit=False)
    events: list[Event] = []
    events += core.submit(request("a", A, max_tokens=12))
    events += core.submit(request("b", B, max_tokens=12, namespace=BOB))
    for _ in range(5):
        events += core.step()
    assert len(core._jobs) == 2
    return core, events, core.info.vocab_size


def finish(core: EngineCore, events: list[Event]) -> list[Event]:
    """Step until nothing is left to do; returns all events."""
    for _ in range(200):
        if not core.has_work():
            return events
        events = events + core.step()
    raise AssertionError("still work after 200 steps")


def by_order(core: EngineCore) -> None:
    """Let an operator ask."""
    audited(core)


def by_clock(core: EngineCore) -> None:
    """Let the time of the periodic audit come."""
    core._auditor._next = store_of(core).clock()
    core.idle()


@pytest.mark.parametrize("ask", [by_order, by_clock])
def test_whoever_holds_a_bad_block_fails_alone(ask: Callable[[EngineCore], None]) -> None:
    """The other request says what it would have said; later ones run, and the audit is clean."""
    core, events, vocab = both_running()
    bad = table_of(core, "a")[1]
    store_of(core).pool.tokens[bad, 2] += 1
    ask(core)
    outcomes = collect(finish(core, events))
    failed = outcomes["a"].failed
    assert failed is not None
    assert failed.kind == "internal"
    assert "cache blocks were found inconsistent" in failed.message
    assert outcomes["b"].tokens[0] == continuation(B, 12, vocab)
    assert quarantined(core) == 1
    assert audited(core).violations == ()
    for name, prompt in (("again", A), ("more", [*A, 7, 8])):
        outcome = run(core, request(name, prompt, max_tokens=9))[name]
        assert outcome.tokens[0] == continuation(prompt, 9, vocab)
    assert quarantined(core) == 1


def test_the_report_says_what_it_took() -> None:
    """Violations, blocks out of service and failed requests; a second audit finds nothing."""
    core, events, _ = both_running()
    bad = table_of(core, "b")[0]
    store_of(core).pool.meta[bad, ops.REF] += 3
    report = audited(core)
    assert any(f"block {bad}: 4 references counted, 1 held" in v for v in report.violations)
    assert (report.quarantined, report.failed_requests, report.sequences) == ((bad,), 1, 2)
    second = audited(core)
    assert (second.violations, second.quarantined, second.failed_requests) == ((), (), 0)
    assert collect(finish(core, events))["b"].failed is not None


def test_a_wrong_count_fails_nobody() -> None:
    """What is only counted or linked wrongly is put right under the running requests."""
    core, events, vocab = both_running()
    store_of(core).pool.accounts[ops.POOL, ops.FREED] += 1
    assert audited(core).failed_requests == 0
    outcomes = collect(finish(core, events))
    assert outcomes["a"].tokens[0] == continuation(A, 12, vocab)
    assert outcomes["b"].tokens[0] == continuation(B, 12, vocab)


def test_all_choices_of_a_request_fail_together() -> None:
    """With n=3 the forks go with the one whose row is wrong, in one failure."""
    core, _ = hash_core(blocks=32, debug_audit=False)
    events: list[Event] = [*core.submit(request("a", A, max_tokens=12, n=3))]
    for _ in range(4):
        events += core.step()
    sequence = core._jobs["a"].tracks[2].sequence
    assert sequence is not None
    store_of(core).sequences[sequence].computed += 100
    assert audited(core).failed_requests == 1
    assert collect(finish(core, events))["a"].failed is not None
    assert not store_of(core).sequences


def test_a_failure_is_told_when_nothing_else_runs() -> None:
    """The only request's failure is work for one more step."""
    core, _ = hash_core(blocks=32, debug_audit=False)
    core.submit(request("a", A, max_tokens=12))
    core.step()
    store_of(core).pool.meta[table_of(core, "a")[0], ops.REF] = 9
    audited(core)
    assert core.has_work()
    assert [event.request_id for event in core.step()] == ["a"]
    assert not core.has_work()


def test_the_log_names_the_violations(caplog: pytest.LogCaptureFixture) -> None:
    """One error line says what was found and what it took; a clean audit says nothing."""
    core, _, _ = both_running()
    with caplog.at_level(logging.INFO):
        audited(core)
        assert not caplog.records
        store_of(core).pool.accounts[ops.POOL, ops.FREED] += 1
        audited(core)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "free blocks counted" in record.getMessage()


def test_an_audit_by_the_clock_is_off_at_zero() -> None:
    """audit_seconds 0 never audits unasked; otherwise not before its time."""
    for seconds in (0.0, 1000.0):
        core, _ = hash_core(debug_audit=False, audit_seconds=seconds)
        store_of(core).pool.accounts[ops.POOL, ops.FREED] += 1
        core.idle()
        assert audited(core).violations != ()


def test_debug_mode_stops_at_the_first_violation() -> None:
    """Bugs are to be found there, not covered up."""
    core, _ = hash_core(blocks=32)
    core.submit(request("a", A, max_tokens=12))
    core.step()
    store_of(core).pool.accounts[ops.POOL, ops.FREED] += 1
    with pytest.raises(AuditFailedError, match="free blocks counted"):
        core.step()


def test_what_cannot_be_repaired_ends_the_engine() -> None:
    """The answer is the error, and the next step raises, so that a fresh engine is started."""
    core, _, _ = both_running()
    store_of(core)._open._free.pop()
    with pytest.raises(RepairError, match="not all sequences"):
        core.admin(DoAudit())
    assert core.has_work()
    with pytest.raises(AuditFailedError, match="not all sequences"):
        core.step()


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_audit_seconds_is_a_time(seconds: float) -> None:
    """Other settings are refused, with the value."""
    with pytest.raises(ConfigError, match="audit_seconds"):
        EngineConfig(model="m", secret=SECRET, audit_seconds=seconds)
