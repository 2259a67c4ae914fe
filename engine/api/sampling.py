"""From a request's fields to `SamplingParams`, within what the model and the pool can hold."""

from stemkv.engine.api.errors import invalid
from stemkv.engine.api.prompts import check_token_ids
from stemkv.engine.api.schemas import ChatRequest, CompletionRequest, GenerationRequest
from stemkv.engine.request import EngineInfo, SamplingParams

COMPLETION_MAX_TOKENS = 16
SEED_MASK = 2**63 - 1


def sampling_params(
    body: ChatRequest | CompletionRequest, info: EngineInfo, *, longest: int, param: str
) -> SamplingParams:
    """Return how to sample a request whose longest prompt has `longest` tokens.

    param: the field that holds the prompt. Raises `ApiError` naming the field and the numbers
    if prompt and answer cannot fit.
    """
    check_token_ids(body.stop_token_ids or (), param="stop_token_ids", vocab_size=info.vocab_size)
    room = _room(info, longest=longest, param=param)
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),  # -1 is how some clients say that it is off
        min_p=body.min_p or 0.0,
        # A negative seed is as good as any other, but not to every random generator.
        seed=None if body.seed is None else body.seed & SEED_MASK,
        max_tokens=_max_tokens(body, info, longest=longest, room=room),
        n=body.n or 1,
        stop=body.stops,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logprobs=_logprobs(body),
        ignore_eos=bool(body.ignore_eos),
    )


def _room(info: EngineInfo, *, longest: int, param: str) -> int:
    """Return how many tokens of output fit behind the longest prompt; at least one."""
    limit = info.longest_prompt
    if longest > limit:
        why = (
            f"the maximum context length is {info.max_model_len} tokens, one of them for output"
            if limit == info.max_model_len - 1
            else f"the cache has room for prompts of at most {limit} tokens"
        )
        raise invalid(
            f"{param}: the prompt has {longest} tokens, but {why}.",
            param=param,
            code="context_length_exceeded",
        )
    return limit + 1 - longest


def _max_tokens(body: GenerationRequest, info: EngineInfo, *, longest: int, room: int) -> int:
    name, asked = "max_tokens", body.max_tokens
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        name, asked = "max_completion_tokens", body.max_completion_tokens
    if asked is None:
        return room if isinstance(body, ChatRequest) else min(COMPLETION_MAX_TOKENS, room)
    if asked > room:
        raise invalid(
            f"{name}: {longest} tokens of prompt and {asked} of output are"
            f" {longest + asked}, but at most {longest + room} fit"
            f" (the maximum context length is {info.max_model_len} tokens).",
            param=name,
            code="context_length_exceeded",
        )
    return asked


def _logprobs(body: ChatRequest | CompletionRequest) -> int | None:
    if isinstance(body, CompletionRequest):
        return body.logprobs
    return (body.top_logprobs or 0) if body.logprobs else None
