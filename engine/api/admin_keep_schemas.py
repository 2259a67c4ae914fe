"""What the admin API takes and gives of public prefixes and pins."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from stemkv.engine.api.admin_schemas import (
    PromptQuery,
    PromptSource,
    TenantName,
    need_one_prompt,
    wrong,
)
from stemkv.engine.api.schemas import ShortText

MAX_TOOLS = 1000
LONGEST_PIN_SECONDS = 366 * 24 * 3600.0


class PublicRequest(PromptSource):
    """The body of `POST /admin/v1/public`.

    name: the operator's, for lists and for the withdrawal. messages are rendered with tools (if
    the chat template has a place for them) and without the generation prompt.
    """

    name: TenantName
    adapter: ShortText | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> "PublicRequest":
        need_one_prompt(self)
        if self.tools is not None and self.messages is None:
            raise wrong("tools", "Tools go with messages")
        return self


class HeldBody(BaseModel):
    """What a worker's engine has of a public prefix.

    key: of its last block. tokens: those of whole blocks, which are all that is public.
    cached_blocks: how many of its blocks are computed and kept now.
    """

    key: str
    adapter: str
    tokens: int
    blocks: int
    cached_blocks: int


class PublicBody(BaseModel):
    """A public prefix. created: unix seconds. declared_tokens: as many as were declared.

    held: null while this worker's engine has not been told of it; problem says why, if it is not
    for a few seconds alone.
    """

    name: str
    adapter: str
    created: float
    declared_tokens: int
    held: HeldBody | None
    problem: str | None


class PublicList(BaseModel):
    """The answer of `GET /admin/v1/public`."""

    public: list[PublicBody]


class DeclaredBody(BaseModel):
    """The answer of `POST /admin/v1/public`.

    text: that of the whole blocks, which are all that is public, with special tokens.
    text_left_out: the rest of what was declared, which every tenant computes for itself.
    """

    name: str
    declared_tokens: int
    held: HeldBody
    text: str
    text_left_out: str


class WithdrawnBody(BaseModel):
    """The answer of `DELETE /admin/v1/public/{name}`.

    flushed: whether this worker's engine has carried it out; if not, it will be told again. Other
    workers look within seconds.
    """

    name: str
    flushed: bool


class PinRequest(PromptQuery):
    """The body of `POST /admin/v1/pins`: keep what is cached of a prompt.

    seconds: time to live. max_blocks: from the start of the prompt, null: all. priority: of pins
    that must give way, because nothing else is left to evict, the lowest goes first.
    half_life_seconds: the priority halves in this time, null: never.
    """

    seconds: Annotated[float, Field(gt=0, le=LONGEST_PIN_SECONDS)]
    max_blocks: Annotated[int, Field(ge=1, le=2**31)] | None = None
    priority: Annotated[float, Field(ge=0, le=1)] = 1.0
    half_life_seconds: Annotated[float, Field(gt=0, le=LONGEST_PIN_SECONDS)] | None = None


class PinBody(BaseModel):
    """A pin. blocks, tokens: what it holds. priority: as of now."""

    pin_id: int
    tenant: str
    adapter: str
    salt: str
    blocks: int
    tokens: int
    seconds_left: float
    priority: float


class PinnedBody(PinBody):
    """The answer of `POST /admin/v1/pins`.

    kept: false if nothing of the prompt was cached; then there is no pin.
    """

    prompt_tokens: int
    kept: bool


class PinList(BaseModel):
    """The answer of `GET /admin/v1/pins`."""

    pins: list[PinBody]


class UnpinnedBody(BaseModel):
    """The answer of `DELETE /admin/v1/pins/{pin_id}`."""

    pin_id: int
