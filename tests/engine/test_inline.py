"""The engine in a thread: the same protocol, no process."""

import asyncio

import numpy as np
import pytest
from support import echo_core

from stemkv.engine.client import EngineClient, EngineUnavailable
from stemkv.engine.inline import InlineClient
from stemkv.engine.messages import AuditReport, DoAudit
from stemkv.engine.process import ProcessClient
from stemkv.engine.request import Delta, Event, Failed, Finished, Request
from stemkv.kvstore.namespace import Namespace


def request(request_id: str, *tokens: int) -> Request:
    """Make a request whose prompt is what the core will say."""
    return Request(request_id, Namespace("t", b"d" * 32), np.array(tokens, dtype=np.int32))


async def collect(client: EngineClient, item: Request) -> list[Event]:
    """Return all events of a request."""
    return [event async for event in client.generate(item)]


def test_both_clients_keep_the_protocol() -> None:
    """Both clients can stand wherever an EngineClient is asked for."""
    clients: list[EngineClient] = [
        InlineClient(echo_core.EchoCore(None)),
        ProcessClient(echo_core.config()),
    ]
    assert not any(client.ready for client in clients)


async def test_requests_and_admin_calls() -> None:
    """Requests and admin calls are answered as across a process border."""
    client = InlineClient(echo_core.EchoCore(None))
    with pytest.raises(EngineUnavailable):
        await collect(client, request("early", 1))
    await client.start()
    assert client.ready
    first, second, report = await asyncio.gather(
        collect(client, request("a", 1, 2)),
        collect(client, request("b", 3)),
        client.admin(DoAudit()),
    )
    assert [e.token_ids for e in first if isinstance(e, Delta)] == [(1,), (2,)]
    assert isinstance(second[-1], Finished)
    assert isinstance(report, AuditReport)
    await client.close()
    assert not client.ready


async def test_a_core_that_raises_ends_what_is_open() -> None:
    """When a step raises, open requests fail and the client is no longer ready."""
    client = InlineClient(echo_core.EchoCore(None))
    await client.start()
    events = await collect(client, request("a", 1, echo_core.STEP_RAISES))
    assert isinstance(events[-1], Failed)
    assert events[-1].kind == "internal"
    assert not client.ready
    with pytest.raises(EngineUnavailable, match="failed"):
        await collect(client, request("b", 1))
    await client.close()
