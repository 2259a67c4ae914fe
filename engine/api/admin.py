"""The admin API: what is in the cache and whose it is, why a prompt missed, and flushes."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, Query

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
    PromptFields,
    PromptQuery,
    WorkerHolding,
)
from stemkv.engine.api.admin_views import block_body, cache_report
from stemkv.engine.api.auth import OPEN_TENANT
from stemkv.engine.api.errors import ApiError, invalid, shown, unavailable
from stemkv.engine.api.prompts import TokenArray, as_tokens
from stemkv.engine.api.service import Service, service_of
from stemkv.engine.client import EngineUnavailable
from stemkv.engine.messages import (
    AdminCall,
    AdminError,
    AdminReply,
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

R = TypeVar("R")
Parts = Annotated[Service, Depends(service_of)]

# How often the other workers' acknowledgements of a flush are looked at.
_POLL_SECONDS = 0.05

# Tokens shown before the position where a lookup stopped.
_CONTEXT_TOKENS = 16

router = APIRouter(prefix="/admin/v1", tags=["admin"])


@router.get("/cache", summary="The pool, the queues and each tenant's figures")
async def get_cache(service: Parts) -> CacheReport:
    """Return the engine's figures at this moment."""
    stats = await _ask(service, GetStats(), EngineStats)
    return cache_report(stats, service.info())


@router.get("/cache/blocks", summary="List published blocks and tails")
async def list_blocks(service: Parts, query: Annotated[BlockQuery, Query()]) -> BlockPageBody:
    """Return a page of blocks in order of physical number."""
    page = await _ask(service, ListBlocks(**query.model_dump()), BlockPage)
    return BlockPageBody(
        blocks=[block_body(block) for block in page.blocks], next_cursor=page.next_cursor
    )


@router.get("/cache/blocks/{key}", summary="One block with its chain and children")
async def get_block(service: Parts, key: str) -> BlockDetailBody:
    """Return a block by its key: 32 hex digits, or a start of at least 8 that is unique."""
    if not 8 <= len(key) <= 32 or set(key.lower()) - set("0123456789abcdef"):
        raise invalid(f"key: {shown(key)} is not 8 to 32 hex digits.", param="key")
    detail = await _reply(service, GetBlock(key.lower()))
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
        known = await _find(service, body.tenant)
        group = body.group or (known.group if known else None)
        namespace = service.namespace(
            Tenant(name=body.tenant, group=group),
            salt=body.salt or "",
            adapter=body.adapter or "",
        )
    elif body.adapter is not None:
        namespace = Namespace(tenant="", domain=b"", adapter=body.adapter)
    prefix = b"" if body.by != "prefix" else _as_bytes(await _tokens(service, body))
    report = await _ask(service, DoFlush(FlushKind(body.by), namespace, prefix), FlushReport)
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
    tokens = await _tokens(service, body)
    call = DoExplain(await _namespace(service, body), _as_bytes(tokens))
    found = await _ask(service, call, Explanation)

    async def text(token: int | None) -> str | None:
        return None if token is None else await service.encoder.decode([token])

    at = found.position if found.differing_position is None else found.differing_position
    return ExplainBody(
        **asdict(found),
        # the last token is always computed, for the logits that follow it
        reusable_tokens=min(
            found.full_block_tokens + found.partial_tokens, found.prompt_tokens - 1
        ),
        text_before=await service.encoder.decode(
            tokens[max(0, at - _CONTEXT_TOKENS) : at].tolist()
        ),
        expected_text=await text(found.expected_token),
        found_text=await text(found.found_token),
    )


@router.post("/cache/locate", summary="Which workers hold how much of a prompt")
async def locate(body: PromptQuery, service: Parts) -> LocateBody:
    """Ask the directory where a prompt's blocks are."""
    tokens = await _tokens(service, body)
    call = DoLocate(await _namespace(service, body), _as_bytes(tokens))
    location = await _ask(service, call, Location)
    return LocateBody(
        prompt_tokens=location.prompt_tokens,
        workers=[WorkerHolding(worker=worker, tokens=count) for worker, count in location.workers],
    )


@router.get("/audit", summary="Check the store's rules on the live structure")
async def audit(service: Parts) -> AuditBody:
    """Return every violation; none means clean."""
    report = await _ask(service, DoAudit(), AuditReport)
    return AuditBody(
        clean=not report.violations,
        violations=list(report.violations),
        blocks=report.blocks,
        sequences=report.sequences,
        seconds=report.seconds,
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
            reply = await _reply(service, GetAcknowledgements(report.flush_id))
        except ApiError as error:
            trouble = error.body.message
        else:
            assert isinstance(reply, Mapping)
            acknowledged = reply
    return acknowledged, trouble


async def _ask(service: Service, call: AdminCall, kind: type[R]) -> R:
    """Carry out an admin call and return its reply, which is of this kind; raises `ApiError`."""
    reply = await _reply(service, call)
    assert isinstance(reply, kind), f"{type(call).__name__} was answered by {type(reply).__name__}"
    return reply


async def _reply(service: Service, call: AdminCall) -> AdminReply:
    seconds = service.settings.admin_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            reply = await service.client.admin(call)
    except EngineUnavailable:
        raise service.engine_down() from None
    except TimeoutError:
        raise unavailable(
            f"The engine has not answered within {seconds:g} seconds; it may still do as asked.",
            retry_after=service.settings.restart_seconds,
            code="engine_timeout",
        ) from None
    if isinstance(reply, AdminError):
        if reply.kind == "invalid":
            raise invalid(reply.message, param=reply.field)
        if reply.kind == "unavailable":
            raise unavailable(
                reply.message, retry_after=service.settings.restart_seconds, code="unavailable"
            )
        raise RuntimeError(f"{type(call).__name__} failed in the engine: {reply.message}")
    return reply


async def _namespace(service: Service, body: PromptQuery) -> Namespace:
    """Return the namespace that a query names; raises a 404 for a tenant that does not exist."""
    salt, adapter = body.salt or "", body.adapter or ""
    if body.tenant is None or body.tenant == OPEN_TENANT.name:
        if await service.ask_tenants(service.tenants.empty):
            return service.namespace(OPEN_TENANT, salt=salt, adapter=adapter)
        if body.tenant is None:
            raise invalid("tenant: this service has tenants, so name one.", param="tenant")
    tenant = await _find(service, body.tenant)
    if tenant is None:
        raise ApiError(
            404,
            f"There is no tenant {shown(body.tenant)}.",
            param="tenant",
            code="tenant_not_found",
        )
    return service.namespace(tenant, salt=salt, adapter=adapter)


async def _find(service: Service, name: str) -> Tenant | None:
    tenants = await service.ask_tenants(service.tenants.tenants)
    return next((tenant for tenant in tenants if tenant.name == name), None)


async def _tokens(service: Service, body: PromptFields) -> TokenArray:
    """Return int32 [tokens] of a query's prompt."""
    vocab_size = service.info().vocab_size
    if body.token_ids is not None:
        return as_tokens(body.token_ids, param="token_ids", vocab_size=vocab_size)
    if body.messages is not None:
        return await service.encoder.chat(
            body.messages, add_generation_prompt=body.add_generation_prompt
        )
    assert body.prompt is not None, "the schema asks for one of the three"
    return await service.encoder.text(body.prompt, param="prompt")


def _as_bytes(tokens: TokenArray) -> bytes:
    return tokens.astype(np.dtype("<i4"), copy=False).tobytes()
