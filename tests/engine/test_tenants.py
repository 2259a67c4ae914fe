"""Tenant stores: the same tests for SQLite and for Redis."""

import hashlib
import multiprocessing
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest
from support.redis_server import RedisServer
from support.tenant_stores import Opener
from support.waiting import wait_until

from stemkv.engine.config import ConfigError
from stemkv.engine.tenants import (
    KeyTakenError,
    Tenant,
    TenantStoreError,
    UnknownTenantError,
)
from stemkv.engine.tenants_memory import LastKnown
from stemkv.engine.tenants_redis import RedisTenantStore
from stemkv.engine.tenants_seed import seed_from_toml
from stemkv.engine.tenants_sqlite import SqliteTenantStore


def test_empty_store(opener: Opener) -> None:
    """A fresh store has no tenant, and nobody's key opens it."""
    store = opener()
    assert store.empty()
    assert store.tenants() == ()
    assert store.authenticate("sk-stem-anything") is None
    assert store.authenticate("") is None
    assert not store.remove_tenant("a")
    assert not store.revoke_key("0" * 12)


def test_a_key_opens_its_tenant_in_every_handle(opener: Opener) -> None:
    """A key that one handle made authenticates its tenant through another."""
    first, second = opener(), opener()
    first.put_tenant(Tenant("acme", "partners"))
    first.put_tenant(Tenant("beta"))
    key = first.add_key("acme")
    assert key.startswith("sk-stem-")
    assert len(key) > 40
    assert second.authenticate(key) == Tenant("acme", "partners", enabled=True)
    assert second.authenticate(key + "x") is None
    assert second.authenticate(key.swapcase()) is None
    assert not second.empty()
    assert second.tenants() == (Tenant("acme", "partners"), Tenant("beta"))


def test_changing_a_tenant_keeps_its_keys(opener: Opener) -> None:
    """Putting a tenant again changes group and state; a disabled one is told as such."""
    store = opener()
    store.put_tenant(Tenant("acme", "partners"))
    key = store.add_key("acme")
    store.put_tenant(Tenant("acme", None, enabled=False))
    assert store.authenticate(key) == Tenant("acme", None, enabled=False)
    assert len(store.keys("acme")) == 1


def test_removal_takes_the_keys(opener: Opener) -> None:
    """Removing a tenant removes its keys for good, and leaves other tenants' alone."""
    store = opener()
    for name in ("a", "b"):
        store.put_tenant(Tenant(name))
    keys = {name: store.add_key(name) for name in ("a", "b")}
    assert store.remove_tenant("a")
    store.put_tenant(Tenant("a"))
    assert store.authenticate(keys["a"]) is None
    assert store.keys("a") == ()
    assert store.authenticate(keys["b"]) == Tenant("b")


def test_keys_are_listed_without_secrets_and_revoked(opener: Opener) -> None:
    """Listing tells ids and times only, oldest first; a revoked key opens nothing."""
    store = opener()
    store.put_tenant(Tenant("a"))
    first, second = store.add_key("a"), store.add_key("a")
    listed = store.keys("a")
    assert [key.tenant for key in listed] == ["a", "a"]
    assert listed[0].created <= listed[1].created
    assert not any(first in repr(key) or key.key_id in first for key in listed)
    assert store.revoke_key(listed[0].key_id)
    assert not store.revoke_key(listed[0].key_id)
    assert store.authenticate(first) is None
    assert store.authenticate(second) == Tenant("a")
    assert store.keys("a") == listed[1:]


def test_unknown_tenants_are_refused(opener: Opener) -> None:
    """Keys of a tenant that does not exist can be neither made nor listed."""
    store = opener()
    for call in (store.add_key, store.keys, lambda name: store.add_key_digest(name, b"0" * 32)):
        with pytest.raises(UnknownTenantError, match="'nobody'"):
            call("nobody")
    assert store.empty()


def test_one_key_cannot_have_two_owners(opener: Opener) -> None:
    """A digest is added once; again for the same tenant is nothing, for another an error."""
    store = opener()
    digest = hashlib.sha256(b"a plain old key").digest()
    for name in ("a", "b"):
        store.put_tenant(Tenant(name))
    store.add_key_digest("a", digest)
    store.add_key_digest("a", digest)
    assert len(store.keys("a")) == 1
    with pytest.raises(KeyTakenError, match="'a'"):
        store.add_key_digest("b", digest)
    assert store.authenticate("a plain old key") == Tenant("a")


@pytest.mark.parametrize("name", ["", "a b", "../x", "ä", "a" * 65, "-a", "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    """A name that would not fit a path or a log line is refused as tenant and as group."""
    with pytest.raises(ConfigError, match="tenant: "):
        Tenant(name)
    with pytest.raises(ConfigError, match="group: "):
        Tenant("a", name)


def test_threads_share_a_store(opener: Opener) -> None:
    """Eight threads that add and use keys through one handle lose none and see no error."""
    store = opener()
    store.put_tenant(Tenant("a"))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                assert store.authenticate(store.add_key("a")) == Tenant("a")
        except BaseException as error:  # noqa: BLE001 - shown by the assert below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store.keys("a")) == 160


def add_keys(path: Path) -> None:
    """Open the store in another process and add keys."""
    store = SqliteTenantStore(path)
    store.put_tenant(Tenant("a"))
    for _ in range(20):
        store.add_key("a")
    store.close()


def test_processes_share_an_sqlite_store(tmp_path: Path) -> None:
    """Processes that create and write one file at the same time lose nothing."""
    path = tmp_path / "tenants.sqlite3"
    context = multiprocessing.get_context("fork")
    with context.Pool(4) as pool:
        pool.map(add_keys, [path] * 4, chunksize=1)
    store = SqliteTenantStore(path)
    assert len(store.keys("a")) == 80
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store.close()


def open_and_close(path: Path) -> bool:
    """Open a store that others open at the same time, in a process of its own."""
    store = SqliteTenantStore(path)
    empty = store.empty()
    store.close()
    return empty


def test_processes_create_one_sqlite_file_at_once(tmp_path: Path) -> None:
    """However many processes come first to a file that is not there yet, each gets its store."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        for number in range(25):
            path = tmp_path / f"{number}.sqlite3"
            assert pool.map(open_and_close, [path] * 4, chunksize=1) == [True] * 4


def test_a_file_that_another_is_setting_up_is_waited_for(tmp_path: Path) -> None:
    """While somebody reads and is about to write, the change of journal waits for them."""
    path = tmp_path / "tenants.sqlite3"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE of_another (number INTEGER)")
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO of_another VALUES (1)")
    release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    release.start()
    store = SqliteTenantStore(path)
    assert store.empty()
    store.close()
    release.join()
    other.close()


def test_no_plain_key_is_kept(
    opener: Opener, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The plain key is nowhere in what the store keeps."""
    store = opener()
    store.put_tenant(Tenant("a"))
    key = store.add_key("a").encode()
    if isinstance(store, SqliteTenantStore):
        kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    else:
        client = request.getfixturevalue("redis_server").client()
        kept = b"".join(client.dump(name) or b"" for name in client.keys("*"))
    assert hashlib.sha256(key).digest() in kept
    assert key not in kept


def test_broken_stores_say_so(tmp_path: Path) -> None:
    """A file that is no database, a newer one, and a Redis that is away are TenantStoreErrors."""
    (tmp_path / "text").write_text("not a database, and long enough to be read as a header" * 20)
    with pytest.raises(TenantStoreError, match="text"):
        SqliteTenantStore(tmp_path / "text")
    newer = SqliteTenantStore(tmp_path / "newer")
    newer._connection.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(TenantStoreError, match="version 99"):
        SqliteTenantStore(tmp_path / "newer")
    away = RedisTenantStore("redis://127.0.0.1:1/0")
    with pytest.raises(TenantStoreError, match="redis"):
        away.empty()
    with pytest.raises(ConfigError, match="redis_url"):
        RedisTenantStore("http://127.0.0.1")


def test_serving_goes_on_while_redis_is_away(durable_redis_server: RedisServer) -> None:
    """Keys seen before still open their tenants while Redis is away; others are not decided."""
    store = RedisTenantStore(durable_redis_server.url)
    store.put_tenant(Tenant("a"))
    used, unused = store.add_key("a"), store.add_key("a")
    assert store.authenticate(used) == Tenant("a")
    assert store.authenticate("sk-stem-wrong") is None
    assert not store.empty()
    durable_redis_server.kill()
    for _ in range(2):
        assert store.authenticate(used) == Tenant("a")
        assert not store.empty()
        for key in (unused, "sk-stem-wrong"):
            with pytest.raises(TenantStoreError):
                store.authenticate(key)
    durable_redis_server.start()
    wait_until(lambda: store._known.should_ask)
    assert store.authenticate(unused) == Tenant("a")
    assert store.revoke_key(store.keys("a")[0].key_id)
    assert [store.authenticate(used), store.authenticate(unused)].count(None) == 1
    store.close()


def test_serving_goes_on_when_redis_has_lost_the_tenants(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart without data, keys seen before open their tenants, others nothing."""
    store = RedisTenantStore(redis_server.url)
    store.put_tenant(Tenant("a"))
    used, unused = store.add_key("a"), store.add_key("a")
    assert store.authenticate(used) == Tenant("a")
    assert not store.empty()
    redis_server.kill()
    redis_server.start()
    for _ in range(2):
        assert store.authenticate(used) == Tenant("a")
        assert not store.empty()
        with pytest.raises(TenantStoreError):
            store.authenticate(unused)
        with pytest.raises(TenantStoreError, match="lost"):
            store.tenants()
    assert sum("lost the tenants" in each.message for each in caplog.records) == 1
    other = RedisTenantStore(redis_server.url)
    other.put_tenant(Tenant("b"))
    wait_until(lambda: store._known.should_ask)
    assert store.tenants() == (Tenant("b"),)
    assert store.authenticate(used) is None
    store.close()
    other.close()


def test_tenants_that_were_removed_are_not_taken_for_lost(redis_server: RedisServer) -> None:
    """The last tenant's removal takes its keys at once, in every process."""
    store, other = RedisTenantStore(redis_server.url), RedisTenantStore(redis_server.url)
    store.put_tenant(Tenant("a"))
    key = store.add_key("a")
    assert store.authenticate(key) == Tenant("a")
    other.remove_tenant("a")
    assert store.authenticate(key) is None
    assert store.empty()
    store.close()
    other.close()


def test_a_frozen_redis_does_not_hold_up_every_request(redis_server: RedisServer) -> None:
    """After one timeout the store answers from memory at once, and asks again a second later."""
    store = RedisTenantStore(redis_server.url)
    store.put_tenant(Tenant("a"))
    key = store.add_key("a")
    assert store.authenticate(key) == Tenant("a")
    redis_server.pause()
    began = time.monotonic()
    store.authenticate(key)
    assert time.monotonic() - began < 3.5  # one timeout of 2 s, and not two
    began = time.monotonic()
    for _ in range(50):
        assert store.authenticate(key) == Tenant("a")
    assert time.monotonic() - began < 0.9
    redis_server.resume()
    store.close()


def test_what_was_known_does_not_hold_for_ever() -> None:
    """Remembered answers end with the grace time, and a key that Redis denies is forgotten."""
    now = [0.0]
    known = LastKnown(10.0, clock=lambda: now[0])
    assert known.empty() is None
    known.note_tenant(b"k", Tenant("a"))
    known.note_empty(empty=False)
    now[0] = 9.9
    assert known.tenant(b"k") == Tenant("a")
    assert known.empty() is False
    now[0] = 10.0
    assert known.tenant(b"k") is None
    assert known.empty() is None
    known.note_tenant(b"k", Tenant("a"))
    known.note_tenant(b"k", None)
    assert known.tenant(b"k") is None


def test_wrong_keys_do_not_push_out_right_ones() -> None:
    """A flood of keys that nobody has leaves the remembered ones alone."""
    known = LastKnown(10.0)
    known.note_tenant(b"k", Tenant("a"))
    for n in range(20_000):
        known.note_tenant(n.to_bytes(4, "big"), None)
    assert known.tenant(b"k") == Tenant("a")


SEED = """
[tenants.acme]
group = "partners"
keys = ["plain-key-1", "plain-key-2"]

[tenants.beta]
enabled = false
key_sha256 = ["%s"]

[tenants.idle]
"""


def test_seed(opener: Opener, tmp_path: Path) -> None:
    """A TOML file fills the store; a second time changes nothing; other tenants stay."""
    store = opener()
    path = tmp_path / "stemkv.toml"
    path.write_text(SEED % hashlib.sha256(b"third").hexdigest())
    store.put_tenant(Tenant("other"))
    seed_from_toml(store, path)
    before = store.keys("acme")
    seed_from_toml(store, path)
    assert store.keys("acme") == before
    assert [tenant.name for tenant in store.tenants()] == ["acme", "beta", "idle", "other"]
    assert store.authenticate("plain-key-2") == Tenant("acme", "partners")
    assert store.authenticate("third") == Tenant("beta", None, enabled=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tenants = 5", "tenants: 5 is not a table"),
        ("[tenants]\na = 3", "tenants.a: 3 is not a table"),
        ("[engine]\nx = 1", "engine: is not known"),
        ("[tenants.a]\ncolour = 'red'", "tenants.a.colour: 'red'"),
        ("[tenants.a]\ngroup = 7", "tenants.a.group: 7 is not text"),
        ("[tenants.a]\ngroup = 'a b'", "tenants.a: group: 'a b'"),
        ("[tenants.a]\nenabled = 'yes'", "tenants.a.enabled: 'yes' is not true or false"),
        ("[tenants.a]\nkeys = 'one-secret'", "tenants.a.keys: str is not a list"),
        ("[tenants.a]\nkeys = ['long-enough', 5]", "tenants.a.keys[1]: int is not text"),
        ("[tenants.a]\nkeys = ['s3cret']", "tenants.a.keys[0]: a key of 6 characters"),
        ("[tenants.a]\nkey_sha256 = ['abc']", "tenants.a.key_sha256[0]: 'abc' is not 64 hex"),
        ("[tenants.'a b']", "tenants.a b: tenant: 'a b'"),
        (
            "[tenants.a]\nkeys = ['one-secret']\n[tenants.b]\nkeys = ['one-secret']",
            "tenants.b: one of its keys is also tenants.a's",
        ),
        ("[tenants.a", "is not TOML"),
    ],
)
def test_bad_seed_is_refused_as_a_whole(content: str, message: str, tmp_path: Path) -> None:
    """A wrong field names file, field and value (never a key), and nothing is written."""
    store = SqliteTenantStore(tmp_path / "tenants.sqlite3")
    path = tmp_path / "stemkv.toml"
    path.write_text("[tenants.good]\nkeys = ['good-key-1']\n" + content)
    if content.startswith(("tenants =", "[tenants]")):
        path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        seed_from_toml(store, path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "one-secret" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert store.empty()
    store.close()


def test_missing_seed_is_refused(tmp_path: Path) -> None:
    """A file that is not there is an error that names it."""
    store = SqliteTenantStore(tmp_path / "tenants.sqlite3")
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        seed_from_toml(store, tmp_path / "none.toml")
    store.close()


def test_seed_refuses_a_key_that_the_store_gave_another(tmp_path: Path) -> None:
    """A key of the file that another tenant of the store already has is an error naming both."""
    store = SqliteTenantStore(tmp_path / "tenants.sqlite3")
    store.put_tenant(Tenant("old"))
    store.add_key_digest("old", hashlib.sha256(b"plain-key-1").digest())
    path = tmp_path / "stemkv.toml"
    path.write_text("[tenants.acme]\nkeys = ['plain-key-1']")
    with pytest.raises(ConfigError, match=r"acme: .*'old'"):
        seed_from_toml(store, path)
    store.close()
