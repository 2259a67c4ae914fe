"""Accounts, curves and events over the admin API; the per-account metrics."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.api import ADMIN, Api, listening, served_api
from support.event_source import Events
from support.fake_engine import STATS
from support.keeping_engine import KeepingEngine

from stemkv.engine.api import event_feed
from stemkv.engine.messages import (
    AccountCounts,
    AdminReply,
    GetEvents,
    GetStats,
    MissRatioPoint,
)
from stemkv.engine.tenants import Tenant
from stemkv.kvstore.quotas import Quota

EVENTS, STREAM = "/admin/v1/events", "/admin/v1/events/stream"
ACME = AccountCounts(30, 10, 20, 5, 25, 50, 40, 2.0, 1234.5, {"(operator)": 3, "beta": 4})
SHOWN = replace(
    STATS,
    accounts={"acme": ACME, "(operator)": AccountCounts(2, 0, 2, 0, 2, 2, 2, 1.0, 9.0)},
    miss_ratio_curves={
        "acme": (MissRatioPoint(2.0, 0.75, 0.02), MissRatioPoint(0.5, 0.25, None)),
    },
)


@dataclass
class Watched:
    """A service for the operator, with an engine in which things happen."""

    api: Api
    events: Events
    url: str


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    """Serve on a port: only a real server streams, and sees its client go."""
    monkeypatch.setattr(event_feed, "POLL_SECONDS", 0.01)
    async with served_api({"key-a": Tenant("a")}) as api:
        api.http.headers.update(ADMIN)
        events = Events()
        api.engine.admin_replies |= {GetStats: SHOWN, GetEvents: events}
        with listening(api.app) as url:
            yield Watched(api, events, url)


async def test_accounts_have_blocks_and_seconds(watched: Watched) -> None:
    """Each account's figures are there by name, with its seconds in bytes, too."""
    body = (await watched.api.http.get("/admin/v1/accounts")).json()
    assert list(body["accounts"]) == ["(operator)", "acme"]
    assert body["accounts"]["acme"] == {
        "held": 30, "in_use": 10, "cached": 20, "pinned": 5, "reserve": 25, "cap": 50,
        "share": 40, "weight": 2.0, "block_seconds": 1234.5, "byte_seconds": 1234.5 * 1024,
        "evicted_for": {"(operator)": 3, "beta": 4},
    }  # fmt: skip
    assert body["capacity_blocks"] == 100


async def test_an_account_that_is_not_used_yet_has_its_quota(watched: Watched) -> None:
    """A quota in force is shown before the engine has seen its tenant."""
    quota = Quota(reserve=0.1, cap=0.5, weight=3.0)
    watched.api.tenants.put_tenants([Tenant("a", quota=quota), Tenant("acme", quota=quota)])
    KeepingEngine(watched.api.engine)
    await watched.api.app.state.orders.sync()
    body = (await watched.api.http.get("/admin/v1/accounts")).json()
    assert list(body["accounts"]) == ["(operator)", "a", "acme"]
    figures = body["accounts"]["a"]
    wanted = {"held": 0, "reserve": 10, "cap": 50, "share": 10, "weight": 3.0, "evicted_for": {}}
    assert wanted.items() <= figures.items()
    assert body["accounts"]["acme"]["held"] == 30


async def test_curves_are_in_order_of_size(watched: Watched) -> None:
    """Points come by factor, an unknown error is null, and the cache report has the same."""
    points = [
        {"factor": 0.5, "hit_share": 0.25, "error": None},
        {"factor": 2.0, "hit_share": 0.75, "error": 0.02},
    ]
    assert (await watched.api.http.get("/admin/v1/curves")).json() == {
        "capacity_blocks": 100,
        "curves": {"acme": points},
    }
    report = (await watched.api.http.get("/admin/v1/cache")).json()
    assert report["miss_ratio_curves"] == {"acme": points}


async def test_metrics_have_accounts(watched: Watched) -> None:
    """The operator's scrape has each account's gauges and counters; a tenant gets nothing."""
    response = await watched.api.http.get("/metrics")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    for name, value in (
        ("held", 30), ("in_use", 10), ("cached", 20), ("pinned", 5), ("reserve", 25),
        ("cap", 50), ("share", 40),
    ):  # fmt: skip
        assert samples[f"stemkv_account_{name}_blocks", "acme"] == value
    assert samples["stemkv_account_block_seconds_total", "acme"] == 1234.5
    assert samples["stemkv_account_evicted_blocks_total", "acme", "beta"] == 4
    assert samples["stemkv_account_held_blocks", "(operator)"] == 2
    refused = await watched.api.http.get("/metrics", headers={"authorization": "Bearer key-a"})
    assert refused.status_code == 403
    assert "acme" not in refused.text


async def test_events_come_in_pages(watched: Watched) -> None:
    """Start and limit reach the engine; what was missed is counted, next goes on."""
    watched.events.add(13)
    page = (await watched.api.http.get(EVENTS, params={"limit": 4})).json()
    assert watched.events.asked == [GetEvents(0, 4)]
    assert [event["number"] for event in page["events"]] == [3, 4, 5, 6]
    assert (page["missed"], page["next"]) == (3, 7)
    assert page["events"][0] == {
        "number": 3, "kind": "stored", "key": f"{3:032x}", "account": "acme", "seconds": 1.5,
    }  # fmt: skip
    page = (await watched.api.http.get(EVENTS, params={"start": 7, "limit": 100})).json()
    assert (len(page["events"]), page["missed"], page["next"]) == (6, 0, 13)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start": "-1"}, "start"),
        ({"start": "x"}, "start"),
        ({"start": "99"}, "start"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"from": "3"}, "from"),
    ],
)
async def test_bad_pages_are_refused(watched: Watched, query: dict[str, str], param: str) -> None:
    """The wrong parameter is named."""
    response = await watched.api.http.get(EVENTS, params=query)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@dataclass
class Reader:
    """Reads a stream's events as a browser's EventSource would."""

    response: httpx.Response

    async def __aiter__(self) -> AsyncIterator[tuple[str, str | None, Any]]:
        """Yield kind, id and data of each event; a comment's kind is ":"."""
        fields: dict[str, str] = {}
        async for line in self.response.aiter_lines():
            if line.startswith(":"):
                yield ":", None, line[1:].strip()
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield fields["event"], fields.get("id"), json.loads(fields["data"])
                fields = {}


async def _take(reader: Reader, count: int) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    async for kind, number, _ in reader:
        if kind != ":":
            found.append((kind, number))
        if len(found) == count:
            break
    return found


def _stream(watched: Watched, **headers: str) -> Any:
    client = httpx.AsyncClient(base_url=watched.url, headers={**ADMIN, **headers}, timeout=10)
    return client.stream("GET", STREAM)


async def test_a_stream_has_what_comes_from_now_on(watched: Watched) -> None:
    """Without a start only new events come, each with its number as id and its kind."""
    watched.events.add(5)
    async with _stream(watched) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        watched.events.add(2)
        seen = []
        async for kind, number, data in Reader(response):
            seen.append((kind, number, data))
            if number == "6":
                break
    assert [(kind, number) for kind, number, _ in seen] == [
        (":", None), ("stored", "5"), ("stored", "6"),
    ]  # fmt: skip
    assert seen[-1][2]["account"] == "acme"
    assert seen[-1][2]["number"] == 6


async def test_last_event_id_goes_on_behind_it(watched: Watched) -> None:
    """A client that comes back gets the next event; its header wins over the query."""
    watched.events.add(9)
    async with _stream(watched, **{"Last-Event-ID": "6"}) as response:
        assert await _take(Reader(response), 2) == [("stored", "7"), ("stored", "8")]
    async with httpx.AsyncClient(base_url=watched.url, headers=ADMIN) as client:
        url = f"{STREAM}?start=8"
        async with client.stream("GET", url) as response:
            assert await _take(Reader(response), 1) == [("stored", "8")]
        async with client.stream("GET", url, headers={"last-event-id": "3"}) as response:
            assert await _take(Reader(response), 1) == [("stored", "4")]


async def test_a_gap_is_an_event_of_its_own(watched: Watched) -> None:
    """How many were missed is told before what follows; its id is the last one missed."""
    watched.events.add(25)
    async with _stream(watched, **{"Last-Event-ID": "9"}) as response:
        reader = aiter(Reader(response))
        assert (await anext(reader))[0] == ":"
        assert await anext(reader) == ("gap", "14", {"missed": 5})
        assert (await anext(reader))[:2] == ("stored", "15")


async def test_a_slow_start_counts_what_it_missed(watched: Watched) -> None:
    """A gap that opens while the stream runs is told, too."""
    watched.events.add(1)
    async with _stream(watched) as response:
        reader = aiter(Reader(response))
        await anext(reader)
        watched.events.add(12)
        assert await anext(reader) == ("gap", "2", {"missed": 2})


async def test_a_restarted_engine_counts_anew(watched: Watched) -> None:
    """After the engine's restart the stream says so, and goes on with its first event."""
    watched.events.add(4)
    async with _stream(watched) as response:
        reader = aiter(Reader(response))
        await anext(reader)
        watched.api.engine.ready = False
        await asyncio.sleep(0.05)
        watched.events.count = 6  # more than before: only the start tells that they are others
        watched.api.engine.starts += 1
        watched.api.engine.ready = True
        assert await anext(reader) == ("restart", None, {})
        assert (await anext(reader))[:2] == ("stored", "0")


async def test_an_id_of_an_engine_that_is_gone(watched: Watched) -> None:
    """A number that no event has yet is of an engine before this one: all of this one follow."""
    watched.events.add(2)
    async with _stream(watched, **{"Last-Event-ID": "700"}) as response:
        assert await _take(Reader(response), 3) == [
            ("restart", None), ("stored", "0"), ("stored", "1"),
        ]  # fmt: skip


async def test_silence_is_filled_with_comments(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing happens comments keep the connection open."""
    monkeypatch.setattr(event_feed, "KEEP_ALIVE_SECONDS", 0.05)
    async with _stream(watched) as response:
        kinds = []
        async for kind, _, text in Reader(response):
            kinds.append((kind, text))
            if len(kinds) == 3:
                break
    assert kinds == [(":", "events follow"), (":", "still here"), (":", "still here")]


async def test_a_stream_ends_with_its_client(watched: Watched) -> None:
    """Once the client has gone the engine is asked no more."""
    async with _stream(watched) as response:
        await anext(aiter(Reader(response)))
    await asyncio.sleep(0.2)
    asked = len(watched.events.asked)
    await asyncio.sleep(0.2)
    assert len(watched.events.asked) == asked


async def test_a_stream_ends_with_the_service(watched: Watched) -> None:
    """A service that stops ends its streams, whole."""
    async with _stream(watched) as response:
        reader = aiter(Reader(response))
        await anext(reader)
        watched.api.app.state.service.draining = True
        assert [event async for event in reader] == []


@pytest.mark.parametrize("last", ["x", "-1", "1" * 19, "1.5"])
async def test_a_bad_id_is_refused(watched: Watched, last: str) -> None:
    """What is no number is a 400 that says so, before the stream begins."""
    response = await watched.api.http.get(STREAM, headers={"last-event-id": last})
    assert response.status_code == 400
    assert "last-event-id" in response.json()["error"]["message"]


async def test_a_stream_of_an_engine_that_is_away_has_a_status(watched: Watched) -> None:
    """If the engine cannot be asked when a stream is asked for, the answer is a 503."""
    watched.api.engine.ready = False
    assert (await watched.api.http.get(STREAM)).status_code == 503


async def test_a_hanging_engine_does_not_silence_the_stream(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the engine is in a long step, comments still come."""
    monkeypatch.setattr(event_feed, "KEEP_ALIVE_SECONDS", 0.05)
    hang = asyncio.Event()

    async def admin(call: object) -> AdminReply:
        await hang.wait()
        raise AssertionError("it is asked for ever")

    async with _stream(watched) as response:
        reader = aiter(Reader(response))
        await anext(reader)
        monkeypatch.setattr(watched.api.engine, "admin", admin)
        assert [await anext(reader) for _ in range(3)] == [(":", None, "still here")] * 3


async def test_a_stop_does_not_wait_for_a_hanging_engine(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends with the service, even while the engine is in a long step."""
    hang = asyncio.Event()

    async def admin(call: object) -> AdminReply:
        await hang.wait()
        raise AssertionError("it is asked for ever")

    async with _stream(watched) as response:
        reader = aiter(Reader(response))
        await anext(reader)
        monkeypatch.setattr(watched.api.engine, "admin", admin)
        await asyncio.sleep(0.1)
        watched.api.app.state.service.draining = True
        async with asyncio.timeout(5):
            assert [event async for event in reader] == []


async def test_full_pages_follow_each_other_at_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While there is more to read the stream does not pause."""
    monkeypatch.setattr(event_feed, "PAGE_EVENTS", 2)
    monkeypatch.setattr(event_feed, "POLL_SECONDS", 30.0)
    watched.events.add(6)
    async with _stream(watched, **{"Last-Event-ID": "0"}) as response, asyncio.timeout(10):
        assert [number for _, number in await _take(Reader(response), 4)] == ["1", "2", "3", "4"]
