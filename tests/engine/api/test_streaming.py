import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from support.api import Api, chat_body, listening, text_body
from support.waiting import wait_until_async

from stemkv.engine.request import Failed

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


async def _events(api: Api, path: str, body: dict[str, Any]) -> list[str]:
    response = await api.http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


async def _chat(api: Api, **changes: Any) -> list[ChatCompletionChunk]:
    *events, done = await _events(api, CHAT, chat_body(**changes))
    assert done == "[DONE]"
    return [ChatCompletionChunk.model_validate_json(event, strict=True) for event in events]


async def test_a_chat_streams_role_text_and_finish_reason(api: Api) -> None:
    """The role comes first, the finish reason last with an empty delta, and the text between."""
    chunks = await _chat(api)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert "".join(delta.content or "" for delta in deltas) == "Hello, wörld"
    assert all(delta.role is None for delta in deltas[1:])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert deltas[-1].content is None
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


async def test_usage_comes_last_and_without_choices(api: Api) -> None:
    """include_usage adds one chunk with the usage, and a null in all the others."""
    events = await _events(api, CHAT, chat_body(stream_options={"include_usage": True}))
    *chunks, last = [json.loads(event) for event in events[:-1]]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 13
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert all(chunk["usage"] is None for chunk in chunks)
    events = await _events(api, CHAT, chat_body())
    assert all("usage" not in event for event in events)


async def test_choices_of_a_stream_each_open_and_end(api: Api) -> None:
    """With n = 2 both choices have a role, the whole text and a finish reason of their own."""
    chunks = await _chat(api, n=2)
    for index in (0, 1):
        own = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in own) == "Hello, wörld"
        assert own[-1].finish_reason == "stop"


async def test_streamed_logprobs_belong_to_every_token(api: Api) -> None:
    """Tokens whose text is held back have their log-probabilities told too."""
    chunks = await _chat(api, logprobs=True, top_logprobs=1)
    raw: list[int] = []
    for chunk in chunks:
        logprobs = chunk.choices[0].logprobs
        for token in (logprobs.content or []) if logprobs else []:
            raw += token.bytes or []
            assert len(token.top_logprobs) == 1
    assert bytes(raw).decode() == "Hello, wörld"


async def test_a_completion_streams_echo_offsets_and_usage(api: Api) -> None:
    """Prompts are echoed first; offsets go on from chunk to chunk; choices are numbered."""
    events = await _events(api, TEXT, text_body(["a", "b"], echo=True, max_tokens=3))
    chunks = [json.loads(event) for event in events[:-1]]
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "aHel", 1: "bHel"}
    assert [chunk["object"] for chunk in chunks] == ["text_completion"] * len(chunks)

    body = text_body(logprobs=1, stream_options={"include_usage": True})
    events = await _events(api, TEXT, body)
    *chunks, last = [json.loads(event) for event in events[:-1]]
    offsets = [o for c in chunks if c["choices"][0]["logprobs"] for o in _offsets(c)]
    assert offsets == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 11]
    assert Completion.model_validate(last).usage is not None
    assert last["choices"] == []


def _offsets(chunk: dict[str, Any]) -> list[int]:
    offsets: list[int] = chunk["choices"][0]["logprobs"]["text_offset"]
    return offsets


@pytest.mark.parametrize(
    ("kind", "status", "headers"),
    [("overloaded", 429, {"retry-after": "1"}), ("rejected", 400, {}), ("internal", 500, {})],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_a_status(
    api: Api, kind: Any, status: int, headers: dict[str, str], stream: bool
) -> None:
    """A stream that fails before it began is answered like any other request."""
    api.engine.fail = lambda request_id: Failed(request_id, kind, "secret detail", "prompt")
    response = await api.http.post(CHAT, json=chat_body(stream=stream))
    assert response.status_code == status
    error = response.json()["error"]
    assert headers.items() <= dict(response.headers).items()
    assert ("secret detail" in error["message"]) == (kind != "internal")
    assert error["param"] == ("messages" if kind == "rejected" else None)


@pytest.mark.parametrize(
    ("fail", "code"),
    [
        (lambda name: Failed(name, "internal", "x"), None),
        (RuntimeError("a bug"), None),
    ],
)
async def test_a_failure_in_mid_stream_is_an_event(
    api: Api, fail: Callable[[str], Failed] | Exception, code: str | None
) -> None:
    """After the first token an error comes as the last event, and no [DONE] follows it."""
    api.engine.fail, api.engine.fail_after = fail, 3
    response = await api.http.post(
        CHAT, json=chat_body(stream=True), headers={"x-request-id": "trace-me"}
    )
    assert response.status_code == 200
    last = response.text.strip().split("\n\n")[-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "trace-me" in error["message"]
    assert "a bug" not in response.text


async def test_an_engine_that_dies_in_mid_stream_is_told(api: Api) -> None:
    """If the engine is gone when a request fails, the event says that it is being started."""

    def die(request_id: str) -> Failed:
        api.engine.ready = False
        return Failed(request_id, "internal", "the engine died")

    api.engine.fail, api.engine.fail_after = die, 2
    events = (await api.http.post(CHAT, json=chat_body(stream=True))).text.strip().split("\n\n")
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "engine_unavailable"


async def test_an_abort_by_the_engine_is_an_error(api: Api) -> None:
    """A choice that the engine aborted is not passed off as an answer."""
    api.engine.finish = "abort"
    response = await api.http.post(CHAT, json=chat_body())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "aborted"


@pytest.mark.parametrize(
    ("path", "body", "requests"),
    [
        (CHAT, chat_body(), 1),
        (CHAT, chat_body(stream=True, n=3), 1),
        (TEXT, text_body(["a", "b", "c"]), 3),
        (TEXT, text_body(["a", "b"], n=2, stream=True), 2),
    ],
)
@pytest.mark.parametrize("started", [False, True])
async def test_a_client_that_leaves_aborts_its_requests(
    api: Api, path: str, body: dict[str, Any], requests: int, started: bool
) -> None:
    """Closing the connection aborts every engine request at once, before or amid the answer."""
    if started:
        api.engine.step_seconds = 0.05
        api.engine.reply = "x" * 200
    else:
        api.engine.hold = asyncio.Event()  # never set: the first token does not come
    with listening(api.app) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            call = asyncio.create_task(http.post(path, json=body))
            await wait_until_async(lambda: len(api.engine.submitted) == requests)
            await asyncio.sleep(0.12 if started else 0)
            assert not api.engine.aborted
            call.cancel()
        await wait_until_async(lambda: len(api.engine.aborted) == requests)
        metrics = api.app.state.service.metrics
        await wait_until_async(lambda: metrics.outcomes.labels("aborted")._value.get() == requests)


async def test_a_long_prompt_does_not_stop_the_event_loop(api: Api) -> None:
    """Health is answered while a prompt is being tokenised."""
    encode = api.engine.tokenizer.encode

    class Slow:
        chat_template = "{{ messages[0].content }}"
        encoding = 0

        def encode(self, text: str, **options: Any) -> Any:
            import time

            self.encoding += 1
            time.sleep(0.3)
            self.encoding -= 1
            return encode(text, **options)

    slow = Slow()
    api.app.state.service.encoder._tokenizer = slow
    call = asyncio.create_task(api.http.post(TEXT, json=text_body("x")))
    await wait_until_async(lambda: slow.encoding == 1)
    assert (await api.http.get("/health")).status_code == 200
    assert slow.encoding == 1, "health was answered only after the prompt was encoded"
    assert (await call).status_code == 200
