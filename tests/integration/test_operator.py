"""What the operator keeps and watches, through the service, an engine and a store that are real.

The model is a hash of its context, so that a block that is shared wrongly changes the answer.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from support.api import ADMIN, MODEL, settings, tenant_store
from support.cores import SECRET, continuation, hash_core
from support.tiny_models import build_tokenizer

from stemkv.engine.api.app import create_app
from stemkv.engine.api.standing import StandingOrders
from stemkv.engine.inline import InlineClient
from stemkv.engine.tenants import Tenant
from stemkv.engine.tenants_sqlite import SqliteTenantStore
from stemkv.kvstore.quotas import Quota

BLOCKS, BLOCK_SIZE = 64, 4
RULES = "These are the house rules."  # 26 tokens: 6 blocks, and 2 tokens left over


@dataclass
class Operated:
    """The service and its parts."""

    http: httpx.AsyncClient
    tenants: SqliteTenantStore
    orders: StandingOrders
    tokenizer: Any

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of the admin API, which is no refusal."""
        url = f"/admin/v1/{path}"
        response = await self.http.request(method, url, json=body, headers=ADMIN)
        assert response.status_code == 200, response.text
        return response.json()

    async def ask(self, tenant: str, prompt: str, **changes: Any) -> int:
        """Let a tenant complete a prompt; its answer is right; return how much was reused."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0}
        body |= {"ignore_eos": True, **changes}
        headers = {"authorization": f"Bearer key-{tenant}"}
        response = await self.http.post("/v1/completions", json=body, headers=headers)
        assert response.status_code == 200, response.text
        answer = response.json()
        ids = self.tokenizer.encode(prompt)
        wanted = continuation(ids, 2, len(self.tokenizer))
        assert answer["choices"][0]["text"] == self.tokenizer.decode(wanted)
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    async def clean(self) -> bool:
        """Whether the store's audit finds nothing."""
        report = await self.admin("GET", "audit")
        assert report["violations"] == []
        return bool(report["clean"])


@pytest.fixture
async def operated() -> AsyncIterator[Operated]:
    """Serve three tenants, two of them in a group, on a pool of 64 blocks of 4 tokens."""
    core, _ = hash_core(blocks=BLOCKS, block_size=BLOCK_SIZE, watched=True)
    client = InlineClient(core)
    tokenizer = build_tokenizer()
    keys = {"key-a": Tenant("a"), "key-b": Tenant("b", "g"), "key-c": Tenant("c", "g")}
    with tenant_store(keys) as tenants:
        app = create_app(settings(secret=SECRET), client, tenants, tokenizer)
        await client.start()
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Operated(http, tenants, app.state.orders, tokenizer)
        await client.close()
        app.state.service.encoder.close()


async def test_a_public_prefix_is_computed_once_for_all(operated: Operated) -> None:
    """One tenant computes it, all reuse its whole blocks, whatever their salt; then nobody does."""
    assert await operated.ask("a", RULES + " Before.") == 0
    declared = await operated.admin("POST", "public", {"name": "rules", "prompt": RULES})
    assert declared["text"] + declared["text_left_out"] == RULES
    assert declared["held"]["tokens"] == 24
    await operated.ask("a", RULES + " One?")
    assert await operated.ask("b", RULES + " Two?") == 24
    assert await operated.ask("a", RULES + " Three?", cache_salt="s") == 24
    (listed,) = (await operated.admin("GET", "public"))["public"]
    assert listed["held"] == declared["held"] | {"cached_blocks": 6}
    accounts = (await operated.admin("GET", "accounts"))["accounts"]
    assert accounts["(operator)"]["held"] == accounts["(operator)"]["reserve"] == 6
    assert (await operated.admin("DELETE", "public/rules"))["flushed"] is True
    assert await operated.ask("c", RULES + " Four?") < 24
    assert (await operated.admin("GET", "public"))["public"] == []
    assert await operated.clean()


async def test_tenants_do_not_meet_below_a_public_prefix(operated: Operated) -> None:
    """What one tenant says below a public prefix is not reused by another, but in its group."""
    await operated.admin("POST", "public", {"name": "rules", "prompt": RULES})
    question = RULES + " What is my secret, please?"
    await operated.ask("a", question)
    assert await operated.ask("b", question) == 24
    assert await operated.ask("c", question) > 24
    assert await operated.clean()


async def test_a_public_prefix_outlives_a_flush_of_everything(operated: Operated) -> None:
    """A flush takes its blocks and changes its key; it is public still, and can be withdrawn."""
    declared = await operated.admin("POST", "public", {"name": "rules", "prompt": RULES})
    await operated.ask("a", RULES + " One?")
    await operated.admin("POST", "cache/flush", {"by": "all"})
    (listed,) = (await operated.admin("GET", "public"))["public"]
    assert listed["held"]["key"] != declared["held"]["key"]
    assert listed["held"]["cached_blocks"] == 0
    assert await operated.ask("b", RULES + " Two?") == 0
    assert await operated.ask("a", RULES + " Three?") == 24
    assert (await operated.admin("DELETE", "public/rules"))["flushed"] is True
    assert await operated.clean()


async def test_a_prefix_of_messages_begins_chats(operated: Operated) -> None:
    """A declared conversation is what a chat that begins with it begins with."""
    system = {"role": "system", "content": "Be kind."}
    await operated.admin("POST", "public", {"name": "kind", "messages": [system]})
    (held,) = (each["held"] for each in (await operated.admin("GET", "public"))["public"])
    messages = [system, {"role": "user", "content": "Hi"}]
    for key, reused in (("key-a", 0), ("key-b", held["tokens"])):
        response = await operated.http.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": messages, "max_tokens": 1},
            headers={"authorization": f"Bearer {key}"},
        )
        usage = response.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == reused


async def test_a_reserve_outlasts_another_tenants_flood(operated: Operated) -> None:
    """With a reserve a tenant keeps its blocks while another computes ten pools full.

    So it does by its fair share, unless its weight makes that next to nothing.
    """
    mine = "Something that is long enough to be worth keeping."
    quotas = (Quota(weight=0.001), Quota(), Quota(reserve=0.3, weight=0.001))
    for quota, kept in zip(quotas, (False, True, True), strict=True):
        operated.tenants.put_tenant(Tenant("a", quota=quota))
        await operated.orders.sync()
        assert operated.orders.current
        await operated.ask("a", mine)
        for number in range(10 * BLOCKS * BLOCK_SIZE // 52):
            await operated.ask("b", f"{number:04} is the number of this prompt, one of many.")
        assert (await operated.ask("a", mine) >= len(mine) // 4 * 4 - 1) is kept
    accounts = (await operated.admin("GET", "accounts"))["accounts"]
    assert accounts["a"]["reserve"] == int(0.3 * BLOCKS)
    assert accounts["a"]["evicted_for"]["g (group)"] > 0
    assert accounts["g (group)"]["block_seconds"] > 0
    assert await operated.clean()


async def test_quotas_that_do_not_fit_are_told(operated: Operated) -> None:
    """Reserves of all of the pool leave no room for a public prefix, which names its field."""
    operated.tenants.put_tenant(Tenant("a", quota=Quota(reserve=1.0)))
    await operated.orders.sync()
    response = await operated.http.post(
        "/admin/v1/public", json={"name": "rules", "prompt": RULES}, headers=ADMIN
    )
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "prompt"
    assert operated.tenants.public_prefixes() == ()
    operated.tenants.put_tenant(Tenant("a", quota=Quota(reserve=0.5)))
    await operated.admin("POST", "public", {"name": "rules", "prompt": RULES})
    operated.tenants.put_tenant(Tenant("a", quota=Quota(reserve=1.0)))
    await operated.orders.sync()
    report = await operated.admin("GET", "cache")
    assert "quotas" in report["orders"]["problems"]
    accounts = (await operated.admin("GET", "accounts"))["accounts"]
    assert accounts["a"]["reserve"] == BLOCKS // 2


async def test_a_pin_outlasts_a_flood_until_it_ends(operated: Operated) -> None:
    """A pinned prompt stays, within its tenant's budget; unpinned it goes for others of it."""
    mine = "Something that is long enough to be worth keeping."
    operated.tenants.put_tenant(Tenant("a", quota=Quota(pins=0.25)))
    await operated.orders.sync()
    await operated.ask("a", mine)
    body = {"tenant": "a", "prompt": mine, "seconds": 1000}
    pinned = await operated.admin("POST", "pins", body)
    assert (pinned["kept"], pinned["blocks"]) == (True, 12)
    assert [pin["pin_id"] for pin in (await operated.admin("GET", "pins"))["pins"]] == [
        pinned["pin_id"]
    ]
    response = await operated.http.post("/admin/v1/pins", json=body, headers=ADMIN)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "pins")

    async def flood() -> int:
        for number in range(2 * BLOCKS * BLOCK_SIZE // 52):
            await operated.ask("a", f"{number:04} is the number of this prompt, one of many.")
        return await operated.ask("a", mine)

    assert await flood() >= 48
    await operated.admin("DELETE", f"pins/{pinned['pin_id']}")
    assert await flood() < 48
    assert await operated.clean()


async def test_events_tell_what_happened(operated: Operated) -> None:
    """Blocks are stored under their account, adopted, and flushed, with numbers without a gap."""
    await operated.ask("a", RULES)
    await operated.ask("a", RULES)
    await operated.admin("POST", "cache/flush", {"by": "tenant", "tenant": "a"})
    await operated.ask("a", "More.")  # what was flushed leaves as steps go by
    page = await operated.admin("GET", "events?limit=1000")
    numbers = [event["number"] for event in page["events"]]
    assert numbers == list(range(page["next"]))
    assert page["missed"] == 0
    kinds = [event["kind"] for event in page["events"]]
    assert kinds.count("stored") >= 6
    assert kinds.count("adopted") >= 6
    assert kinds.index("stored") < kinds.index("adopted") < kinds.index("flushed")
    assert {event["account"] for event in page["events"]} == {"a"}
    response = await operated.http.get(
        "/admin/v1/events", params={"start": page["next"] + 1}, headers=ADMIN
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, "start")


async def test_curves_are_of_those_who_look_up(operated: Operated) -> None:
    """Each account that has looked blocks up gets a point for each size."""
    for _ in range(3):
        await operated.ask("a", RULES)
    curves = (await operated.admin("GET", "curves"))["curves"]
    assert [point["factor"] for point in curves["a"]] == [0.5, 1.0, 2.0, 4.0]
    assert list(curves) == ["a"]


@pytest.mark.parametrize(
    "end",
    [
        lambda tenant: replace(tenant, enabled=False),
        lambda tenant: replace(tenant, quota=Quota()),
    ],
)
async def test_a_reserve_ends_with_its_tenant(
    operated: Operated, end: Callable[[Tenant], Tenant]
) -> None:
    """Disabled, or without a quota, a tenant reserves nothing any more."""
    tenant = Tenant("a", quota=Quota(reserve=0.5))
    operated.tenants.put_tenant(tenant)
    await operated.orders.sync()
    await operated.ask("a", RULES)
    operated.tenants.put_tenant(end(tenant))
    await operated.orders.sync()
    accounts = (await operated.admin("GET", "accounts"))["accounts"]
    assert accounts["a"]["reserve"] == 0
