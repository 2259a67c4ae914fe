"""`stemkv serve` as a process of its own, started and stopped as a user does."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

READY_SECONDS = 120.0
STOP_SECONDS = 60.0
_ADDRESS = re.compile(r"^stemkv serves .* on (http://\S+) ", re.MULTILINE)


class ServeProcess:
    """One running command. folder: its state and its log; url: its address once it is ready."""

    def __init__(
        self,
        model: Path | str,
        folder: Path,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state = folder / "state"
        self.url = ""
        self._log = folder / "serve.log"
        command = [sys.executable, "-m", "stemkv", "serve", "--model", str(model)]
        command += ["--port", "0", "--state-dir", str(self.state), *flags]
        environ = {**os.environ, "NO_COLOR": "1", **(environment or {})}
        environ.pop("STEMKV_ADMIN_KEY", None)
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
            )

    def log(self) -> str:
        """Return what it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_ready(self) -> "ServeProcess":
        """Wait until it has said its address."""
        deadline = time.monotonic() + READY_SECONDS
        while (found := _ADDRESS.search(self.log())) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"stemkv serve did not become ready:\n{self.log()[-3000:]}")
            time.sleep(0.05)
        self.url = found[1]
        return self

    @property
    def admin_key(self) -> str:
        """The key that it made."""
        return (self.state / "admin.key").read_text(encoding="utf-8").strip()

    def admin(self, method: str, path: str, **options: object) -> httpx.Response:
        """Ask its admin API."""
        headers = {"authorization": f"Bearer {self.admin_key}"}
        return httpx.request(
            method,
            f"{self.url}/admin/v1/{path}",
            headers=headers,
            timeout=60,
            **options,  # type: ignore[arg-type]
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def close(self) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def serving(
    model: Path | str,
    folder: Path,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServeProcess]:
    """Serve a model until the block ends, ready from the start."""
    process = ServeProcess(model, folder, flags, environment)
    try:
        yield process.wait_ready()
    finally:
        process.close()
