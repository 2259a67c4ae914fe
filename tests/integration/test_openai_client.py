"""The official client against `stemkv serve` with a tiny random model, nothing faked."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion
from support.serve_process import ServeProcess, serving
from support.waiting import wait_until, wait_until_async

from stemkv.engine.tenants import Tenant
from stemkv.engine.tenants_sqlite import SqliteTenantStore

FLAGS = (
    *("--device=cpu", "--dtype=float32", "--kv-memory=4MB", "--log-level=warning"),
    *("--served-model-name=tiny", "--debug-audit"),
)
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 12}


def _messages(text: str) -> Any:
    return [{"role": "system", "content": "be brief. " * 6}, {"role": "user", "content": text}]


def _cached(usage: CompletionUsage | None) -> int:
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return cached


@pytest.fixture(scope="module")
def service(
    tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeProcess]:
    """Run one service without tenants, its store audited after every step."""
    with serving(tiny_model("llama"), tmp_path_factory.mktemp("openai"), FLAGS) as process:
        yield process
        assert process.admin("GET", "audit").json()["clean"] is True
        assert process.stop() == 0


@pytest.fixture
def client(service: ServeProcess) -> Iterator[OpenAI]:
    """Return a client that checks what it reads against its own types."""
    with OpenAI(
        base_url=f"{service.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
    ) as client:
        yield client


def test_warm_equals_cold_whole_and_streamed(client: OpenAI) -> None:
    """One chat three ways: cold, warm and streamed warm; one text, and the cache is told."""

    def ask() -> ChatCompletion:
        return client.chat.completions.create(messages=_messages("warm?"), **GREEDY)

    cold, warm = ask(), ask()
    assert cold.usage is not None
    assert _cached(cold.usage) == 0
    assert _cached(warm.usage) == cold.usage.prompt_tokens - 1
    assert warm.choices[0].message == cold.choices[0].message
    stream = client.chat.completions.create(
        messages=_messages("warm?"), stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == cold.choices[0].message.content
    assert _cached(chunks[-1].usage) == cold.usage.prompt_tokens - 1
    assert chunks[-2].choices[0].finish_reason == cold.choices[0].finish_reason


def test_cache_switches_and_salts(client: OpenAI) -> None:
    """A salt starts a cache of its own; read and write can be switched off one by one."""

    def ask(**extra: Any) -> int:
        answer = client.chat.completions.create(
            messages=_messages("salted"), extra_body=extra, **GREEDY
        )
        return _cached(answer.usage)

    assert ask(cache={"write": False}, cache_salt="s") == 0
    assert ask(cache_salt="s") == 0
    assert ask(cache_salt="s") > 0
    assert ask(cache={"read": False}, cache_salt="s") == 0
    assert ask(cache_salt="t") == 0
    assert ask(cache={"read": True, "write": True}, cache_salt="s") > 0


def test_choices_with_logprobs(client: OpenAI) -> None:
    """Parallel samples each have tokens whose log-probabilities are no more than their best."""
    answer = client.chat.completions.create(
        model="tiny",
        messages=_messages("sample"),
        n=3,
        seed=7,
        max_tokens=12,
        logprobs=True,
        top_logprobs=4,
        extra_body={"ignore_eos": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 36
    for choice in answer.choices:
        assert choice.finish_reason == "length"
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 12
        for token in choice.logprobs.content:
            best = [rival.logprob for rival in token.top_logprobs]
            assert len(best) == 4
            assert best == sorted(best, reverse=True)
            assert token.logprob <= best[0] <= 0


def test_a_seed_repeats_itself(client: OpenAI) -> None:
    """The same seed gives the same text, cached or not; another gives another."""

    def ask(seed: int) -> str | None:
        return (
            client.chat.completions.create(
                model="tiny", messages=_messages("dice"), seed=seed, max_tokens=16
            )
            .choices[0]
            .message.content
        )

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(-2, 4)}) > 1


def test_completions_and_stops(client: OpenAI) -> None:
    """Several prompts keep their places, token ids equal text, and a stop string is cut off."""
    text = client.completions.create(prompt=["one", "two"], logprobs=1, **GREEDY)
    alone = client.completions.create(prompt=list(b"two"), **GREEDY)
    assert len(text.choices) == 2
    whole = text.choices[1].text
    encoded = client.completions.create(prompt="two", **GREEDY).choices[0].text
    assert encoded == whole
    assert alone.choices[0].finish_reason in ("stop", "length")
    logprobs = text.choices[1].logprobs
    assert logprobs is not None
    assert logprobs.text_offset is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    assert len(logprobs.text_offset) == len(logprobs.tokens)
    stop = whole[len(whole) // 2 :][:2]
    cut = client.completions.create(prompt="two", stop=[stop], echo=True, **GREEDY)
    assert cut.choices[0].text == "two" + whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_what_cannot_fit_is_refused(client: OpenAI) -> None:
    """A prompt over the model's context is a 400 with the numbers, and nothing else is hurt."""
    with pytest.raises(openai.BadRequestError, match="512") as refused:
        client.completions.create(prompt="x" * 600, **GREEDY)
    assert refused.value.code == "context_length_exceeded"
    assert client.completions.create(prompt="x" * 400, **GREEDY).choices


async def test_concurrent_streams_equal_single_ones(service: ServeProcess) -> None:
    """Eight streams at once say what each says alone."""
    async with AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", timeout=60) as client:

        async def ask(number: int) -> str:
            stream = await client.chat.completions.create(
                messages=_messages(f"question {number}"), stream=True, **GREEDY
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        together = await asyncio.gather(*[ask(number) for number in range(8)])
        alone = [await ask(number) for number in range(8)]
    assert together == alone


async def test_a_client_that_leaves_frees_its_blocks(service: ServeProcess) -> None:
    """After a stream is closed in the middle nothing runs and no block is in use."""
    body = {
        "model": "tiny",
        "messages": _messages("long"),
        "max_tokens": 300,
        "n": 4,
        "stream": True,
        "ignore_eos": True,
    }
    url = f"{service.url}/v1/chat/completions"

    def state() -> tuple[int, int]:
        report = service.admin("GET", "cache").json()
        return report["queue"]["running"], report["pool"]["in_use"]

    async with (
        httpx.AsyncClient(timeout=60) as http,
        http.stream("POST", url, json=body) as response,
    ):
        lines = response.aiter_lines()
        for _ in range(12):
            await anext(lines)
        running, in_use = state()
        assert running > 0
        assert in_use > 0
    await wait_until_async(lambda: state() == (0, 0))


def test_tenants_share_nothing_unless_a_group_says_so(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """The same prompt is cold for another tenant, and warm for one of the same group."""
    with serving(tiny_model("llama"), tmp_path, FLAGS) as process:
        store = SqliteTenantStore(process.state / "tenants.sqlite3")
        keys = {}
        for tenant in (Tenant("a"), Tenant("b"), Tenant("c", group="g"), Tenant("d", group="g")):
            store.put_tenant(tenant)
            keys[tenant.name] = store.add_key(tenant.name)
        store.close()

        def ask(key: str) -> int:
            with OpenAI(base_url=f"{process.url}/v1", api_key=key, max_retries=0) as client:
                answer = client.chat.completions.create(messages=_messages("shared?"), **GREEDY)
            return _cached(answer.usage)

        assert [ask(keys[name]) for name in "abc"] == [0, 0, 0]
        assert ask(keys["a"]) > 0
        assert ask(keys["d"]) > 0
        with pytest.raises(openai.AuthenticationError):
            ask("sk-stem-wrong")

        query = {"messages": _messages("shared?"), "tenant": "b"}
        explained = process.admin("POST", "cache/explain", json=query).json()
        assert explained["reason"] == "complete"
        flushed = process.admin("POST", "cache/flush", json={"by": "tenant", "tenant": "b"}).json()
        assert flushed["tenants"].keys() == {"b"}
        assert ask(keys["b"]) == 0
        assert ask(keys["a"]) > 0


def test_an_engine_that_dies_is_started_again(service: ServeProcess, client: OpenAI) -> None:
    """A stream whose engine is killed ends with an error; health goes on, then all is well."""
    stream = client.chat.completions.create(
        model="tiny",
        messages=_messages("die"),
        max_tokens=400,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    for engine in _engines(service):
        engine.kill()
    with pytest.raises(openai.APIError):
        list(stream)
    assert httpx.get(f"{service.url}/health", timeout=10).status_code == 200
    wait_until(lambda: httpx.get(f"{service.url}/ready", timeout=10).status_code == 200, 60)
    answer = client.chat.completions.create(messages=_messages("die"), **GREEDY)
    assert answer.choices
    assert _cached(answer.usage) == 0


def _engines(process: ServeProcess) -> list[psutil.Process]:
    """Return the service's child processes, of which the engine is the busiest."""
    children = psutil.Process(process.process.pid).children(recursive=True)
    return [child for child in children if child.memory_info().rss > 100 * 2**20]
