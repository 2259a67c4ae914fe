"""Admin calls to the engine and their replies: frozen values that cross the process border.

Every call is a frozen dataclass here; `EngineCore.admin` maps its type to the reply's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stemkv.kvstore.flush import FlushKind, FlushReport
from stemkv.kvstore.ids import FlushId, WorkerId
from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.quotas import Quota
from stemkv.kvstore.views import (
    AccountCounts,
    BlockDetail,
    BlockInfo,
    BlockPage,
    EventPage,
    Explanation,
    MissRatioPoint,
    PinInfo,
    PublicPrefix,
)

__all__ = [
    "AccountCounts",
    "AdminCall",
    "AdminError",
    "AdminReply",
    "AuditReport",
    "BlockDetail",
    "BlockInfo",
    "BlockPage",
    "DeclarePublic",
    "DoAudit",
    "DoExplain",
    "DoFlush",
    "DoLocate",
    "DoPin",
    "DoUnpin",
    "EngineStats",
    "EventPage",
    "Explanation",
    "FlushReport",
    "GetAcknowledgements",
    "GetBlock",
    "GetEvents",
    "GetStats",
    "ListBlocks",
    "ListPins",
    "ListPublic",
    "Location",
    "MissRatioPoint",
    "PinInfo",
    "PublicPrefix",
    "Quota",
    "SetQuotas",
    "TenantStats",
    "WithdrawPublic",
]


@dataclass(frozen=True, slots=True)
class GetStats:
    """Ask for `EngineStats`."""


@dataclass(frozen=True, slots=True)
class TenantStats:
    """Counts of one tenant since the engine started; tokens unless named otherwise.

    lookup: prompt tokens looked up. hit_full: reused in full blocks. hit_partial: reused by
    copying part of a block. computed: prompt tokens computed. generated: output tokens.
    cached_blocks: published blocks that the tenant owns now, in use or not. evicted_blocks: its
    blocks evicted so far. Counted apart from those: resumed, how often requests came back after
    preemption; resumed_hit and resumed_computed, their tokens that were still there, or were not.
    """

    lookup: int = 0
    hit_full: int = 0
    hit_partial: int = 0
    computed: int = 0
    generated: int = 0
    requests: int = 0
    cached_blocks: int = 0
    evicted_blocks: int = 0
    resumed: int = 0
    resumed_hit: int = 0
    resumed_computed: int = 0

    @property
    def saved(self) -> int:
        """Prompt tokens whose prefill was saved: those that were reused."""
        return self.hit_full + self.hit_partial


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The pool and the queues at one moment.

    free + in_use + cached + stale + quarantined = capacity (rule 10), in blocks. policy_hit_shares:
    what share of prompts' full blocks each policy of eviction would have hit, by a sample.
    accounts: by name of the tenant or group. miss_ratio_curves: by account, points by factor.
    """

    capacity_blocks: int
    block_size: int
    block_bytes: int
    free_blocks: int
    in_use_blocks: int
    cached_blocks: int
    stale_blocks: int
    quarantined_blocks: int
    tail_blocks: int
    evicted_blocks: int
    running: int
    waiting: int
    following: int
    preemptions: int
    steps: int
    prefix_cache: bool
    directory: str
    directory_current: bool
    tenants: Mapping[str, TenantStats] = field(default_factory=dict)
    accounts: Mapping[str, AccountCounts] = field(default_factory=dict)
    policy_hit_shares: Mapping[str, float] = field(default_factory=dict)
    miss_ratio_curves: Mapping[str, tuple[MissRatioPoint, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListBlocks:
    """Ask for a `BlockPage`: published blocks and tails in order of physical number.

    cursor: the `next_cursor` of the page before, None for the first. state: "cached" or
    "in_use". namespace filters: None means any.
    """

    tenant: str | None = None
    adapter: str | None = None
    salt: str | None = None
    state: str | None = None
    min_references: int = 0
    cursor: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class GetBlock:
    """Ask for a `BlockDetail | None` by key (32 hex digits, or a unique start of 8 and more)."""

    key: str


@dataclass(frozen=True, slots=True)
class DoFlush:
    """Flush, here and on every worker of the directory; reply `FlushReport`.

    namespace gives domain, adapter and salt as far as the kind needs them; prefix: int32 bytes.
    The reply does not wait for other workers; `GetAcknowledgements` asks again.
    """

    kind: FlushKind
    namespace: Namespace | None = None
    prefix: bytes = b""


@dataclass(frozen=True, slots=True)
class GetAcknowledgements:
    """Ask which live workers have carried a flush out by now: worker -> done."""

    flush_id: FlushId


@dataclass(frozen=True, slots=True)
class DoExplain:
    """Ask for an `Explanation` of a prompt (int32 bytes) without running it."""

    namespace: Namespace
    prompt: bytes


@dataclass(frozen=True, slots=True)
class DoLocate:
    """Ask for a `Location`: which workers hold how much of a prompt (int32 bytes)."""

    namespace: Namespace
    prompt: bytes


@dataclass(frozen=True, slots=True)
class Location:
    """Workers with the leading tokens that each holds in full blocks, longest first."""

    prompt_tokens: int
    workers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DoAudit:
    """Ask for an `AuditReport`."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Violations of the store's rules, one sentence each; empty means clean.

    The store has been repaired by now. quarantined: blocks that are out of service by that.
    failed_requests: those that held blocks which were found inconsistent.
    """

    violations: tuple[str, ...]
    blocks: int
    sequences: int
    seconds: float
    quarantined: tuple[int, ...] = ()
    failed_requests: int = 0


@dataclass(frozen=True, slots=True)
class AdminError:
    """An admin call failed; kind "invalid" (with the field), "unavailable" or "internal"."""

    kind: str
    message: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class SetQuotas:
    """Put quotas in force, in place of all that were: domain -> quota; reply None.

    An `AdminError` of field "reserve" if reserves and public prefixes are more than the pool.
    """

    quotas: Mapping[bytes, Quota]


@dataclass(frozen=True, slots=True)
class DeclarePublic:
    """Let all tenants share a prompt's (int32 bytes) full blocks; reply `PublicPrefix`.

    Its blocks are set aside for it, and kept once they are computed. An `AdminError` of field
    "prompt" if it is shorter than a block, or if there is no room to set aside.
    """

    prompt: bytes
    adapter: str = ""
    adapter_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class WithdrawPublic:
    """Flush a public prefix and share it no more, by the key that `PublicPrefix` has; reply None.

    An `AdminError` of field "key" if there is none. What other declared prefixes need stays.
    """

    key: str


@dataclass(frozen=True, slots=True)
class ListPublic:
    """Ask for all public prefixes: a tuple of `PublicPrefix`."""


@dataclass(frozen=True, slots=True)
class DoPin:
    """Keep what is cached of a prompt (int32 bytes) in the cache; reply `PinInfo`.

    seconds: time to live. max_blocks: budget of this pin, from the start of the prompt; None: all.
    priority: 0 to 1; of pins that must give way the lowest goes first. half_life_seconds: the
    priority halves in this time, None: never. Nothing of the prompt need be cached: the pin then
    holds 0 blocks, and is not kept. An `AdminError` names what is wrong, or the budget ("pins").
    """

    namespace: Namespace
    prompt: bytes
    seconds: float
    max_blocks: int | None = None
    priority: float = 1.0
    half_life_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DoUnpin:
    """End a pin; reply None, or an `AdminError` of field "pin_id"."""

    pin_id: int


@dataclass(frozen=True, slots=True)
class ListPins:
    """Ask for all pins: a tuple of `PinInfo`."""


@dataclass(frozen=True, slots=True)
class GetEvents:
    """Ask for an `EventPage`: at most `limit` events of number `start` and above.

    start: `next` of the page before; 0 for the oldest that is kept, -1 for what comes from now on.
    """

    start: int = -1
    limit: int = 1000


AdminCall = (
    GetStats
    | ListBlocks
    | GetBlock
    | DoFlush
    | GetAcknowledgements
    | DoExplain
    | DoLocate
    | DoAudit
    | SetQuotas
    | DeclarePublic
    | WithdrawPublic
    | ListPublic
    | DoPin
    | DoUnpin
    | ListPins
    | GetEvents
)
AdminReply = (
    EngineStats
    | BlockPage
    | BlockDetail
    | FlushReport
    | Mapping[WorkerId, bool]
    | Explanation
    | Location
    | AuditReport
    | PublicPrefix
    | tuple[PublicPrefix, ...]
    | PinInfo
    | tuple[PinInfo, ...]
    | EventPage
    | AdminError
    | None
)
