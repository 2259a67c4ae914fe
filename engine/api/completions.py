"""`POST /v1/completions`."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from stemkv.engine.api.answers import Completion, TextChoice, TextLogprobs
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
from stemkv.engine.api.prompts import TokenArray, as_tokens
from stemkv.engine.api.schemas import CompletionRequest
from stemkv.engine.api.service import Service, service_of
from stemkv.engine.api.streaming import stream, unless_client_leaves
from stemkv.engine.request import Delta, TokenLogprob, Usage

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post(
    "/completions",
    response_model=Completion,
    responses={200: {"content": {"text/event-stream": {}}}},
    summary="Continue one or more prompts",
)
async def completions(
    body: CompletionRequest, http: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """Continue prompts, whole or as a stream; choices of the first prompt come first."""
    check_model(service, body.model)
    info = service.engine_info()
    prompts = _listed(body)
    choices = len(prompts) * (body.n or 1)
    _check_count(body, len(prompts), choices, service.settings.max_choices)
    encoded, echoes = await _encode(service, prompts, echo=bool(body.echo), vocab=info.vocab_size)
    call = build_call(service, http, body, encoded, param="prompt")
    head = head_of(service, call, info)
    echo = tuple(echoes[index // call.choices_per_prompt] for index in range(choices))
    if body.stream:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        writer = TextChunks(
            head, echo=echo, logprobs=body.logprobs is not None, include_usage=include_usage
        )
        return await stream(service, call, writer, http.receive)
    done, usage = await unless_client_leaves(http.receive, collect(service, call))
    answer = _answer(head)
    answer.choices = [
        _choice(index, choice, echo[index], logprobs=body.logprobs is not None)
        for index, choice in enumerate(done)
    ]
    answer.usage = usage_body(usage)
    return Response(answer.model_dump_json(), media_type="application/json")


def _listed(body: CompletionRequest) -> list[tuple[str, str | list[int]]]:
    """Return (where it stands in the body, prompt) of each prompt, whichever way it was written."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    if prompt and isinstance(prompt[0], int):
        return [("prompt", [token for token in prompt if isinstance(token, int)])]
    several: list[tuple[str, str | list[int]]] = []
    for index, one in enumerate(prompt):
        assert isinstance(one, str | list), "the schema has no mixed lists"
        several.append((f"prompt[{index}]", one))
    return several


def _check_count(body: CompletionRequest, prompts: int, choices: int, limit: int) -> None:
    if not prompts:
        raise invalid("prompt: the list is empty.", param="prompt", code="empty_prompt")
    if choices > limit:
        param = "prompt" if prompts > limit or (body.n or 1) == 1 else "n"
        raise invalid(
            f"{param}: {prompts} prompts times n = {body.n or 1} are {choices} choices;"
            f" at most {limit} are allowed in one request.",
            param=param,
        )


async def _encode(
    service: Service,
    prompts: list[tuple[str, str | list[int]]],
    *,
    echo: bool,
    vocab: int,
) -> tuple[list[TokenArray], list[str]]:
    """Return each prompt's tokens, and its text if it is to be echoed (else "")."""
    encoded: list[TokenArray] = []
    echoes: list[str] = []
    for param, prompt in prompts:
        if isinstance(prompt, str):
            encoded.append(await service.encoder.text(prompt, param=param))
            echoes.append(prompt if echo else "")
        else:
            encoded.append(as_tokens(prompt, param=param, vocab_size=vocab))
            echoes.append(await service.encoder.decode(prompt) if echo else "")
    return encoded, echoes


@dataclass(frozen=True, slots=True)
class TextChunks:
    """Writes the chunks of a streamed completion; echo: the prompt's text for each choice."""

    head: Head
    echo: tuple[str, ...]
    logprobs: bool
    include_usage: bool
    offsets: dict[int, "TextOffsets"] = field(default_factory=dict)

    def opening(self) -> Iterable[Completion]:
        """Chunks that repeat the prompts, where that was asked for."""
        for index, text in enumerate(self.echo):
            if text:
                yield self._chunk(
                    TextChoice(index=index, text=text, logprobs=None, finish_reason=None)
                )

    def delta(self, index: int, delta: Delta) -> Iterable[Completion]:
        """Return the chunk of one step; held-back text without an end gives none."""
        logprobs = None
        if self.logprobs and delta.logprobs:
            offsets = self.offsets.setdefault(index, TextOffsets())
            logprobs = _logprobs(delta.logprobs, offsets)
        if not (delta.text or logprobs or delta.finish_reason):
            return
        choice = TextChoice(
            index=index,
            text=delta.text,
            logprobs=logprobs,
            finish_reason=finish_reason(delta.finish_reason),
        )
        if delta.stop_reason is not None:
            choice.stop_reason = delta.stop_reason
        yield self._chunk(choice)

    def usage(self, usage: Usage) -> Completion | None:
        """Return the last chunk, without choices."""
        if not self.include_usage:
            return None
        chunk = self._chunk()
        chunk.usage = usage_body(usage)
        return chunk

    def _chunk(self, *choices: TextChoice) -> Completion:
        chunk = _answer(self.head)
        chunk.choices = list(choices)
        if self.include_usage:
            chunk.usage = None  # set, so that it is written
        return chunk


@dataclass(slots=True)
class TextOffsets:
    """Counts the characters of a choice's text before each token, from the tokens' bytes."""

    characters: int = 0
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def advance(self, raw: bytes) -> int:
        """Return the offset of the next token, which has these bytes."""
        before = self.characters
        self.characters += len(self._decoder.decode(raw))
        return before


def _answer(head: Head) -> Completion:
    return Completion(
        id=head.id,
        object="text_completion",
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[],
    )


def _choice(index: int, choice: Choice, echo: str, *, logprobs: bool) -> TextChoice:
    return TextChoice(
        index=index,
        text=echo + "".join(choice.text),
        logprobs=_logprobs(choice.logprobs, TextOffsets()) if logprobs else None,
        finish_reason=finish_reason(choice.finish_reason),
        stop_reason=choice.stop_reason,
    )


def _logprobs(tokens: Sequence[TokenLogprob], offsets: TextOffsets) -> TextLogprobs:
    return TextLogprobs(
        text_offset=[offsets.advance(token.raw) for token in tokens],
        token_logprobs=[finite(token.logprob) for token in tokens],
        tokens=[token_label(token.text, token.raw) for token in tokens],
        top_logprobs=[_top(token) for token in tokens],
    )


def _top(token: TokenLogprob) -> dict[str, float]:
    """Return the best tokens and the chosen one; of two with one text the better stays."""
    best: dict[str, float] = {}
    for _, text, raw, logprob in token.top:
        best.setdefault(token_label(text, raw), finite(logprob))
    best.setdefault(token_label(token.text, token.raw), finite(token.logprob))
    return best
