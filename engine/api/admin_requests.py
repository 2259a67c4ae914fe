"""The admin API's part about requests that ran: what each reused, and why not more."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from stemkv.engine.api.admin_calls import Parts, explain_body
from stemkv.engine.api.admin_schemas import ExplainBody, TenantName
from stemkv.engine.api.errors import ApiError, shown
from stemkv.engine.api.prompts import PromptEncoder
from stemkv.engine.api.records import RequestRecord
from stemkv.kvstore.views import Explanation, StopReason

router = APIRouter(prefix="/admin/v1", tags=["admin"])


class RequestQuery(BaseModel):
    """The query of `GET /admin/v1/requests`; what is left out filters nothing."""

    model_config = ConfigDict(extra="forbid")

    tenant: TenantName | None = None
    reason: StopReason | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class MissBody(BaseModel):
    """Why no more of a prompt was reused. position: of the first token that was computed."""

    reason: str
    position: int
    detail: str


class RequestBody(BaseModel):
    """One prompt of one API call; see `RequestRecord`.

    miss: null if all was reused, before the first token, or if nobody asked for explanations.
    """

    id: str
    answer_id: str
    request_id: str
    tenant: str
    model: str
    adapter: str
    salt: str
    submitted: float
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    cache_read: bool
    cache_write: bool
    first_token_seconds: float | None
    seconds: float | None
    outcome: str
    finish: list[str | None]
    miss: MissBody | None


class RequestsBody(BaseModel):
    """The latest requests, newest first."""

    requests: list[RequestBody]


class RequestDetailBody(RequestBody):
    """One request with its explanation in full: figures as of its lookup, and the texts."""

    explanation: ExplainBody | None


class RequestDetailsBody(BaseModel):
    """The requests of one id, newest first: an answer's has one for each of its prompts."""

    requests: list[RequestDetailBody]


@router.get("/requests", summary="The latest requests: what each reused, and why not more")
async def list_requests(service: Parts, query: Annotated[RequestQuery, Query()]) -> RequestsBody:
    """Return requests that run or have ended, the newest first."""

    def wanted(record: RequestRecord) -> bool:
        reason = None if record.miss is None else record.miss.reason
        return query.tenant in (None, record.tenant) and query.reason in (None, reason)

    found = list(service.requests.matching(wanted))[: query.limit]
    return RequestsBody(requests=[RequestBody(**_fields(record)) for record in found])


@router.get("/requests/{request_id}", summary="One request, explained with the texts around")
async def get_request(service: Parts, request_id: str) -> RequestDetailsBody:
    """Return a request by the id of its header, of its answer, or of the list."""
    found = service.requests.find(request_id)
    if not found:
        raise ApiError(
            404,
            f"No request {shown(request_id)} is among the latest that are kept.",
            param="request_id",
            code="request_not_found",
        )
    return RequestDetailsBody(requests=[await _detail(service.encoder, each) for each in found])


async def _detail(encoder: PromptEncoder, record: RequestRecord) -> RequestDetailBody:
    miss = record.miss
    explanation = None if miss is None else await explain_body(encoder, miss, record.context)
    return RequestDetailBody(**_fields(record), explanation=explanation)


def _fields(record: RequestRecord) -> dict[str, Any]:
    """Return a record's fields as `RequestBody` has them."""
    miss = record.miss
    fields = asdict(record) | {
        "finish": list(record.finish),
        "miss": None if miss is None else MissBody(**_reason(miss)),
    }
    del fields["context"]
    return fields


def _reason(miss: Explanation) -> dict[str, Any]:
    return {"reason": miss.reason, "position": miss.position, "detail": miss.detail}
