"""Waiting for something that another thread or process does."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], timeout_seconds: float = 10.0) -> None:
    """Return when the condition holds; fails the test after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout_seconds} s"
        time.sleep(0.01)


async def wait_until_async(condition: Callable[[], bool], timeout_seconds: float = 10.0) -> None:
    """Return when the condition holds, leaving the event loop free meanwhile."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout_seconds} s"
        await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended (a zombie has)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
