"""What the admin API gives of accounts, curves and events."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from stemkv.engine.api.admin_schemas import CurvePoint
from stemkv.kvstore.views import EventKind

EventNumber = Annotated[int, Field(ge=0, le=2**62)]


class AccountFigures(BaseModel):
    """What one account (a tenant by itself, a sharing group, the operator) holds, and has lost.

    held: blocks charged to it, which are in use or cached. pinned: of the cached. reserve, cap and
    share in blocks: its own always, never exceeded, left to it while others want more.
    block_seconds, byte_seconds: held so far, times the seconds, since the engine started.
    evicted_for: blocks that it lost, by the account whose need it was.
    """

    held: int
    in_use: int
    cached: int
    pinned: int
    reserve: int
    cap: int
    share: int
    weight: float
    block_seconds: float
    byte_seconds: float
    evicted_for: dict[str, int]


class AccountsBody(BaseModel):
    """The answer of `GET /admin/v1/accounts`."""

    capacity_blocks: int
    block_bytes: int
    accounts: dict[str, AccountFigures]


class CurvesBody(BaseModel):
    """The answer of `GET /admin/v1/curves`, points in order of size."""

    capacity_blocks: int
    curves: dict[str, list[CurvePoint]]


class EventQuery(BaseModel):
    """The query of `GET /admin/v1/events`. start: `next` of the page before; 0 for the oldest."""

    model_config = ConfigDict(extra="forbid")

    start: EventNumber = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class StreamQuery(BaseModel):
    """The query of `GET /admin/v1/events/stream`. start null: what comes from now on."""

    model_config = ConfigDict(extra="forbid")

    start: EventNumber | None = None


class EventBody(BaseModel):
    """One thing that happened to one block. key: hex, "" for a tail.

    seconds: when, by the engine's clock, which starts anywhere.
    """

    number: int
    kind: EventKind
    key: str
    account: str
    seconds: float


class EventPageBody(BaseModel):
    """Events in order. next: where to go on. missed: how many before these are kept no more."""

    events: list[EventBody]
    next: int
    missed: int
