import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from support.api import MODEL, Api, listening, served_api

from stemkv.engine.request import Failed
from stemkv.engine.tenants import Tenant

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def served() -> Iterator[tuple[Api, str]]:
    """Serve two tenants on a real port."""
    with asyncio.Runner() as runner:
        context = served_api({"key-a": Tenant("a"), "key-b": Tenant("b")})
        api = runner.run(context.__aenter__())
        with listening(api.app) as url:
            yield api, f"{url}/v1"
        runner.run(context.__aexit__(None, None, None))


def _client(url: str, key: str = "key-a", *, retries: int = 0, strict: bool = True) -> OpenAI:
    # Strict: the client checks all that it reads against its own types.
    return OpenAI(
        base_url=url, api_key=key, max_retries=retries, _strict_response_validation=strict
    )


def test_a_chat_and_its_repetition(served: tuple[Api, str]) -> None:
    """The client reads answer, usage and request id; the second answer is from the cache."""
    _, url = served
    with _client(url) as client:
        for cached in (False, True):
            answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=1)  # type: ignore[arg-type]
            assert answer.choices[0].message.content == "Hello, wörld"
            assert answer.usage is not None
            details = answer.usage.prompt_tokens_details
            assert details is not None
            assert details.cached_tokens == (answer.usage.prompt_tokens - 1) * cached
            assert answer._request_id


def test_a_streamed_chat(served: tuple[Api, str]) -> None:
    """The client's stream ends by itself and has the usage in its last chunk."""
    _, url = served
    with _client(url) as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,  # type: ignore[arg-type]
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello, wörld"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 13


def test_the_clients_own_accumulation_of_a_stream(served: tuple[Api, str]) -> None:
    """The client's stream helper, which puts chunks together, arrives at the whole answer."""
    _, url = served
    with (
        _client(url) as client,
        client.chat.completions.stream(
            model=MODEL,
            messages=MESSAGES,  # type: ignore[arg-type]
            n=2,
            logprobs=True,
            stream_options={"include_usage": True},
        ) as stream,
    ):
        stream.until_done()
        answer = stream.get_final_completion()
    assert [choice.message.content for choice in answer.choices] == ["Hello, wörld"] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 2
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 13


def test_completions_in_all_their_forms(served: tuple[Api, str]) -> None:
    """Text, token ids and several prompts, with echo, logprobs and as a stream."""
    _, url = served
    with _client(url) as client:
        answer = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, echo=True)
        assert [choice.text[0] for choice in answer.choices] == ["a", "a", "b", "b"]
        answer = client.completions.create(model=MODEL, prompt=[[1, 2], [3]], logprobs=2)
        assert answer.choices[1].logprobs is not None
        assert answer.choices[1].logprobs.text_offset is not None
    # OpenAI's own streams have a null finish reason, which the client's type does not know of.
    with _client(url, strict=False) as client:
        stream = client.completions.create(model=MODEL, prompt="a", stream=True, max_tokens=3)
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hel"


def test_extensions_travel_in_the_extra_body(served: tuple[Api, str]) -> None:
    """Our own fields are sent the way the client sends what it does not know."""
    api, url = served
    with _client(url) as client:
        extra = {"cache_salt": "s", "cache": {"read": False}, "top_k": 5, "min_p": 0.2}
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra)  # type: ignore[arg-type]
    request = api.engine.submitted[0]
    assert (request.namespace.salt, request.cache_read, request.cache_write) == ("s", False, True)
    assert (request.sampling.top_k, request.sampling.min_p) == (5, 0.2)


def test_models(served: tuple[Api, str]) -> None:
    """The client lists the model and fetches it by its name with a slash."""
    _, url = served
    with _client(url) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


def test_errors_have_the_clients_own_types(served: tuple[Api, str]) -> None:
    """Each refusal arrives as the exception that the client has for it, with its field."""
    api, url = served
    with _client(url) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)  # type: ignore[arg-type]
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="gpt-9", messages=MESSAGES)  # type: ignore[arg-type]
        assert unknown.value.code == "model_not_found"
        api.engine.fail = lambda name: Failed(name, "overloaded", "the queue is full")
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=MESSAGES)  # type: ignore[arg-type]
    with _client(url, key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_the_client_comes_back_when_told_to(served: tuple[Api, str]) -> None:
    """A full queue's Retry-After makes the client try again by itself."""
    api, url = served

    def full_once(name: str) -> Failed:
        api.engine.fail = None
        return Failed(name, "overloaded", "the queue is full")

    api.engine.fail = full_once
    with _client(url, retries=1) as client:
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "Hello, wörld"
    assert len(api.engine.submitted) == 2


def test_an_error_in_mid_stream_is_raised(served: tuple[Api, str]) -> None:
    """The client raises what the error event says, after the chunks before it."""
    api, url = served
    api.engine.fail = lambda name: Failed(name, "internal", "x")
    api.engine.fail_after = 2
    with _client(url) as client:
        stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)  # type: ignore[call-overload]
        with pytest.raises(openai.APIError, match="request id"):
            list(stream)


async def test_many_streams_at_once(served: tuple[Api, str]) -> None:
    """Twenty concurrent streams of an async client each get their own whole answer."""
    api, url = served
    api.engine.step_seconds = 0.002
    async with AsyncOpenAI(base_url=url, api_key="key-b", max_retries=0) as client:

        async def ask(number: int) -> str:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"{number}"}],
                max_tokens=number % 5 + 1,
                stream=True,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        answers = await asyncio.gather(*[ask(number) for number in range(20)])
    assert answers == ["Hello, wörld"[: number % 5 + 1] for number in range(20)]
    assert not api.engine.aborted
