"""`stemkv cache requests` and `stemkv cache request`, against the service itself."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from support.api import ADMIN_KEY, Api, listening, served_api, text_body

from stemkv.engine.cli import run
from stemkv.engine.state import ADMIN_KEY_VARIABLE
from stemkv.engine.tenants import Tenant
from stemkv.kvstore.views import Explanation

TOKENS = 20
MISS = Explanation(TOKENS, 0, 12, "token_differs", 12, "why", 12, 65, 66)


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """Serve a tenant on a port, with the admin key in the environment."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN_KEY)
    async with served_api({"key-a": Tenant("a")}) as served:
        served.engine.miss = MISS
        with listening(served.app) as url:
            monkeypatch.setenv("STEMKV_URL", url)
            for name in ("first", "second"):
                headers = {"authorization": "Bearer key-a", "x-request-id": name}
                body = text_body([*range(65, 65 + TOKENS)], max_tokens=3)
                httpx.post(f"{url}/v1/completions", json=body, headers=headers).raise_for_status()
            yield served


async def test_requests_are_listed(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each: who, what was cached, why not more, how it ended; the newest first."""
    assert run(["cache", "requests"]) == 0
    text = capsys.readouterr().out
    assert text.index("│ second") < text.index("│ first")
    (line,) = [line for line in text.splitlines() if "second" in line]
    cells = [cell.strip() for cell in line.split("│")]
    assert cells[3:7] == ["a", "20", "19", "token_differs at 12"]
    assert cells[8:10] == ["3", "length"]
    assert run(["cache", "requests", "--limit", "1", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["requests"]
    assert only["request_id"] == "second"


async def test_filters_reach_the_service(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """By tenant and by reason; one that does not exist is refused in one line."""
    for flags, found in ((["--tenant=b"], 0), (["--tenant=a"], 2), (["--reason=evicted"], 0)):
        assert run(["cache", "requests", "--json", *flags]) == 0
        assert len(json.loads(capsys.readouterr().out)["requests"]) == found
    assert run(["cache", "requests", "--reason=mood"]) == 1
    assert "reason" in capsys.readouterr().err


async def test_one_request_is_shown(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """A request by its id comes with its explanation and the texts; an unknown one exits 1."""
    assert run(["cache", "request", "first"]) == 0
    text = capsys.readouterr().out
    for words in ("why no more was reused", "expected text", "found text", "why", "length"):
        assert words in text
    assert run(["cache", "request", "first", "--json"]) == 0
    (detail,) = json.loads(capsys.readouterr().out)["requests"]
    assert detail["explanation"]["differing_position"] == 12
    assert run(["cache", "request", "a/b ?"]) == 1
    assert "404" in capsys.readouterr().err
