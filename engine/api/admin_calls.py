"""What the admin endpoints have in common: calls to the engine, tenants and prompts of queries."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends

from stemkv.engine.api.admin_schemas import ExplainBody, PromptFields, PromptQuery, PromptSource
from stemkv.engine.api.auth import OPEN_TENANT
from stemkv.engine.api.errors import ApiError, invalid, shown, unavailable
from stemkv.engine.api.prompts import PromptEncoder, TokenArray, as_tokens
from stemkv.engine.api.service import Service, service_of
from stemkv.engine.client import EngineUnavailable
from stemkv.engine.messages import AdminCall, AdminError, AdminReply
from stemkv.engine.tenants import Tenant
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.views import Explanation

R = TypeVar("R")
Parts = Annotated[Service, Depends(service_of)]


async def ask(service: Service, call: AdminCall, kind: type[R]) -> R:
    """Carry out an admin call and return its reply, which is of this kind; raises `ApiError`."""
    reply = await reply_of(service, call)
    assert isinstance(reply, kind), f"{type(call).__name__} was answered by {type(reply).__name__}"
    return reply


async def reply_of(service: Service, call: AdminCall) -> AdminReply:
    """Carry out an admin call and return its reply; raises `ApiError`."""
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


async def namespace_of(service: Service, body: PromptQuery) -> Namespace:
    """Return the namespace that a query names; raises a 404 for a tenant that does not exist."""
    salt, adapter = body.salt or "", body.adapter or ""
    if body.tenant is None or body.tenant == OPEN_TENANT.name:
        if await service.ask_tenants(service.tenants.empty):
            return service.namespace(OPEN_TENANT, salt=salt, adapter=adapter)
        if body.tenant is None:
            raise invalid("tenant: this service has tenants, so name one.", param="tenant")
    tenant = await find_tenant(service, body.tenant)
    if tenant is None:
        raise ApiError(
            404,
            f"There is no tenant {shown(body.tenant)}.",
            param="tenant",
            code="tenant_not_found",
        )
    return service.namespace(tenant, salt=salt, adapter=adapter)


async def find_tenant(service: Service, name: str) -> Tenant | None:
    """Return the tenant of this name, None if there is none."""
    tenants = await service.ask_tenants(service.tenants.tenants)
    return next((tenant for tenant in tenants if tenant.name == name), None)


async def tokens_of(service: Service, body: PromptFields) -> TokenArray:
    """Return int32 [tokens] of a query's prompt."""
    return await encoded(service, body, add_generation_prompt=body.add_generation_prompt)


async def encoded(
    service: Service,
    source: PromptSource,
    *,
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> TokenArray:
    """Return int32 [tokens] of a prompt, given in whichever way; tools go with messages."""
    if source.token_ids is not None:
        vocab_size = service.info().vocab_size
        return as_tokens(source.token_ids, param="token_ids", vocab_size=vocab_size)
    if source.messages is not None:
        return await service.encoder.chat(
            source.messages, add_generation_prompt=add_generation_prompt, tools=tools
        )
    assert source.prompt is not None, "the schema asks for one of the three"
    return await service.encoder.text(source.prompt, param="prompt")


async def explain_body(
    encoder: PromptEncoder, found: Explanation, context: Sequence[int]
) -> ExplainBody:
    """Return an explanation with its texts; context: see `records.context_of`."""

    async def text(token: int | None) -> str | None:
        return None if token is None else await encoder.decode([token])

    return ExplainBody(
        **asdict(found),
        # the last token is always computed, for the logits that follow it
        reusable_tokens=min(
            found.full_block_tokens + found.partial_tokens, found.prompt_tokens - 1
        ),
        text_before=await encoder.decode(context),
        expected_text=await text(found.expected_token),
        found_text=await text(found.found_token),
    )


def as_bytes(tokens: TokenArray) -> bytes:
    """Return tokens as admin calls have them: little-endian int32."""
    return tokens.astype(np.dtype("<i4"), copy=False).tobytes()
