"""How to open a tenant store of each kind, for tests that hold for all of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stemkv.engine.tenants import TenantStore
from stemkv.engine.tenants_redis import RedisTenantStore
from stemkv.engine.tenants_sqlite import SqliteTenantStore
from support.redis_server import RedisServer

Opener = Callable[[], TenantStore]


@pytest.fixture(params=["sqlite", "redis"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """How to open the same store again and again."""
    opened: list[TenantStore] = []
    server: RedisServer | None = None
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")

    def open_store() -> TenantStore:
        store: TenantStore
        if server is None:
            store = SqliteTenantStore(tmp_path / "tenants.sqlite3")
        else:
            store = RedisTenantStore(server.url, deployment="d")
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()
