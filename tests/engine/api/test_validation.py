from typing import Any

import pytest
from pydantic import ValidationError
from support.api import ADMIN, MODEL, Api, chat_body, served_api, text_body
from support.fake_engine import engine_info

from stemkv.engine.api.schemas import ChatRequest, CompletionRequest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

# (field, value that is wrong, where the error must point; the field itself if None)
WRONG_ANYWHERE: list[tuple[str, Any, str | None]] = [
    ("model", None, None),
    ("model", 3, None),
    ("model", "", None),
    ("n", 0, None),
    ("n", 129, None),
    ("n", "2", None),
    ("n", 1.5, None),
    ("n", True, None),
    ("max_tokens", 0, None),
    ("max_tokens", -1, None),
    ("max_tokens", 2**31, None),
    ("max_tokens", "9", None),
    ("temperature", -0.1, None),
    ("temperature", 2.1, None),
    ("temperature", "hot", None),
    ("top_p", 0, None),
    ("top_p", 1.01, None),
    ("top_k", -2, None),
    ("top_k", 1.5, None),
    ("min_p", -0.1, None),
    ("min_p", 1.1, None),
    ("seed", 2**63, None),
    ("seed", "x", None),
    ("stop", "", None),
    ("stop", 5, None),
    ("stop", ["a", ""], "stop[1]"),
    ("stop", ["a"] * 17, None),
    ("stop", ["a", None], "stop[1]"),
    ("stop_token_ids", [-1], "stop_token_ids[0]"),
    ("stop_token_ids", [1, 259], "stop_token_ids[1]"),
    ("stop_token_ids", [0] * 65, None),
    ("stop_token_ids", 7, None),
    ("stream", "yes", None),
    ("stream", 1, None),
    ("stream_options", {"include_usage": True}, None),
    ("user", 5, None),
    ("user", "u" * 257, None),
    ("metadata", {"a": 1}, "metadata.a"),
    ("metadata", {str(key): "" for key in range(17)}, None),
    ("store", "no", None),
    ("cache_salt", 5, None),
    ("cache_salt", "s" * 257, None),
    ("cache", True, None),
    ("cache", {"read": "no"}, "cache.read"),
    ("cache", {"reed": True}, "cache.reed"),
    ("ignore_eos", 1, None),
    ("frequency_penalty", 0.5, None),
    ("frequency_penalty", False, None),
    ("presence_penalty", -1, None),
    ("logit_bias", {"5": 1}, None),
    ("service_tier", "flex", None),
    ("temprature", 1, None),
]
WRONG_IN_CHAT: list[tuple[str, Any, str | None]] = [
    ("messages", [], None),
    ("messages", None, None),
    ("messages", [{"role": "user", "content": "x"}] * 10_001, None),
    ("messages", "Hi", None),
    ("messages", [5], "messages[0]"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"role": "user", "content": None}], "messages[0].content"),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
    ("messages", [{"role": "user", "content": []}], "messages[0].content"),
    ("messages", [{"role": "king", "content": "x"}], "messages[0].role"),
    ("messages", [{"content": "x"}], "messages[0].role"),
    ("messages", [{"role": "user", "content": "x", "nam": "y"}], "messages[0].nam"),
    (
        "messages",
        [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}],
        "messages[0].content[1].type",
    ),
    (
        "messages",
        [{"role": "user", "content": [{"type": "text"}]}],
        "messages[0].content[0].text",
    ),
    (
        "messages",
        [{"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}],
        "messages[0].tool_calls[0].function",
    ),
    ("messages", [{"role": "assistant", "content": "x", "refusal": "no"}], "messages[0].refusal"),
    ("max_completion_tokens", 0, None),
    ("max_completion_tokens", 1000, None),
    ("logprobs", 5, None),
    ("top_logprobs", 2, None),
    ("top_logprobs", 21, None),
    ("tools", [{"type": "function"}], None),
    ("tool_choice", "required", None),
    ("functions", [{}], None),
    ("function_call", {"name": "f"}, None),
    ("response_format", {"type": "json_object"}, None),
    ("modalities", ["audio"], None),
    ("audio", {"voice": "x"}, None),
    ("moderation", {}, None),
    ("prediction", {}, None),
    ("prompt_cache_options", {}, None),
    ("prompt_cache_retention", "24h", None),
    ("reasoning_effort", "high", None),
    ("verbosity", "low", None),
    ("web_search_options", {}, None),
    ("parallel_tool_calls", 1, None),
    ("safety_identifier", 1, None),
    ("prompt_cache_key", 1, None),
    ("add_generation_prompt", None, None),
    ("prompt", "x", None),
]
WRONG_IN_TEXT: list[tuple[str, Any, str | None]] = [
    ("prompt", None, None),
    ("prompt", 5, None),
    ("prompt", {}, None),
    ("prompt", [], None),
    ("prompt", [[]], "prompt[0]"),
    ("prompt", ["a", 5], "prompt[1]"),
    ("prompt", [5, "a"], "prompt[1]"),
    ("prompt", [5, 259], "prompt[1]"),
    ("prompt", [[5], [-1]], "prompt[1][0]"),
    ("prompt", [2**31], "prompt[0]"),
    ("prompt", [True], "prompt[0]"),
    ("prompt", ["a"] * 1001, None),
    ("prompt", [[1]] * 1001, None),
    ("echo", 1, None),
    ("logprobs", -1, None),
    ("logprobs", 21, None),
    ("logprobs", True, None),
    ("best_of", 2, None),
    ("suffix", "x", None),
    ("messages", [], None),
]
CASES = [
    *[(CHAT, *case) for case in WRONG_ANYWHERE + WRONG_IN_CHAT],
    *[(TEXT, *case) for case in WRONG_ANYWHERE + WRONG_IN_TEXT],
]


def _base(path: str) -> dict[str, Any]:
    return chat_body() if path == CHAT else text_body()


@pytest.mark.parametrize(("path", "field", "value", "param"), CASES)
async def test_a_wrong_value_is_refused_by_name(
    api: Api, path: str, field: str, value: Any, param: str | None
) -> None:
    """Each field at a wrong value gives a 400 in OpenAI's shape that points at it."""
    response = await api.http.post(path, json={**_base(path), field: value})
    assert response.status_code == 400, response.text
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == (param or field)
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{error['param']}: ")
    assert not api.engine.submitted


@pytest.mark.parametrize(("path", "model"), [(CHAT, ChatRequest), (TEXT, CompletionRequest)])
def test_every_field_has_a_wrong_value_here(
    path: str, model: type[ChatRequest | CompletionRequest]
) -> None:
    """A field that is added to a schema must be added to the cases above."""
    tried = {field for case_path, field, *_ in CASES if case_path == path}
    assert set(model.model_fields) <= tried


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_neutral_values_are_accepted(api: Api, path: str) -> None:
    """What is not supported passes at the value that changes nothing, and null passes anywhere."""
    neutral = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "service_tier": "auto",
        "user": "someone",
        "metadata": {"a": "b"},
        "store": True,
    }
    model = ChatRequest if path == CHAT else CompletionRequest
    required = {"model", "messages", "prompt", "add_generation_prompt"}
    nulls = dict.fromkeys(set(model.model_fields) - required)
    chat: dict[str, Any] = {
        "tools": [],
        "tool_choice": "none",
        "functions": [],
        "function_call": "auto",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "reasoning_effort": "none",
        "verbosity": "medium",
        "prompt_cache_retention": "in_memory",
        "parallel_tool_calls": False,
    }
    extra = chat if path == CHAT else {"suffix": "", "best_of": 2, "n": 2}
    for values in (neutral, nulls, extra):
        response = await api.http.post(path, json={**_base(path), **values})
        assert response.status_code == 200, response.text


async def test_an_unknown_parameter_names_the_nearest(api: Api) -> None:
    """A typing error is answered with what was probably meant."""
    response = await api.http.post(CHAT, json=chat_body(temprature=1))
    error = response.json()["error"]
    assert error["code"] == "unknown_parameter"
    assert "did you mean temperature?" in error["message"]


@pytest.mark.parametrize(
    "content",
    [b"{", b"", b"[]", b'"x"', b"nul", b"\xff\xfe", b'{"model": "fake/model"', b"[" * 5000],
)
@pytest.mark.parametrize("path", [CHAT, TEXT, "/admin/v1/cache/flush"])
async def test_a_body_that_is_no_object_is_refused(api: Api, path: str, content: bytes) -> None:
    """What is no JSON object at all is a 400 in the usual shape."""
    headers = {"content-type": "application/json", **ADMIN}
    response = await api.http.post(path, content=content, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_only_json_is_taken(api: Api) -> None:
    """A form post, which any web page could send, is refused."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = await api.http.post(
            CHAT, content=b'{"model": "x"}', headers={"content-type": kind}
        )
        assert response.status_code == 400
    assert not api.engine.submitted


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
async def test_numbers_that_json_does_not_have_are_refused(api: Api, number: str) -> None:
    """What Python's parser lets through beyond JSON does not reach the engine."""
    content = f'{{"model": "{MODEL}", "prompt": "x", "temperature": {number}}}'.encode()
    headers = {"content-type": "application/json"}
    response = await api.http.post(TEXT, content=content, headers=headers)
    assert response.status_code == 400, response.text


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model": "fake/model", "prompt": "\ud800"}',
        rb'{"model": "fake/model", "prompt": ["x", "a\ud800"]}',
        rb'{"model": "fake/model", "prompt": "x", "stop": "\ud800"}',
        rb'{"model": "fake/model", "prompt": "x", "cache_salt": "\ud800"}',
        rb'{"model": "fake/model", "prompt": "x", "\udfff": 1}',
        rb'{"model": "\ud800", "prompt": "x"}',
        rb'{"model": "fake/model", "prompt": "x", "suffix": "\ud800"}',
        rb'{"model": "fake/model", "prompt": "x", "metadata": {"\ud800": "x"}}',
    ],
)
async def test_half_characters_are_refused(api: Api, body: bytes) -> None:
    """A lone surrogate, which no UTF-8 can hold, is a 400 that can be encoded."""
    response = await api.http.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text


async def test_a_long_value_is_cut_in_the_message(api: Api) -> None:
    """The message quotes no more of a value than helps."""
    for body in (chat_body(model="m" * 100_000), chat_body(**{"k" * 100_000: 1})):
        response = await api.http.post(CHAT, json=body)
        assert response.status_code in (400, 404)
        assert len(response.text) < 2000


WRONG_MANY_TIMES: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {"prompt": [-1] * 50_000}),
    (TEXT, {"prompt": [[-1] * 50_000]}),
    (TEXT, {"prompt": ["x", *[1] * 50_000]}),
    (TEXT, {"prompt": [[]] * 50_000}),
    (TEXT, {"stop": [1] * 50_000}),
    (TEXT, {"stop_token_ids": [-1] * 50_000}),
    (TEXT, {"metadata": {str(key): 1 for key in range(50_000)}}),
    (TEXT, {str(key): 1 for key in range(50_000)}),
    (CHAT, {"messages": [{}] * 50_000}),
    (CHAT, {"messages": [{"role": "user", "content": [{}] * 50_000}]}),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}] * 50_000}]}),
]


@pytest.mark.parametrize(("path", "changes"), WRONG_MANY_TIMES)
def test_what_is_wrong_many_times_costs_few_errors(path: str, changes: dict[str, Any]) -> None:
    """A body of thousands of mistakes is given up early: each error would cost time of all."""
    model = ChatRequest if path == CHAT else CompletionRequest
    with pytest.raises(ValidationError) as caught:
        model.model_validate({**_base(path), **changes})
    assert caught.value.error_count() <= 64


async def test_a_conflict_shows_the_value_of_its_field(api: Api) -> None:
    """What is wrong only beside another field is quoted itself, and not what it stands in."""
    response = await api.http.post(CHAT, json=chat_body(top_logprobs=7))
    assert "(got 7)" in response.json()["error"]["message"]
    response = await api.http.post(TEXT, json=text_body(best_of=3))
    assert "(got 3)" in response.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"\xff", b"[" * 5000, b'{"n": ' + b"9" * 5000 + b"}"])
async def test_what_no_parser_takes_is_said_to_be_no_json(api: Api, content: bytes) -> None:
    """Bad UTF-8, deep nesting and endless numbers have the code that broken JSON has."""
    headers = {"content-type": "application/json"}
    response = await api.http.post(TEXT, content=content, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


async def test_an_unknown_model_is_a_404(api: Api) -> None:
    """A model that is not served is named, with the one that is."""
    for path in (CHAT, TEXT):
        response = await api.http.post(path, json={**_base(path), "model": "gpt-9"})
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "gpt-9" in error["message"]
        assert MODEL in error["message"]


async def test_what_cannot_fit_is_refused_with_the_numbers(api: Api) -> None:
    """A prompt over the context, and an answer that would go beyond it, name all the lengths."""
    cases: list[tuple[dict[str, Any], str, list[str]]] = [
        (text_body([1] * 256), "prompt", ["256"]),
        (text_body([1] * 200, max_tokens=57), "max_tokens", ["200", "57", "257", "256"]),
        (text_body([[1], [1] * 300]), "prompt", ["300", "256"]),
    ]
    for body, param, numbers in cases:
        response = await api.http.post(TEXT, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert all(number in error["message"] for number in numbers)
    response = await api.http.post(TEXT, json=text_body([1] * 200, max_tokens=56))
    assert response.status_code == 200
    response = await api.http.post(CHAT, json=chat_body("x" * 300))
    assert response.json()["error"]["param"] == "messages"


async def test_a_small_pool_is_named_as_the_reason() -> None:
    """Where the cache is smaller than the context, the message speaks of the cache."""
    async with served_api() as api:
        api.engine.info_value = engine_info(longest_prompt=40)
        response = await api.http.post(TEXT, json=text_body([1] * 41))
        assert "cache" in response.json()["error"]["message"]
        response = await api.http.post(TEXT, json=text_body([1] * 40, max_tokens=2))
        assert response.json()["error"]["param"] == "max_tokens"
        response = await api.http.post(TEXT, json=text_body([1] * 40, max_tokens=1))
        assert response.status_code == 200


async def test_two_lengths_must_agree(api: Api) -> None:
    """max_tokens and its newer name may both be sent, if they say the same."""
    body = chat_body(max_tokens=5, max_completion_tokens=6)
    assert (await api.http.post(CHAT, json=body)).json()["error"]["param"] == "max_tokens"
    body = chat_body(max_tokens=5, max_completion_tokens=5)
    assert (await api.http.post(CHAT, json=body)).status_code == 200


async def test_echo_with_logprobs_is_refused(api: Api) -> None:
    """Log-probabilities of the prompt are not there, and that is said."""
    response = await api.http.post(TEXT, json=text_body(echo=True, logprobs=1))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "echo"
