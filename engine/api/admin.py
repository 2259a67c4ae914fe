"""The admin API: what is in the cache and whose it is, why a prompt missed, and flushes."""

import asyncio
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query

from stemkv.engine.api.admin_calls import (
    Parts,
    as_bytes,
    ask,
    explain_body,
    find_tenant,
    namespace_of,
    reply_of,
    tokens_of,
)
from stemkv.engine.api.admin_schemas import (
    AuditBody,
    BlockDetailBody,
    BlockPageBody,
    BlockQuery,
    CacheReport,
    ExplainBody,
    FlushBody,
    FlushedTenant,
    FlushRequest,
    LocateBody,
    PromptQuery,
    WorkerHolding,
)
from stemkv.engine.api.admin_views import block_body, cache_report
from stemkv.engine.api.errors import ApiError, invalid, shown
from stemkv.engine.api.records import context_of
from stemkv.engine.api.service import Service
from stemkv.engine.api.standing import Orders
from stemkv.engine.messages import (
    AuditReport,
    BlockDetail,
    BlockPage,
    DoAudit,
    DoExplain,
    DoFlush,
    DoLocate,
    EngineStats,
    Explanation,
    GetAcknowledgements,
    GetBlock,
    GetStats,
    ListBlocks,
    Location,
)
from stemkv.engine.tenants import Tenant
from stemkv.kvstore.flush import FlushKind, FlushReport
from stemkv.kvstore.ids import WorkerId
from stemkv.kvstore.namespace import Namespace

# How often the other workers' acknowledgements of a flush are looked at.
_POLL_SECONDS = 0.05

router = APIRouter(prefix="/admin/v1", tags=["admin"])


@router.get("/cache", summary="The pool, the queues and each tenant's figures")
async def get_cache(service: Parts, orders: Orders) -> CacheReport:
    """Return the engine's figures at this moment."""
    stats = await ask(service, GetStats(), EngineStats)
    return cache_report(stats, service.info(), orders)


@router.get("/cache/blocks", summary="List published blocks and tails")
async def list_blocks(service: Parts, query: Annotated[BlockQuery, Query()]) -> BlockPageBody:
    """Return a page of blocks in order of physical number."""
    page = await ask(service, ListBlocks(**query.model_dump()), BlockPage)
    return BlockPageBody(
        blocks=[block_body(block) for block in page.blocks], next_cursor=page.next_cursor
    )


@router.get("/cache/blocks/{key}", summary="One block with its chain and children")
async def get_block(service: Parts, key: str) -> BlockDetailBody:
    """Return a block by its key: 32 hex digits, or a start of at least 8 that is unique."""
    if not 8 <= len(key) <= 32 or set(key.lower()) - set("0123456789abcdef"):
        raise invalid(f"key: {shown(key)} is not 8 to 32 hex digits.", param="key")
    detail = await reply_of(service, GetBlock(key.lower()))
    if detail is None:
        raise ApiError(404, f"No block has the key {key}.", code="block_not_found", param="key")
    assert isinstance(detail, BlockDetail)
    return BlockDetailBody(
        info=block_body(detail.info),
        token_ids=list(detail.token_ids),
        chain=list(detail.chain),
        children=[block_body(child) for child in detail.children],
    )


@router.post("/cache/flush", summary="Flush everything, a tenant, an adapter, a salt or a prefix")
async def flush(body: FlushRequest, service: Parts) -> FlushBody:
    """Flush on every worker, and tell what went and who has acknowledged."""
    namespace: Namespace | None = None
    if body.tenant is not None:
        known = await find_tenant(service, body.tenant)
        group = body.group or (known.group if known else None)
        namespace = service.namespace(
            Tenant(name=body.tenant, group=group),
            salt=body.salt or "",
            adapter=body.adapter or "",
        )
    elif body.adapter is not None:
        namespace = Namespace(tenant="", domain=b"", adapter=body.adapter)
    prefix = b"" if body.by != "prefix" else as_bytes(await tokens_of(service, body))
    report = await ask(service, DoFlush(FlushKind(body.by), namespace, prefix), FlushReport)
    acknowledged, trouble = await _acknowledgements(service, report, wait_seconds=body.wait_seconds)
    block_bytes = service.info().block_bytes
    return FlushBody(
        flush_id=report.flush_id,
        by=body.by,
        blocks=report.blocks,
        bytes=report.bytes,
        in_use=report.in_use,
        tenants={
            name: FlushedTenant(blocks=blocks, bytes=blocks * block_bytes)
            for name, blocks in report.blocks_by_tenant.items()
        },
        acknowledged={str(worker): done for worker, done in acknowledged.items()},
        complete=trouble is None and all(acknowledged.values()),
        directory_error=trouble,
    )


@router.post("/cache/explain", summary="Why a prompt would not be reused further")
async def explain(body: PromptQuery, service: Parts) -> ExplainBody:
    """Look a prompt up as its tenant would, without running it, and say where that stops."""
    tokens = await tokens_of(service, body)
    call = DoExplain(await namespace_of(service, body), as_bytes(tokens))
    found = await ask(service, call, Explanation)
    return await explain_body(service.encoder, found, context_of(tokens, found))


@router.post("/cache/locate", summary="Which workers hold how much of a prompt")
async def locate(body: PromptQuery, service: Parts) -> LocateBody:
    """Ask the directory where a prompt's blocks are."""
    tokens = await tokens_of(service, body)
    call = DoLocate(await namespace_of(service, body), as_bytes(tokens))
    location = await ask(service, call, Location)
    return LocateBody(
        prompt_tokens=location.prompt_tokens,
        workers=[WorkerHolding(worker=worker, tokens=count) for worker, count in location.workers],
    )


@router.get("/audit", summary="Check the store's rules on the live structure")
async def audit(service: Parts) -> AuditBody:
    """Return every violation, and what the repair took; none means clean."""
    report = await ask(service, DoAudit(), AuditReport)
    return AuditBody(
        clean=not report.violations,
        violations=list(report.violations),
        blocks=report.blocks,
        sequences=report.sequences,
        seconds=report.seconds,
        quarantined=list(report.quarantined),
        failed_requests=report.failed_requests,
    )


async def _acknowledgements(
    service: Service, report: FlushReport, *, wait_seconds: float
) -> tuple[Mapping[WorkerId, bool], str | None]:
    """Return which workers have carried a flush out, waiting for those that have not.

    With it, what kept the directory from telling: the flush itself has been carried out here,
    and that is to be reported whatever comes after.
    """
    acknowledged, trouble = report.acknowledged, report.directory_error
    deadline = service.clock() + wait_seconds
    while trouble is None and not all(acknowledged.values()) and service.clock() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
        try:
            reply = await reply_of(service, GetAcknowledgements(report.flush_id))
        except ApiError as error:
            trouble = error.body.message
        else:
            assert isinstance(reply, Mapping)
            acknowledged = reply
    return acknowledged, trouble
