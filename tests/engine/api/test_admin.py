import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.api import ADMIN, Api, served_api

from stemkv.engine.messages import (
    AdminCall,
    AdminError,
    AdminReply,
    AuditReport,
    BlockDetail,
    BlockInfo,
    BlockPage,
    DoAudit,
    DoExplain,
    DoFlush,
    DoLocate,
    Explanation,
    FlushReport,
    GetAcknowledgements,
    GetBlock,
    GetStats,
    ListBlocks,
    Location,
)
from stemkv.engine.tenants import Tenant, TenantStoreError
from stemkv.kvstore.flush import FlushKind
from stemkv.kvstore.ids import FlushId, WorkerId
from stemkv.kvstore.namespace import domain_of

SECRET = b"s" * 32
FLUSH, EXPLAIN, LOCATE = (f"/admin/v1/cache/{name}" for name in ("flush", "explain", "locate"))
BLOCK = BlockInfo(7, "ab" * 16, None, "a", "", "s", 0, 16, 2, "in_use", 1)
REPORT = FlushReport(FlushId("f-1"), 5, 5120, 1, {"a": 3, "b": 2}, {WorkerId("w"): True})
EXPLANATION = Explanation(9, 0, 4, "token_differs", 4, "a token differs", 4, 65, 66)


@pytest.fixture
async def admin() -> AsyncIterator[Api]:
    """Serve with two tenants, one of them in a group, and the admin key in every request."""
    async with served_api({"key-a": Tenant("a"), "key-b": Tenant("b", group="g")}) as api:
        api.http.headers.update(ADMIN)
        api.engine.admin_replies |= {
            DoFlush: REPORT,
            DoExplain: EXPLANATION,
            DoLocate: Location(9, ((WorkerId("w-1"), 8), (WorkerId("w-2"), 0))),
            ListBlocks: BlockPage((BLOCK,), 8),
            GetBlock: BlockDetail(BLOCK, (1, 2, 3), ("ab" * 16,), ()),
            DoAudit: AuditReport((), 100, 2, 0.01),
        }
        yield api


async def _post(api: Api, path: str, **body: Any) -> Any:
    response = await api.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_cache_report_has_pool_queue_and_tenants(admin: Api) -> None:
    """The pool's states add up to its capacity, and each tenant has its hit rate in tokens."""
    report = (await admin.http.get("/admin/v1/cache")).json()
    pool = report["pool"]
    states = ("free", "in_use", "cached", "stale", "quarantined")
    assert sum(pool[state] for state in states) == pool["capacity"] == 100
    assert pool["capacity_bytes"] == 100 * 1024
    assert report["queue"]["running"] == 2
    assert report["tenants"]["acme"]["hit_rate"] == 0.5
    assert report["tenants"]["acme"]["cached_bytes"] == 25 * 1024
    apart = {"resumed": 3, "resumed_hit_tokens": 50, "resumed_computed_tokens": 7}
    assert (apart | {"saved_tokens": 100}).items() <= report["tenants"]["acme"].items()
    assert report["worker"] == "worker-1"
    assert report["policy_hit_shares"] == {"lru": 0.5, "lrfu-60": 0.625}


async def test_blocks_are_listed_by_filter_and_page(admin: Api) -> None:
    """Every filter and the cursor reach the engine; the next cursor comes back."""
    query = {
        "tenant": "a",
        "adapter": "",
        "salt": "s",
        "state": "in_use",
        "min_references": "2",
        "cursor": "7",
        "limit": "10",
    }
    page = (await admin.http.get("/admin/v1/cache/blocks", params=query)).json()
    assert admin.engine.admin_calls == [ListBlocks("a", "", "s", "in_use", 2, 7, 10)]
    assert page["next_cursor"] == 8
    assert page["blocks"][0]["key"] == "ab" * 16
    await admin.http.get("/admin/v1/cache/blocks")
    assert admin.engine.admin_calls[1] == ListBlocks()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "hot"),
        ("min_references", "-1"),
        ("limit", "0"),
        ("limit", "1001"),
        ("limit", "x"),
        ("cursor", "-1"),
        ("tenat", "a"),
    ],
)
async def test_a_wrong_filter_is_refused_by_name(admin: Api, name: str, value: str) -> None:
    """A filter that cannot be meant gives a 400 that names it, and asks the engine nothing."""
    response = await admin.http.get("/admin/v1/cache/blocks", params={name: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert not admin.engine.admin_calls


async def test_one_block_is_found_by_its_key(admin: Api) -> None:
    """A key, or a start of one, gives the block with its chain; an absent one is a 404."""
    block = (await admin.http.get("/admin/v1/cache/blocks/ABCDEF01")).json()
    assert admin.engine.admin_calls == [GetBlock("abcdef01")]
    assert block["token_ids"] == [1, 2, 3]
    assert block["info"]["block"] == 7
    admin.engine.admin_replies[GetBlock] = None
    response = await admin.http.get("/admin/v1/cache/blocks/" + "0" * 32)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "block_not_found"
    for key in ("0" * 7, "0" * 33, "xyzxyzxyz"):
        response = await admin.http.get(f"/admin/v1/cache/blocks/{key}")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "key"


async def test_flushes_reach_the_engine_with_their_scope(admin: Api) -> None:
    """Each kind names what it is about, and the tenant's domain follows its group."""
    ids = admin.engine.tokenizer.encode("Hi")
    a, b = domain_of(SECRET, tenant="a"), domain_of(SECRET, tenant="b", group="g")
    gone = domain_of(SECRET, tenant="gone", group="old")
    cases: list[tuple[dict[str, Any], FlushKind, tuple[Any, ...] | None, list[int]]] = [
        ({"by": "all"}, FlushKind.ALL, None, []),
        ({"by": "tenant", "tenant": "a"}, FlushKind.TENANT, ("a", a, "", ""), []),
        ({"by": "tenant", "tenant": "b"}, FlushKind.TENANT, ("b", b, "", ""), []),
        (
            {"by": "tenant", "tenant": "gone", "group": "old"},
            FlushKind.TENANT,
            ("gone", gone, "", ""),
            [],
        ),
        ({"by": "adapter", "adapter": "x"}, FlushKind.ADAPTER, ("", b"", "x", ""), []),
        ({"by": "salt", "tenant": "a", "salt": "s"}, FlushKind.SALT, ("a", a, "", "s"), []),
        (
            {"by": "prefix", "tenant": "a", "prompt": "Hi", "adapter": "x", "salt": "s"},
            FlushKind.PREFIX,
            ("a", a, "x", "s"),
            ids,
        ),
        (
            {"by": "prefix", "tenant": "a", "token_ids": [1, 2]},
            FlushKind.PREFIX,
            ("a", a, "", ""),
            [1, 2],
        ),
    ]
    for body, kind, namespace, prefix in cases:
        admin.engine.admin_calls.clear()
        await _post(admin, FLUSH, **body)
        (call,) = admin.engine.admin_calls
        assert isinstance(call, DoFlush)
        assert call.kind is kind
        assert np.frombuffer(call.prefix, "<i4").tolist() == prefix
        found = call.namespace
        scope = found and (found.tenant, found.domain, found.adapter, found.salt)
        assert scope == namespace


async def test_a_flush_tells_what_went_and_who_knows(admin: Api) -> None:
    """Blocks and bytes per tenant, and whether every worker has acknowledged."""
    reply = await _post(admin, FLUSH, by="all")
    assert (reply["blocks"], reply["bytes"], reply["in_use"]) == (5, 5120, 1)
    assert reply["tenants"]["a"] == {"blocks": 3, "bytes": 3072}
    assert reply["acknowledged"] == {"w": True}
    assert reply["complete"] is True


async def test_a_flush_waits_for_other_workers_and_no_longer(admin: Api) -> None:
    """Acknowledgements are asked for until all are there, or the time given is over."""
    workers = {WorkerId("w"): True, WorkerId("v"): False}
    admin.engine.admin_replies[DoFlush] = FlushReport(FlushId("f"), 0, 0, 0, {}, workers)
    admin.engine.admin_replies[GetAcknowledgements] = {**workers, WorkerId("v"): True}
    reply = await _post(admin, FLUSH, by="all", wait_seconds=20)
    assert reply["acknowledged"] == {"w": True, "v": True}
    assert reply["complete"] is True
    admin.engine.admin_replies[GetAcknowledgements] = workers
    reply = await _post(admin, FLUSH, by="all", wait_seconds=0.12)
    assert reply["acknowledged"] == {"w": True, "v": False}
    assert reply["complete"] is False


async def test_a_flush_is_reported_though_the_directory_is_lost_after_it(admin: Api) -> None:
    """What went here is told, not complete, when nobody can say any more who has followed."""
    told = replace(REPORT, acknowledged={WorkerId("w"): True, WorkerId("v"): False})
    admin.engine.admin_replies[DoFlush] = told
    admin.engine.admin_replies[GetAcknowledgements] = AdminError("unavailable", "redis: timeout")
    reply = await _post(admin, FLUSH, by="all", wait_seconds=5)
    assert (reply["flush_id"], reply["blocks"]) == (REPORT.flush_id, REPORT.blocks)
    assert not reply["complete"]
    assert "redis: timeout" in reply["directory_error"]


async def test_a_flush_that_others_could_not_be_told_is_not_complete(admin: Api) -> None:
    """A directory that is away is said, and the flush does not count as complete."""
    admin.engine.admin_replies[DoFlush] = FlushReport(
        FlushId("f"), 2, 2, 0, directory_error="Redis is away"
    )
    reply = await _post(admin, FLUSH, by="all")
    assert (reply["complete"], reply["directory_error"]) == (False, "Redis is away")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "by"),
        ({"by": "everything"}, "by"),
        ({"by": "tenant"}, "tenant"),
        ({"by": "tenant", "tenant": ""}, "tenant"),
        ({"by": "tenant", "tenant": "a b"}, "tenant"),
        ({"by": "tenant", "tenant": "a", "salt": "s"}, "salt"),
        ({"by": "tenant", "tenant": "a", "group": ""}, "group"),
        ({"by": "adapter"}, "adapter"),
        ({"by": "adapter", "adapter": "x", "tenant": "a"}, "tenant"),
        ({"by": "salt", "tenant": "a"}, "salt"),
        ({"by": "salt", "salt": "s"}, "tenant"),
        ({"by": "prefix", "tenant": "a"}, "prompt"),
        ({"by": "prefix", "prompt": "x"}, "tenant"),
        ({"by": "prefix", "tenant": "a", "prompt": "x", "token_ids": [1]}, "token_ids"),
        ({"by": "prefix", "tenant": "a", "token_ids": [259]}, "token_ids[0]"),
        ({"by": "prefix", "tenant": "a", "token_ids": []}, "token_ids"),
        ({"by": "prefix", "tenant": "a", "messages": []}, "messages"),
        ({"by": "all", "prompt": "x"}, "prompt"),
        ({"by": "all", "wait_seconds": -1}, "wait_seconds"),
        ({"by": "all", "wait_seconds": 31}, "wait_seconds"),
        ({"by": "all", "al": 1}, "al"),
    ],
)
async def test_a_flush_that_is_not_clear_is_refused(
    admin: Api, body: dict[str, Any], param: str
) -> None:
    """A missing, wrong or superfluous field is named, and nothing is flushed."""
    response = await admin.http.post(FLUSH, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not admin.engine.admin_calls


async def test_explain_decodes_the_text_around_the_difference(admin: Api) -> None:
    """The answer has the engine's figures, and the tokens' text."""
    reply = await _post(admin, EXPLAIN, tenant="a", prompt="Hi there", salt="s")
    (call,) = admin.engine.admin_calls
    assert isinstance(call, DoExplain)
    assert (call.namespace.tenant, call.namespace.salt) == ("a", "s")
    ids = admin.engine.tokenizer.encode("Hi there")
    assert np.frombuffer(call.prompt, "<i4").tolist() == ids
    assert (reply["reason"], reply["position"], reply["reusable_tokens"]) == ("token_differs", 4, 4)
    assert reply["text_before"] == "<s>Hi "
    decode = admin.engine.tokenizer.decode
    assert (reply["expected_text"], reply["found_text"]) == (decode([65]), decode([66]))


async def test_explain_of_what_is_cached_in_full_leaves_the_last_token(admin: Api) -> None:
    """As a request would report it: the last token is computed, however much is cached."""
    admin.engine.admin_replies[DoExplain] = Explanation(32, 32, 0, "complete", 31, "all is cached")
    reply = await _post(admin, EXPLAIN, tenant="a", prompt="Hi there")
    assert (reply["full_block_tokens"], reply["reusable_tokens"]) == (32, 31)


async def test_explain_takes_messages_as_a_chat_would(admin: Api) -> None:
    """A conversation is explained with the tokens that the chat endpoint would submit."""
    messages = [{"role": "user", "content": "Hi"}]
    await _post(admin, EXPLAIN, tenant="b", messages=messages)
    body = {"model": "fake/model", "messages": messages}
    headers = {"authorization": "Bearer key-b"}
    await admin.http.post("/v1/chat/completions", json=body, headers=headers)
    call, request = admin.engine.admin_calls[0], admin.engine.submitted[0]
    assert isinstance(call, DoExplain)
    assert call.prompt == request.prompt.tobytes()
    assert call.namespace == request.namespace


async def test_locate_lists_workers(admin: Api) -> None:
    """Each worker comes with the tokens that it holds."""
    reply = await _post(admin, LOCATE, tenant="a", token_ids=[1, 2, 3])
    assert reply == {
        "prompt_tokens": 9,
        "workers": [{"worker": "w-1", "tokens": 8}, {"worker": "w-2", "tokens": 0}],
    }


@pytest.mark.parametrize("path", [EXPLAIN, LOCATE])
@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"tenant": "a"}, 400, "prompt"),
        ({"tenant": "a", "prompt": "x", "messages": []}, 400, "messages"),
        ({"tenant": "nobody", "prompt": "x"}, 404, "tenant"),
        ({"tenant": "default", "prompt": "x"}, 404, "tenant"),
        ({"prompt": "x"}, 400, "tenant"),
        ({"tenant": "a", "prompt": ""}, 200, None),
        ({"tenant": "a", "token_ids": [1, 300]}, 400, "token_ids[1]"),
    ],
)
async def test_queries_that_name_nothing_are_refused(
    admin: Api, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    """A prompt and a tenant that exists are needed."""
    response = await admin.http.post(path, json=body)
    assert response.status_code == status, response.text
    if param is not None:
        assert response.json()["error"]["param"] == param


async def test_without_tenants_the_open_one_is_explained(api: Api) -> None:
    """Where there are no keys, leaving the tenant out means the one that everybody is."""
    api.engine.admin_replies[DoExplain] = EXPLANATION
    for body in ({"prompt": "x"}, {"prompt": "x", "tenant": "default"}):
        response = await api.http.post(EXPLAIN, json=body, headers=ADMIN)
        assert response.status_code == 200
    (first, second) = api.engine.admin_calls
    assert isinstance(first, DoExplain)
    assert isinstance(second, DoExplain)
    assert first.namespace == second.namespace
    assert first.namespace.domain == domain_of(SECRET, tenant="default")


async def test_tenants_that_cannot_be_read_are_a_503(admin: Api) -> None:
    """A query about a tenant is told to come back while the tenant store is away."""

    def broken() -> tuple[Tenant, ...]:
        raise TenantStoreError("the disk is gone")

    admin.tenants.tenants = broken  # type: ignore[method-assign]
    response = await admin.http.post(EXPLAIN, json={"tenant": "a", "prompt": "x"})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "tenants_unavailable"


async def test_the_audit_says_whether_it_is_clean(admin: Api) -> None:
    """Violations are listed, one sentence each."""
    assert (await admin.http.get("/admin/v1/audit")).json()["clean"] is True
    admin.engine.admin_replies[DoAudit] = AuditReport(
        ("block 3 is lost",), 100, 2, 0.01, quarantined=(3,), failed_requests=1
    )
    report = (await admin.http.get("/admin/v1/audit")).json()
    assert (report["clean"], report["violations"]) == (False, ["block 3 is lost"])
    assert (report["quarantined"], report["failed_requests"]) == ([3], 1)


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (AdminError("invalid", "no such thing", "salt"), 400, "salt"),
        (AdminError("unavailable", "Redis is away"), 503, None),
        (AdminError("internal", "secret detail"), 500, None),
    ],
)
async def test_what_the_engine_refuses_keeps_its_kind(
    admin: Api, error: AdminError, status: int, param: str | None
) -> None:
    """The engine's own refusals get the status that belongs to them."""
    admin.engine.admin_replies[GetStats] = error
    response = await admin.http.get("/admin/v1/cache")
    assert response.status_code == status
    assert response.json()["error"]["param"] == param
    assert "secret" not in response.text


async def test_an_engine_that_hangs_does_not_hold_an_operator_for_ever() -> None:
    """An admin call that the engine does not answer in time is a 503 that says so."""

    async def hang(_: AdminCall) -> AdminReply:
        await asyncio.sleep(60)

    async with served_api(admin_timeout_seconds=0.05) as api:
        api.engine.admin = hang  # type: ignore[method-assign]
        response = await api.http.get("/admin/v1/cache", headers=ADMIN)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_timeout"
        assert "0.05 seconds" in response.json()["error"]["message"]


async def test_admin_calls_to_an_engine_that_is_away_are_a_503(admin: Api) -> None:
    """While the engine starts, the admin API says so, prompts included."""
    admin.engine.ready = False
    calls = [
        ("GET", "/admin/v1/cache", None),
        ("GET", "/admin/v1/audit", None),
        ("GET", "/admin/v1/accounts", None),
        ("GET", "/admin/v1/curves", None),
        ("GET", "/admin/v1/events", None),
        ("GET", "/admin/v1/public", None),
        ("POST", "/admin/v1/public", {"name": "p", "token_ids": [1] * 16}),
        ("GET", "/admin/v1/pins", None),
        ("POST", "/admin/v1/pins", {"tenant": "a", "token_ids": [1] * 16, "seconds": 1}),
        ("DELETE", "/admin/v1/pins/1", None),
        ("POST", EXPLAIN, {"tenant": "a", "prompt": "x"}),
        ("POST", FLUSH, {"by": "prefix", "tenant": "a", "token_ids": [1]}),
    ]
    for method, path, body in calls:
        response = await admin.http.request(method, path, json=body)
        assert response.status_code == 503
        assert response.headers["retry-after"]


async def test_the_openapi_document_is_complete(admin: Api) -> None:
    """Every route is there with a typed answer, an error shape, and the key that it needs."""
    document = (await admin.http.get("/openapi.json")).json()
    routes = {
        (method, path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert len(routes) == 26
    for (_, path), operation in routes.items():
        responses = operation["responses"]
        assert "422" not in responses
        assert responses["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith(
            "ErrorResponse"
        )
        if path == "/admin/v1/events/stream":
            assert list(responses["200"]["content"]) == ["text/event-stream"]
        elif path != "/metrics":
            assert "$ref" in responses["200"]["content"]["application/json"]["schema"], path
        keys = [name for scheme in operation.get("security", []) for name in scheme]
        if path.startswith("/v1/"):
            assert keys == ["tenant key"]
        elif path.startswith("/admin/"):
            assert keys == ["admin key"]
