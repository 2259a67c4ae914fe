"""The engine's loop: read orders, step, tell what happened. Knows no process and no socket."""

import logging
import time
from typing import Protocol

from stemkv.engine.core_protocol import Core
from stemkv.engine.messages import AdminError, AdminReply
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


class ClientGoneError(Exception):
    """The other end of the line has gone away: no order can come, no event is read."""


class Line(Protocol):
    """The engine's end of what connects it to its client."""

    def receive(self, timeout_seconds: float) -> ToEngine | None:
        """Return the next message, or None after the timeout; raises ClientGoneError."""
        ...

    def send(self, message: FromEngine) -> None:
        """Tell the client; raises ClientGoneError."""
        ...


def run_core(core: Core, line: Line) -> None:
    """Drive a core until it is told to stop; raises ClientGoneError.

    Sends at most one `Events` for a round of submissions and the step after it. What `step`,
    `abort` or `idle` raises comes out here: the state behind it cannot be trusted any more.
    """
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
            events += _handle(core, message, line)
            patience = 0.0
        if core.has_work():
            events += core.step()
        if events:
            line.send(Events(tuple(events)))
        if time.monotonic() >= next_idle:
            core.idle()
            next_idle = time.monotonic() + IDLE_SECONDS


def _handle(core: Core, message: Submit | Abort | Call, line: Line) -> tuple[Event, ...]:
    match message:
        case Submit():
            return _submit(core, message)
        case Abort():
            core.abort(message.request_id)
        case Call():
            line.send(Reply(message.call_id, _admin(core, message)))
    return ()


def _submit(core: Core, message: Submit) -> tuple[Event, ...]:
    request_id = message.request.request_id
    try:
        return core.submit(message.request)
    except Exception as error:
        logger.exception("request %s could not be submitted", request_id)
        return (Failed(request_id, "internal", f"submission failed: {type(error).__name__}"),)


def _admin(core: Core, message: Call) -> AdminReply:
    try:
        return core.admin(message.call)
    except Exception as error:
        logger.exception("admin call %s failed", type(message.call).__name__)
        return AdminError("internal", f"{type(message.call).__name__}: {type(error).__name__}")
