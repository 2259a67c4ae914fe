"""Flags that several commands share: the state folder and the tenant store."""

from pathlib import Path
from typing import Annotated

import typer

from stemkv.engine.config import ConfigError
from stemkv.engine.state import StateFolder
from stemkv.engine.tenants import TenantStore
from stemkv.engine.tenants_redis import RedisTenantStore
from stemkv.engine.tenants_sqlite import SqliteTenantStore
from stemkv.kvstore.directory.redis_calls import shared_secret

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="STEMKV_STATE_DIR",
        help="Folder of the secret, the admin key and the tenants (default: the user's).",
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar="STEMKV_REDIS_URL",
        help="Redis that workers share, redis://HOST:PORT/DB (default: none, all in process).",
    ),
]
Deployment = Annotated[
    str, typer.Option("--deployment", help="Name of the deployment within that Redis.")
]


def deployment_secret(state: StateFolder, redis_url: str | None, deployment: str) -> bytes:
    """Return the deployment's secret: Redis's where one is told, so that all workers have it.

    Raises ConfigError, DirectoryUnavailable, DirectoryMismatch.
    """
    if redis_url is None:
        return state.deployment_secret()
    try:
        return shared_secret(redis_url, deployment)
    except ValueError as error:
        raise ConfigError(
            f"redis-url: {redis_url!r}: {error}; give one like redis://127.0.0.1:6379/0"
        ) from error


def open_tenants(state: StateFolder, redis_url: str | None, deployment: str) -> TenantStore:
    """Return the tenants' store: Redis where one is told, else SQLite in the state folder.

    Raises ConfigError, TenantStoreError.
    """
    if redis_url is not None:
        return RedisTenantStore(redis_url, deployment=deployment)
    return SqliteTenantStore(state.tenants_path)
