"""Messages between a client and its engine: frozen values, pickled by the pipe between the two.

Both ends are the same program on the same machine, and the pipe has no name: pickle reads
nothing that this program did not write.
"""

from dataclasses import dataclass

from stemkv.engine.messages import AdminCall, AdminReply
from stemkv.engine.request import EngineInfo, Event, Request


@dataclass(frozen=True, slots=True)
class Submit:
    """Client to engine: take this request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Client to engine: nobody reads this request's events any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Call:
    """Client to engine: carry out an admin call; the reply carries the same number."""

    call_id: int
    call: AdminCall


@dataclass(frozen=True, slots=True)
class Stop:
    """Client to engine: finish the step at hand, close and end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Engine to client, first: the engine takes requests."""

    info: EngineInfo


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Engine to client, first and last. is_config: a setting is at fault, not the machine."""

    message: str
    is_config: bool


@dataclass(frozen=True, slots=True)
class Events:
    """Engine to client: what one step, or one round of submissions, brought."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """Engine to client: the answer to `Call` of the same number."""

    call_id: int
    reply: AdminReply


ToEngine = Submit | Abort | Call | Stop
FromEngine = Ready | StartFailed | Events | Reply
