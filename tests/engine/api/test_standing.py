"""Standing orders: the engine has the quotas and public prefixes that the tenants' store has."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.api import ADMIN, Api, served_api
from support.fake_engine import engine_info
from support.keeping_engine import KeepingEngine
from support.waiting import wait_until_async

from stemkv.engine.api.standing import AccountQuota, StandingOrders, quotas_of
from stemkv.engine.messages import AdminError, DeclarePublic, SetQuotas, WithdrawPublic
from stemkv.engine.public_prefixes import DeclaredPrefix
from stemkv.engine.tenants import Tenant, TenantStoreError
from stemkv.kvstore.namespace import domain_of
from stemkv.kvstore.quotas import Quota

SECRET = b"s" * 32


def _domain(tenant: str, group: str | None = None) -> bytes:
    return domain_of(SECRET, tenant=tenant, group=group)


@dataclass
class Kept:
    """A service with its standing orders and the engine that they are for."""

    api: Api
    engine: KeepingEngine
    orders: StandingOrders


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    """Serve two tenants, one with a quota, before the engine has been told anything."""
    tenants = {"key-a": Tenant("a", quota=Quota(reserve=0.25, cap=0.5)), "key-b": Tenant("b")}
    async with served_api(tenants) as api:
        api.http.headers.update(ADMIN)
        yield Kept(api, KeepingEngine(api.engine), api.app.state.orders)


def test_a_groups_quota_is_its_enabled_members() -> None:
    """Members' quotas add up to their group's; who is disabled, or has no quota, adds nothing."""
    tenants = [
        Tenant("a", "g", quota=Quota(reserve=0.2, cap=0.5, weight=2.0, pins=0.1)),
        Tenant("b", "g", quota=Quota(reserve=0.1, cap=0.3, pins=0.1)),
        Tenant("c", "g", enabled=False, quota=Quota(reserve=0.5)),
        Tenant("d", quota=Quota(weight=3.0)),
        Tenant("e"),
        Tenant("f", enabled=False, quota=Quota(reserve=0.5)),
    ]
    accounts = quotas_of(tenants, SECRET)
    assert [each.name for each in accounts] == ["g (group)", "d"]
    found = {each.domain: each.quota for each in accounts}
    assert found.keys() == {_domain("a", "g"), _domain("d")}
    group = found[_domain("b", "g")]
    assert (group.reserve, group.cap) == (pytest.approx(0.3), pytest.approx(0.8))
    assert (group.weight, group.pins) == (3.0, pytest.approx(0.2))
    assert found[_domain("d")] == Quota(weight=3.0)


def test_two_tenants_without_quotas_in_a_group_weigh_twice() -> None:
    """A group of members without a quota has their weights and pins together."""
    (found,) = quotas_of([Tenant("a", "g"), Tenant("b", "g")], SECRET)
    assert found == AccountQuota("g (group)", _domain("", "g"), Quota(weight=2.0, pins=0.5))


async def test_quotas_are_sent_once_and_again_when_they_change(kept: Kept) -> None:
    """The first look sends them, the next nothing, a change sends all that are then wanted."""
    await kept.orders.sync()
    await kept.orders.sync()
    assert kept.engine.quotas == {_domain("a"): Quota(reserve=0.25, cap=0.5)}
    assert len(kept.api.engine.admin_calls) == 1
    kept.api.tenants.put_tenant(Tenant("b", quota=Quota(weight=2.0)))
    await kept.orders.sync()
    assert kept.engine.quotas[_domain("b")] == Quota(weight=2.0)
    assert _domain("a") in kept.engine.quotas
    kept.api.tenants.remove_tenant("a")
    await kept.orders.sync()
    assert kept.engine.quotas.keys() == {_domain("b")}
    assert kept.orders.current


async def test_a_restarted_engine_is_told_everything_again(kept: Kept) -> None:
    """After a restart quotas and public prefixes are sent anew, though nothing has changed."""
    await kept.api.http.post("/admin/v1/public", json={"name": "p", "prompt": "x" * 40})
    await kept.orders.sync()
    told = kept.engine.quotas, kept.engine.public
    kept.engine.restart()
    assert not kept.orders.current
    await kept.orders.sync()
    assert (kept.engine.quotas, kept.engine.public) == told
    assert kept.orders.current


async def test_a_restart_is_noticed_before_the_next_look(kept: Kept) -> None:
    """The task that runs tells a fresh engine within moments, long before it looks at tenants."""
    kept.orders.service.settings = replace(kept.orders.service.settings, sync_seconds=1000.0)
    running = asyncio.create_task(kept.orders.run())
    await wait_until_async(lambda: len(kept.engine.quotas) == 1)
    kept.engine.restart()
    await wait_until_async(lambda: len(kept.engine.quotas) == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_changes_are_noticed_while_it_runs(kept: Kept) -> None:
    """A tenant that another process changed gets its quota at the next look."""
    kept.orders.service.settings = replace(kept.orders.service.settings, sync_seconds=0.05)
    running = asyncio.create_task(kept.orders.run())
    await wait_until_async(lambda: len(kept.engine.quotas) == 1)
    kept.api.tenants.put_tenant(Tenant("b", quota=Quota(weight=2.0)))
    await wait_until_async(lambda: len(kept.engine.quotas) == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_failing_engine_does_not_end_the_task(kept: Kept) -> None:
    """An order at which the engine fails is told as a problem, and tried again."""
    kept.orders.service.settings = replace(kept.orders.service.settings, sync_seconds=0.05)
    right = kept.api.engine.admin_replies[SetQuotas]
    kept.api.engine.admin_replies[SetQuotas] = AdminError("internal", "a fault")
    running = asyncio.create_task(kept.orders.run())
    await wait_until_async(lambda: "engine" in kept.orders.problems)
    kept.api.engine.admin_replies[SetQuotas] = right
    await wait_until_async(lambda: kept.orders.current)
    assert len(kept.engine.quotas) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_store_that_is_away_leaves_things_as_they_were(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the store nothing is withdrawn, a restarted engine gets what was last wanted."""
    await kept.orders.sync()

    def away() -> tuple[Tenant, ...]:
        raise TenantStoreError("the disk is gone")

    monkeypatch.setattr(kept.api.tenants, "tenants", away)
    kept.engine.restart()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await kept.orders.sync()
    assert len(kept.engine.quotas) == 1
    assert len(caplog.records) == 1
    report = (await kept.api.http.get("/admin/v1/cache")).json()["orders"]
    assert "the disk is gone" in report["problems"]["tenants"]
    assert report["current"] is False
    monkeypatch.undo()
    await kept.orders.sync()
    report = (await kept.api.http.get("/admin/v1/cache")).json()["orders"]
    assert report == {"quotas": 1, "public_prefixes": 0, "current": True, "problems": {}}


async def test_refused_quotas_are_told_and_the_old_ones_stay(kept: Kept) -> None:
    """What the engine refuses is a problem that names its words; the rest goes on."""
    await kept.api.http.post("/admin/v1/public", json={"name": "p", "token_ids": [1] * 800})
    kept.api.tenants.put_tenant(Tenant("b", quota=Quota(reserve=0.7)))
    await kept.orders.sync()
    assert "95 blocks are too many" in kept.orders.problems["quotas"]
    await kept.api.http.delete("/admin/v1/public/p")
    assert kept.orders.problems == {}
    assert len(kept.engine.quotas) == 2


async def test_another_workers_prefixes_come_and_go(kept: Kept) -> None:
    """What another process declared in the store is declared here, and withdrawn with it."""
    prompt = np.arange(40, dtype="<i4").tobytes()
    text = await kept.orders.service.encoder.decode(list(range(40)))
    prefix = DeclaredPrefix(
        "p", prompt, engine_info().fingerprint, hashlib.sha256(text.encode()).digest(), 5.0
    )
    kept.api.tenants.add_public_prefix(prefix)
    await kept.orders.sync()
    assert [each.tokens for each in kept.engine.public.values()] == [32]
    kept.api.tenants.remove_public_prefix("p")
    kept.api.tenants.add_public_prefix(replace(prefix, prompt=prompt[:64], text_sha256=b""))
    await kept.orders.sync()
    assert kept.engine.public == {}
    assert "another text" in kept.orders.problems["public prefix p"]


async def test_a_name_that_another_worker_freed_is_free_here(kept: Kept) -> None:
    """A prefix that went from the store is withdrawn before another takes its name."""
    await kept.api.http.post("/admin/v1/public", json={"name": "p", "prompt": "x" * 40})
    kept.api.tenants.remove_public_prefix("p")
    answer = await kept.api.http.post("/admin/v1/public", json={"name": "p", "prompt": "y" * 70})
    assert [each.tokens for each in kept.engine.public.values()] == [64]
    assert answer.json()["held"]["key"] in kept.engine.public


async def test_two_names_for_the_same_blocks(kept: Kept) -> None:
    """Prefixes that differ behind their last whole block are one to the engine, until both go."""
    for name, length in (("p", 40), ("q", 45)):
        await kept.api.http.post("/admin/v1/public", json={"name": name, "token_ids": [7] * length})
    assert len(kept.engine.public) == 1
    assert (await kept.api.http.delete("/admin/v1/public/p")).json()["flushed"] is True
    assert len(kept.engine.public) == 1
    assert (await kept.api.http.delete("/admin/v1/public/q")).json()["flushed"] is True
    assert kept.engine.public == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda prefix: replace(prefix, fingerprint="another"), "another model"),
        (lambda prefix: replace(prefix, text_sha256=b"another"), "this tokenizer"),
    ],
)
async def test_a_prefix_of_another_model_is_refused_by_name(
    kept: Kept,
    change: Callable[[DeclaredPrefix], DeclaredPrefix],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A model or a tokenizer that changed keeps a prefix out, with one line that names it."""
    await kept.api.http.post("/admin/v1/public", json={"name": "p", "prompt": "x" * 40})
    (prefix,) = kept.api.tenants.public_prefixes()
    kept.api.tenants.remove_public_prefix("p")
    kept.api.tenants.add_public_prefix(change(prefix))
    kept.engine.restart()
    with caplog.at_level(logging.ERROR):
        await kept.orders.sync()
        await kept.orders.sync()
    assert kept.engine.public == {}
    (line,) = [each.getMessage() for each in caplog.records]
    assert "public prefix p" in line
    assert words in line
    (listed,) = (await kept.api.http.get("/admin/v1/public")).json()["public"]
    assert listed["held"] is None
    assert words in listed["problem"]


async def test_nothing_is_asked_of_an_engine_that_is_away(kept: Kept) -> None:
    """While the engine is starting no order goes out, and none is lost."""
    kept.api.engine.ready = False
    await kept.orders.sync()
    assert kept.api.engine.admin_calls == []
    assert kept.orders.problems == {}
    kept.api.engine.ready = True
    await kept.orders.sync()
    assert [type(call) for call in kept.api.engine.admin_calls] == [SetQuotas]


async def test_a_withdrawal_that_failed_is_made_up_for(kept: Kept) -> None:
    """If the engine cannot withdraw a prefix now, the answer says so and the next look does it."""
    await kept.api.http.post("/admin/v1/public", json={"name": "p", "prompt": "x" * 40})
    right = kept.api.engine.admin_replies[WithdrawPublic]
    kept.api.engine.admin_replies[WithdrawPublic] = AdminError("unavailable", "not now")
    assert (await kept.api.http.delete("/admin/v1/public/p")).json()["flushed"] is False
    assert "not now" in kept.orders.problems["public prefix p"]
    kept.api.engine.admin_replies[WithdrawPublic] = right
    await kept.orders.sync()
    assert kept.engine.public == {}
    assert kept.orders.current


async def test_reserves_are_told_before_prefixes(kept: Kept) -> None:
    """A fresh engine hears of quotas first, so that one prefix without room keeps no quota out."""
    await kept.api.http.post("/admin/v1/public", json={"name": "p", "token_ids": [1] * 1280})
    kept.engine.restart()
    kept.api.engine.admin_calls.clear()
    await kept.orders.sync()
    assert [type(call) for call in kept.api.engine.admin_calls] == [SetQuotas, DeclarePublic]
    assert len(kept.engine.quotas) == 1
