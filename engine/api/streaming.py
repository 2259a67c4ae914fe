"""Server-sent events, and what happens to a request whose client goes away."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stemkv.engine.api.errors import ApiError, internal
from stemkv.engine.api.generation import Call, run, total
from stemkv.engine.api.service import Service
from stemkv.engine.request import Delta, Finished, Started, Usage

logger = logging.getLogger(__name__)
T = TypeVar("T")

STATUS_CLIENT_LEFT = 499
"""What the log and the metrics say of a request that nobody waits for any more (nginx's code)."""


class ClientLeftError(Exception):
    """The client closed its connection before there was an answer."""


class ChunkWriter(Protocol):
    """Turns a call's events into chunks of its endpoint's shape."""

    def opening(self) -> Iterable[BaseModel]:
        """Return the chunks before the first token."""
        ...

    def delta(self, index: int, delta: Delta) -> Iterable[BaseModel]:
        """Return the chunks of one step of one choice; none if it has nothing to say."""
        ...

    def usage(self, usage: Usage) -> BaseModel | None:
        """Return the last chunk; None if the client did not ask for it."""
        ...


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` gives; cancel it and raise `ClientLeftError` if the client goes first.

    receive: the ASGI channel of a request whose body has been read.
    """
    task = asyncio.create_task(work)
    await _race(task, _client_left(receive))
    if task.cancelled():
        raise ClientLeftError
    return task.result()


class EventStream(Response):
    """A response that sends chunks as they come, and closes them when the client goes away.

    source: what the chunks are made from, closed with them.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], source: "_Events | None" = None
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._source = source

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""
        pump = asyncio.create_task(self._pump(send))
        try:
            await _race(pump, _client_left(receive))
        finally:
            await self._chunks.aclose()
            # Closing a generator that has not begun does not reach what it would have closed.
            if self._source is not None:
                await self._source.aclose()
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream(
    service: Service, call: Call, writer: ChunkWriter, receive: Receive
) -> EventStream:
    """Start a call and return its response once the first event is there.

    A call that fails before that raises `ApiError`, so the client gets a proper status.
    """
    events = run(service, call)
    try:
        first = await unless_client_leaves(receive, _first(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(_chunks(call, writer, first, events), events)


async def _first(events: "_Events") -> "_Item":
    return await anext(events)


async def _chunks(
    call: Call, writer: ChunkWriter, first: "_Item", events: "_Events"
) -> AsyncGenerator[bytes, None]:
    """Yield the stream's bytes; an error is told as an event, and ends it without `[DONE]`."""
    usages: list[Usage] = []
    try:
        async with aclosing(events):
            for chunk in writer.opening():
                yield _event(chunk)
            item: _Item | None = first
            while item is not None:
                prompt, event = item
                if isinstance(event, Finished):
                    usages.append(event.usage)
                elif isinstance(event, Delta):
                    for chunk in writer.delta(call.index(prompt, event.index), event):
                        yield _event(chunk)
                item = await anext(events, None)
            last = writer.usage(total(usages))
            if last is not None:
                yield _event(last)
            yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield b"data: " + error.json() + b"\n\n"
    except Exception:
        logger.exception("request %s failed while it was streamed", call.trace_id)
        yield b"data: " + internal(call.trace_id).json() + b"\n\n"


_Item = tuple[int, Started | Delta | Finished]
_Events = AsyncGenerator[_Item, None]


def _event(chunk: BaseModel) -> bytes:
    return b"data: " + chunk.model_dump_json(exclude_unset=True).encode() + b"\n\n"


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _race(task: "asyncio.Task[Any]", rival: Awaitable[None]) -> None:
    """Wait for whichever is first and end the other; both have ended on return."""
    watch = asyncio.ensure_future(rival)
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for either in (task, watch):
            either.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
