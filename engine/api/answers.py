"""What the generating endpoints send: OpenAI's response objects.

Chunks are written without the fields that were not set; whole answers with all of them.
"""

from typing import Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length"]


class PromptTokensDetails(BaseModel):
    """cached_tokens: prompt tokens whose keys and values were reused; always there."""

    cached_tokens: int


class UsageBody(BaseModel):
    """Tokens of one answer, all its prompts and choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(BaseModel):
    """A token that could have stood here."""

    token: str
    bytes: list[int] | None
    logprob: float


class ChatTokenLogprob(BaseModel):
    """A token of a chat answer with its best rivals, best first."""

    token: str
    bytes: list[int] | None
    logprob: float
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat choice's tokens, or of a chunk's."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(BaseModel):
    """The answer of one chat choice."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One chat choice. stop_reason (ours): the stop string or token id that ended it, or null."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = None


class ChatCompletion(BaseModel):
    """The answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: str


class ChatDelta(BaseModel):
    """What a chunk adds to a chat choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    """One choice of a chat chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class ChatChunk(BaseModel):
    """One server-sent event of a chat; usage is null in all but the last where it was asked for."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | None = None


class TextLogprobs(BaseModel):
    """Log-probabilities of a completion's tokens.

    text_offset: characters of the choice's text before each token. top_logprobs holds the
    chosen token too, so it may be one longer than was asked for.
    """

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class TextChoice(BaseModel):
    """One choice of a completion, whole or in a chunk (finish_reason null until the last)."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Completion(BaseModel):
    """The answer of `POST /v1/completions`, and each of its chunks (usage as in a chat's)."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: UsageBody | None = None


class ModelCard(BaseModel):
    """One served model. max_model_len (ours): tokens of prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "stemkv"
    max_model_len: int | None = None


class ModelList(BaseModel):
    """The answer of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
