"""Directories on one Redis, closed at the end of the test."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stemkv.kvstore.directory.redis_directory import RedisDirectory, RedisOptions
from support.redis_server import RedisServer

LEASE_SECONDS = 1.5
SECRET = b"s" * 32


class Joiner:
    """Makes directories of one deployment."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._joined: list[RedisDirectory] = []

    def __call__(
        self,
        *,
        url: str | None = None,
        secret: bytes = SECRET,
        fingerprint: str = "model-1",
        lease_seconds: float = LEASE_SECONDS,
        **options: object,
    ) -> RedisDirectory:
        """Join; raises what joining raises."""
        directory = RedisDirectory(
            url or self.url,
            deployment="d",
            secret=secret,
            fingerprint=fingerprint,
            lease_seconds=lease_seconds,
            options=replace(RedisOptions(), **options),  # type: ignore[arg-type]
        )
        self._joined.append(directory)
        return directory

    def close(self) -> None:
        """Close them all."""
        for directory in self._joined:
            with contextlib.suppress(Exception):
                directory.close()


class AdjustableClock:
    """The machine's clock with a jump that a test sets, as if the machine had slept."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return time.monotonic() + self.ahead_seconds


@pytest.fixture
def join(redis_server: RedisServer) -> Iterator[Joiner]:
    """Join the deployment on `redis_server`."""
    joiner = Joiner(redis_server.url)
    yield joiner
    redis_server.close()  # first, so that closing does not wait for one that is frozen or gone
    joiner.close()


@pytest.fixture
def durable_join(durable_redis_server: RedisServer) -> Iterator[Joiner]:
    """Join the deployment on `durable_redis_server`."""
    joiner = Joiner(durable_redis_server.url)
    yield joiner
    durable_redis_server.close()
    joiner.close()
