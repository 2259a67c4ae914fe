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

    `restart` lets it forget everything, as an engine does that died and came back; `flush` gives
    all prefixes other keys.
    """

    engine: FakeEngine
    room_blocks: int = 100
    quotas: dict[bytes, Quota] = field(default_factory=dict)
    prompts: dict[bytes, str] = field(default_factory=dict)
    flushes: int = 0
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

    @property
    def public(self) -> dict[str, PublicPrefix]:
        """Public prefixes by the keys that they have now."""
        found = [self._described(*each) for each in self.prompts.items()]
        return {prefix.key: prefix for prefix in found}

    def restart(self) -> None:
        """End and come back, knowing nothing."""
        self.quotas, self.prompts, self.pins = {}, {}, {}
        self.engine.starts += 1

    def flush(self) -> None:
        """Change the roots of all keys."""
        self.flushes += 1

    def _described(self, prompt: bytes, adapter: str) -> PublicPrefix:
        key = hashlib.md5(prompt + bytes([self.flushes])).hexdigest()
        blocks = len(prompt) // 4 // BLOCK_SIZE
        return PublicPrefix(key, adapter, blocks * BLOCK_SIZE, blocks, 0)

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
        prompt = call.prompt[: blocks * BLOCK_SIZE * 4]
        if prompt not in self.prompts and self._blocks() + blocks > self.room_blocks:
            return AdminError("invalid", "prompt: there is no room to set aside", "prompt")
        self.prompts[prompt] = call.adapter
        return self._described(prompt, call.adapter)

    def _withdraw(self, call: WithdrawPublic) -> AdminReply:
        for prompt, adapter in self.prompts.items():
            if self._described(prompt, adapter).key == call.key:
                del self.prompts[prompt]
                return None
        return AdminError("invalid", f"key: {call.key} is not public", "key")

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
