"""The engine's loop: read orders, step, tell what happened. Knows no process and no socket."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from stemkv.engine.core_protocol import Core, Later
from stemkv.engine.messages import AdminError
from stemkv.engine.process_wire import (
    Abort,
    Call,
    Events,
    FromEngine,
    Reply,
    Stop,
    Submit,
    ToEngine,
)
from stemkv.engine.request import Event, Failed

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.05
"""How often housekeeping runs, between steps and when there are none."""

_MESSAGES_A_ROUND = 256
# so that a flood of submissions cannot keep the running requests from their next step


_T = TypeVar("_T")


class ClientGoneError(Exception):
    """The other end of the line has gone away: no order can come, no event is read."""


class Line(Protocol):
    """The engine's end of what connects it to its client."""

    def receive(self, timeout_seconds: float) -> ToEngine | None:
        """Return the next message, or None after the timeout; raises ClientGoneError."""
        ...

    def send(self, message: FromEngine) -> None:
        """Tell the client; raises ClientGoneError. Safe for several threads."""
        ...


def run_core(core: Core, line: Line) -> None:
    """Drive a core until it is told to stop; raises ClientGoneError.

    Sends at most one `Events` for a round of submissions and the step after it. What `step`,
    `abort` or `idle` raises comes out here: the state behind it cannot be trusted any more.
    What an admin call leaves for later is done on one other thread, which has ended on return.
    """
    # one thread, so that flushes are told in the order in which they were carried out
    with ThreadPoolExecutor(1, thread_name_prefix="stemkv-admin") as later:
        _run(core, line, later)


def _run(core: Core, line: Line, later: ThreadPoolExecutor) -> None:
    next_idle = 0.0
    while True:
        events: list[Event] = []
        patience = 0.0 if core.has_work() else max(0.0, next_idle - time.monotonic())
        for _ in range(_MESSAGES_A_ROUND):
            message = line.receive(patience)
            if message is None:
                break
            if isinstance(message, Stop):
                return
            if isinstance(message, Call):
                _call(core, message, line, later)
            else:
                events += _handle(core, message)
            patience = 0.0
        if core.has_work():
            events += core.step()
        if events:
            line.send(Events(tuple(events)))
        if time.monotonic() >= next_idle:
            core.idle()
            next_idle = time.monotonic() + IDLE_SECONDS


def _handle(core: Core, message: Submit | Abort) -> tuple[Event, ...]:
    if isinstance(message, Submit):
        return _submit(core, message)
    core.abort(message.request_id)
    return ()


def _submit(core: Core, message: Submit) -> tuple[Event, ...]:
    request_id = message.request.request_id
    try:
        return core.submit(message.request)
    except Exception as error:
        logger.exception("request %s could not be submitted", request_id)
        return (Failed(request_id, "internal", f"submission failed: {type(error).__name__}"),)


def _call(core: Core, message: Call, line: Line, later: ThreadPoolExecutor) -> None:
    reply = _guarded(message, lambda: core.admin(message.call))
    if isinstance(reply, Later):
        later.submit(_finish, reply, message, line)
    else:
        line.send(Reply(message.call_id, reply))


def _finish(rest: Later, message: Call, line: Line) -> None:
    reply = _guarded(message, rest.finish)
    try:
        line.send(Reply(message.call_id, reply))
    except ClientGoneError:
        logger.debug("nobody waits for admin call %d any more", message.call_id)


def _guarded(message: Call, work: Callable[[], _T]) -> _T | AdminError:
    try:
        return work()
    except Exception as error:
        name = type(message.call).__name__
        logger.exception("admin call %s failed", name)
        return AdminError("internal", f"{name}: {type(error).__name__}")
