"""The engine behind a process border: real processes, a core that echoes."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from support import echo_core
from support.waiting import is_running, wait_until, wait_until_async

from stemkv.engine.client import EngineUnavailable
from stemkv.engine.config import ConfigError
from stemkv.engine.messages import (
    AdminError,
    AuditReport,
    DoAudit,
    GetAcknowledgements,
    GetBlock,
    GetStats,
)
from stemkv.engine.process import ProcessClient
from stemkv.engine.process_spawn import EngineStartError
from stemkv.engine.process_supervisor import RestartPolicy
from stemkv.engine.request import Delta, Event, Failed, Finished, Request, Started, Usage
from stemkv.kvstore.ids import FlushId, WorkerId
from stemkv.kvstore.namespace import Namespace

FACTORY = "support.echo_core:build_echo_core"
FAST = RestartPolicy(first_seconds=0.05, longest_seconds=0.2, stable_seconds=30.0)


def request(request_id: str, *tokens: int) -> Request:
    """Make a request whose prompt is what the core will say."""
    return Request(request_id, Namespace("t", b"d" * 32), np.array(tokens, dtype=np.int32))


@asynccontextmanager
async def running(
    model: str = "echo", journal: Path | None = None, stop_seconds: float = 10.0
) -> AsyncIterator[ProcessClient]:
    """Start a client, and close it at the end."""
    client = ProcessClient(
        echo_core.config(model, journal),
        core_factory=FACTORY,
        restart=FAST,
        stop_seconds=stop_seconds,
    )
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def collect(client: ProcessClient, item: Request) -> list[Event]:
    """Return all events of a request."""
    return [event async for event in client.generate(item)]


def lines(journal: Path) -> list[str]:
    """Read what the core has noted so far."""
    return journal.read_text().splitlines() if journal.exists() else []


async def test_events_arrive_in_order() -> None:
    """A request's events are its start, its tokens in order, and its end with the usage."""
    async with running() as client:
        assert client.ready
        assert client.info.fingerprint == "echo-1"
        assert client.info.worker == str(client.pid)
        assert client.pid != os.getpid()
        events = await collect(client, request("a", 5, 6, 7))
        assert isinstance(events[0], Started)
        deltas = [event for event in events if isinstance(event, Delta)]
        assert [delta.token_ids for delta in deltas] == [(5,), (6,), (7,)]
        assert deltas[-1].finish_reason == "length"
        assert events[-1] == Finished("a", Usage(3, 3, 0))


async def test_concurrent_requests_keep_apart() -> None:
    """Fifty requests at once each get their own tokens and nothing else."""
    async with running() as client:
        prompts = {f"r{i}": list(range(i + 1, i + 20)) for i in range(50)}
        results = await asyncio.gather(
            *(collect(client, request(name, *tokens)) for name, tokens in prompts.items())
        )
        for (name, tokens), events in zip(prompts.items(), results, strict=True):
            assert {event.request_id for event in events} == {name}
            said = [t for event in events if isinstance(event, Delta) for t in event.token_ids]
            assert said == tokens


async def test_rejection_and_submit_failure_end_one_request_only() -> None:
    """A rejected request and one whose submission raises both end with Failed; others go on."""
    async with running() as client:
        pid = client.pid
        rejected, raised, good = await asyncio.gather(
            collect(client, request("a", echo_core.REJECTED)),
            collect(client, request("b", echo_core.SUBMIT_RAISES)),
            collect(client, request("c", 1, 2)),
        )
        assert rejected == [Failed("a", "rejected", "too long", "prompt")]
        assert [type(event) for event in raised] == [Failed]
        assert isinstance(raised[0], Failed)
        assert raised[0].kind == "internal"
        assert isinstance(good[-1], Finished)
        assert client.pid == pid


async def test_same_id_twice_is_refused() -> None:
    """A request id that is already running is refused before it reaches the engine."""
    async with running() as client:
        first = client.generate(request("a", *range(1, 500)))
        await anext(first)
        with pytest.raises(ValueError, match="'a'"):
            await anext(client.generate(request("a", 1)))
        await first.aclose()


async def test_closing_the_iterator_aborts(tmp_path: Path) -> None:
    """A client that goes away mid-stream makes the engine drop the request."""
    journal = tmp_path / "journal"
    async with running(journal=journal) as client:
        events = client.generate(request("gone", *[echo_core.STEP_SLEEPS] * 20))
        await anext(events)
        await events.aclose()
        await wait_until_async(lambda: "abort gone" in lines(journal))
        report = await client.admin(DoAudit())
        assert isinstance(report, AuditReport)
        assert report.sequences == 0
        finished = await collect(client, request("kept", 1))
        assert isinstance(finished[-1], Finished)
    assert lines(journal).count("abort kept") == 0


async def test_cancelled_consumer_aborts(tmp_path: Path) -> None:
    """Cancelling the task that reads a request aborts it too."""
    journal = tmp_path / "journal"
    async with running(journal=journal) as client:
        task = asyncio.create_task(collect(client, request("gone", *[echo_core.STEP_SLEEPS] * 20)))
        await wait_until_async(lambda: "sleeping" in lines(journal))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until_async(lambda: "abort gone" in lines(journal))


async def test_an_admin_call_that_waits_holds_up_nothing() -> None:
    """While one waits for its rest, requests run and other calls are answered."""
    async with running() as client:
        waiting = asyncio.create_task(client.admin(GetAcknowledgements(echo_core.LATER_WAITS)))
        for name in ("a", "b"):
            events = await collect(client, request(name, *range(1, 50)))
            assert isinstance(events[-1], Finished)
            assert isinstance(await client.admin(DoAudit()), AuditReport)
        assert not waiting.done()
        await collect(client, request("release", 1))
        assert await waiting == {WorkerId("waits"): True}


async def test_the_rests_of_admin_calls_come_in_their_order(tmp_path: Path) -> None:
    """What calls leave for later is done one after the other; one that raises is an error value."""
    journal = tmp_path / "journal"
    names = [echo_core.LATER_WAITS, echo_core.LATER_RAISES, *(FlushId(f"f{i}") for i in range(5))]
    async with running(journal=journal) as client:
        calls = [asyncio.create_task(client.admin(GetAcknowledgements(name))) for name in names]
        await asyncio.sleep(0)  # all are sent before the first can go on
        await collect(client, request("release", 1))
        replies = await asyncio.gather(*calls)
        assert replies[1] == AdminError("internal", "GetAcknowledgements: ZeroDivisionError")
        assert replies[2:] == [{name: True} for name in names[2:]]
        assert [line for line in lines(journal) if "later" in line] == [f"later {n}" for n in names]
        assert client.ready


async def test_the_rests_of_admin_calls_are_done_before_the_engine_ends(tmp_path: Path) -> None:
    """A flush that was carried out is told to the others, though the engine is closed meanwhile."""
    journal = tmp_path / "journal"
    async with running(journal=journal) as client:
        calls = [
            asyncio.create_task(client.admin(GetAcknowledgements(name)))
            for name in (echo_core.LATER_SLEEPS, FlushId("last"))
        ]
        await wait_until_async(lambda: "later sleeps" in lines(journal))
        await client.close()
        await asyncio.gather(*calls, return_exceptions=True)
    assert lines(journal).index("later last") < lines(journal).index("close")


async def test_admin_replies_errors_and_exceptions() -> None:
    """Admin calls return the core's reply, its error value, or an internal error if it raised."""
    async with running() as client:
        report, error, broken = await asyncio.gather(
            client.admin(DoAudit()), client.admin(GetBlock("00")), client.admin(GetStats())
        )
        assert report == AuditReport((), 0, 0, 0.0)
        assert error == AdminError("invalid", "no such block", "key")
        assert isinstance(broken, AdminError)
        assert broken.kind == "internal"
        assert client.ready


async def test_loop_stays_free_during_a_long_step(tmp_path: Path) -> None:
    """While the engine is in a long step and its inbox overflows, the event loop is not held."""
    journal = tmp_path / "journal"
    async with running(journal=journal) as client:
        slow = asyncio.create_task(collect(client, request("slow", echo_core.STEP_SLEEPS)))
        await wait_until_async(lambda: "sleeping" in lines(journal))
        # 40 prompts of 40 kB overflow the pipe's buffer, which the engine is not reading now
        began = time.monotonic()
        others = [
            client.generate(request(f"r{i}", echo_core.REJECTED, *range(1, 10_000)))
            for i in range(40)
        ]
        waiting = [asyncio.create_task(collect_one(events)) for events in others]
        await asyncio.sleep(0)
        assert time.monotonic() - began < echo_core.SLEEP_SECONDS / 2
        assert not slow.done()
        assert all(isinstance(event, Failed) for event in await asyncio.gather(*waiting))
        assert isinstance((await slow)[-1], Finished)


async def collect_one(events: AsyncIterator[Event]) -> Event:
    """Return the first event."""
    return await anext(events)


async def test_housekeeping_runs_when_idle_and_when_busy(tmp_path: Path) -> None:
    """The core's housekeeping is called without any request, and close is called at the end."""
    journal = tmp_path / "journal"
    async with running(journal=journal):
        await wait_until_async(lambda: "idle" in lines(journal))
    assert lines(journal)[-1] == "close"


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        ("echo,bad-setting", ConfigError, "block_size: 7"),
        ("missing", EngineStartError, "FileNotFoundError: no model at 'missing'"),
        ("echo,start-exits", EngineStartError, "exit code 3 before it was ready"),
    ],
)
async def test_start_failures_reach_start(model: str, error: type[Exception], text: str) -> None:
    """What keeps the engine from starting is raised by start, and no process is left."""
    client = ProcessClient(echo_core.config(model), core_factory=FACTORY, restart=FAST)
    with pytest.raises(error, match=text):
        await client.start()
    assert client.pid is None
    assert not client.ready
    with pytest.raises(EngineUnavailable):
        await anext(client.generate(request("a", 1)))
    with pytest.raises(EngineUnavailable):
        _ = client.info
    await client.close()


async def test_unknown_factory_is_a_start_error() -> None:
    """A factory that cannot be imported, or not pickled, is a clear error too."""
    for factory in ("support.echo_core:nothing", lambda config: echo_core.EchoCore(None)):
        client = ProcessClient(echo_core.config(), core_factory=factory, restart=FAST)
        with pytest.raises(EngineStartError, match=r"nothing|pickle"):
            await client.start()


async def test_factory_may_be_a_callable() -> None:
    """A factory function that pickles works like its dotted name."""
    client = ProcessClient(echo_core.config(), core_factory=echo_core.build_echo_core)
    await client.start()
    assert isinstance((await collect(client, request("a", 1)))[-1], Finished)
    await client.close()


async def test_cancelled_start_leaves_no_process() -> None:
    """A start that is given up while the model loads ends the process at once."""
    client = ProcessClient(echo_core.config("echo,start-sleeps"), core_factory=FACTORY)
    task = asyncio.create_task(client.start())
    await wait_until_async(lambda: client.pid is not None)
    pid = client.pid
    assert pid is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(pid)


@pytest.mark.parametrize("how", ["sigkill", "exit", "raise"])
async def test_death_fails_what_is_open_and_restarts(how: str, tmp_path: Path) -> None:
    """When the engine dies, open requests fail, admin calls raise, and a new one takes over."""
    journal = tmp_path / "journal"
    async with running(journal=journal) as client:
        old = client.pid
        assert old is not None
        # one step of it sleeps, so that it is still open and the admin call waits
        open_request = asyncio.create_task(
            collect(client, request("open", *[echo_core.STEP_SLEEPS] * 9))
        )
        await wait_until_async(lambda: "sleeping" in lines(journal))
        call = asyncio.create_task(client.admin(DoAudit()))
        if how == "sigkill":
            await asyncio.sleep(0)
            os.kill(old, signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="SIGKILL"):
                await call
        else:
            token = echo_core.STEP_EXITS if how == "exit" else echo_core.STEP_RAISES
            killer = asyncio.create_task(collect(client, request("killer", token)))
            (last,) = (await killer)[-1:]
            assert isinstance(last, Failed)
            assert last.kind == "internal"
            await call  # it was answered before the fatal step
        last = (await open_request)[-1]
        assert isinstance(last, Failed)
        assert last.kind == "internal"
        assert not client.ready
        with pytest.raises(EngineUnavailable):
            await anext(client.generate(request("early", 1)))
        with pytest.raises(EngineUnavailable):
            await client.admin(DoAudit())
        await wait_until_async(lambda: client.ready, 20)
        assert client.pid != old
        assert client.info.worker == str(client.pid)
        assert isinstance((await collect(client, request("after", 1, 2)))[-1], Finished)


async def test_failed_restarts_are_tried_again(tmp_path: Path) -> None:
    """An engine that cannot be started again stays away, and comes back once it can."""
    journal = tmp_path / "journal"
    async with running("echo,starts-once", journal) as client:
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await wait_until_async(lambda: not client.ready)
        with pytest.raises(EngineUnavailable):
            await anext(client.generate(request("a", 1)))
        await asyncio.sleep(1.0)
        assert not client.ready
        journal.unlink()
        await wait_until_async(lambda: client.ready, 20)


def test_restart_delays_double_up_to_a_limit() -> None:
    """Delays go 0.1, 0.2, 0.4 … and stay at 30 seconds, however many deaths there were."""
    policy = RestartPolicy()
    assert [policy.delay_seconds(n) for n in (1, 2, 3, 4)] == [0.1, 0.2, 0.4, 0.8]
    assert policy.delay_seconds(10) == policy.delay_seconds(10_000) == 30.0


async def test_close_fails_open_requests_and_lets_the_step_finish(tmp_path: Path) -> None:
    """Closing ends open requests at once, and the engine closes its core before it exits."""
    journal = tmp_path / "journal"
    async with running(journal=journal) as client:
        pid = client.pid
        assert pid is not None
        task = asyncio.create_task(collect(client, request("a", *[echo_core.STEP_SLEEPS] * 9)))
        await wait_until_async(lambda: "sleeping" in lines(journal))
        await client.close()
        last = (await task)[-1]
        assert isinstance(last, Failed)
        assert lines(journal)[-1] == "close"
        assert not is_running(pid)
        assert not client.ready


async def test_close_kills_an_engine_that_does_not_end() -> None:
    """An engine that hangs when told to stop is killed after stop_seconds."""
    async with running("echo,close-sleeps", stop_seconds=0.3) as client:
        pid = client.pid
        assert pid is not None
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < 10
        assert not is_running(pid)


SERVICE = textwrap.dedent(
    """
    import asyncio, signal, sys
    from pathlib import Path
    from support import echo_core
    from test_process import FACTORY, collect, request
    from stemkv.engine.process import ProcessClient

    async def main(tokens):
        client = ProcessClient(echo_core.config(journal=Path(sys.argv[1])), core_factory=FACTORY)
        await client.start()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        task = asyncio.create_task(collect(client, request("a", *tokens)))
        print(client.pid, flush=True)
        await stop.wait()
        events = await task
        print(type(events[-1]).__name__, flush=True)
        if len(sys.argv) > 3:
            return  # ends without close
        await client.close()

    if __name__ == "__main__":
        asyncio.run(main([int(token) for token in sys.argv[2].split(",")]))
    """
)


def start_service(tmp_path: Path, tokens: str, *more: str) -> subprocess.Popen[str]:
    """Start a parent process in a group of its own, with an engine that runs one request."""
    script = tmp_path / "service.py"
    script.write_text(SERVICE)
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "journal"), tokens, *more],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


def first_line(process: subprocess.Popen[str]) -> str:
    """Read the next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("token", "sign"), [(1, "idle"), (echo_core.STEP_HANGS, "hanging")])
def test_killed_parent_takes_the_engine_with_it(token: int, sign: str, tmp_path: Path) -> None:
    """SIGKILL of the parent ends the engine, idle or stuck in a step."""
    service = start_service(tmp_path, str(token))
    try:
        pid = int(first_line(service))
        wait_until(lambda: sign in lines(tmp_path / "journal"))
        assert is_running(pid)
        service.kill()
        service.wait(10)
        wait_until(lambda: not is_running(pid), 5)
    finally:
        service.kill()
        service.wait(10)


def test_interrupt_of_the_group_lets_the_parent_drain(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group, and yet the open request runs to its end."""
    service = start_service(tmp_path, f"{echo_core.STEP_SLEEPS},{echo_core.STEP_SLEEPS},1")
    try:
        pid = int(first_line(service))
        wait_until(lambda: "sleeping" in lines(tmp_path / "journal"))
        os.killpg(service.pid, signal.SIGINT)
        assert first_line(service) == "Finished"
        assert service.wait(10) == 0
        assert not is_running(pid)
        assert lines(tmp_path / "journal")[-1] == "close"
    finally:
        service.kill()
        service.wait(10)


def test_parent_that_forgets_to_close_still_ends(tmp_path: Path) -> None:
    """A program that ends without close does not hang on its engine, nor leave it behind."""
    service = start_service(tmp_path, "1", "forget")
    try:
        pid = int(first_line(service))
        service.send_signal(signal.SIGINT)
        assert service.wait(10) == 0
        wait_until(lambda: not is_running(pid), 5)
    finally:
        service.kill()
        service.wait(10)
