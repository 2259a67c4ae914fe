"""`ProcessClient`: the engine in a process of its own, started again when it dies."""

import asyncio
import atexit
import logging
from collections.abc import AsyncGenerator, Callable
from typing import TypeVarTuple

from stemkv.engine.client import EngineUnavailable
from stemkv.engine.config import EngineConfig
from stemkv.engine.messages import AdminCall, AdminReply
from stemkv.engine.process_child import CoreFactory
from stemkv.engine.process_desk import Desk, Post
from stemkv.engine.process_spawn import EngineProcess
from stemkv.engine.process_supervisor import RestartPolicy, Supervisor
from stemkv.engine.process_wire import Events, Reply
from stemkv.engine.request import EngineInfo, Event, Request

logger = logging.getLogger(__name__)

DEFAULT_CORE_FACTORY = "stemkv.engine.core:build_core"

_Args = TypeVarTuple("_Args")


class ProcessClient:
    """`EngineClient` of an engine in a process of its own; see there for the methods.

    core_factory: builds the core in the child; a callable that pickles, or "module:name", which
    spares the parent the import. stop_seconds: how long `close` lets a step finish before it
    kills. All methods are called on the event loop that called `start`.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        core_factory: str | CoreFactory = DEFAULT_CORE_FACTORY,
        restart: RestartPolicy | None = None,
        stop_seconds: float = 10.0,
    ) -> None:
        self._stop_seconds = stop_seconds
        self._desk = Desk()
        self._supervisor = Supervisor(
            lambda: EngineProcess(config, core_factory), restart or RestartPolicy(), self
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: asyncio.Future[None] | None = None

    @property
    def info(self) -> EngineInfo:
        """What the engine last said of itself; raises EngineUnavailable before it was ready."""
        return self._desk.info

    @property
    def ready(self) -> bool:
        """Whether the engine takes requests now."""
        return self._desk.is_open

    @property
    def starts(self) -> int:
        """How often an engine has become ready."""
        return self._desk.starts

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None while there is none."""
        return self._supervisor.pid

    async def start(self) -> None:
        """Start the engine and wait until it is ready; once.

        Raises ConfigError (a setting is at fault) or EngineStartError; then nothing is left
        running.
        """
        if self._started is not None:
            raise RuntimeError("the engine has already been started")
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.create_future()
        atexit.register(self._supervisor.kill)
        self._supervisor.start()
        try:
            await self._started
        except BaseException:
            await self.close()
            raise

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Submit a request and yield its events; `aclose` aborts it."""
        return self._desk.generate(request)

    async def admin(self, call: AdminCall) -> AdminReply:
        """Carry out an admin call; raises EngineUnavailable."""
        return await self._desk.admin(call)

    async def close(self) -> None:
        """Stop the engine and wait until its process is gone; open requests end with `Failed`."""
        was_ready = self._desk.is_open
        self._desk.shut("the engine is shutting down")
        if self._started is None:
            return
        if was_ready:
            self._supervisor.stop()
            if not await asyncio.to_thread(self._supervisor.join, self._stop_seconds):
                logger.warning("the engine did not end in %g s; killed", self._stop_seconds)
        # an engine that is not ready reads no messages, and has nothing to finish
        self._supervisor.kill()
        await asyncio.to_thread(self._supervisor.join)
        atexit.unregister(self._supervisor.kill)

    # The supervisor's thread calls these; what they do is done on the loop.

    def on_ready(self, info: EngineInfo, post: Post) -> None:
        """Take requests."""
        self._on_loop(self._opened, info, post)

    def on_message(self, message: Events | Reply) -> None:
        """Hand it to who waits for it."""
        self._on_loop(self._desk.deliver, message)

    def on_death(self, reason: str) -> None:
        """Fail what is open."""
        self._on_loop(self._desk.shut, reason)

    def on_end(self, error: Exception | None) -> None:
        """Tell who waits for the start."""
        self._on_loop(self._ended, error)

    def _opened(self, info: EngineInfo, post: Post) -> None:
        assert self._started is not None
        self._desk.open(info, post)
        if not self._started.done():
            self._started.set_result(None)

    def _ended(self, error: Exception | None) -> None:
        assert self._started is not None
        self._desk.shut("the engine is shutting down" if error is None else str(error))
        if not self._started.done():
            self._started.set_exception(error or EngineUnavailable("the engine was closed"))

    def _on_loop(self, callback: Callable[[*_Args], object], *args: *_Args) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            self._supervisor.kill()  # the loop ended without `close`: nobody is left to serve
