"""Quotas and public prefixes in the tenant stores: the same tests for SQLite and for Redis."""

import hashlib
import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.redis_server import RedisServer
from support.tenant_stores import Opener

from stemkv.engine.config import ConfigError
from stemkv.engine.public_prefixes import DeclaredPrefix, PrefixNameTakenError
from stemkv.engine.tenants import OverReservedError, Tenant, TenantStoreError
from stemkv.engine.tenants_redis import RedisTenantStore
from stemkv.engine.tenants_seed import seed_from_toml
from stemkv.engine.tenants_sqlite import SqliteTenantStore
from stemkv.kvstore.quotas import Quota

PREFIX = DeclaredPrefix(
    name="sys",
    prompt=bytes(range(128)),
    fingerprint="f" * 32,
    text_sha256=hashlib.sha256(b"text").digest(),
    created=1234.5,
    adapter="a",
)


def _tenant(name: str, reserve: float, **changes: bool | str) -> Tenant:
    return Tenant(name, quota=Quota(reserve=reserve), **changes)  # type: ignore[arg-type]


def test_a_quota_is_kept_whole(opener: Opener) -> None:
    """Each field comes back as it was put, by name and by key, in every handle."""
    first, second = opener(), opener()
    quota = Quota(reserve=1 / 3, cap=0.7, weight=2.5, pins=0.0)
    first.put_tenant(Tenant("a", "g", quota=quota))
    first.put_tenant(Tenant("b"))
    assert second.tenants() == (Tenant("a", "g", quota=quota), Tenant("b", quota=Quota()))
    assert second.authenticate(first.add_key("a")) == Tenant("a", "g", quota=quota)
    first.put_tenant(Tenant("a"))
    assert second.tenants()[0].quota == Quota()


def test_reserves_of_more_than_the_pool_are_refused(opener: Opener) -> None:
    """The numbers are named, and nothing is changed; exactly all of the pool may be reserved."""
    store = opener()
    for name in "abcdefghi":
        store.put_tenant(_tenant(name, 1 / 9))  # the floats add up to a little above 1
    before = store.tenants()
    with pytest.raises(OverReservedError) as caught:
        store.put_tenant(_tenant("z", 0.05))
    assert str(caught.value) == (
        "reserve: 5% for 'z' on top of the 100% that others reserve are 105% of the pool;"
        " at most 100% can be reserved"
    )
    with pytest.raises(OverReservedError, match=r"20% for 'a' .* 88.8889% .* 108.889%"):
        store.put_tenant(_tenant("a", 0.2))
    assert store.tenants() == before


def test_who_is_disabled_reserves_nothing(opener: Opener) -> None:
    """A disabled tenant's reserve is free for others, and is counted when it is enabled."""
    store = opener()
    store.put_tenant(_tenant("a", 0.8, enabled=False))
    store.put_tenant(_tenant("b", 0.8))
    with pytest.raises(OverReservedError, match="160%"):
        store.put_tenant(_tenant("a", 0.8))
    store.put_tenant(_tenant("b", 0.8, enabled=False))
    store.put_tenant(_tenant("a", 0.8))
    assert [tenant.enabled for tenant in store.tenants()] == [True, False]


def test_tenants_are_put_all_or_none(opener: Opener) -> None:
    """Shares can be moved in one call, in any order; if the sum is too much none is changed."""
    store = opener()
    store.put_tenants([_tenant("a", 0.6), _tenant("b", 0.4)])
    store.put_tenants([_tenant("b", 0.6), _tenant("a", 0.4)])
    assert [tenant.quota.reserve for tenant in store.tenants()] == [0.4, 0.6]
    with pytest.raises(OverReservedError, match=r"50% for 'c', 20% for 'b' on top of the 40%"):
        store.put_tenants([_tenant("c", 0.5), _tenant("b", 0.2)])
    assert [tenant.quota.reserve for tenant in store.tenants()] == [0.4, 0.6]
    store.put_tenants([])


def test_reserves_hold_between_threads(opener: Opener) -> None:
    """However many set reserves at once, together they never get more than the pool."""
    stores = [opener() for _ in range(8)]
    refused: list[str] = []

    def put(number: int) -> None:
        try:
            stores[number].put_tenant(_tenant(f"t{number}", 0.3))
        except OverReservedError:
            refused.append(f"t{number}")

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores[0].tenants()) == 3
    assert len(refused) == 5


def test_too_much_can_be_mended_step_by_step(tmp_path: Path, redis_server: RedisServer) -> None:
    """Where more than the pool is reserved already, it can become less, but not more."""
    sqlite = SqliteTenantStore(tmp_path / "tenants.sqlite3")
    redis = RedisTenantStore(redis_server.url, deployment="d")
    for store in (sqlite, redis):
        store.put_tenants([_tenant("a", 0.5), _tenant("b", 0.5)])
    sqlite._connection.execute("UPDATE tenants SET reserve = 0.9")
    record = json.dumps({"group": None, "enabled": True, "quota": {"reserve": 0.9}})
    redis_server.client().hset("stemkv:d:tenants", mapping={"a": record, "b": record})
    for store in (sqlite, redis):
        store.put_tenant(_tenant("a", 0.8))
        with pytest.raises(OverReservedError):
            store.put_tenant(_tenant("a", 0.85))
        store.put_tenant(_tenant("b", 0.2))
        assert [tenant.quota.reserve for tenant in store.tenants()] == [0.8, 0.2]
        store.close()


def test_public_prefixes_are_kept(opener: Opener) -> None:
    """They come back as they were put, by name, in every handle, until they are removed."""
    first, second = opener(), opener()
    assert first.public_prefixes() == ()
    other = replace(PREFIX, name="abc", adapter="")
    first.add_public_prefix(PREFIX)
    first.add_public_prefix(other)
    assert second.public_prefixes() == (other, PREFIX)
    assert PREFIX.tokens == 32
    assert second.remove_public_prefix("sys")
    assert not first.remove_public_prefix("sys")
    assert first.public_prefixes() == (other,)
    assert first.empty()


def test_a_name_is_for_one_prefix(opener: Opener) -> None:
    """The same prefix again changes nothing, not even its time; another is refused by name."""
    store = opener()
    store.add_public_prefix(PREFIX)
    store.add_public_prefix(replace(PREFIX, created=9999.0))
    for changed in (
        replace(PREFIX, prompt=bytes(64)),
        replace(PREFIX, fingerprint="e" * 32),
        replace(PREFIX, text_sha256=b""),
        replace(PREFIX, adapter=""),
    ):
        with pytest.raises(PrefixNameTakenError, match="'sys'"):
            store.add_public_prefix(changed)
    assert store.public_prefixes() == (PREFIX,)


def test_a_prefix_needs_a_name() -> None:
    """What would not fit a path is refused."""
    for name in ("", "a/b", "a b", "-a", "x" * 65):
        with pytest.raises(ConfigError, match="name: "):
            replace(PREFIX, name=name)


def test_prefixes_that_redis_lost_are_not_taken_for_withdrawn(redis_server: RedisServer) -> None:
    """After a restart without data the prefixes are not said to be none."""
    store = RedisTenantStore(redis_server.url, deployment="d")
    store.add_public_prefix(PREFIX)
    assert store.public_prefixes() == (PREFIX,)
    redis_server.kill()
    redis_server.start()
    with pytest.raises(TenantStoreError, match="lost"):
        store.public_prefixes()
    store.close()


def _old_file(path: Path) -> None:
    """Write what the first version wrote."""
    old = sqlite3.connect(path)
    old.executescript(
        "CREATE TABLE tenants (name TEXT PRIMARY KEY, share_group TEXT,"
        " enabled INTEGER NOT NULL) STRICT;"
        "CREATE TABLE keys (digest BLOB PRIMARY KEY, key_id TEXT NOT NULL UNIQUE,"
        " tenant TEXT NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,"
        " created REAL NOT NULL) STRICT;"
        "CREATE INDEX keys_by_tenant ON keys (tenant);"
        "INSERT INTO tenants VALUES ('a', 'g', 1), ('b', NULL, 0);"
        "PRAGMA user_version = 1;"
    )
    old.execute(
        "INSERT INTO keys VALUES (?, 'id-1', 'a', 5.0)", (hashlib.sha256(b"the key").digest(),)
    )
    old.commit()
    old.close()


def test_an_sqlite_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """Tenants and keys stay, with no quota; the new fields work; a second opening changes nothing.

    A file with no version at all is made from nothing, through the same steps.
    """
    path = tmp_path / "tenants.sqlite3"
    _old_file(path)
    for _ in range(2):
        store = SqliteTenantStore(path)
        assert store.tenants() == (Tenant("a", "g"), Tenant("b", enabled=False))
        assert store.authenticate("the key") == Tenant("a", "g")
        assert store.public_prefixes() == ()
        assert store._connection.execute("PRAGMA user_version").fetchone() == (2,)
        store.close()
    store = SqliteTenantStore(path)
    store.put_tenant(_tenant("b", 0.5))
    store.add_public_prefix(PREFIX)
    fresh = SqliteTenantStore(tmp_path / "fresh.sqlite3")

    def shape(of: SqliteTenantStore) -> list[tuple[str, str]]:
        query = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
        return sorted(of._connection.execute(query).fetchall())

    assert shape(store) == shape(fresh)
    store.close()
    fresh.close()


def test_records_of_older_programs_in_redis_have_no_quota(redis_server: RedisServer) -> None:
    """A tenant that was put before there were quotas has the usual one, and reserves nothing."""
    client = redis_server.client()
    client.set("stemkv:d:tenants-kept", "1")
    client.hset("stemkv:d:tenants", "a", '{"group": "g", "enabled": true}')
    store = RedisTenantStore(redis_server.url, deployment="d")
    assert store.tenants() == (Tenant("a", "g"),)
    store.put_tenant(_tenant("b", 1.0))
    assert store.authenticate(store.add_key("a")) == Tenant("a", "g")
    store.close()


SEED = """
[tenants.a]
reserve = "20%"
cap = 0.5
weight = 2
pins = "5%"

[tenants.b]
reserve = 0.3
"""


def test_a_file_has_quotas(opener: Opener, tmp_path: Path) -> None:
    """Shares stand as percentages or numbers; what the file leaves out is as without a quota."""
    store = opener()
    path = tmp_path / "stemkv.toml"
    path.write_text(SEED)
    seed_from_toml(store, path)
    assert store.tenants() == (
        Tenant("a", quota=Quota(0.2, 0.5, 2.0, 0.05)),
        Tenant("b", quota=Quota(reserve=0.3)),
    )
    path.write_text(SEED.replace("0.3", "0.8").replace("20%", "10%"))
    seed_from_toml(store, path)
    assert [tenant.quota.reserve for tenant in store.tenants()] == [0.1, 0.8]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("reserve = 10", "tenants.a: reserve: 10 is not a share"),
        ("reserve = '10'", "tenants.a: reserve: '10' is not a share"),
        ("cap = true", "tenants.a: cap: True is not a share"),
        ("cap = 0", "tenants.a: cap: 0 leaves no room"),
        ("weight = 0", "tenants.a: weight: 0 is not a positive number"),
        ("weight = nan", "tenants.a: weight: nan is not a positive number"),
        ("pins = [1]", "tenants.a: pins: [1] is not a share"),
        ("reserve = 0.5\ncap = '40%'", "tenants.a: reserve: 0.5 is over the cap, 0.4"),
        (
            "reserve = '60%'\n[tenants.b]\nreserve = '50%'",
            "reserve: 60% for 'a', 50% for 'b' on top of the 0% that others reserve are 110%",
        ),
    ],
)
def test_bad_quotas_in_a_file(content: str, message: str, tmp_path: Path) -> None:
    """A wrong share, or too many of them, names the file, the field and the value."""
    store = SqliteTenantStore(tmp_path / "tenants.sqlite3")
    path = tmp_path / "stemkv.toml"
    path.write_text("[tenants.a]\n" + content)
    with pytest.raises(ConfigError) as caught:
        seed_from_toml(store, path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert store.empty()
    store.close()
