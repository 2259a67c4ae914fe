"""`run_service`: the service on a socket, from the engine's start to the last answer."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from stemkv.engine.api.app import create_app
from stemkv.engine.api.connection import Connection
from stemkv.engine.api.prompts import Tokenizer
from stemkv.engine.api.service import Service
from stemkv.engine.api.settings import ServiceSettings
from stemkv.engine.client import EngineClient
from stemkv.engine.config import ConfigError
from stemkv.engine.request import EngineInfo
from stemkv.engine.tenants import TenantStore

logger = logging.getLogger(__name__)

OnReady = Callable[[EngineInfo, int], None]

# After the engine was closed its requests have ended; what is left is to send their last bytes.
_LAST_BYTES_SECONDS = 5


def run_service(
    settings: ServiceSettings,
    client: EngineClient,
    tenants: TenantStore,
    tokenizer: Tokenizer,
    *,
    on_ready: OnReady | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; blocks.

    The port is open while the engine starts, so that `/health` answers; on_ready is called with
    the engine's info and the port once it takes requests. When asked to stop, running requests
    get `drain_seconds`, then they end with an error; a second signal ends them at once. Raises
    ConfigError (the port is taken, say) and whatever the engine's start raises.
    """
    app = create_app(settings, client, tenants, tokenizer)
    listener = listen(settings.host, settings.port)
    try:
        asyncio.run(_serve(app, listener, on_ready))
    finally:
        listener.close()


async def _serve(app: FastAPI, listener: socket.socket, on_ready: OnReady | None) -> None:
    service = app.state.service
    assert isinstance(service, Service)
    server = _Server(app, service)
    starting = asyncio.create_task(service.client.start())

    def started(task: "asyncio.Task[None]") -> None:
        if task.cancelled() or task.exception() is not None:
            server.should_exit = True
        elif on_ready is not None:
            on_ready(service.client.info, listener.getsockname()[1])

    starting.add_done_callback(started)
    keeping = asyncio.create_task(app.state.orders.run())
    try:
        await server.serve(sockets=[listener])
    finally:
        starting.cancel()
        keeping.cancel()
        try:
            await service.client.close()
        finally:
            service.encoder.close()
            results = await asyncio.gather(starting, keeping, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


class _Server(uvicorn.Server):
    """Uvicorn that drains: it stops taking requests, and closes the engine when time is up."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self._service = service
        self._signals = 0
        self._hurry = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                access_log=False,  # the gate writes a line that has no query string in it
                log_config=None,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=round(
                    service.settings.drain_seconds + _LAST_BYTES_SECONDS
                ),
            )
        )

    def handle_exit(self, _sig: int, _frame: object) -> None:
        """Begin to stop; a second signal of any kind ends what is running, a third all at once."""
        self._signals += 1
        self._service.draining = True
        self.should_exit = True
        if self._signals > 1 and self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurry.set)
        if self._signals > 2:
            self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests end, for `drain_seconds` and no longer."""
        self._service.draining = True
        self._loop = asyncio.get_running_loop()
        if self._signals > 1:  # both came before there was a loop to tell
            self._hurry.set()
        seconds = self._service.settings.drain_seconds
        logger.info("stopping; running requests have %g seconds", seconds)
        limit = asyncio.create_task(self._close_engine_after(seconds))
        try:
            await super().shutdown(sockets)
        finally:
            limit.cancel()
            await asyncio.gather(limit, return_exceptions=True)

    async def _close_engine_after(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        await self._service.client.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises ConfigError if the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # With the protocol named, asyncio switches Nagle's algorithm off on each connection;
        # with it on, every other small write waits 40 ms for the client's acknowledgement.
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"host: {host} cannot be bound: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"port: {host}:{port} cannot be bound: {error.strerror}; choose another port or host"
        ) from error
    return listener
