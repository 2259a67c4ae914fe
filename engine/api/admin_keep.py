"""The admin API of what is kept on purpose: public prefixes and pins."""

from dataclasses import asdict

from fastapi import APIRouter

from stemkv.engine.api.admin_calls import (
    Parts,
    as_bytes,
    ask,
    encoded,
    namespace_of,
    reply_of,
    tokens_of,
)
from stemkv.engine.api.admin_keep_schemas import (
    DeclaredBody,
    HeldBody,
    PinBody,
    PinList,
    PinnedBody,
    PinRequest,
    PublicBody,
    PublicList,
    PublicRequest,
    UnpinnedBody,
    WithdrawnBody,
)
from stemkv.engine.api.errors import ApiError, invalid
from stemkv.engine.api.standing import Orders
from stemkv.engine.messages import DoPin, DoUnpin, ListPins, PinInfo

router = APIRouter(prefix="/admin/v1", tags=["admin"])


@router.get("/public", summary="Public prefixes, which all tenants share")
async def list_public(service: Parts, orders: Orders) -> PublicList:
    """Return all that are declared, with what this worker's engine holds of them."""
    declared = await service.ask_tenants(service.tenants.public_prefixes)
    held = await orders.held_public()
    return PublicList(
        public=[
            PublicBody(
                name=prefix.name,
                adapter=prefix.adapter,
                created=prefix.created,
                declared_tokens=prefix.tokens,
                held=HeldBody(**asdict(held[prefix.name])) if prefix.name in held else None,
                problem=orders.problems.get(f"public prefix {prefix.name}"),
            )
            for prefix in declared
        ]
    )


@router.post("/public", summary="Declare a prefix public")
async def declare_public(body: PublicRequest, service: Parts, orders: Orders) -> DeclaredBody:
    """Let all tenants share a prefix's whole blocks, now and after restarts, until withdrawn."""
    tokens = await encoded(service, body, add_generation_prompt=False, tools=body.tools)
    try:
        declared = await orders.declare(body.name, tokens, body.adapter or "")
    except ApiError as error:
        if error.body.param not in ("prompt", "reserve"):
            raise
        # the engine knows not in which field it came, and may name the reserves that leave no room
        raise invalid(error.body.message, param=body.given[0]) from None
    covered, rest = tokens[: declared.tokens], tokens[declared.tokens :]
    return DeclaredBody(
        name=body.name,
        declared_tokens=tokens.size,
        held=HeldBody(**asdict(declared)),
        text=await service.encoder.decode(covered.tolist()),
        text_left_out=await service.encoder.decode(rest.tolist()),
    )


@router.delete("/public/{name}", summary="Withdraw a public prefix")
async def withdraw_public(name: str, orders: Orders) -> WithdrawnBody:
    """Flush a public prefix and share it no more; what other declared prefixes need stays."""
    return WithdrawnBody(name=name, flushed=await orders.withdraw(name))


@router.get("/pins", summary="Prefixes that are kept in the cache")
async def list_pins(service: Parts) -> PinList:
    """Return all pins of this worker."""
    found = await ask(service, ListPins(), tuple)
    return PinList(pins=[PinBody(**asdict(pin)) for pin in found])


@router.post("/pins", summary="Keep what is cached of a prompt")
async def pin(body: PinRequest, service: Parts) -> PinnedBody:
    """Pin a prompt's cached blocks on this worker, until the time is over or the engine ends."""
    tokens = await tokens_of(service, body)
    call = DoPin(
        namespace=await namespace_of(service, body),
        prompt=as_bytes(tokens),
        seconds=body.seconds,
        max_blocks=body.max_blocks,
        priority=body.priority,
        half_life_seconds=body.half_life_seconds,
    )
    made = await ask(service, call, PinInfo)
    return PinnedBody(**asdict(made), prompt_tokens=tokens.size, kept=made.blocks > 0)


@router.delete("/pins/{pin_id}", summary="End a pin")
async def unpin(pin_id: int, service: Parts) -> UnpinnedBody:
    """End a pin; its blocks stay cached like any others."""
    try:
        await reply_of(service, DoUnpin(pin_id))
    except ApiError as error:
        if error.body.param != "pin_id":
            raise
        raise ApiError(
            404,
            f"There is no pin {pin_id}; GET /admin/v1/pins lists those there are.",
            param="pin_id",
            code="pin_not_found",
        ) from None
    return UnpinnedBody(pin_id=pin_id)
