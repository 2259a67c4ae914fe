"""What an operator sees of the store: frozen values without tensors or text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

StopReason = Literal[
    "complete",
    "shorter_than_block",
    "not_seen",
    "token_differs",
    "evicted",
    "flushed",
    "other_adapter",
    "other_salt",
    "computing",
    "cold",
    "disabled",
]

EventKind = Literal["stored", "removed", "flushed", "adopted", "copied"]
"""stored: entered the index. removed: evicted, no copy of it is left here. flushed: left by a
flush. adopted: a prompt took a reference on it. copied: a prompt copied part of it; the key is the
source's, "" for a tail."""


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Blocks by state; free + in_use + cached + stale + quarantined = capacity (rule 10).

    cached includes tails; evicted counts since the start.
    """

    capacity: int
    free: int
    in_use: int
    cached: int
    stale: int
    quarantined: int
    tails: int
    evicted: int


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """Counts of one tenant: tokens since the start, blocks now.

    hit_full and hit_partial leave out the last token of a prompt that is cached whole: it is run
    again. A request that comes back after preemption is not counted again, but apart: resumed is
    how often, resumed_lookup and resumed_hit are its tokens.
    """

    lookup: int
    hit_full: int
    hit_partial: int
    cached_blocks: int
    evicted_blocks: int
    resumed: int
    resumed_lookup: int
    resumed_hit: int


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One block as an operator sees it; never its text.

    key and parent: hex; key is None for a tail (it has none), parent is None at a chain's start.
    depth: tokens before it. tokens: how many it holds.
    """

    block: int
    key: str | None
    parent: str | None
    tenant: str
    adapter: str
    salt: str
    depth: int
    tokens: int
    references: int
    state: str
    children: int


@dataclass(frozen=True, slots=True)
class BlockPage:
    """A page of blocks; next_cursor is None on the last."""

    blocks: tuple[BlockInfo, ...]
    next_cursor: int | None


@dataclass(frozen=True, slots=True)
class BlockDetail:
    """One block with the keys from its root down to it, and its children; token ids, no text."""

    info: BlockInfo
    token_ids: tuple[int, ...]
    chain: tuple[str, ...]
    children: tuple[BlockInfo, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """How much of a prompt would be reused now, and why not more.

    position: index of the first prompt token that would be computed, not counting the last,
    which always is. differing_position: index of the first token that differs from the nearest
    cached sibling of the same tenant, with the token there (expected) and the prompt's (found).
    evicted_seconds_ago and evicted_for (the tenant whose need it was, "" for an unknown one) come
    with reason "evicted". "computing": another request is at it. "cold": the directory is cut
    off, so nothing may hit.
    """

    prompt_tokens: int
    full_block_tokens: int
    partial_tokens: int
    reason: StopReason
    position: int
    detail: str
    differing_position: int | None = None
    expected_token: int | None = None
    found_token: int | None = None
    evicted_seconds_ago: float | None = None
    evicted_for: str | None = None


@dataclass(frozen=True, slots=True)
class AccountCounts:
    """What one account (a tenant by itself, a sharing group, the operator) holds, and has lost.

    held: blocks charged to it, in use or cached; in_use, cached (with tails), pinned (cached and
    kept by pins): blocks of them. reserve, cap, share: its quota in blocks as of now; share is what
    eviction lets it keep while others want more. weight: as in `Quota`.
    block_seconds: blocks times the seconds that they were held, since the start.
    evicted_for: blocks that it lost to eviction, by the account that needed them.
    """

    held: int
    in_use: int
    cached: int
    pinned: int
    reserve: int
    cap: int
    share: int
    weight: float
    block_seconds: float
    evicted_for: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A prefix that is kept in the cache.

    blocks and tokens: how much of it is held so. seconds_left: until it ends by itself.
    priority: as of now; of pins that must give way, because nothing else is left to evict, the
    lowest goes first.
    """

    pin_id: int
    tenant: str
    adapter: str
    salt: str
    blocks: int
    tokens: int
    seconds_left: float
    priority: float


@dataclass(frozen=True, slots=True)
class PublicPrefix:
    """A prefix that all tenants share.

    key: hex, of its last block; it names the prefix. tokens: whole blocks of it, all that is
    public. cached_blocks: how many of `blocks` are computed and kept now.
    """

    key: str
    adapter: str
    tokens: int
    blocks: int
    cached_blocks: int


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One thing that happened to one block.

    number: counts up by one, without a gap, since the store was made. kind: see `EventKind`.
    key: hex. account: who is charged with the block. seconds: when, by the store's clock.
    """

    number: int
    kind: EventKind
    key: str
    account: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order. next: what to ask for to go on. missed: how many were lost before `events`.

    missed is more than 0 if the reader was slower than the stream's bound allows.
    """

    events: tuple[CacheEvent, ...]
    next: int
    missed: int


@dataclass(frozen=True, slots=True)
class MissRatioPoint:
    """What share of an account's looked-up full blocks would hit with another size of cache.

    factor: of the pool, for this account alone. hit_share: 0 to 1. error: half the width of its
    95 % confidence interval, None while too little was seen to say.
    """

    factor: float
    hit_share: float
    error: float | None


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that an audit found wrong.

    blocks: physical blocks whose row or content cannot be trusted by it; what is only linked or
    counted wrongly is named in the message alone. sequences: open ones that are wrong themselves.
    """

    message: str
    blocks: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the message."""
        return self.message


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair found, and what it took to go on.

    violations: as the audit put them. quarantined: blocks that are out of service by it, in
    order. dropped: how many cached blocks are free by it. sequences: open ones that hold what was
    found wrong, or were wrong themselves; they publish no more, and are to be released.
    """

    violations: tuple[str, ...] = ()
    quarantined: tuple[int, ...] = ()
    dropped: int = 0
    sequences: tuple[int, ...] = ()
