"""`stemkv serve` with a tiny model: what it prints, answers, and how it ends."""

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from support.serve_process import ServeProcess, serving

from stemkv.engine.cli import run

FLAGS = ("--device=cpu", "--dtype=float32", "--kv-memory=4MB", "--log-level=warning")
BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "the same words for both requests"}],
    "max_tokens": 4,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def service(
    tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeProcess]:
    """Run a service of a tiny llama."""
    folder = tmp_path_factory.mktemp("service")
    flags = [*FLAGS, "--served-model-name=tiny"]
    with serving(tiny_model("llama"), folder, flags) as process:
        yield process


def test_second_request_reuses_the_first(service: ServeProcess) -> None:
    """The same chat sent again reports all prompt tokens but the last as cached, and repeats."""
    url = f"{service.url}/v1/chat/completions"
    first, second = (httpx.post(url, json=BODY, timeout=60).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    prompt = second["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt - 1
    assert first["choices"][0]["message"] == second["choices"][0]["message"]


def test_printed_line_works(service: ServeProcess) -> None:
    """The curl line that is printed gets an answer, and the admin key's place is told."""
    assert f"admin key: {service.state / 'admin.key'}" in service.log()
    line = re.search(r"^  (curl .*?)\\\n\s+(-d .*)$", service.log(), re.MULTILINE)
    assert line is not None
    command = shlex.split(line[1] + line[2])
    if shutil.which("curl") is None:  # the same by other means
        body = json.loads(command[-1])
        reply = httpx.post(command[1], json=body, timeout=60).json()
    else:
        output = subprocess.run(
            [*command, "--silent"], capture_output=True, check=True, timeout=60
        ).stdout
        reply = json.loads(output)
    assert reply["object"] == "chat.completion"


def test_cache_commands_reach_it(
    service: ServeProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of `stemkv cache` gets its answer from the running service."""
    monkeypatch.delenv("STEMKV_ADMIN_KEY", raising=False)
    where = ["--url", service.url, "--state-dir", str(service.state)]
    httpx.post(f"{service.url}/v1/chat/completions", json=BODY, timeout=60).raise_for_status()
    for command in (
        ["stats"],
        ["blocks"],
        ["explain", "--prompt", "the same words"],
        ["locate", "--prompt", "the same words"],
        ["audit"],
    ):
        assert run(["cache", *command, *where, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)
        assert run(["cache", *command, *where]) == 0
        assert capsys.readouterr().out
    assert run(["cache", "flush", "all", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks"] > 0
    assert run(["cache", "stats", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pool"]["cached"] == 0


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_signals_end_it_in_good_order(
    tiny_model: Callable[[str], Path], tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM and SIGINT end it with status 0, and no traceback or warning is printed."""
    with serving(tiny_model("llama"), tmp_path, FLAGS) as process:
        assert process.stop(number) == 0
    assert "Traceback" not in process.log()
    assert "Warning" not in process.log()


def test_model_that_is_none_ends_with_one_line(tmp_path: Path) -> None:
    """A folder without a model exits 2, and the last line names the setting and the folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    process = ServeProcess(folder, tmp_path, FLAGS)
    assert process.process.wait(60) == 2
    last = process.log().splitlines()[-1]
    assert last.startswith("stemkv: model")
    assert str(folder) in last
    assert "Traceback" not in process.log()


@pytest.mark.slow
def test_memory_that_cannot_be_had_ends_with_one_line(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """More cache than the machine has is refused by the engine, and the command says so."""
    process = ServeProcess(tiny_model("llama"), tmp_path, ["--device=cpu", "--kv-memory=900TB"])
    assert process.process.wait(120) == 2
    last = process.log().splitlines()[-1]
    assert last.startswith("stemkv: kv-memory")
    assert "Traceback" not in process.log()
