"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

Every refusal of the service is an `ApiError`; foreign errors are turned into one here. A message
names the field and the client's own value, cut short, and nothing else.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

VALUE_CHARS = 80
MESSAGE_CHARS = 1000
PARAM_CHARS = 200

UNKNOWN_PARAMETER = "unknown_parameter"
UNSUPPORTED_VALUE = "unsupported_value"


class ErrorBody(BaseModel):
    """One error: what was wrong, its kind, and the field that it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every response that is an error."""

    error: ErrorBody


class ApiError(Exception):
    """A refusal that becomes a response.

    kind is OpenAI's `type`; None derives it from the status. headers go out with the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(
            message=printable(message, MESSAGE_CHARS),
            type=kind or _kind_of(status),
            param=None if param is None else printable(param, PARAM_CHARS),
            code=code,
        )
        self.headers = dict(headers or {})

    def json(self) -> bytes:
        """Return the body as UTF-8 JSON."""
        return ErrorResponse(error=self.body).model_dump_json().encode()

    def response(self) -> Response:
        """Return the whole response."""
        return Response(
            self.json(), self.status, headers=self.headers, media_type="application/json"
        )


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400: the request's own fault, `param` names the field."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, *, retry_after: int, code: str = "engine_unavailable") -> ApiError:
    """Return a 503 with Retry-After in seconds: try the same request again later."""
    return ApiError(503, message, code=code, headers={"retry-after": str(retry_after)})


def overloaded(message: str, *, retry_after: int) -> ApiError:
    """Return a 429 with Retry-After in seconds: the queue is full."""
    return ApiError(429, message, code="overloaded", headers={"retry-after": str(retry_after)})


def internal(request_id: str) -> ApiError:
    """Return a 500 that says no more than under which id the log has the trace."""
    return ApiError(500, f"Internal error; the log has it under request id {request_id}.")


def printable(text: str, limit: int) -> str:
    """Cut a text to `limit` characters and write what UTF-8 cannot hold as escapes."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut.encode("utf-8", "backslashreplace").decode()


def shown(value: object) -> str:
    """Describe a client's value for a message: scalars as JSON, cut short; containers by size."""
    if isinstance(value, str | bytes | Mapping | Sequence) and not len(value):
        return json.dumps(value if not isinstance(value, bytes) else "")
    if isinstance(value, Mapping):
        return f"an object of {len(value)} fields"
    if isinstance(value, str):
        return printable(json.dumps(value[:VALUE_CHARS], ensure_ascii=False), VALUE_CHARS)
    if isinstance(value, Sequence):
        return f"a list of {len(value)} items"
    return printable(json.dumps(value, default=lambda other: type(other).__name__), VALUE_CHARS)


def field_path(location: Sequence[int | str]) -> str | None:
    """Write pydantic's location as clients write it: `messages[0].content`; None for the body.

    Parts in angle brackets are tags of unions, which are ours and not the client's.
    """
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not (part.startswith("<") and part.endswith(">")):
            path += f".{part}" if path else part
    return path or None


def from_validation(error: RequestValidationError) -> ApiError:
    """Turn FastAPI's validation error into a 400 that names the first field that is wrong."""
    problems: Sequence[Any] = error.errors()
    problem = problems[0]
    where, *location = problem["loc"]
    context = problem.get("ctx") or {}
    kind = problem["type"]
    if kind == "json_invalid":
        detail = context.get("error", "")
        return invalid(f"The body is not valid JSON: {detail}.", code="invalid_json")
    if "field" in context:  # a check of a whole object knows which field it is about
        location.append(context["field"])
    param = field_path(location)
    if param is None and where == "body":
        return invalid("The body must be a JSON object, sent as application/json.")
    message = problem["msg"]
    if kind == "extra_forbidden":
        kind, message = UNKNOWN_PARAMETER, "Unknown parameter"
    if kind not in ("missing", UNKNOWN_PARAMETER):
        value = problem.get("input")
        if "field" in context and isinstance(value, Mapping):
            value = value.get(context["field"])
        message = f"{message} (got {shown(value)})"
    more = len(problems) - 1
    rest = f" {more} more problem{'s' if more > 1 else ''} in this request." if more else ""
    code = kind if kind in (UNKNOWN_PARAMETER, UNSUPPORTED_VALUE) else "invalid_value"
    if kind == "missing":
        code = "missing_required_parameter"
    end = "" if message.endswith("?") else "."
    return invalid(f"{param}: {message}{end}{rest}", param=param, code=code)


def from_http(error: HTTPException, method: str, path: str) -> ApiError:
    """Turn the framework's own refusals (no such route, method, unreadable body) into our shape."""
    headers = dict(error.headers or {})
    target = printable(f"{method} {path}", PARAM_CHARS)
    if error.status_code == 404:
        return ApiError(404, f"There is nothing at {target}.", code="not_found")
    if error.status_code == 405:
        message = f"{target}: the method is not allowed here."
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    if error.status_code == 400:  # FastAPI's word for a body that no parser takes
        return invalid(
            "The body is not JSON in UTF-8, or is nested too deeply, or has too long a number.",
            code="invalid_json",
        )
    return ApiError(error.status_code, str(error.detail), headers=headers)


async def on_api_error(_: Request, error: Exception) -> Response:
    """Answer with an `ApiError` that a handler raised."""
    assert isinstance(error, ApiError)
    return error.response()


async def on_validation_error(_: Request, error: Exception) -> Response:
    """Answer a request that its schema refuses."""
    assert isinstance(error, RequestValidationError)
    return from_validation(error).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses."""
    assert isinstance(error, HTTPException)
    return from_http(error, request.method, request.url.path).response()


def _kind_of(status: int) -> str:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    if status in kinds:
        return kinds[status]
    return "invalid_request_error" if status < 500 else "server_error"
