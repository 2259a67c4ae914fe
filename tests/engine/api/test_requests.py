"""What the operator is told of requests that ran: the log's line, the records, the texts."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.api import ADMIN, MODEL, Api, chat_body, served_api, text_body

from stemkv.engine.api.records import RequestLog, RequestRecord
from stemkv.engine.messages import DoExplain
from stemkv.engine.request import Failed
from stemkv.engine.tenants import Tenant
from stemkv.kvstore.views import Explanation

LIST = "/admin/v1/requests"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEY_A, KEY_B = ({"authorization": f"Bearer key-{name}"} for name in "ab")
PROMPT = list(b"A system prompt, with a date: 2026-01-02.")
DIFFERS = Explanation(len(PROMPT), 32, 6, "token_differs", 38, "why", 38, ord("1"), ord("2"))
EVICTED = Explanation(9, 0, 0, "evicted", 0, "It went.", None, None, None, 2.5, "b")


@pytest.fixture
async def two() -> AsyncIterator[Api]:
    """Serve two tenants."""
    async with served_api({"key-a": Tenant("a"), "key-b": Tenant("b")}) as served:
        yield served


async def ask(api: Api, headers: dict[str, str], path: str = TEXT, **body: Any) -> dict[str, Any]:
    """Send a request and return the answer."""
    made = chat_body(**body) if path == CHAT else text_body(**({"prompt": PROMPT} | body))
    response = await api.http.post(path, json=made, headers=headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def listed(api: Api, path: str = LIST, **query: Any) -> list[dict[str, Any]]:
    """Return requests as the operator sees them."""
    response = await api.http.get(path, params=query, headers=ADMIN)
    assert response.status_code == 200, response.text
    requests: list[dict[str, Any]] = response.json()["requests"]
    return requests


async def test_a_record_says_what_became_of_a_request(two: Api) -> None:
    """Who asked, with what, what was reused, when the first token came, and how it ended."""
    await ask(two, KEY_A, cache_salt="s", max_tokens=4)
    answer = await ask(two, KEY_A | {"x-request-id": "mine"}, cache_salt="s", max_tokens=4)
    record = (await listed(two))[0]
    assert (record["request_id"], record["answer_id"]) == ("mine", answer["id"])
    assert (record["tenant"], record["model"], record["salt"]) == ("a", MODEL, "s")
    assert record["prompt_tokens"] == len(PROMPT)
    assert record["cached_tokens"] == len(PROMPT) - 1
    assert record["completion_tokens"] == 4
    assert (record["outcome"], record["finish"], record["miss"]) == ("finished", ["length"], None)
    assert 0 < record["first_token_seconds"] <= record["seconds"] < 60
    assert (record["cache_read"], record["cache_write"]) == (True, True)
    service = two.app.state.service
    assert 0 <= service.wall_clock() - record["submitted"] < 60


async def test_a_miss_is_explained_with_both_texts(two: Api) -> None:
    """The list has the reason; the record the texts before and at the token that differs."""
    ids = two.engine.tokenizer.encode("On the date: 2026-01-02", add_special_tokens=False)
    at = len(ids) - 1
    one = two.engine.tokenizer.encode("1", add_special_tokens=False)[0]
    two.engine.miss = replace(
        DIFFERS, differing_position=at, expected_token=one, found_token=ids[at]
    )
    answer = await ask(two, KEY_A, prompt=ids)
    (record,) = await listed(two)
    assert record["miss"] == {"reason": "token_differs", "position": 38, "detail": "why"}
    assert "explanation" not in record
    (detail,) = await listed(two, f"{LIST}/{answer['id']}")
    told = detail["explanation"]
    assert told["text_before"] == " date: 2026-01-0"
    assert (told["expected_text"], told["found_text"]) == ("1", "2")
    assert (told["reusable_tokens"], told["full_block_tokens"]) == (38, 32)
    assert {name: detail[name] for name in record} == record


async def test_a_dry_run_and_a_record_say_the_same(two: Api) -> None:
    """An explanation of a request that ran has the shape of one that was asked for."""
    two.engine.miss = DIFFERS
    two.engine.admin_replies[DoExplain] = DIFFERS
    await ask(two, KEY_A)
    (record,) = await listed(two)
    (detail,) = await listed(two, f"{LIST}/{record['id']}")
    body = {"token_ids": PROMPT, "tenant": "a"}
    dry = await two.http.post("/admin/v1/cache/explain", json=body, headers=ADMIN)
    assert detail["explanation"] == dry.json()


async def test_found_by_any_of_its_ids(two: Api) -> None:
    """Each prompt of a call has its record; header, answer and list name them."""
    headers = KEY_A | {"x-request-id": "mine"}
    answer = await ask(two, headers, prompt=["one", "two"], max_tokens=2)
    both = await listed(two)
    assert [record["id"] for record in both] == [f"{answer['id']}-1", f"{answer['id']}-0"]
    for name in ("mine", answer["id"]):
        assert [r["id"] for r in await listed(two, f"{LIST}/{name}")] == [r["id"] for r in both]
    (one,) = await listed(two, f"{LIST}/{answer['id']}-0")
    assert one["id"] == f"{answer['id']}-0"
    await ask(two, headers)
    assert len(await listed(two, f"{LIST}/mine")) == 3


async def test_an_unknown_id_is_a_404(two: Api) -> None:
    """A request that is not kept is told by its id."""
    response = await two.http.get(f"{LIST}/nothing", headers=ADMIN)
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("request_not_found", "request_id")
    assert "nothing" in error["message"]


async def test_filters(two: Api) -> None:
    """By tenant, by reason, and not too many, the newest first."""
    two.engine.miss = EVICTED
    await ask(two, KEY_A)
    await ask(two, KEY_B)
    two.engine.miss = None
    await ask(two, KEY_A)

    async def tenants(**query: Any) -> list[str]:
        return [record["tenant"] for record in await listed(two, **query)]

    assert await tenants() == ["a", "b", "a"]
    assert await tenants(tenant="b") == ["b"]
    assert await tenants(reason="evicted") == ["b", "a"]
    assert await tenants(reason="evicted", tenant="a", limit=1) == ["a"]
    assert await tenants(limit=2) == ["a", "b"]
    assert await tenants(reason="flushed") == []


@pytest.mark.parametrize(
    ("name", "value"), [("reason", "x"), ("limit", "0"), ("limit", "1001"), ("tenat", "a")]
)
async def test_a_wrong_filter_is_refused_by_name(two: Api, name: str, value: str) -> None:
    """A filter that cannot be meant is a 400 that names it."""
    response = await two.http.get(LIST, params={name: value}, headers=ADMIN)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


@pytest.mark.parametrize("path", [LIST, f"{LIST}/mine"])
async def test_for_the_operator_alone(two: Api, path: str) -> None:
    """A tenant's key opens no record, its own neither; nor does the answer tell of a miss."""
    two.engine.miss = EVICTED
    await ask(two, KEY_A | {"x-request-id": "mine"})
    assert (await two.http.get(path, headers=KEY_A)).status_code == 403
    assert (await two.http.get(path)).status_code == 401


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_tenant_learns_no_reason(two: Api, path: str, stream: bool) -> None:
    """Answer and headers are the same whatever the reason of a miss was, but for ids and times."""
    body = chat_body() if path == CHAT else text_body(PROMPT)
    shapes = []
    for miss in (None, EVICTED, DIFFERS):
        two.engine.miss = miss
        two.engine.cached.clear()
        response = await two.http.post(path, json=body | {"stream": stream}, headers=KEY_A)
        for word in ("evicted", "differs", "went", "miss", "explan"):
            assert word not in response.text
            assert word not in str(response.headers)
        shapes.append((len(response.text), sorted(response.headers)))
    assert shapes[0] == shapes[1] == shapes[2]


async def test_the_log_has_a_line_for_each_request(
    two: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """The line says who, what was cached, why not more, and the times; no text, no token."""
    caplog.set_level(logging.INFO, logger="stemkv")
    two.engine.miss = DIFFERS
    two.engine.cached[_domain(two), ""] = [PROMPT[:38]]
    answer = await ask(two, KEY_A | {"x-request-id": "mine"}, max_tokens=3)
    (line,) = [r.getMessage() for r in caplog.records if r.name == "stemkv.engine.api.records"]
    assert line.startswith(
        f"request mine ({answer['id']}-0) tenant=a cached 38 of {len(PROMPT)} tokens;"
        " miss: token_differs at 38; first token after "
    )
    assert line.endswith("; length")
    assert ", 3 tokens after " in line
    assert "why" not in line


def _domain(api: Api) -> bytes:
    namespace = api.app.state.service.namespace(Tenant("a"))
    domain: bytes = namespace.domain
    return domain


async def test_a_request_may_leave_the_cache_alone(
    two: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """One that may not read the cache is said to be so."""
    caplog.set_level(logging.INFO, logger="stemkv")
    await ask(two, KEY_A, cache={"read": False, "write": True})
    (record,) = await listed(two)
    assert (record["cache_read"], record["cache_write"]) == (False, True)
    assert "; may not read the cache; first token" in caplog.text


@pytest.mark.parametrize("kind", ["rejected", "overloaded", "internal"])
async def test_a_failure_is_recorded(two: Api, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One that failed before its first token has its outcome, and no time of a token."""
    caplog.set_level(logging.INFO, logger="stemkv")
    two.engine.fail = lambda request_id: Failed(request_id, kind, "no")
    response = await two.http.post(TEXT, json=text_body(PROMPT), headers=KEY_A)
    assert response.status_code >= 400
    (record,) = await listed(two)
    assert (record["outcome"], record["cached_tokens"]) == (kind, None)
    assert record["first_token_seconds"] is None
    assert record["seconds"] is not None
    assert f"{len(PROMPT)} prompt tokens, none run; first token never, 0 tokens" in caplog.text


async def test_a_running_request_is_there(two: Api) -> None:
    """A request is listed from its arrival on, explained from its first token on, then ended."""
    two.engine.miss = EVICTED
    two.engine.hold = asyncio.Event()
    task = asyncio.create_task(ask(two, KEY_A, max_tokens=2))
    while not (seen := await listed(two)):
        await asyncio.sleep(0.01)
    assert (seen[0]["outcome"], seen[0]["seconds"], seen[0]["miss"]) == ("running", None, None)
    two.engine.hold.set()
    await task
    (ended,) = await listed(two)
    assert (ended["id"], ended["outcome"]) == (seen[0]["id"], "finished")
    assert ended["miss"]["reason"] == "evicted"


async def test_only_the_latest_are_kept() -> None:
    """The setting bounds the records; 0 keeps none, and requests run all the same."""
    for kept in (2, 0):
        async with served_api(request_records=kept) as api:
            for number in range(4):
                await ask(api, {"x-request-id": f"r{number}"})
            names = [record["request_id"] for record in await listed(api)]
            assert names == ["r3", "r2"][:kept]


def record(name: str, **changes: Any) -> RequestRecord:
    """Return a record."""
    made = RequestRecord(name, f"a-{name}", "r", "t", "m", "", "", 0.0, 1, True, True)
    return replace(made, **changes)


def test_a_record_that_changes_keeps_its_place() -> None:
    """What is put again under its id is replaced; what has gone comes back as the latest."""
    log = RequestLog(2)
    for name in ("x", "y"):
        log.put(record(name))
    log.put(record("x", seconds=1.0))
    assert [(r.id, r.seconds) for r in log.find("r")] == [("y", None), ("x", 1.0)]
    log.put(record("z"))
    assert [r.id for r in log.find("r")] == ["z", "y"]
    log.put(record("x", seconds=2.0))
    assert [r.id for r in log.find("r")] == ["x", "z"]
