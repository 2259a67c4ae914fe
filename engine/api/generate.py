"""What the two generating endpoints share: building a call, and answers' common parts."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request as HttpRequest

from stemkv.engine import request as engine
from stemkv.engine.api.answers import FinishReason, PromptTokensDetails, UsageBody
from stemkv.engine.api.errors import ApiError, shown
from stemkv.engine.api.generation import Call
from stemkv.engine.api.prompts import TokenArray
from stemkv.engine.api.sampling import sampling_params
from stemkv.engine.api.schemas import ChatRequest, CompletionRequest
from stemkv.engine.api.service import Service
from stemkv.engine.request import EngineInfo, Request, Usage
from stemkv.engine.tenants import Tenant

# OpenAI's number for "so unlikely that it has no logarithm"; JSON has no infinities.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that every object of one answer begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def check_model(service: Service, name: str) -> None:
    """Raise a 404 unless the name is the served model's."""
    if name != service.settings.served_model_name:
        raise ApiError(
            404,
            f"The model {shown(name)} does not exist; this service has"
            f" {service.settings.served_model_name}.",
            param="model",
            code="model_not_found",
        )


def head_of(service: Service, call: Call, info: EngineInfo) -> Head:
    """Return the common fields of a call's answer."""
    return Head(
        id=call.id,
        created=call.created,
        model=service.settings.served_model_name,
        system_fingerprint=f"fp_{info.fingerprint[:12]}",
    )


def build_call(
    service: Service,
    http: HttpRequest,
    body: ChatRequest | CompletionRequest,
    prompts: Sequence[TokenArray],
    *,
    param: str,
) -> Call:
    """Return the call of a request whose prompts are encoded; raises `ApiError` if it cannot fit.

    param: the body's field that holds the prompts.
    """
    tenant: Tenant = http.state.tenant
    prefix = "chatcmpl" if isinstance(body, ChatRequest) else "cmpl"
    call_id = f"{prefix}-{uuid.uuid4().hex}"
    longest = max(prompt.size for prompt in prompts)
    sampling = sampling_params(body, service.engine_info(), longest=longest, param=param)
    namespace = service.namespace(tenant, salt=body.cache_salt or "")
    read, write = (True, True) if body.cache is None else (body.cache.read, body.cache.write)
    return Call(
        id=call_id,
        trace_id=http.state.request_id,
        created=int(service.wall_clock()),
        arrived=http.state.arrived,
        requests=tuple(
            Request(
                request_id=f"{call_id}-{index}",
                namespace=namespace,
                prompt=prompt,
                sampling=sampling,
                cache_read=read,
                cache_write=write,
            )
            for index, prompt in enumerate(prompts)
        ),
        choices_per_prompt=sampling.n,
        prompt_param=param,
    )


def usage_body(usage: Usage) -> UsageBody:
    """Return usage in OpenAI's shape."""
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
    )


def token_label(text: str, raw: bytes) -> str:
    """Return a token as answers show it: its text, or its bytes where they are no whole text."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return text


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold."""
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


def finish_reason(reason: engine.FinishReason | None) -> FinishReason | None:
    """Return why a choice ended, as clients know it; an aborted call gives no answer at all."""
    assert reason != "abort"
    return reason
