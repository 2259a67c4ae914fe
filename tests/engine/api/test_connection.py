import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.api import Api, listening

from stemkv.engine.api.connection import Connection
from stemkv.engine.api.server import _Server

HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


class Hasty(Connection):
    """A connection that waits for a head for less time than a test takes."""

    head_timeout_seconds = 0.4


@asynccontextmanager
async def connected(
    api: Api, protocol: type[Connection] = Hasty
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection to a service that speaks by this protocol."""
    with listening(api.app, http=protocol) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        yield reader, writer
        writer.close()


@pytest.mark.parametrize("start", [b"", b"GET", HEAD, HEAD + b"x: "])
async def test_a_head_that_does_not_come_ends_the_connection(api: Api, start: bytes) -> None:
    """However much of it is there, a head that is not whole in time closes the connection."""
    async with connected(api) as (reader, writer):
        writer.write(start)
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_dripping_does_not_extend_the_time(api: Api) -> None:
    """A byte now and then does not keep a connection open."""
    async with connected(api) as (reader, writer):
        writer.write(HEAD + b"x: ")
        read = asyncio.create_task(reader.read())
        deadline = time.monotonic() + 10
        while not read.done():
            assert time.monotonic() < deadline
            writer.write(b"a")
            await asyncio.sleep(0.05)


async def test_a_second_head_has_its_own_time(api: Api) -> None:
    """On a connection that is kept, each request's head is waited for anew."""
    async with connected(api) as (reader, writer):
        for _ in range(3):
            await asyncio.sleep(0.25)
            writer.write(HEAD + b"\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"}")
        writer.write(HEAD)
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_bodies_and_answers_have_no_such_limit(api: Api) -> None:
    """What takes its time after the head is no matter of this limit."""
    async with connected(api) as (reader, writer):
        body = b'{"model": "fake/model", "prompt": "x"}'
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        await asyncio.sleep(0.8)
        writer.write(body)
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 10)


async def test_the_service_uses_it(api: Api) -> None:
    """It is what the service's own server speaks by, with a limit that is one."""
    config = _Server(api.app, api.app.state.service).config
    config.load()
    assert config.http_protocol_class is Connection
    assert 0 < Connection.head_timeout_seconds < 120
