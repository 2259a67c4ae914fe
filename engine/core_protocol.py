"""`Core`: what an engine's loop drives, wherever it runs."""

from typing import Protocol

from stemkv.engine.messages import AdminCall, AdminReply
from stemkv.engine.request import EngineInfo, Event, Request


class Core(Protocol):
    """One engine: requests in, events out, one step at a time. All calls come from one thread."""

    @property
    def info(self) -> EngineInfo:
        """What the front needs to know; constant."""
        ...

    def submit(self, request: Request) -> tuple[Event, ...]:
        """Queue a request; returns the events that are known at once, a `Failed` say."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request without further events; unknown ids are ignored."""
        ...

    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        ...

    def step(self) -> list[Event]:
        """Run one step. A request's own failure is a `Failed`; an exception ends the engine."""
        ...

    def admin(self, call: AdminCall) -> AdminReply:
        """Carry out an admin call; what is wrong with it is an `AdminError`."""
        ...

    def idle(self) -> None:
        """Do housekeeping (flushes ordered elsewhere, say); called about every 50 ms."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...
