"""The HTTP service around a fake engine, in process and on a real port."""

import contextlib
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from stemkv.engine.api.app import create_app
from stemkv.engine.tenants import Tenant, digest_of
from stemkv.engine.tenants_sqlite import SqliteTenantStore
from support.api_settings import ADMIN, ADMIN_KEY, MODEL, settings
from support.byte_tokenizer import byte_tokenizer
from support.fake_engine import FakeEngine

__all__ = [
    "ADMIN",
    "ADMIN_KEY",
    "MODEL",
    "Api",
    "chat_body",
    "listening",
    "served_api",
    "tenant_store",
    "text_body",
]


# Where writing a file through costs nothing; there is one for each of hundreds of tests.
MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def tenant_store(keys: Mapping[str, Tenant]) -> Iterator[SqliteTenantStore]:
    """Keep tenants, by their keys, in a real store for a while."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        store = SqliteTenantStore(Path(folder) / "tenants.sqlite3")
        for key, tenant in keys.items():
            store.put_tenant(tenant)
            store.add_key_digest(tenant.name, digest_of(key))
        try:
            yield store
        finally:
            store.close()


@dataclass
class Api:
    """A service under test with its parts."""

    app: FastAPI
    engine: FakeEngine
    tenants: SqliteTenantStore
    http: httpx.AsyncClient


@contextlib.asynccontextmanager
async def served_api(
    tenants: Mapping[str, Tenant] | None = None,
    *,
    chat_template: str | None = None,
    **changes: Any,
) -> AsyncIterator[Api]:
    """Serve in process, without a socket."""
    tokenizer = byte_tokenizer(chat_template) if chat_template else byte_tokenizer()
    engine = FakeEngine(tokenizer)
    with tenant_store(tenants or {}) as store:
        app = create_app(settings(**changes), engine, store, tokenizer)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Api(app, engine, store, http)
        app.state.service.encoder.close()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """Serve without tenants, in process."""
    async with served_api() as served:
        yield served


@contextlib.contextmanager
def listening(app: FastAPI, **options: Any) -> Iterator[str]:
    """Serve an application with uvicorn in a thread; yields its address, http://127.0.0.1:PORT."""
    config = uvicorn.Config(
        app, port=0, lifespan="off", log_config=None, access_log=False, **options
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def chat_body(text: str = "Hi", **changes: Any) -> dict[str, Any]:
    """Return the body of a chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **changes}


def text_body(prompt: Any = "Hi", **changes: Any) -> dict[str, Any]:
    """Return the body of a completion request."""
    return {"model": MODEL, "prompt": prompt, **changes}
