"""A deterministic `Core` without a model: it says the prompt's tokens back, one a step.

The config steers it, since a core is built in another process: `model` is "echo" followed by
flags ("echo,start-raises"), and `served_model_name` may name a journal file to which the core
appends one line for each abort, the first housekeeping, the start and the close.
A prompt whose first token is one of the constants below misbehaves.
"""

import os
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path

from stemkv.engine.config import ConfigError, EngineConfig
from stemkv.engine.core_protocol import Later
from stemkv.engine.messages import (
    AdminCall,
    AdminError,
    AdminReply,
    DoAudit,
    GetAcknowledgements,
    GetBlock,
    GetStats,
)
from stemkv.engine.messages import AuditReport as Report
from stemkv.engine.request import (
    Delta,
    EngineInfo,
    Event,
    Failed,
    Finished,
    Request,
    Started,
    Usage,
)
from stemkv.kvstore.ids import FlushId, WorkerId

STEP_RAISES = 9001
STEP_SLEEPS = 9002
REJECTED = 9003
SUBMIT_RAISES = 9004
STEP_EXITS = 9005
STEP_HANGS = 9006

LATER_WAITS = FlushId("waits")  # for a request named "release"
LATER_SLEEPS = FlushId("sleeps")
LATER_RAISES = FlushId("raises")

SLEEP_SECONDS = 1.0


def config(model: str = "echo", journal: Path | None = None) -> EngineConfig:
    """Return settings for `build_echo_core`; flags follow the name: "echo,slow-start"."""
    return EngineConfig(
        model=model, secret=b"s" * 32, served_model_name=None if journal is None else str(journal)
    )


def build_echo_core(config: EngineConfig) -> "EchoCore":
    """Build the core, or fail in the way that the flags ask for."""
    name, *flags = config.model.split(",")
    journal = None if config.served_model_name is None else Path(config.served_model_name)
    if name != "echo":
        raise FileNotFoundError(f"no model at {name!r}")
    if "bad-setting" in flags:
        raise ConfigError("block_size: 7 is not a power of two")
    if "start-exits" in flags:
        os._exit(3)
    if "start-sleeps" in flags:
        time.sleep(60)
    if "starts-once" in flags and journal is not None and journal.exists():
        raise MemoryError("no room for a second one")
    return EchoCore(journal, close_sleeps="close-sleeps" in flags)


class EchoCore:
    """Echoes every running request's next token at each step."""

    def __init__(self, journal: Path | None, *, close_sleeps: bool = False) -> None:
        self.info = EngineInfo(
            model="echo",
            fingerprint="echo-1",
            max_model_len=10_000,
            longest_prompt=9_999,
            vocab_size=10_000,
            block_size=16,
            capacity_blocks=100,
            block_bytes=1,
            device="none",
            dtype="none",
            kernels="none",
            worker=str(os.getpid()),
        )
        self._journal = journal
        self._close_sleeps = close_sleeps
        self._running: dict[str, deque[int]] = {}
        self._lengths: dict[str, int] = {}
        self._idled = False
        self._released = threading.Event()
        self._note(f"started {os.getpid()}")

    def _note(self, line: str) -> None:
        if self._journal is not None:
            with self._journal.open("a") as file:
                file.write(line + "\n")

    def submit(self, request: Request) -> tuple[Event, ...]:
        """Queue a request."""
        tokens = [int(token) for token in request.prompt]
        if request.request_id == "release":
            self._released.set()
        if tokens[0] == REJECTED:
            return (Failed(request.request_id, "rejected", "too long", "prompt"),)
        if tokens[0] == SUBMIT_RAISES:
            raise ZeroDivisionError("submit")
        self._running[request.request_id] = deque(tokens)
        self._lengths[request.request_id] = len(tokens)
        return ()

    def abort(self, request_id: str) -> None:
        """Drop a request."""
        self._running.pop(request_id, None)
        self._note(f"abort {request_id}")

    def has_work(self) -> bool:
        """Whether a request runs."""
        return bool(self._running)

    def step(self) -> list[Event]:
        """Say the next token of every request."""
        events: list[Event] = []
        for request_id, tokens in list(self._running.items()):
            length = self._lengths[request_id]
            if len(tokens) == length:
                events.append(Started(request_id, 0))
            events += self._say(request_id, tokens)
            if not tokens:
                del self._running[request_id]
                events.append(Finished(request_id, Usage(length, length, 0)))
        return events

    def _say(self, request_id: str, tokens: deque[int]) -> list[Event]:
        token = tokens.popleft()
        if token == STEP_RAISES:
            raise ZeroDivisionError("step")
        if token == STEP_EXITS:
            os._exit(7)
        if token == STEP_HANGS:
            self._note("hanging")
            time.sleep(60)
        if token == STEP_SLEEPS:
            self._note("sleeping")
            time.sleep(SLEEP_SECONDS)
        reason = None if tokens else "length"
        return [Delta(request_id, 0, f"{token} ", (token,), finish_reason=reason)]

    def admin(self, call: AdminCall) -> AdminReply | Later:
        """Answer calls: a report, an error value, an exception, and one that is finished later."""
        if isinstance(call, GetAcknowledgements):
            return Later(partial(self._finish, call.flush_id))
        if isinstance(call, DoAudit):
            return Report(violations=(), blocks=0, sequences=len(self._running), seconds=0.0)
        if isinstance(call, GetBlock):
            return AdminError("invalid", "no such block", "key")
        if isinstance(call, GetStats):
            raise ZeroDivisionError("admin")
        return None

    def _finish(self, name: FlushId) -> AdminReply:
        self._note(f"later {name}")
        if name == LATER_RAISES:
            raise ZeroDivisionError("later")
        if name == LATER_SLEEPS:
            time.sleep(SLEEP_SECONDS)
        if name == LATER_WAITS:
            assert self._released.wait(60)
        return {WorkerId(name): True}

    def idle(self) -> None:
        """Note the first one."""
        if not self._idled:
            self._idled = True
            self._note("idle")

    def close(self) -> None:
        """Note it."""
        self._note("close")
        if self._close_sleeps:
            time.sleep(60)
