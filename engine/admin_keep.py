"""Admin calls that say what is kept, for whom, and what happened: quotas, public prefixes, pins."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stemkv.engine.messages import (
    AdminError,
    AdminReply,
    DeclarePublic,
    DoPin,
    DoUnpin,
    GetEvents,
    ListPins,
    ListPublic,
    SetQuotas,
    WithdrawPublic,
)
from stemkv.kvstore.pins import PinTerms
from stemkv.kvstore.store import BlockStore

KeepCall = (
    SetQuotas | DeclarePublic | WithdrawPublic | ListPublic | DoPin | DoUnpin | ListPins | GetEvents
)

T = TypeVar("T", bound=AdminReply)


def keep(store: BlockStore, call: KeepCall) -> AdminReply:
    """Carry a call out; what the store refuses is an `AdminError` of the field that it names."""
    match call:
        case SetQuotas():
            return _tried(lambda: store.set_quotas(call.quotas))
        case DeclarePublic():
            return _tried(
                lambda: store.declare_public(
                    _tokens(call.prompt), call.adapter, call.adapter_digest
                )
            )
        case WithdrawPublic():
            return _tried(lambda: store.withdraw_public(call.key))
        case ListPublic():
            return store.public_prefixes()
        case DoPin():
            return _tried(lambda: store.pin(call.namespace, _tokens(call.prompt), _terms(call)))
        case DoUnpin():
            return _tried(lambda: store.unpin(call.pin_id))
        case ListPins():
            return store.pinned()
        case GetEvents():
            return _tried(lambda: store.events.read(call.start, call.limit))


def _tried(action: Callable[[], T]) -> T | AdminError:
    """Do it; the store's errors begin with the field that was wrong."""
    try:
        return action()
    except ValueError as error:
        message = str(error)
        return AdminError("invalid", message, message.split(":", 1)[0])


def _terms(call: DoPin) -> PinTerms:
    return PinTerms(call.seconds, call.max_blocks, call.priority, call.half_life_seconds)


def _tokens(data: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(data, "<i4").astype(np.int32)
