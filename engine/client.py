"""`EngineClient`: how the HTTP service speaks to an engine, wherever it runs."""

from collections.abc import AsyncGenerator
from typing import Protocol

from stemkv.engine.messages import AdminCall, AdminReply
from stemkv.engine.request import EngineInfo, Event, Request


class EngineUnavailable(Exception):
    """The engine is not there: it died, is being started again, or is shutting down."""


class EngineClient(Protocol):
    """Submit requests, read their events, order admin calls."""

    @property
    def info(self) -> EngineInfo:
        """What the engine said when it was ready; raises EngineUnavailable before that."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the engine takes requests now."""
        ...

    @property
    def starts(self) -> int:
        """How often an engine has become ready; each forgets what the one before was told."""
        ...

    async def start(self) -> None:
        """Start the engine and wait until it is ready."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """Submit a request and yield its events up to `Finished` or `Failed`.

        Closing the generator early aborts the request. Raises EngineUnavailable if the engine
        is not ready; if it dies while the request runs, the last event is a `Failed`.
        """
        ...

    async def admin(self, call: AdminCall) -> AdminReply:
        """Carry out an admin call; raises EngineUnavailable."""
        ...

    async def close(self) -> None:
        """Stop the engine; open requests end with `Failed`."""
        ...
