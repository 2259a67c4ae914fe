"""What clients may send to the generating endpoints: OpenAI's requests and our extensions.

A parameter that OpenAI knows and we do not honour is accepted at the value that changes
nothing, and refused by name at any other.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stemkv.engine.api.errors import UNSUPPORTED_VALUE
from stemkv.engine.api.fields import StrictModel, Text, only

MAX_STOPS = 16
MAX_STOP_TOKENS = 64
MAX_LOGPROBS = 20
MAX_N = 128
MAX_METADATA = 16
MAX_MESSAGES = 10_000
MAX_PARTS = 1000
MAX_PROMPTS = 1000
TOKEN_LIMIT = 2**31 - 1
SEED_LIMIT = 2**63

ShortText = Annotated[str, StringConstraints(max_length=256)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


def _few(value: Any) -> Any:
    # pydantic counts an object's entries only after it has checked each of them
    if isinstance(value, dict) and len(value) > MAX_METADATA:
        raise PydanticCustomError(
            "too_long", "There should be at most {limit} entries", {"limit": MAX_METADATA}
        )
    return value


Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    BeforeValidator(_few),
    Field(max_length=MAX_METADATA),
]
# Lists end at their first wrong item: a body has room for millions, and an error for each
# would hold up the event loop for a minute.
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=TOKEN_LIMIT)]], Field(min_length=1, fail_fast=True)
]


def _string_or_list(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<string>"


def _prompt_shape(value: Any) -> str:
    if not isinstance(value, list):
        return "<string>"
    first = value[0] if value else None
    if isinstance(first, list):
        return "<token lists>"
    return "<strings>" if isinstance(first, str) else "<tokens>"


Stop = Annotated[
    Annotated[StopText, Tag("<string>")]
    | Annotated[list[StopText], Field(max_length=MAX_STOPS), Tag("<list>")],
    Discriminator(_string_or_list),
]
Prompt = Annotated[
    Annotated[Text, Tag("<string>")]
    | Annotated[list[Text], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag("<strings>")]
    | Annotated[TokenIds, Tag("<tokens>")]
    | Annotated[
        list[TokenIds], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag("<token lists>")
    ],
    Discriminator(_prompt_shape),
]


class CacheOptions(StrictModel):
    """Whether a request may reuse cached blocks (`read`) and leave blocks for others (`write`)."""

    read: bool = True
    write: bool = True


class StreamOptions(StrictModel):
    """Options of a stream. include_usage: a last chunk tells the usage of the whole request."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, *only(None, False)] = None


class GenerationRequest(StrictModel):
    """What both generating endpoints take."""

    model: Annotated[str, StringConstraints(min_length=1)]
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=TOKEN_LIMIT)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-SEED_LIMIT, lt=SEED_LIMIT)] | None = None
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: ShortText | None = None
    metadata: Metadata | None = None
    store: bool | None = None

    # Extensions.
    cache_salt: ShortText | None = None
    cache: CacheOptions | None = None
    top_k: Annotated[int, Field(ge=-1, le=TOKEN_LIMIT)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop_token_ids: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=TOKEN_LIMIT)]], Field(max_length=MAX_STOP_TOKENS)
        ]
        | None
    ) = None
    ignore_eos: bool | None = None

    # Known and not honoured yet.
    frequency_penalty: Annotated[Any, *only(None, 0)] = None
    presence_penalty: Annotated[Any, *only(None, 0)] = None
    logit_bias: Annotated[Any, *only(None, {})] = None
    service_tier: Annotated[Any, *only(None, "auto", "default")] = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise _conflict("stream_options", "This is only allowed when stream is true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, whichever way they were written."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class TextPart(StrictModel):
    """A part of a message's content; only text is understood."""

    type: Annotated[Any, *only("text")]
    text: Text


class FunctionCall(StrictModel):
    """The function that an earlier assistant message called."""

    name: Text
    arguments: Text


class ToolCall(StrictModel):
    """A call in an earlier assistant message."""

    id: Text
    type: Literal["function"] = "function"
    function: FunctionCall


Content = Annotated[
    Annotated[Text, Tag("<string>")]
    | Annotated[
        list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True), Tag("<list>")
    ],
    Discriminator(_string_or_list),
]


class Message(StrictModel):
    """One message of a chat. Text parts are joined without anything between them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: ShortText | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    tool_call_id: ShortText | None = None
    refusal: Annotated[Any, *only(None)] = None
    audio: Annotated[Any, *only(None)] = None
    function_call: Annotated[Any, *only(None)] = None
    annotations: Annotated[Any, *only(None, [])] = None

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise _conflict("content", f"A message of role {self.role} needs content")
        if self.tool_calls and self.role != "assistant":
            raise _conflict("tool_calls", "Only a message of role assistant can have tool calls")
        return self

    @property
    def text(self) -> str | None:
        """The content as one string; None if there is none."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatRequest(GenerationRequest):
    """The body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, le=TOKEN_LIMIT)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    parallel_tool_calls: bool | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    add_generation_prompt: bool = True

    tools: Annotated[Any, *only(None, [])] = None
    tool_choice: Annotated[Any, *only(None, "none", "auto")] = None
    functions: Annotated[Any, *only(None, [])] = None
    function_call: Annotated[Any, *only(None, "none", "auto")] = None
    response_format: Annotated[Any, *only(None, {"type": "text"})] = None
    modalities: Annotated[Any, *only(None, ["text"])] = None
    audio: Annotated[Any, *only(None)] = None
    moderation: Annotated[Any, *only(None)] = None
    prediction: Annotated[Any, *only(None)] = None
    prompt_cache_options: Annotated[Any, *only(None)] = None
    prompt_cache_retention: Annotated[Any, *only(None, "in_memory")] = None
    reasoning_effort: Annotated[Any, *only(None, "none")] = None
    verbosity: Annotated[Any, *only(None, "medium")] = None
    web_search_options: Annotated[Any, *only(None)] = None

    @model_validator(mode="after")
    def _agree(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise _conflict("top_logprobs", "This is only allowed when logprobs is true")
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise _conflict("max_tokens", "This differs from max_completion_tokens")
        return self


class CompletionRequest(GenerationRequest):
    """The body of `POST /v1/completions`."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    suffix: Annotated[Any, *only(None, "")] = None

    @model_validator(mode="after")
    def _agree(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _unsupported("best_of", "Only a value equal to n is supported")
        if self.echo and self.logprobs is not None:
            raise _unsupported("echo", "Log-probabilities of the prompt are not supported")
        return self


def _conflict(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("conflict", "{message}", {"field": field, "message": message})


def _unsupported(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(UNSUPPORTED_VALUE, "{message}", {"field": field, "message": message})
