"""`Core`: what an engine's loop drives, wherever it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stemkv.engine.messages import AdminCall, AdminReply
from stemkv.engine.request import EngineInfo, Event, Request


@dataclass(frozen=True, slots=True)
class Later:
    """An admin call whose rest waits for a network, and so must not hold up the next step.

    finish: does the rest and returns the reply; called once, on a thread other than the core's,
    and in the order of the calls.
    """

    finish: Callable[[], AdminReply]


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

    def admin(self, call: AdminCall) -> AdminReply | Later:
        """Carry out an admin call, or begin it; what is wrong with it is an `AdminError`."""
        ...

    def idle(self) -> None:
        """Do housekeeping (flushes ordered elsewhere, say); called about every 50 ms."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...
