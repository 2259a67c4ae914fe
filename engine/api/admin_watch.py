"""The admin API of accounts, miss-ratio curves and the events of the cache."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stemkv.engine.api.admin_calls import Parts, ask
from stemkv.engine.api.admin_views import curves
from stemkv.engine.api.admin_watch_schemas import (
    AccountFigures,
    AccountsBody,
    CurvesBody,
    EventBody,
    EventPageBody,
    EventQuery,
    StreamQuery,
)
from stemkv.engine.api.errors import invalid, shown
from stemkv.engine.api.event_feed import EventFeed
from stemkv.engine.api.standing import Orders
from stemkv.engine.api.streaming import EventStream
from stemkv.engine.messages import AccountCounts, EngineStats, EventPage, GetEvents, GetStats, Quota

LAST_EVENT_ID = "last-event-id"

router = APIRouter(prefix="/admin/v1", tags=["admin"])


@router.get("/accounts", summary="What each account holds, may hold, and has lost to whom")
async def get_accounts(service: Parts, orders: Orders) -> AccountsBody:
    """Return the figures of tenants by themselves, sharing groups and the operator."""
    stats = await ask(service, GetStats(), EngineStats)
    # The engine knows an account by name once it is used, its quota before that.
    unused = {each.name: _unused(each.quota, stats) for each in orders.quotas}
    accounts = {**unused, **stats.accounts}
    return AccountsBody(
        capacity_blocks=stats.capacity_blocks,
        block_bytes=stats.block_bytes,
        accounts={
            name: AccountFigures(
                **asdict(counts), byte_seconds=counts.block_seconds * stats.block_bytes
            )
            for name, counts in sorted(accounts.items())
        },
    )


@router.get("/curves", summary="What each account would hit with other sizes of cache")
async def get_curves(service: Parts) -> CurvesBody:
    """Return the miss-ratio curves that the engine keeps by a sample."""
    stats = await ask(service, GetStats(), EngineStats)
    return CurvesBody(capacity_blocks=stats.capacity_blocks, curves=curves(stats.miss_ratio_curves))


@router.get("/events", summary="A page of what happened to blocks")
async def get_events(service: Parts, query: Annotated[EventQuery, Query()]) -> EventPageBody:
    """Return events from a number on; the engine keeps a bounded number of them."""
    page = await ask(service, GetEvents(query.start, query.limit), EventPage)
    return EventPageBody(
        events=[EventBody(**asdict(event)) for event in page.events],
        next=page.next,
        missed=page.missed,
    )


@router.get(
    "/events/stream",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}}},
    summary="What happens to blocks, as it happens",
)
async def stream_events(
    service: Parts, http: Request, query: Annotated[StreamQuery, Query()]
) -> Response:
    """Send events as server-sent events, until the client leaves or the service stops.

    id is the event's number, event its kind, data the same object as in a page. `Last-Event-ID`
    goes on behind that event. `gap` tells how many were missed, `restart` that another engine
    has begun to count anew.
    """
    last = http.headers.get(LAST_EVENT_ID)
    start = -1 if query.start is None else query.start
    if last:
        if not (last.isascii() and last.isdecimal() and len(last) <= 18):
            raise invalid(f"{LAST_EVENT_ID}: {shown(last)} is no event's number.")
        start = int(last) + 1
    feed = EventFeed(service, start)
    await feed.open()
    return EventStream(feed.chunks())


def _unused(quota: Quota, stats: EngineStats) -> AccountCounts:
    """Return what an account has that has not asked for anything yet."""
    reserve = int(quota.reserve * stats.capacity_blocks)
    return AccountCounts(
        held=0,
        in_use=0,
        cached=0,
        pinned=0,
        reserve=reserve,
        cap=int(quota.cap * stats.capacity_blocks),
        share=reserve,
        weight=quota.weight,
        block_seconds=0.0,
    )
