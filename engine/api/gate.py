"""What every request passes on its way in and every response on its way out.

`Gate` names the request, lets in who may enter, reads the body within its bounds, turns what was
raised into a response, and writes one log line and one metric. Keys, bodies and query strings
are never logged.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stemkv.engine.api.auth import Audience, audience_of, authorize
from stemkv.engine.api.errors import ApiError, internal
from stemkv.engine.api.service import Service
from stemkv.engine.api.streaming import STATUS_CLIENT_LEFT, ClientLeftError

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"

# How much of a refused body is read and thrown away: so many largest bodies, for so long.
_DISCARD_BODIES = 4
_DISCARD_SECONDS = 5.0

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one connection; only HTTP is spoken here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _Passage(self._app, self._service, scope, send).go(receive)
        else:
            await send({"type": "websocket.close", "code": 1003})


class _Passage:
    """One request's way through the gate."""

    def __init__(self, app: ASGIApp, service: Service, scope: Scope, send: Send) -> None:
        self._app = app
        self._service = service
        self._scope = scope
        self._send_out = send
        self._headers = Headers(scope=scope)
        self._status: int | None = None
        self._body_ended = False
        self._arrived = service.clock()
        asked = self._headers.get(REQUEST_ID, "")
        self._id = asked if _SANE_ID.fullmatch(asked) else f"req-{uuid.uuid4().hex}"
        self._state: MutableMapping[str, Any] = scope.setdefault("state", {})
        self._state.update(request_id=self._id, arrived=self._arrived, tenant=None)

    async def go(self, receive: Receive) -> None:
        """Answer the request, whatever happens."""
        try:
            await self._enter(receive)
        except ApiError as error:
            await self._discard(receive)
            await self._answer(error.response(), receive)
        except ClientLeftError:
            self._status = STATUS_CLIENT_LEFT
        except Exception:
            logger.exception("request %s failed", self._id)
            if self._status is not None:
                raise  # it is too late for a status: the server cuts the connection
            await self._answer(internal(self._id).response(), receive)
        finally:
            self._note()

    async def _enter(self, receive: Receive) -> None:
        self._check_length()
        tenant = await authorize(self._service, self._scope["path"], self._headers)
        self._state["tenant"] = tenant
        body = await self._read(receive)
        await self._app(self._scope, _replay(body, receive), self._send)

    def _check_length(self) -> None:
        """Refuse a body whose end is told in two ways: a proxy may have believed the other one.

        Then what this service takes for the next request is what a stranger has put into a body
        (RFC 9112, section 6.3).
        """
        if "transfer-encoding" in self._headers and "content-length" in self._headers:
            raise ApiError(
                400,
                "A body has either a Content-Length or a Transfer-Encoding.",
                code="ambiguous_length",
                headers={"connection": "close"},
            )

    async def _read(self, receive: Receive) -> bytes:
        """Return the whole body; raises `ApiError` if it is too long or too slow."""
        limit = self._service.settings.max_body_bytes
        declared = self._headers.get("content-length", "0")
        if declared.isdecimal() and int(declared[:20]) > limit:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        seconds = self._service.settings.body_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                while not self._body_ended:
                    chunks.append(await self._next(receive))
                    size += len(chunks[-1])
                    if size > limit:
                        raise self._too_large()
        except TimeoutError:
            self._body_ended = True  # it has been waited for long enough
            raise ApiError(
                408,
                f"The body did not arrive within {seconds:g} seconds.",
                code="body_timeout",
                headers={"connection": "close"},
            ) from None
        return b"".join(chunks)

    async def _discard(self, receive: Receive) -> None:
        """Read what is left of a refused body, within bounds.

        A server that closes a connection with unread data resets it, and the client may lose the
        refusal with it.
        """
        left = _DISCARD_BODIES * self._service.settings.max_body_bytes
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self._body_ended and left > 0:
                    left -= len(await self._next(receive))
        except (TimeoutError, ClientLeftError):
            pass  # the response is sent all the same; it costs nothing if nobody is there

    async def _next(self, receive: Receive) -> bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        self._body_ended = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    def _too_large(self) -> ApiError:
        limit = self._service.settings.max_body_bytes
        return ApiError(
            413,
            f"The body is larger than {limit} bytes.",
            code="body_too_large",
            headers={"connection": "close"},
        )

    async def _answer(self, response: Response, receive: Receive) -> None:
        await response(self._scope, receive, self._send)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID] = self._id
        await self._send_out(message)

    def _note(self) -> None:
        status = STATUS_CLIENT_LEFT if self._status is None else self._status
        method = self._scope["method"]
        route = getattr(self._scope.get("route"), "path", "none")
        self._service.metrics.http_requests.labels(route, _known(method), str(status)).inc()
        tenant = self._state["tenant"]
        # Probes come every few seconds, and say the same each time.
        quiet = audience_of(self._scope["path"]) in (Audience.ANYONE, Audience.METRICS)
        logger.log(
            logging.DEBUG if quiet and status < 400 else logging.INFO,
            "%s %s %d %.1f ms tenant=%s id=%s",
            _known(method),
            # As it came, percent-encoded, so that it cannot forge a line of the log.
            self._scope.get("raw_path", b"").decode("ascii", "backslashreplace"),
            status,
            1000 * (self._service.clock() - self._arrived),
            "-" if tenant is None else tenant.name,
            self._id,
        )


def _known(method: str) -> str:
    """Return the method, or "other": a client could invent one for each request."""
    usual = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")
    return method if method in usual else "other"


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives the body that was read, and then what comes after it."""
    given = False

    async def channel() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return channel
