"""What the operator does about quotas, public prefixes, pins and events, on the command line."""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.api import ADMIN_KEY, listening, settings, tenant_store
from support.byte_tokenizer import byte_tokenizer
from support.event_source import Events
from support.fake_engine import STATS, FakeEngine
from support.keeping_engine import KeepingEngine

from stemkv.engine.api import event_feed
from stemkv.engine.api.app import create_app
from stemkv.engine.cli import run
from stemkv.engine.messages import AccountCounts, GetEvents, GetStats, MissRatioPoint
from stemkv.engine.state import ADMIN_KEY_VARIABLE, StateFolder
from stemkv.engine.tenants import Tenant
from stemkv.engine.tenants_sqlite import SqliteTenantStore
from stemkv.kvstore.quotas import Quota


@dataclass
class Service:
    """A service on a port with an engine that keeps things, and in which things happen."""

    engine: KeepingEngine
    events: Events
    state: Any


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the user's own state and key out of the tests; return the state folder."""
    monkeypatch.setenv("STEMKV_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv(ADMIN_KEY_VARIABLE, raising=False)
    monkeypatch.delenv("STEMKV_REDIS_URL", raising=False)
    return tmp_path / "state"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Serve one tenant; the command line finds address and key in the environment."""
    monkeypatch.setattr(event_feed, "POLL_SECONDS", 0.01)
    tokenizer = byte_tokenizer()
    engine = FakeEngine(tokenizer)
    events = Events()
    engine.admin_replies[GetEvents] = events
    with tenant_store({"key-a": Tenant("a")}) as store:
        app = create_app(settings(), engine, store, tokenizer)
        with listening(app) as url:
            monkeypatch.setenv("STEMKV_URL", url)
            monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN_KEY)
            yield Service(KeepingEngine(engine), events, app.state)
        app.state.service.encoder.close()


def _store(folder: Path) -> SqliteTenantStore:
    return SqliteTenantStore(StateFolder(folder).tenants_path)


def test_a_tenants_quota_is_added_changed_and_listed(
    own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shares are told as percentages or shares; `set` leaves what it is not told."""
    quota = ["--reserve", "10%", "--cap", "0.5", "--weight", "2", "--pins", "5%"]
    assert run(["tenant", "add", "acme", "--group", "g", *quota]) == 0
    store = _store(own_state)
    assert store.tenants() == (Tenant("acme", "g", quota=Quota(0.1, 0.5, 2.0, 0.05)),)
    capsys.readouterr()
    assert run(["tenant", "set", "acme", "--reserve", "20%", "--disabled"]) == 0
    assert capsys.readouterr().out == (
        "changed tenant acme: group g, disabled, reserve 20%, cap 50%, weight 2, pins 5%;"
        " its keys stay\n"
    )
    assert run(["tenant", "set", "acme", "--no-group", "--enabled", "--weight", "1.5"]) == 0
    assert store.tenants() == (Tenant("acme", None, quota=Quota(0.2, 0.5, 1.5, 0.05)),)
    capsys.readouterr()
    assert run(["tenant", "list"]) == 0
    shown = capsys.readouterr().out
    for part in ("acme", "20%", "50%", "1.5", "5%", "reserved in all: 20% of the pool"):
        assert part in shown
    assert run(["tenant", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "acme", "group": None, "enabled": True, "keys": 1,
            "quota": {"reserve": 0.2, "cap": 0.5, "weight": 1.5, "pins": 0.05},
        }
    ]  # fmt: skip
    assert run(["tenant", "add", "acme"]) == 0
    assert store.tenants() == (Tenant("acme"),)
    store.close()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--reserve", "10"], ["reserve: '10'", "10%"]),
        (["--reserve", "-0.1"], ["reserve: '-0.1'"]),
        (["--cap", "0"], ["cap: 0"]),
        (["--cap", "101%"], ["cap: '101%'"]),
        (["--weight", "0"], ["weight: '0'", "positive"]),
        (["--weight", "inf"], ["weight: 'inf'"]),
        (["--pins", "much"], ["pins: 'much'"]),
        (["--reserve", "60%", "--cap", "50%"], ["reserve: 0.6", "0.5"]),
        (["--group", "g", "--no-group"], ["'g'", "--no-group"]),
        ([], ["nothing to change", "--reserve 10%"]),
        (["--reserve", "41%"], ["reserve: 41% for 'b'", "60%", "101%"]),
    ],
)
def test_bad_quotas_name_flag_and_value(
    flags: list[str], named: list[str], own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A share that is none, or more than what is left to reserve, exits 2 and changes nothing."""
    assert run(["tenant", "add", "a", "--reserve", "60%"]) == 0
    assert run(["tenant", "add", "b"]) == 0
    capsys.readouterr()
    assert run(["tenant", "set", "b", *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in named:
        assert part in error
    store = _store(own_state)
    assert store.tenants()[1] == Tenant("b")
    store.close()


def test_setting_an_unknown_tenant(capsys: pytest.CaptureFixture[str]) -> None:
    """Only a tenant that is there can be changed."""
    assert run(["tenant", "set", "nobody", "--reserve", "10%"]) == 2
    assert "'nobody'" in capsys.readouterr().err


def test_a_store_of_an_older_program_takes_quotas(own_state: Path) -> None:
    """A file that an older program wrote is brought up to date where it lies."""
    folder = StateFolder(own_state)
    with sqlite3.connect(folder.tenants_path) as old:
        old.executescript(
            "CREATE TABLE tenants (name TEXT PRIMARY KEY, share_group TEXT,"
            " enabled INTEGER NOT NULL) STRICT;"
            "CREATE TABLE keys (digest BLOB PRIMARY KEY, key_id TEXT NOT NULL UNIQUE,"
            " tenant TEXT NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,"
            " created REAL NOT NULL) STRICT;"
            "CREATE INDEX keys_by_tenant ON keys (tenant);"
            "INSERT INTO tenants VALUES ('old', 'g', 1);"
            "PRAGMA user_version = 1;"
        )
    old.close()
    assert run(["tenant", "set", "old", "--reserve", "30%"]) == 0
    store = _store(own_state)
    assert store.tenants() == (Tenant("old", "g", quota=Quota(reserve=0.3)),)
    store.close()


def test_public_prefixes_come_and_go(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prefix is added from messages, listed with its figures, and removed."""
    file = tmp_path / "system.json"
    file.write_text(json.dumps([{"role": "system", "content": "You are a helpful assistant."}]))
    assert run(["cache", "public", "add", "sys", "--messages", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "sys is public: 32 of 39 tokens, 2 blocks" in shown
    assert "each tenant's own: 'stant.\\n'" in shown
    assert run(["cache", "public", "list"]) == 0
    shown = capsys.readouterr().out
    for part in ("sys", "39", "32", "yes"):
        assert part in shown
    assert run(["cache", "public", "remove", "sys"]) == 0
    assert capsys.readouterr().out == "sys is public no more\n"
    assert service.engine.public == {}
    assert run(["cache", "public", "remove", "sys"]) == 1
    assert "404" in capsys.readouterr().err
    assert run(["cache", "public", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"public": []}


def test_a_prefix_that_is_not_in_force_is_told(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list says of each prefix that the engine does not have why that is so."""
    assert run(["cache", "public", "add", "p", "--prompt", "x" * 40]) == 0
    service.engine.restart()
    service.state.orders.problems["public prefix p"] = "It was declared for another model."
    capsys.readouterr()
    assert run(["cache", "public", "list"]) == 0
    assert "NOT IN FORCE: p: It was declared for another model." in capsys.readouterr().out


def test_pins(service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pin is made from token ids, listed and ended; one of nothing exits 1."""
    file = tmp_path / "ids.json"
    file.write_text(json.dumps([5] * 40))
    pin = ["cache", "pin", "--tenant", "a", "--seconds", "90", "--token-ids", str(file)]
    assert run([*pin, "--max-blocks", "2", "--priority", "0.5", "--half-life-seconds", "9"]) == 0
    assert capsys.readouterr().out == "pin 1: 32 of 40 tokens, 2 blocks, for 90 s\n"
    assert run(["cache", "pins"]) == 0
    shown = capsys.readouterr().out
    for part in ("32", "90", "0.5"):
        assert part in shown
    assert run(["cache", "unpin", "1"]) == 0
    assert run(["cache", "unpin", "1"]) == 1
    assert "no pin 1" in capsys.readouterr().err
    assert run(["cache", "pin", "--tenant", "a", "--seconds", "9", "--prompt", "x"]) == 1
    assert "nothing to pin" in capsys.readouterr().out
    assert run(["cache", "pin", "--tenant", "a", "--prompt", "x"]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_accounts_and_curves(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables have each account's blocks and whom it lost to, and its hit shares by size."""
    counts = AccountCounts(
        1234, 1000, 234, 5, 7, 5678, 4321, 2.5, 3.6e9, {"beta": 4, "(operator)": 30}
    )
    points = (MissRatioPoint(0.5, 0.25, None), MissRatioPoint(2.0, 0.75, 0.021))
    service.engine.engine.admin_replies[GetStats] = replace(
        STATS, accounts={"acme": counts}, miss_ratio_curves={"acme": points, "new": points[1:]}
    )
    assert run(["cache", "accounts"]) == 0
    shown = capsys.readouterr().out
    for part in ("acme", "1,234", "5,678", "2.5", "1.02", "(operator) 30, beta 4"):
        assert part in shown
    assert run(["cache", "accounts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accounts"]["acme"]["held"] == 1234
    assert run(["cache", "curves"]) == 0
    shown = capsys.readouterr().out
    for part in ("0.5", "25.0%", "75.0% ± 2.1", "new"):
        assert part in shown


def test_watch_prints_events_and_gaps(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """Kept events come from a start, after a line for what was missed; --count ends it."""
    service.events.add(14)
    assert run(["cache", "watch", "--start", "1", "--count", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "GAP: 3 events were missed"
    assert [line.split()[0] for line in lines[1:]] == ["4", "5", "6"]
    assert lines[1].split()[2:] == ["stored", "0" * 12, "acme"]
    assert run(["cache", "watch", "--start", "13", "--count", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 13


def test_watch_says_that_the_service_has_stopped(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stream that the service ends is an error with one line; a refusal is told as it came."""

    def stop() -> None:
        while not service.events.asked:
            time.sleep(0.01)
        service.state.service.draining = True

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert run(["cache", "watch"]) == 1
    stopper.join()
    assert "ended the stream" in capsys.readouterr().err
    assert run(["cache", "watch", "--start", "-1"]) == 1
    assert "400: start" in capsys.readouterr().err
    assert run(["cache", "watch", "--url", "http://127.0.0.1:1"]) == 1
    assert "cannot reach http://127.0.0.1:1" in capsys.readouterr().err
