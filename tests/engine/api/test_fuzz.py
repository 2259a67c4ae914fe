import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.api import ADMIN, MODEL, Api, served_api
from support.keeping_engine import KeepingEngine

from stemkv.engine.api.admin_keep_schemas import PinRequest, PublicRequest
from stemkv.engine.api.admin_schemas import FlushRequest, PromptQuery
from stemkv.engine.api.schemas import ChatRequest, CompletionRequest
from stemkv.engine.messages import DoExplain, DoFlush, Explanation, FlushReport
from stemkv.kvstore.ids import FlushId

FIELDS = {
    "/v1/chat/completions": tuple(ChatRequest.model_fields),
    "/v1/completions": tuple(CompletionRequest.model_fields),
    "/admin/v1/cache/flush": tuple(FlushRequest.model_fields),
    "/admin/v1/cache/explain": tuple(PromptQuery.model_fields),
    "/admin/v1/public": tuple(PublicRequest.model_fields),
    "/admin/v1/pins": tuple(PinRequest.model_fields),
}
STARTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": MODEL, "prompt": "x"},
    "/admin/v1/cache/flush": {"by": "prefix", "tenant": "a", "prompt": "x"},
    "/admin/v1/cache/explain": {"prompt": "x"},
    "/admin/v1/public": {"name": "p", "prompt": "x" * 20},
    "/admin/v1/pins": {"prompt": "x", "seconds": 1},
}

numbers = (
    st.integers(-3, 300)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
)
texts = st.sampled_from(["", "x", "user", "text", "assistant", "all", "<s>", "\x00", "é\U0001f600"])
scalars = st.none() | st.booleans() | numbers | texts | st.text(max_size=8)
keys = st.sampled_from(["role", "content", "type", "text", "read", "include_usage", "tool_calls"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def runner() -> Iterator[tuple[asyncio.Runner, Api]]:
    """Run one service for all examples, on a loop of its own."""
    with asyncio.Runner() as loop:
        context = served_api()
        api = loop.run(context.__aenter__())
        yield loop, api
        loop.run(context.__aexit__(None, None, None))


@pytest.mark.parametrize("path", FIELDS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_body_makes_a_server_error(
    runner: tuple[asyncio.Runner, Api], path: str, data: st.DataObject
) -> None:
    """Whatever a client sends, it gets an answer or a 4xx in OpenAI's shape, never a 5xx."""
    loop, api = runner
    api.engine.admin_replies = _admin_replies()
    KeepingEngine(api.engine)
    names = st.sampled_from(FIELDS[path]) | st.text(max_size=5)
    changes = data.draw(st.dictionaries(names, values, max_size=3))
    body = STARTS[path] | changes
    response = loop.run(api.http.post(path, json=body, headers=ADMIN))
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    assert not api.engine.aborted


def _admin_replies() -> dict[type, Any]:

    return {
        DoFlush: FlushReport(FlushId("f"), 0, 0, 0),
        DoExplain: Explanation(1, 0, 0, "not_seen", 0, ""),
    }
