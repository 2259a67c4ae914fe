"""Two services on one real Redis: they see each other's blocks, flushes and deaths."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.redis_server import RedisServer
from support.serve_process import ServeProcess
from support.waiting import is_running, wait_until

LEASE_SECONDS = 2.0
MESSAGES = [{"role": "user", "content": "the same words for every request of this test, " * 4}]
QUESTION = {"tenant": "default", "messages": MESSAGES}


@dataclass(frozen=True, slots=True)
class Deployment:
    """Two services that run, and how to start a third."""

    redis: RedisServer
    one: ServeProcess
    two: ServeProcess
    start: Callable[[str], ServeProcess]


@pytest.fixture(scope="module")
def deployment(
    tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Run two services of one deployment, each with a state folder of its own."""
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    redis.start()
    flags = (
        *("--device=cpu", "--dtype=float32", "--kv-memory=4MB", "--served-model-name=tiny"),
        *(f"--redis-url={redis.url}", f"--lease-seconds={LEASE_SECONDS}"),
    )
    model, folder = tiny_model("llama"), tmp_path_factory.mktemp("services")
    started: list[ServeProcess] = []

    def start(name: str) -> ServeProcess:
        started.append(ServeProcess(model, folder / name, flags))
        return started[-1]

    try:
        one, two = start("one"), start("two")
        yield Deployment(redis, one.wait_ready(), two.wait_ready(), start)
    finally:
        for process in started:
            process.close()
        redis.close()


@pytest.fixture
def services(deployment: Deployment) -> Deployment:
    """Have both services cold and current, whatever a test before has done."""
    wait_until(lambda: is_current(deployment.one) and is_current(deployment.two))
    assert flush(deployment.one)["complete"]
    wait_until(lambda: locate(deployment.one) == {})
    return deployment


def chat(service: ServeProcess) -> int:
    """Run the prompt and return how many of its tokens were cached."""
    body: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2}
    body |= {"temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60)
    reply.raise_for_status()
    usage = reply.json()["usage"]
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached


def locate(service: ServeProcess) -> dict[str, int]:
    """Return which workers hold how many leading tokens of the prompt."""
    reply = service.admin("POST", "cache/locate", json=QUESTION)
    reply.raise_for_status()
    return {each["worker"]: each["tokens"] for each in reply.json()["workers"]}


def flush(service: ServeProcess) -> dict[str, Any]:
    """Flush everything and return the report."""
    reply = service.admin("POST", "cache/flush", json={"by": "all", "wait_seconds": 5})
    reply.raise_for_status()
    report: dict[str, Any] = reply.json()
    return report


def is_current(service: ServeProcess) -> bool:
    """Whether the service's engine may reuse blocks."""
    current: bool = service.admin("GET", "cache").json()["directory_current"]
    return current


@pytest.mark.slow
def test_a_worker_of_another_model_is_refused(
    services: Deployment, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """It ends before it serves, and says in one line what a deployment has to have in common."""
    flags = ("--device=cpu", "--kv-memory=4MB", f"--redis-url={services.redis.url}")
    other = ServeProcess(tiny_model("qwen3"), tmp_path, flags)
    try:
        assert other.process.wait(60) != 0
    finally:
        other.close()
    assert "another fingerprint" in other.log()
    assert "Traceback" not in other.log()
    assert chat(services.one) == 0
    assert chat(services.one) > 0


def test_each_learns_what_the_other_holds(services: Deployment) -> None:
    """Both services tell which of them holds the prompt, and a flush on one reaches the other."""
    one, two = services.one, services.two
    assert chat(one) == 0
    wait_until(lambda: len(locate(two)) == 1)
    assert locate(two) == locate(one)
    assert chat(two) == 0
    wait_until(lambda: len(locate(one)) == 2)
    assert len(set(locate(one).values())) == 1
    assert chat(one) > 0
    assert chat(two) > 0
    report = flush(one)
    assert report["complete"]
    assert list(report["acknowledged"].values()) == [True, True]
    assert chat(two) == 0
    wait_until(lambda: len(locate(one)) == 1)
    assert chat(one) == 0
    wait_until(lambda: len(locate(two)) == 2)


def test_killed_service_leaves_nothing(services: Deployment) -> None:
    """After SIGKILL of a service its engine ends too, and its entries go with its lease."""
    one, third = services.one, services.start("third").wait_ready()
    chat(third)
    wait_until(lambda: len(locate(one)) == 1)
    (worker,) = locate(one)
    engine = int(worker.split("-")[-2])
    assert is_running(engine)
    third.process.send_signal(signal.SIGKILL)
    third.process.wait(10)
    wait_until(lambda: not is_running(engine), 5)
    killed = time.monotonic()
    wait_until(lambda: locate(one) == {})
    assert time.monotonic() - killed < LEASE_SECONDS + 2
    client = services.redis.client()
    wait_until(lambda: not [name for name in client.keys("*") if worker.encode() in name], 5)
    report = flush(one)
    assert report["complete"]
    assert worker not in report["acknowledged"]


@pytest.mark.slow
def test_killed_engine_comes_back_under_another_name(services: Deployment) -> None:
    """A service whose engine was killed starts another, which joins and is flushed like before."""
    one, two = services.one, services.two
    chat(two)
    wait_until(lambda: len(locate(one)) == 1)
    (worker,) = locate(one)
    os.kill(int(worker.split("-")[-2]), signal.SIGKILL)

    def answers() -> bool:
        reply = httpx.get(f"{two.url}/ready", timeout=10)
        return reply.status_code == 200

    wait_until(lambda: not answers(), 10)
    wait_until(answers, 60)
    assert chat(two) == 0
    assert chat(two) > 0
    wait_until(lambda: len(locate(one)) == 1 and worker not in locate(one))
    report = flush(one)
    assert report["complete"]
    assert len(report["acknowledged"]) == 2


def test_serving_goes_on_without_redis(services: Deployment) -> None:
    """With Redis gone, chats are answered cold; when it is back, all is as before."""
    one, two = services.one, services.two
    chat(one)
    assert chat(one) > 0
    services.redis.stop()
    wait_until(lambda: not is_current(one))
    assert chat(one) == 0
    assert one.admin("POST", "cache/locate", json=QUESTION).status_code == 503
    assert flush(one)["directory_error"]
    assert "directory cut off" in one.log()
    services.redis.start()
    wait_until(lambda: is_current(one) and is_current(two))
    assert "redis is back" in one.log() or "redis is back" in two.log()
    chat(one)
    assert chat(one) > 0
    wait_until(lambda: len(locate(two)) == 1)
