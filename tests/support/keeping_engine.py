"""What an engine keeps on the operator's word, for the fake engine: quotas, prefixes, pins."""

import hashlib
from dataclasses import dataclass, field

from stemkv.engine.messages import (
    AdminError,
    AdminReply,
    DeclarePublic,
    DoPin,
    DoUnpin,
    ListPins,
    ListPublic,
    PinInfo,
    PublicPrefix,
    SetQuotas,
    WithdrawPublic,
)
from stemkv.kvstore.quotas import Quota
from support.fake_engine import FakeEngine

BLOCK_SIZE = 16


@dataclass
class KeepingEngine:
    """Answers a fake engine's calls; room_blocks: for public prefixes and reserves together.

    `restart` lets it forget everything, as an engine does that died and came back.
    """

    engine: FakeEngine
    room_blocks: int = 100
    quotas: dict[bytes, Quota] = field(default_factory=dict)
    public: dict[str, PublicPrefix] = field(default_factory=dict)
    pins: dict[int, PinInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take the calls over."""
        self.engine.admin_replies |= {
            SetQuotas: self._set_quotas,
            DeclarePublic: self._declare,
            WithdrawPublic: self._withdraw,
            ListPublic: lambda _: tuple(self.public.values()),
            DoPin: self._pin,
            DoUnpin: self._unpin,
            ListPins: lambda _: tuple(self.pins.values()),
        }

    def restart(self) -> None:
        """End and come back, knowing nothing."""
        self.quotas, self.public, self.pins = {}, {}, {}
        self.engine.starts += 1

    def _blocks(self) -> int:
        return sum(prefix.blocks for prefix in self.public.values())

    def _set_quotas(self, call: SetQuotas) -> AdminReply:
        reserved = sum(quota.reserve for quota in call.quotas.values()) * self.room_blocks
        if round(reserved) + self._blocks() > self.room_blocks:
            return AdminError("invalid", f"reserve: {reserved:g} blocks are too many", "reserve")
        self.quotas = dict(call.quotas)
        return None

    def _declare(self, call: DeclarePublic) -> AdminReply:
        blocks = len(call.prompt) // 4 // BLOCK_SIZE
        if not blocks:
            return AdminError("invalid", "prompt: it is shorter than a block", "prompt")
        key = hashlib.md5(call.prompt[: blocks * BLOCK_SIZE * 4]).hexdigest()
        if key not in self.public and self._blocks() + blocks > self.room_blocks:
            return AdminError("invalid", "prompt: there is no room to set aside", "prompt")
        prefix = PublicPrefix(key, call.adapter, blocks * BLOCK_SIZE, blocks, 0)
        return self.public.setdefault(key, prefix)

    def _withdraw(self, call: WithdrawPublic) -> AdminReply:
        if self.public.pop(call.key, None) is None:
            return AdminError("invalid", f"key: {call.key} is not public", "key")
        return None

    def _pin(self, call: DoPin) -> AdminReply:
        if call.namespace.tenant == "broke":
            return AdminError("invalid", "pins: the budget of 0 blocks is used up", "pins")
        blocks = min(len(call.prompt) // 4 // BLOCK_SIZE, call.max_blocks or self.room_blocks)
        space = call.namespace
        pin = PinInfo(
            len(self.pins) + 1,
            space.tenant,
            space.adapter,
            space.salt,
            blocks,
            blocks * BLOCK_SIZE,
            call.seconds,
            call.priority,
        )
        if blocks:
            self.pins[pin.pin_id] = pin
        return pin

    def _unpin(self, call: DoUnpin) -> AdminReply:
        if self.pins.pop(call.pin_id, None) is None:
            return AdminError("invalid", f"pin_id: {call.pin_id} is not known", "pin_id")
        return None
