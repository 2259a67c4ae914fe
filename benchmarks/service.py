"""A real stemkv service for a benchmark, in processes of its own, and a client that times it."""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.prompts import Message

READY_SECONDS = 300.0
STOP_SECONDS = 30.0


class ServiceError(Exception):
    """The service did not start, or answered with an error."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed chat: times in seconds from the request, tokens as the service counted them."""

    first_token_seconds: float
    total_seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    text: str


@contextmanager
def running_service(model: str, flags: Sequence[str]) -> Iterator[str]:
    """Start `stemkv serve` on a free port and yield its address; stop it afterwards."""
    with tempfile.TemporaryDirectory(prefix="stemkv-bench-") as state:
        port = _free_port()
        log = Path(state) / "log"
        command = [sys.executable, "-m", "stemkv", "serve", "--model", model, *flags]
        command += ["--host", "127.0.0.1", "--port", str(port), "--state-dir", state]
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, log)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/ready", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.1)
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
    raise ServiceError("stemkv serve did not become ready: " + " | ".join(tail))


def stream_chat(
    client: httpx.Client, model: str, messages: Sequence[Message], tokens: int
) -> Answer:
    """Have exactly `tokens` tokens generated greedily and time them as they arrive."""
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first: float | None = None
    usage: dict[str, Any] = {}
    text = []
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise ServiceError(f"status {response.status_code}: {response.read().decode()[:300]}")
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise ServiceError(event["error"]["message"])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                piece = choice["delta"].get("content")
                if piece:
                    first = first or time.perf_counter() - started
                    text.append(piece)
    total = time.perf_counter() - started
    return Answer(
        first_token_seconds=total if first is None else first,
        total_seconds=total,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        completion_tokens=usage["completion_tokens"],
        text="".join(text),
    )


def throughput(
    client: httpx.Client, model: str, chats: Sequence[Sequence[Message]], tokens: int
) -> float:
    """Run all chats at once and return generated tokens a second, prompts included in the time."""
    with ThreadPoolExecutor(len(chats)) as pool:
        started = time.perf_counter()
        answers = list(pool.map(lambda chat: stream_chat(client, model, chat, tokens), chats))
        seconds = time.perf_counter() - started
    return sum(answer.completion_tokens for answer in answers) / seconds


def served_model(client: httpx.Client) -> str:
    """Return the name that requests must give."""
    name: str = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
    return name
