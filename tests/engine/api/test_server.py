import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.api import ADMIN, chat_body

from stemkv.engine.api.server import listen

PROGRAM = Path(__file__).parents[2] / "support" / "serve_fake.py"
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def _serving(*more: str, drain: float, step: float) -> AsyncIterator[tuple[Process, str]]:
    """Run the program; yields its process and its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, "0", str(drain), str(step), *more, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        word, port, model = line.decode().split()
        assert (word, model) == ("ready", "fake")
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _rest(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.read(), 30)).decode()


async def test_a_stop_lets_running_answers_end() -> None:
    """After SIGTERM a running stream goes on to its end, then the engine is closed."""
    async with _serving(drain=30, step=0.01) as (process, url), httpx.AsyncClient() as http:
        async with http.stream("POST", url + CHAT, json=chat_body(stream=True)) as response:
            lines = response.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines]
        assert rest[-2] == "data: [DONE]"
        assert "closed True" in await _rest(process)
        assert await process.wait() == 0


async def test_a_stop_ends_what_takes_too_long() -> None:
    """When the drain time is over, a running stream ends with an error that says so."""
    async with _serving(drain=0.3, step=0.2) as (process, url), httpx.AsyncClient() as http:
        async with http.stream("POST", url + CHAT, json=chat_body(stream=True)) as response:
            lines = response.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines if line]
        error = json.loads(rest[-1].removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "shutting_down")
        assert "closed True" in await _rest(process)


async def test_a_second_signal_ends_what_is_running() -> None:
    """With a long drain time, a second signal makes a running stream end with an error."""
    async with _serving(drain=300, step=0.2) as (process, url), httpx.AsyncClient() as http:
        async with http.stream("POST", url + CHAT, json=chat_body(stream=True)) as response:
            lines = response.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.3)
            process.send_signal(signal.SIGINT)
            rest = [line async for line in lines if line]
        assert "error" in json.loads(rest[-1].removeprefix("data: "))
        assert "closed True" in await _rest(process)
        assert await process.wait() == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_small_writes_are_not_held_back(host: str) -> None:
    """Nagle's algorithm is off: it keeps the second of a response's two writes for 40 ms."""
    connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        server = await asyncio.start_server(
            lambda _, writer: connected.set_result(writer), sock=listener
        )
        async with server:
            _, client = await asyncio.open_connection(host, port)
            served = await asyncio.wait_for(connected, 10)
            accepted = served.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            served.close()
            client.close()


async def test_a_taken_port_is_refused_by_name() -> None:
    """A port that another program has is a ConfigError that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, PROGRAM, str(port), "1", "0", stdout=PIPE
        )
        output = await _rest(process)
    assert output.startswith("refused port: ")
    assert str(port) in output
    assert await process.wait() == 2


async def test_an_engine_that_does_not_start_ends_the_service() -> None:
    """What the engine's start raises comes out of run_service."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, "0", "1", "0", "fail", stdout=PIPE
    )
    assert "refused model: does not exist" in await _rest(process)
    assert await process.wait() == 2


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_an_idle_service_stops_at_once(stop: signal.Signals) -> None:
    """With nothing running, a signal ends the service long before the drain time."""
    async with _serving(drain=300, step=0) as (process, url), httpx.AsyncClient() as http:
        assert (await http.get(url + "/ready")).status_code == 200
        process.send_signal(stop)
        assert "closed True" in await _rest(process)


async def test_a_service_tells_its_engine_the_quotas() -> None:
    """Once the engine is there it has the quotas of the tenants, without anybody's asking."""
    async with _serving("tenant", drain=30, step=0) as (_, url), httpx.AsyncClient() as http:
        async with asyncio.timeout(20):
            while True:
                report = (await http.get(f"{url}/admin/v1/cache", headers=ADMIN)).json()
                if report["orders"]["quotas"] == 1:
                    break
                await asyncio.sleep(0.05)
        assert report["orders"]["current"] is True


async def test_a_stop_ends_streams_of_events() -> None:
    """A stream that nobody closes does not hold up a stop for the drain time."""
    async with _serving(drain=300, step=0) as (process, url), httpx.AsyncClient() as http:
        async with http.stream("GET", f"{url}/admin/v1/events/stream", headers=ADMIN) as response:
            lines = response.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGTERM)
            assert [line async for line in lines if line] == []
        assert "closed True" in await _rest(process)
