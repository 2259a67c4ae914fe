"""`POST /v1/chat/completions`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from stemkv.engine.api.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    TopLogprob,
)
from stemkv.engine.api.errors import invalid
from stemkv.engine.api.generate import (
    Head,
    build_call,
    check_model,
    finish_reason,
    finite,
    head_of,
    token_label,
    usage_body,
)
from stemkv.engine.api.generation import Choice, collect
from stemkv.engine.api.schemas import ChatRequest
from stemkv.engine.api.service import Service, service_of
from stemkv.engine.api.streaming import stream, unless_client_leaves
from stemkv.engine.request import Delta, TokenLogprob, Usage

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses={200: {"content": {"text/event-stream": {}}}},
    summary="Answer a chat",
)
async def chat_completions(
    body: ChatRequest, http: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """Answer a chat, whole or as a stream of `chat.completion.chunk` events."""
    check_model(service, body.model)
    info = service.engine_info()
    choices = body.n or 1
    if choices > service.settings.max_choices:
        raise invalid(f"n: at most {service.settings.max_choices} choices are allowed.", param="n")
    prompt = await service.encoder.chat(
        body.messages, add_generation_prompt=body.add_generation_prompt
    )
    call = build_call(service, http, body, [prompt], param="messages")
    head = head_of(service, call, info)
    if body.stream:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        writer = ChatChunks(
            head, choices=choices, logprobs=bool(body.logprobs), include_usage=include_usage
        )
        return await stream(service, call, writer, http.receive)
    done, usage = await unless_client_leaves(http.receive, collect(service, call))
    answer = ChatCompletion(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[
            _choice(index, choice, logprobs=bool(body.logprobs))
            for index, choice in enumerate(done)
        ],
        usage=usage_body(usage),
    )
    return Response(answer.model_dump_json(), media_type="application/json")


@dataclass(frozen=True, slots=True)
class ChatChunks:
    """Writes the chunks of a streamed chat: each choice's role first, its finish reason last."""

    head: Head
    choices: int
    logprobs: bool
    include_usage: bool

    def opening(self) -> Iterable[ChatChunk]:
        """Chunks that say whose turn it is."""
        for index in range(self.choices):
            turn = ChatDelta(role="assistant", content="")
            yield self._chunk(
                ChatChunkChoice(index=index, delta=turn, logprobs=None, finish_reason=None)
            )

    def delta(self, index: int, delta: Delta) -> Iterable[ChatChunk]:
        """Return a chunk with what a step added, and one without text for the choice's end."""
        logprobs = _logprobs(delta.logprobs) if self.logprobs and delta.logprobs else None
        if delta.text or logprobs:
            content = ChatDelta(content=delta.text)
            yield self._chunk(
                ChatChunkChoice(index=index, delta=content, logprobs=logprobs, finish_reason=None)
            )
        if delta.finish_reason is not None:
            choice = ChatChunkChoice(
                index=index,
                delta=ChatDelta(),
                logprobs=None,
                finish_reason=finish_reason(delta.finish_reason),
            )
            if delta.stop_reason is not None:
                choice.stop_reason = delta.stop_reason
            yield self._chunk(choice)

    def usage(self, usage: Usage) -> ChatChunk | None:
        """Return the last chunk, without choices."""
        if not self.include_usage:
            return None
        chunk = self._chunk()
        chunk.usage = usage_body(usage)
        return chunk

    def _chunk(self, *choices: ChatChunkChoice) -> ChatChunk:
        chunk = ChatChunk(
            id=self.head.id,
            object="chat.completion.chunk",
            created=self.head.created,
            model=self.head.model,
            system_fingerprint=self.head.system_fingerprint,
            choices=list(choices),
        )
        if self.include_usage:
            chunk.usage = None  # set, so that it is written
        return chunk


def _choice(index: int, choice: Choice, *, logprobs: bool) -> ChatChoice:
    finish = finish_reason(choice.finish_reason)
    assert finish is not None, "a finished request has a finish reason for each choice"
    return ChatChoice(
        index=index,
        message=ChatMessage(content="".join(choice.text)),
        logprobs=_logprobs(choice.logprobs) if logprobs else None,
        finish_reason=finish,
        stop_reason=choice.stop_reason,
    )


def _logprobs(tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(content=[_token(token) for token in tokens], refusal=None)


def _token(token: TokenLogprob) -> ChatTokenLogprob:
    return ChatTokenLogprob(
        token=token_label(token.text, token.raw),
        bytes=list(token.raw),
        logprob=finite(token.logprob),
        top_logprobs=[
            TopLogprob(token=token_label(text, raw), bytes=list(raw), logprob=finite(logprob))
            for _, text, raw, logprob in token.top
        ],
    )
