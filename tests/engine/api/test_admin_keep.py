"""Public prefixes and pins over the admin API."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.api import ADMIN, Api, served_api
from support.keeping_engine import KeepingEngine

from stemkv.engine.messages import DeclarePublic, DoPin
from stemkv.engine.public_prefixes import PrefixNameTakenError
from stemkv.engine.tenants import Tenant, TenantStoreError
from stemkv.kvstore.namespace import domain_of

PUBLIC, PINS = "/admin/v1/public", "/admin/v1/pins"
SYSTEM = [{"role": "system", "content": "You are a helpful assistant."}]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}<{{ tool.function.name }}>{% endfor %}"
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}answer:{% endif %}"
)


@dataclass
class Kept:
    """A service for the operator, with an engine that keeps things."""

    api: Api
    engine: KeepingEngine

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and body of an answer."""
        response = await self.api.http.request(method, path, json=body)
        return response.status_code, response.json()


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    """Serve two tenants, one of them in a group, to the operator."""
    tenants = {"key-a": Tenant("a", "g"), "key-b": Tenant("broke")}
    async with served_api(tenants) as api:
        api.http.headers.update(ADMIN)
        yield Kept(api, KeepingEngine(api.engine))


async def test_a_conversation_is_declared_without_the_generation_prompt(kept: Kept) -> None:
    """What is declared is the rendered conversation alone; the answer has the text it covers."""
    status, answer = await kept.ask("POST", PUBLIC, {"name": "sys", "messages": SYSTEM})
    assert status == 200, answer
    rendered = "<s><|turn|>system: You are a helpful assistant.\n"
    (call,) = kept.api.engine.admin_calls
    assert isinstance(call, DeclarePublic)
    tokens = kept.api.engine.tokenizer.encode(rendered, add_special_tokens=False)
    assert np.frombuffer(call.prompt, "<i4").tolist() == tokens
    assert answer["declared_tokens"] == len(tokens)
    assert answer["held"]["tokens"] == len(tokens) // 16 * 16
    assert answer["held"]["blocks"] == len(tokens) // 16
    assert answer["text"] + answer["text_left_out"] == rendered
    assert len(answer["text_left_out"]) == len(tokens) % 16


async def test_prefixes_are_listed_and_withdrawn(kept: Kept) -> None:
    """A declared prefix is in the list with its key, in the store, and gone after withdrawal."""
    await kept.ask("POST", PUBLIC, {"name": "b", "prompt": "x" * 40})
    await kept.ask("POST", PUBLIC, {"name": "a", "token_ids": [5] * 33})
    _, listed = await kept.ask("GET", PUBLIC)
    assert [each["name"] for each in listed["public"]] == ["a", "b"]
    first = listed["public"][0]
    assert first["held"]["key"] in kept.engine.public
    assert (first["declared_tokens"], first["held"]["tokens"], first["held"]["blocks"]) == (
        33,
        32,
        2,
    )
    assert [each.name for each in kept.api.tenants.public_prefixes()] == ["a", "b"]
    assert await kept.ask("DELETE", f"{PUBLIC}/a") == (200, {"name": "a", "flushed": True})
    assert len(kept.engine.public) == 1
    assert [each.name for each in kept.api.tenants.public_prefixes()] == ["b"]
    status, answer = await kept.ask("DELETE", f"{PUBLIC}/a")
    assert (status, answer["error"]["code"]) == (404, "public_prefix_not_found")


async def test_a_flush_gives_prefixes_other_keys(kept: Kept) -> None:
    """After a flush of everything prefixes are listed under their new keys, and go with them."""
    for name in ("a", "b"):
        await kept.ask("POST", PUBLIC, {"name": name, "prompt": name * 40})
    before = set(kept.engine.public)
    kept.engine.flush()
    _, listed = await kept.ask("GET", PUBLIC)
    assert {each["held"]["key"] for each in listed["public"]} == set(kept.engine.public)
    assert before.isdisjoint(kept.engine.public)
    kept.engine.flush()
    assert await kept.ask("DELETE", f"{PUBLIC}/a") == (200, {"name": "a", "flushed": True})
    assert len(kept.engine.public) == 1
    assert (await kept.ask("GET", PUBLIC))[1]["public"][0]["name"] == "b"


async def test_declaring_the_same_again_changes_nothing(kept: Kept) -> None:
    """The same prefix under its name is fine; other tokens under it are a conflict."""
    body = {"name": "p", "prompt": "x" * 40}
    first = await kept.ask("POST", PUBLIC, body)
    assert await kept.ask("POST", PUBLIC, body) == first
    status, answer = await kept.ask("POST", PUBLIC, body | {"prompt": "y" * 40})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (
        409,
        "name_taken",
        "name",
    )
    assert len(kept.engine.public) == 1


async def test_what_the_engine_refuses_is_not_kept(kept: Kept) -> None:
    """A prefix shorter than a block, or without room, is a 400 of its field, and forgotten."""
    for field, value in (("prompt", "short"), ("token_ids", [1] * 1617)):
        status, answer = await kept.ask("POST", PUBLIC, {"name": "p", field: value})
        assert (status, answer["error"]["param"]) == (400, field)
    assert kept.api.tenants.public_prefixes() == ()


@pytest.mark.parametrize(
    ("error", "status"), [(TenantStoreError("full"), 503), (PrefixNameTakenError("p"), 409)]
)
async def test_what_cannot_be_kept_is_not_public(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """If the store does not take a prefix, the engine is told to forget it again."""

    def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr(kept.api.tenants, "add_public_prefix", refuse)
    found, _ = await kept.ask("POST", PUBLIC, {"name": "p", "prompt": "x" * 40})
    assert found == status
    assert kept.engine.public == {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x" * 40}, "name"),
        ({"name": "a b", "prompt": "x" * 40}, "name"),
        ({"name": "p"}, "prompt"),
        ({"name": "p", "prompt": "x", "token_ids": [1]}, "token_ids"),
        ({"name": "p", "prompt": "x" * 40, "tools": TOOLS}, "tools"),
        ({"name": "p", "messages": SYSTEM, "tools": TOOLS}, "tools"),
        ({"name": "p", "messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"name": "p", "token_ids": [1] * 20 + [259]}, "token_ids[20]"),
        ({"name": "p", "messages": SYSTEM, "add_generation_prompt": True}, "add_generation_prompt"),
    ],
)
async def test_bad_prefixes_are_refused_by_field(
    kept: Kept, body: dict[str, Any], param: str
) -> None:
    """Each wrong field is named; tools need messages, and a template that knows them."""
    status, answer = await kept.ask("POST", PUBLIC, body)
    assert status == 400, answer
    assert answer["error"]["param"] == param
    assert kept.api.engine.admin_calls == []


async def test_tools_are_part_of_the_prefix_where_the_template_has_them() -> None:
    """With a template that mentions tools they are rendered into what is declared."""
    async with served_api({"k": Tenant("a")}, chat_template=TOOL_TEMPLATE) as api:
        api.http.headers.update(ADMIN)
        KeepingEngine(api.engine)
        body = {"name": "p", "messages": SYSTEM, "tools": TOOLS}
        answer = (await api.http.post(PUBLIC, json=body)).json()
        assert answer["text"] + answer["text_left_out"] == ("<look_up>You are a helpful assistant.")


async def test_a_pin_reaches_the_engine_as_its_tenant_would(kept: Kept) -> None:
    """Namespace, prompt, time, budget, priority and decay go to the engine; the answer comes."""
    body = {
        "tenant": "a", "salt": "s", "prompt": "x" * 40, "seconds": 60, "max_blocks": 1,
        "priority": 0.5, "half_life_seconds": 10.0,
    }  # fmt: skip
    status, answer = await kept.ask("POST", PINS, body)
    assert status == 200, answer
    (call,) = kept.api.engine.admin_calls
    assert isinstance(call, DoPin)
    assert call.namespace.domain == domain_of(b"s" * 32, tenant="a", group="g")
    assert (call.namespace.tenant, call.namespace.salt) == ("a", "s")
    assert call.namespace.group == "g (group)"
    assert (call.seconds, call.max_blocks, call.priority, call.half_life_seconds) == (
        60.0,
        1,
        0.5,
        10.0,
    )
    assert answer == {
        "pin_id": 1, "tenant": "a", "adapter": "", "salt": "s", "blocks": 1, "tokens": 16,
        "seconds_left": 60.0, "priority": 0.5, "prompt_tokens": 41, "kept": True,
    }  # fmt: skip
    _, listed = await kept.ask("GET", PINS)
    assert [pin["pin_id"] for pin in listed["pins"]] == [1]
    assert await kept.ask("DELETE", f"{PINS}/1") == (200, {"pin_id": 1})
    status, gone = await kept.ask("DELETE", f"{PINS}/1")
    assert (status, gone["error"]["code"]) == (404, "pin_not_found")


async def test_a_pin_of_nothing_is_not_kept(kept: Kept) -> None:
    """If nothing of the prompt is cached the answer says that there is no pin."""
    _, answer = await kept.ask("POST", PINS, {"tenant": "a", "prompt": "x", "seconds": 1})
    assert (answer["kept"], answer["blocks"]) == (False, 0)
    assert (await kept.ask("GET", PINS))[1] == {"pins": []}


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"tenant": "nobody"}, 404, "tenant"),
        ({"tenant": None}, 400, "tenant"),
        ({"tenant": "broke"}, 400, "pins"),
        ({"seconds": 0}, 400, "seconds"),
        ({"seconds": "60"}, 400, "seconds"),
        ({"seconds": None}, 400, "seconds"),
        ({"max_blocks": 0}, 400, "max_blocks"),
        ({"priority": 1.5}, 400, "priority"),
        ({"half_life_seconds": -1}, 400, "half_life_seconds"),
        ({"prompt": None}, 400, "prompt"),
    ],
)
async def test_bad_pins_are_refused_by_field(
    kept: Kept, changes: dict[str, Any], status: int, param: str
) -> None:
    """Unknown tenants, values out of range and a used-up budget name their field."""
    body = {"tenant": "a", "prompt": "x" * 40, "seconds": 60} | changes
    found, answer = await kept.ask("POST", PINS, body)
    assert (found, answer["error"]["param"]) == (status, param)
    assert kept.engine.pins == {}


async def test_a_pin_id_that_is_no_number_is_refused(kept: Kept) -> None:
    """The field is named."""
    status, answer = await kept.ask("DELETE", f"{PINS}/first")
    assert (status, answer["error"]["param"]) == (400, "pin_id")


async def test_tenants_cannot_look(kept: Kept) -> None:
    """A tenant's key opens none of it, and no key even less."""
    paths = (PUBLIC, PINS, "/admin/v1/accounts", "/admin/v1/curves", "/admin/v1/events")
    for path in (*paths, "/admin/v1/events/stream"):
        for key, status in (("Bearer key-a", 403), ("", 401)):
            response = await kept.api.http.get(path, headers={"authorization": key})
            assert response.status_code == status, path
