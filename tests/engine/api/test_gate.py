import asyncio
import logging
from typing import Any

import httpx
import pytest
from support.api import Api, chat_body, listening, served_api

from stemkv.engine.client import EngineUnavailable
from stemkv.engine.tenants import Tenant

CHAT = "/v1/chat/completions"


async def test_every_response_has_a_request_id(api: Api) -> None:
    """A sane id of the client's is kept, anything else replaced, on errors too."""
    for sent, kept in (("abc-1_2.3:4", True), ("a b", False), ("x" * 129, False), ("", False)):
        for path in ("/health", "/nothing"):
            response = await api.http.get(path, headers={"x-request-id": sent})
            assert (response.headers["x-request-id"] == sent) == kept
            assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/chat", 404, "not_found"),
        ("GET", "/v1/chat/completions/", 404, "not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("OPTIONS", CHAT, 405, "method_not_allowed"),
        ("INVENTED", "/health", 405, "method_not_allowed"),
    ],
)
async def test_unknown_targets_have_openais_shape(
    api: Api, method: str, path: str, status: int, code: str
) -> None:
    """A route or method that does not exist is refused in the same shape as all else."""
    response = await api.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    if status == 405:
        assert response.headers["allow"]


async def test_models_are_listed_by_a_name_with_a_slash(api: Api) -> None:
    """The served model is found by its whole name."""
    (card,) = (await api.http.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["created"]) == ("fake/model", "model", 1_700_000_000)
    assert card["max_model_len"] == 256
    assert (await api.http.get("/v1/models/fake/model")).json() == card
    api.engine.ready = False
    assert (await api.http.get("/v1/models")).json()["data"][0]["max_model_len"] is None


async def test_large_bodies_are_refused() -> None:
    """A body over the limit is a 413, whether its length is declared or not."""
    async with served_api(max_body_bytes=1000) as api:

        async def chunks():  # type: ignore[no-untyped-def]
            for _ in range(11):
                yield b" " * 100

        for content in (b" " * 1001, chunks()):
            response = await api.http.post(CHAT, content=content)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "body_too_large"
        assert (await api.http.post(CHAT, json=chat_body())).status_code == 200


async def test_a_body_of_two_lengths_is_refused(api: Api) -> None:
    """It ends the connection, so that what follows it is never read as a request."""
    follower = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: 4\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    with listening(api.app) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        writer.write(head + b"2\r\n{}\r\n0\r\n\r\n" + follower)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"ambiguous_length" in answer


async def test_slow_bodies_are_refused() -> None:
    """A client that does not send its body in time gets a 408."""
    async with served_api(body_timeout_seconds=0.05) as api:

        async def chunks():  # type: ignore[no-untyped-def]
            yield b"{"
            await asyncio.sleep(5)

        response = await api.http.post(CHAT, content=chunks())
        assert response.status_code == 408
        assert response.json()["error"]["code"] == "body_timeout"


async def test_a_bug_is_a_500_that_tells_only_its_id(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """The client learns the request id, the log has the trace under it."""
    api.engine.fail = RuntimeError("internal detail")
    response = await api.http.post(CHAT, json=chat_body(), headers={"x-request-id": "find-me"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "find-me"
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("server_error", None)
    assert "find-me" in error["message"]
    assert "internal detail" not in response.text
    record = next(record for record in caplog.records if record.exc_info)
    assert "find-me" in record.getMessage()
    assert "internal detail" in caplog.text


async def test_keys_prompts_and_queries_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A line a call (method, path, status, time, tenant, id), one a prompt, and nothing secret."""
    caplog.set_level(logging.DEBUG, logger="stemkv")
    async with served_api({"key-secret": Tenant("acme")}) as api:
        headers = {"authorization": "Bearer key-secret", "x-request-id": "id-1"}
        for body in (chat_body("prompt-secret"), chat_body("prompt-secret", temperature=9)):
            await api.http.post(f"{CHAT}?q=query-secret", json=body, headers=headers)
        await api.http.get("/admin/v1/cache", headers={"authorization": "Bearer admin-secret"})
        await api.http.get("/x%0Aforged", headers=headers)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("stemkv")]
    assert "secret" not in "".join(lines)
    assert all("\n" not in line for line in lines)
    first = next(line for line in lines if line.startswith("POST"))
    assert first.startswith(f"POST {CHAT} 200 ")
    assert "tenant=acme" in first
    assert "id=id-1" in first
    assert len(lines) == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_away_is_a_503(api: Api, stream: bool) -> None:
    """While the engine starts, requests are told when to come back."""
    api.engine.ready = False
    response = await api.http.post(CHAT, json=chat_body(stream=stream))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert response.headers["retry-after"] == "5"


async def test_an_engine_that_goes_at_the_last_moment_is_a_503(api: Api) -> None:
    """An engine that went between the check and the submission is answered the same way."""
    api.engine.fail = EngineUnavailable("gone")
    response = await api.http.post(CHAT, json=chat_body())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_unavailable"


async def test_a_service_that_stops_takes_no_requests(api: Api) -> None:
    """While it drains, new requests are refused and readiness is off."""
    api.app.state.service.draining = True
    response = await api.http.post(CHAT, json=chat_body())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    assert (await api.http.get("/ready")).status_code == 503
    assert (await api.http.get("/health")).status_code == 200


async def test_refusals_reach_a_real_client(api: Api) -> None:
    """Over a socket, refusals that come before the body was read arrive whole."""
    with listening(api.app) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            for _ in range(3):
                too_large = await http.post(CHAT, content=b"x" * (9 * 1024 * 1024))
                assert too_large.status_code == 413
                foreign = await http.post(
                    CHAT, json=chat_body("x" * 50_000), headers={"host": "a.b"}
                )
                assert foreign.status_code == 403
                good = await http.post(CHAT, json=chat_body())
                assert good.status_code == 200


async def test_probes_are_logged_quietly(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """A health check that went well is no line of the usual log, one that did not is."""
    caplog.set_level(logging.INFO, logger="stemkv")
    for path in ("/health", "/ready", "/metrics"):
        assert (await api.http.get(path)).status_code == 200
    assert not caplog.records
    api.engine.ready = False
    assert (await api.http.get("/ready")).status_code == 503
    assert [record.getMessage()[:15] for record in caplog.records] == ["GET /ready 503 "]


async def test_websockets_are_closed(api: Api) -> None:
    """Another protocol than HTTP passes no check, so it is closed at once."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/models", "headers": [], "query_string": b""}
    await api.app(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1003}]
