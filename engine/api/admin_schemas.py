"""What the admin API takes and gives."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from stemkv.engine.api.fields import StrictModel, Text
from stemkv.engine.api.schemas import Messages, ShortText, TokenIds

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TenantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
PROMPT_FIELDS = ("prompt", "messages", "token_ids")


class BlockQuery(BaseModel):
    """The query of `GET /admin/v1/cache/blocks`; what is left out filters nothing."""

    model_config = ConfigDict(extra="forbid")

    tenant: ShortText | None = None
    adapter: ShortText | None = None
    salt: ShortText | None = None
    state: Literal["cached", "in_use"] | None = None
    min_references: Annotated[int, Field(ge=0, le=2**31)] = 0
    cursor: Annotated[int, Field(ge=0, le=2**62)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class PromptSource(StrictModel):
    """A prompt in one of three ways; `token_ids` are taken as they are."""

    prompt: Text | None = None
    messages: Messages | None = None
    token_ids: TokenIds | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the ways that were used."""
        return tuple(name for name in PROMPT_FIELDS if getattr(self, name) is not None)


class PromptFields(PromptSource):
    """A prompt as a request would have it, unless told otherwise."""

    add_generation_prompt: bool = True


class PromptQuery(PromptFields):
    """The body of `explain` and `locate`: a prompt as a tenant would send it.

    tenant None is the one that exists without keys.
    """

    tenant: TenantName | None = None
    adapter: ShortText | None = None
    salt: ShortText | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> "PromptQuery":
        need_one_prompt(self)
        return self


# Which fields each kind of flush needs, and which it may have beside them.
_NEEDED = {
    "all": (),
    "tenant": ("tenant",),
    "adapter": ("adapter",),
    "salt": ("tenant", "salt"),
    "prefix": ("tenant",),
}
_ALLOWED = {
    "all": (),
    "tenant": ("group",),
    "adapter": (),
    "salt": ("group",),
    "prefix": ("group", "adapter", "salt", *PROMPT_FIELDS),
}


class FlushRequest(PromptFields):
    """The body of `flush`.

    by "tenant" takes all of the domain that the tenant is in (its group's, if it has one), "salt"
    one salt of it, "prefix" whatever begins with the prompt's tokens there, "adapter" one adapter
    of everybody. A tenant that has been removed can be named; group says which it was in.
    wait_seconds: how long to wait for other workers.
    """

    by: Literal["all", "tenant", "adapter", "salt", "prefix"]
    tenant: TenantName | None = None
    group: TenantName | None = None
    adapter: Name | None = None
    salt: Name | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=30)] = 1.0

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "FlushRequest":
        for name in _NEEDED[self.by]:
            if getattr(self, name) is None:
                raise wrong(name, f"A flush by {self.by} needs this field")
        usable = (*_NEEDED[self.by], *_ALLOWED[self.by])
        for name in ("tenant", "group", "adapter", "salt", *PROMPT_FIELDS):
            if name not in usable and getattr(self, name) is not None:
                raise wrong(name, f"A flush by {self.by} does not look at this field")
        if self.by == "prefix":
            need_one_prompt(self)
        return self


class TenantFigures(BaseModel):
    """Counts of one tenant since the engine started, in tokens unless named otherwise.

    saved_tokens: prompt tokens whose prefill was saved. hit_rate: their share of those looked up;
    null before any. Counted apart: resumed, how often requests came back after preemption, with
    their tokens that were still there, or had to be computed again.
    """

    lookup_tokens: int
    hit_full_tokens: int
    hit_partial_tokens: int
    hit_rate: float | None
    computed_tokens: int
    generated_tokens: int
    requests: int
    cached_blocks: int
    cached_bytes: int
    evicted_blocks: int
    saved_tokens: int
    resumed: int
    resumed_hit_tokens: int
    resumed_computed_tokens: int


class PoolFigures(BaseModel):
    """The pool, in blocks: free + in_use + cached + stale + quarantined = capacity."""

    capacity: int
    free: int
    in_use: int
    cached: int
    stale: int
    quarantined: int
    tails: int
    evicted: int
    block_size_tokens: int
    block_bytes: int
    capacity_bytes: int


class QueueFigures(BaseModel):
    """Sequences by what they do, and counts of steps and preemptions."""

    running: int
    waiting: int
    following: int
    preemptions: int
    steps: int


class CurvePoint(BaseModel):
    """The hit share of an account with another size of cache.

    factor: of the whole pool, for this account alone. hit_share: of the full blocks that its
    prompts looked up. error: half the width of the 95 % interval, null while too little was seen.
    """

    factor: float
    hit_share: float
    error: float | None


class OrdersFigures(BaseModel):
    """What the engine was told of the operator's wishes: see `StandingOrders`.

    quotas: accounts with a quota in force. public_prefixes: how many are in force. current:
    whether that is all that is wanted. problems: what is not so and why, by subject.
    """

    quotas: int
    public_prefixes: int
    current: bool
    problems: dict[str, str]


class CacheReport(BaseModel):
    """The answer of `GET /admin/v1/cache`.

    policy_hit_shares: of prompts' full blocks, what each policy of eviction would have hit since
    the engine started, estimated from a sample of the blocks. miss_ratio_curves: by account.
    """

    worker: str
    model: str
    prefix_cache: bool
    directory: str
    directory_current: bool
    pool: PoolFigures
    queue: QueueFigures
    tenants: dict[str, TenantFigures]
    policy_hit_shares: dict[str, float]
    miss_ratio_curves: dict[str, list[CurvePoint]]
    orders: OrdersFigures


class BlockBody(BaseModel):
    """One block; key is null for a tail, parent at a chain's start. depth: tokens before it."""

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


class BlockPageBody(BaseModel):
    """A page of blocks; next_cursor is null on the last."""

    blocks: list[BlockBody]
    next_cursor: int | None


class BlockDetailBody(BaseModel):
    """One block with its tokens, the keys from the root to it, and its children."""

    info: BlockBody
    token_ids: list[int]
    chain: list[str]
    children: list[BlockBody]


class FlushedTenant(BaseModel):
    """What one tenant lost."""

    blocks: int
    bytes: int


class FlushBody(BaseModel):
    """What a flush did here, and which workers have said that they did it.

    in_use: of the blocks, how many a running sequence still holds. complete: every worker that
    could be asked has acknowledged. directory_error: why others could not be told.
    """

    flush_id: str
    by: str
    blocks: int
    bytes: int
    in_use: int
    tenants: dict[str, FlushedTenant]
    acknowledged: dict[str, bool]
    complete: bool
    directory_error: str | None


class ExplainBody(BaseModel):
    """How much of a prompt would be reused now, and why not more.

    reusable_tokens: what a request would report as cached: of a prompt that is cached in full,
    all but the last token. position: index of the first token that would be computed. The texts
    are decoded from the prompt's own tokens (before, found) and from the nearest cached sibling's
    (expected).
    """

    prompt_tokens: int
    reusable_tokens: int
    full_block_tokens: int
    partial_tokens: int
    reason: str
    position: int
    detail: str
    text_before: str
    differing_position: int | None
    expected_token: int | None
    expected_text: str | None
    found_token: int | None
    found_text: str | None
    evicted_seconds_ago: float | None
    evicted_for: str | None


class WorkerHolding(BaseModel):
    """One worker and the leading tokens of the prompt that it holds in full blocks."""

    worker: str
    tokens: int


class LocateBody(BaseModel):
    """The answer of `locate`, the worker with most first."""

    prompt_tokens: int
    workers: list[WorkerHolding]


class AuditBody(BaseModel):
    """The answer of `audit`: violations of the store's rules; clean if there was none.

    They are repaired by now. quarantined: blocks that are out of service by that, for good.
    failed_requests: how many held them.
    """

    clean: bool
    violations: list[str]
    blocks: int
    sequences: int
    seconds: float
    quarantined: list[int]
    failed_requests: int


def need_one_prompt(body: PromptSource) -> None:
    """Refuse a body with no prompt, or with several (PydanticCustomError)."""
    if not body.given:
        raise wrong("prompt", "A prompt is needed: one of prompt, messages, token_ids")
    if len(body.given) > 1:
        raise wrong(body.given[1], f"Only one of {' and '.join(body.given)} can be given")


def wrong(field: str, message: str) -> PydanticCustomError:
    """Return what a validator raises over one field of a whole object."""
    return PydanticCustomError("conflict", "{message}", {"field": field, "message": message})
