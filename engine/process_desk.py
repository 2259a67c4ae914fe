"""The client's side of an engine: who waits for which events and replies, on one event loop."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable

from stemkv.engine.client import EngineUnavailable
from stemkv.engine.messages import AdminCall, AdminReply
from stemkv.engine.process_wire import Abort, Call, Events, Reply, Submit, ToEngine
from stemkv.engine.request import EngineInfo, Event, Failed, Finished, Request

Post = Callable[[ToEngine], None]


class Desk:
    """Open requests and admin calls of one client.

    Every method is called on the event loop's thread. `post` hands a message to the engine and
    never blocks. A request's queue grows only with the request's own output.
    """

    def __init__(self) -> None:
        self._info: EngineInfo | None = None
        self._post: Post | None = None
        self._reason = "the engine has not been started"
        self._queues: dict[str, asyncio.Queue[Event]] = {}
        self._calls: dict[int, asyncio.Future[AdminReply]] = {}
        self._call_ids = itertools.count()
        self._starts = 0

    @property
    def info(self) -> EngineInfo:
        """What the engine last said of itself; raises EngineUnavailable if it never was ready."""
        if self._info is None:
            raise EngineUnavailable(self._reason)
        return self._info

    @property
    def is_open(self) -> bool:
        """Whether an engine takes messages."""
        return self._post is not None

    @property
    def starts(self) -> int:
        """How often it was opened."""
        return self._starts

    def open(self, info: EngineInfo, post: Post) -> None:
        """Take requests from now on."""
        self._starts += 1
        self._info = info
        self._post = post

    def shut(self, reason: str) -> None:
        """Take no more requests, and end those that are open."""
        self._post = None
        self._reason = reason
        for request_id, queue in self._queues.items():
            queue.put_nowait(Failed(request_id, "internal", reason))
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineUnavailable(reason))
        self._calls.clear()

    def deliver(self, message: Events | Reply) -> None:
        """Hand out what the engine said; what nobody waits for any more is dropped."""
        if isinstance(message, Reply):
            future = self._calls.pop(message.call_id, None)
            if future is not None and not future.done():
                future.set_result(message.reply)
            return
        for event in message.events:
            queue = self._queues.get(event.request_id)
            if queue is not None:
                queue.put_nowait(event)

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Submit a request and yield its events; see `EngineClient.generate`."""
        post = self._post
        if post is None:
            raise EngineUnavailable(self._reason)
        request_id = request.request_id
        if request_id in self._queues:
            raise ValueError(f"request_id: {request_id!r} is already running")
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._queues[request_id] = queue
        post(Submit(request))
        ended = False
        try:
            while not ended:
                event = await queue.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            del self._queues[request_id]
            if not ended and self._post is post:
                post(Abort(request_id))

    async def admin(self, call: AdminCall) -> AdminReply:
        """Carry out an admin call; raises EngineUnavailable."""
        if self._post is None:
            raise EngineUnavailable(self._reason)
        call_id = next(self._call_ids)
        future: asyncio.Future[AdminReply] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._post(Call(call_id, call))
            return await future
        finally:
            self._calls.pop(call_id, None)
