import asyncio

import numpy as np
import pytest
from openai.types.chat import ChatCompletion
from support.api import MODEL, Api, chat_body, served_api
from support.byte_tokenizer import BOS, byte_tokenizer

from stemkv.engine.api.errors import ApiError
from stemkv.engine.api.prompts import PromptEncoder
from stemkv.engine.api.schemas import Message
from stemkv.engine.tenants import Tenant
from stemkv.kvstore.namespace import domain_of


async def _chat(api: Api, **changes: object) -> ChatCompletion:
    response = await api.http.post("/v1/chat/completions", json=chat_body(**changes))
    assert response.status_code == 200, response.text
    return ChatCompletion.model_validate_json(response.text, strict=True)


async def test_an_answer_has_the_shape_that_openai_reads(api: Api) -> None:
    """A plain chat gives one choice with the whole text, and usage that adds up."""
    answer = await _chat(api)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello, wörld")
    assert (choice.finish_reason, choice.index, choice.logprobs) == ("stop", 0, None)
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert answer.usage is not None
    prompt = api.engine.submitted[0].prompt.size
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 13)
    assert answer.usage.total_tokens == prompt + 13


async def test_cached_tokens_are_always_told(api: Api) -> None:
    """The first request reports zero cached tokens, the second all but the last."""
    for expected in (lambda _: 0, lambda prompt: prompt - 1):
        usage = (await _chat(api)).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == expected(usage.prompt_tokens)


async def test_the_template_is_applied_without_a_second_bos(api: Api) -> None:
    """The prompt is the rendered template, with the one BOS that the template writes."""
    await _chat(
        api, messages=[{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    )
    request = api.engine.submitted[0]
    assert request.prompt.dtype == np.int32
    text = api.engine.tokenizer.decode(request.prompt.tolist())
    assert text == f"{BOS}<|turn|>system: S\n<|turn|>user: U\n<|turn|>assistant: "


async def test_text_parts_are_joined_and_developer_is_system(api: Api) -> None:
    """Parts of one message follow each other directly; the newer role name is understood."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await _chat(
        api, messages=[{"role": "developer", "content": parts}], add_generation_prompt=False
    )
    text = api.engine.tokenizer.decode(api.engine.submitted[0].prompt.tolist())
    assert text == f"{BOS}<|turn|>system: ab\n"


async def test_sampling_settings_reach_the_engine(api: Api) -> None:
    """Every field that changes the draw arrives as it was sent."""
    await _chat(
        api,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=-1,
        n=2,
        max_completion_tokens=5,
        stop=["a", "b"],
        stop_token_ids=[3, 4],
        logprobs=True,
        top_logprobs=3,
        ignore_eos=True,
    )
    sampling = api.engine.submitted[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.min_p, sampling.seed, sampling.n) == (0.1, 2**63 - 1, 2)
    assert (sampling.max_tokens, sampling.logprobs, sampling.ignore_eos) == (5, 3, True)
    assert (sampling.stop, sampling.stop_token_ids) == (("a", "b"), (3, 4))


async def test_defaults_are_openais(api: Api) -> None:
    """Without settings: temperature 1, nothing cut off, and as many tokens as fit."""
    await _chat(api, top_k=-1, stop="x")
    request = api.engine.submitted[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, 0, 0)
    assert (sampling.n, sampling.seed, sampling.logprobs) == (1, None, None)
    assert sampling.stop == ("x",)
    assert request.prompt.size + sampling.max_tokens == api.engine.info.max_model_len


async def test_logprobs_have_tokens_bytes_and_rivals(api: Api) -> None:
    """Each token comes with its bytes and the rivals asked for; half a character as bytes."""
    answer = await _chat(api, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert (
        b"".join(bytes(token.bytes or ()) for token in logprobs.content) == "Hello, wörld".encode()
    )
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content)
    assert logprobs.content[8].token == "bytes:\\xc3"
    assert logprobs.content[0].logprob == -0.5


async def test_choices_come_in_order(api: Api) -> None:
    """With n = 3 there are three choices, numbered, and all their tokens are counted."""
    answer = await _chat(api, n=3, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"Hell"}
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


async def test_the_namespace_is_the_tenants_own() -> None:
    """Domain and salt of a request come from the key's tenant, its group and its cache_salt."""
    keys = {"key-a": Tenant("a"), "key-b": Tenant("b", group="g"), "key-c": Tenant("c", group="g")}
    async with served_api(keys) as api:
        for key in keys:
            headers = {"authorization": f"Bearer {key}"}
            body = chat_body(cache_salt="salt", cache={"read": True, "write": False})
            response = await api.http.post("/v1/chat/completions", json=body, headers=headers)
            assert response.status_code == 200
        a, b, c = (request.namespace for request in api.engine.submitted)
        assert (a.tenant, b.tenant, c.tenant) == ("a", "b", "c")
        assert a.domain == domain_of(b"s" * 32, tenant="a")
        assert b.domain == c.domain == domain_of(b"s" * 32, tenant="b", group="g")
        assert {a.salt, b.salt, c.salt} == {"salt"}
        assert (api.engine.submitted[0].cache_read, api.engine.submitted[0].cache_write) == (
            True,
            False,
        )


async def test_tenants_see_only_their_own_cache() -> None:
    """The same prompt of another tenant reports nothing cached, unless a group joins the two."""
    keys = {"key-a": Tenant("a"), "key-b": Tenant("b", group="g"), "key-c": Tenant("c", group="g")}
    async with served_api(keys) as api:
        cached = []
        for key in keys:
            response = await api.http.post(
                "/v1/chat/completions",
                json=chat_body(),
                headers={"authorization": f"Bearer {key}"},
            )
            usage = response.json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 0, usage["prompt_tokens"] - 1]


async def test_engine_requests_have_names_of_their_own(api: Api) -> None:
    """Two requests under one client-given id run under different ids in the engine."""
    for _ in range(2):
        await api.http.post(
            "/v1/chat/completions", json=chat_body(), headers={"x-request-id": "same"}
        )
    first, second = (request.request_id for request in api.engine.submitted)
    assert first != second


async def test_tool_calls_need_a_template_that_knows_them() -> None:
    """An earlier tool call is rendered by a template that has a place for it, else refused."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}:{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    async with served_api(chat_template=template) as api:
        await _chat(api, messages=messages)
        text = api.engine.tokenizer.decode(api.engine.submitted[0].prompt.tolist())
        assert text == 'f:{"x": 1}'
        for arguments, param in (
            ("{", "messages[1].tool_calls[0].function.arguments"),
            (r'"\ud800"', "messages"),
        ):
            call["function"]["arguments"] = arguments
            response = await api.http.post(
                "/v1/chat/completions", json=chat_body(messages=messages)
            )
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param
    async with served_api() as api:
        response = await api.http.post("/v1/chat/completions", json=chat_body(messages=messages))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "messages[1].tool_calls"


async def test_a_template_that_refuses_is_the_clients_error(api: Api) -> None:
    """What the template raises becomes a 400 with its reason."""
    body = chat_body(messages=[{"role": "tool", "content": "x"}])
    response = await api.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages"
    assert "no tools here" in error["message"]


async def test_a_model_without_template_says_so() -> None:
    """A base model refuses chats and names the endpoint that it has."""
    encoder = PromptEncoder(byte_tokenizer(chat_template=None), threads=1)
    with pytest.raises(ApiError, match="/v1/completions") as refused:
        await encoder.chat([Message(role="user", content="Hi")])
    assert refused.value.status == 400
    encoder.close()


async def test_prompts_are_encoded_by_several_threads_at_once() -> None:
    """Encoding many prompts at once gives each the tokens that it has alone."""
    tokenizer = byte_tokenizer()
    encoder = PromptEncoder(tokenizer, threads=4)
    texts = [f"{number} " * (number * 7 % 200 + 1) for number in range(200)]
    together = await asyncio.gather(*[encoder.text(text, param="prompt") for text in texts])
    encoder.close()
    assert [tokens.tolist() for tokens in together] == [tokenizer.encode(text) for text in texts]
