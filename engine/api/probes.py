"""`/health`, `/ready` and `/metrics`."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.responses import Response

from stemkv.engine.api.metrics import CONTENT_TYPE
from stemkv.engine.api.service import Service, service_of
from stemkv.engine.client import EngineUnavailable
from stemkv.engine.messages import EngineStats, GetStats

router = APIRouter(tags=["probes"])
Parts = Annotated[Service, Depends(service_of)]

# A scrape must not hang on an engine in a long step; the counters are worth having alone.
_SCRAPE_SECONDS = 2.0


class State(BaseModel):
    """Whether the service takes requests. engine: "ready" or "starting"."""

    status: Literal["ok", "draining"]
    engine: Literal["ready", "starting"]


@router.get("/health", summary="Whether the process is alive")
async def health(service: Parts) -> State:
    """Answer as long as the event loop runs; the engine's state is told and not judged."""
    return _state(service)


@router.get(
    "/ready",
    response_model=State,
    responses={503: {"model": State}},
    summary="Whether requests are taken",
)
async def ready(service: Parts) -> Response:
    """Answer 200 if requests are taken now, 503 while the engine starts or the service stops."""
    state = _state(service)
    taking = state.status == "ok" and state.engine == "ready"
    headers = {} if taking else {"retry-after": str(service.settings.restart_seconds)}
    return Response(
        state.model_dump_json(),
        200 if taking else 503,
        headers=headers,
        media_type="application/json",
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
    summary="Prometheus metrics",
)
async def metrics(service: Parts) -> Response:
    """Return the metrics; those of the engine are left out if it cannot be asked."""
    stats: EngineStats | None = None
    try:
        async with asyncio.timeout(_SCRAPE_SECONDS):
            reply = await service.client.admin(GetStats())
        stats = reply if isinstance(reply, EngineStats) else None
    except (EngineUnavailable, TimeoutError):
        pass
    taking = service.client.ready and not service.draining
    body = service.metrics.render(stats, up=stats is not None, ready=taking)
    return Response(body, headers={"content-type": CONTENT_TYPE})


def _state(service: Service) -> State:
    return State(
        status="draining" if service.draining else "ok",
        engine="ready" if service.client.ready else "starting",
    )
