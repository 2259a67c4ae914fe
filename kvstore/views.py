"""What an operator sees of the store: frozen values without tensors or text."""

from dataclasses import dataclass
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
    again. A request that comes back after preemption is not counted again.
    """

    lookup: int
    hit_full: int
    hit_partial: int
    cached_blocks: int
    evicted_blocks: int


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
