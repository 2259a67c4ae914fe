"""`InlineClient`: the engine in a thread of this process, for tests and benchmarks."""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator

from stemkv.engine.core_protocol import Core
from stemkv.engine.messages import AdminCall, AdminReply
from stemkv.engine.process_desk import Desk
from stemkv.engine.process_loop import ClientGoneError, run_core
from stemkv.engine.process_wire import Events, FromEngine, Reply, Stop, ToEngine
from stemkv.engine.request import EngineInfo, Event, Request

logger = logging.getLogger(__name__)


class InlineClient:
    """`EngineClient` of a core that runs in a thread of this process.

    Takes the core over: `close` closes it. A core that raises is not started again.
    All methods are called on the event loop that called `start`.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._desk = Desk()
        self._thread: threading.Thread | None = None
        self._inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()

    @property
    def info(self) -> EngineInfo:
        """What the engine says of itself; raises EngineUnavailable before `start`."""
        return self._desk.info

    @property
    def ready(self) -> bool:
        """Whether the engine takes requests now."""
        return self._desk.is_open

    @property
    def starts(self) -> int:
        """How often an engine has become ready."""
        return self._desk.starts

    async def start(self) -> None:
        """Start the engine's thread; once."""
        if self._thread is not None:
            raise RuntimeError("the engine has already been started")
        line = _ThreadLine(self._inbox, asyncio.get_running_loop(), self._desk)
        self._thread = threading.Thread(
            target=self._run, args=(line,), name="stemkv-engine", daemon=True
        )
        self._desk.open(self._core.info, self._inbox.put)
        self._thread.start()

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Submit a request and yield its events; `aclose` aborts it."""
        return self._desk.generate(request)

    async def admin(self, call: AdminCall) -> AdminReply:
        """Carry out an admin call; raises EngineUnavailable."""
        return await self._desk.admin(call)

    async def close(self) -> None:
        """Stop the engine's thread; open requests end with `Failed`."""
        self._desk.shut("the engine is shutting down")
        if self._thread is not None:
            self._inbox.put(Stop())
            await asyncio.to_thread(self._thread.join)

    def _run(self, line: "_ThreadLine") -> None:
        try:
            run_core(self._core, line)
        except ClientGoneError:
            logger.warning("the event loop has ended before the engine was closed")
        except Exception:  # told to everyone who waits
            logger.exception("the engine failed")
            line.shut("the engine failed")
        finally:
            self._core.close()


class _ThreadLine:
    """The engine thread's end of the line."""

    def __init__(
        self, inbox: queue.SimpleQueue[ToEngine], loop: asyncio.AbstractEventLoop, desk: Desk
    ) -> None:
        self._inbox = inbox
        self._loop = loop
        self._desk = desk

    def receive(self, timeout_seconds: float) -> ToEngine | None:
        try:
            if timeout_seconds == 0:
                return self._inbox.get_nowait()
            return self._inbox.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def send(self, message: FromEngine) -> None:
        assert isinstance(message, Events | Reply)
        try:
            self._loop.call_soon_threadsafe(self._desk.deliver, message)
        except RuntimeError as error:
            raise ClientGoneError from error

    def shut(self, reason: str) -> None:
        """Tell the client that nothing follows; raises ClientGoneError."""
        try:
            self._loop.call_soon_threadsafe(self._desk.shut, reason)
        except RuntimeError as error:
            raise ClientGoneError from error
