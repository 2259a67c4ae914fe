"""`stemkv tenant`: who may ask, and with which keys. Works while the service runs, or before."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from stemkv.engine.cli_state import Deployment, RedisUrl, StateDir, open_tenants
from stemkv.engine.cli_tables import rows, show
from stemkv.engine.config import ConfigError
from stemkv.engine.state import StateFolder
from stemkv.engine.tenants import Tenant, TenantStore, UnknownTenantError

app = typer.Typer(no_args_is_help=True, help="Add, list and remove tenants and their keys.")
keys_app = typer.Typer(no_args_is_help=True, help="Add, list and revoke a tenant's keys.")
app.add_typer(keys_app, name="key")

Name = Annotated[str, typer.Argument(help="Name of the tenant.")]


@contextmanager
def _store(state_dir: Path | None, redis_url: str | None, deployment: str) -> Iterator[TenantStore]:
    store = open_tenants(StateFolder(state_dir), redis_url, deployment)
    try:
        yield store
    except UnknownTenantError as error:
        raise ConfigError(f"{error}; `stemkv tenant list` names those that are") from error
    finally:
        store.close()


@app.command()
def add(
    name: Name,
    group: Annotated[
        str | None, typer.Option(help="Tenants of one group share cached prefixes.")
    ] = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Refuse its requests.")] = False,
    state_dir: StateDir = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = "default",
) -> None:
    """Add a tenant and print its first key; one that is there gets the group and state told here.

    Without --group it is in none, without --disabled it is enabled.
    """
    with _store(state_dir, redis_url, deployment) as store:
        known = any(tenant.name == name for tenant in store.tenants())
        store.put_tenant(Tenant(name=name, group=group, enabled=not disabled))
        if known:
            state = "disabled" if disabled else "enabled"
            shared = f"group {group}" if group else "no group"
            typer.echo(f"changed tenant {name}: {shared}, {state}; its keys stay")
        else:
            typer.echo(f"added tenant {name}; its key, shown this once:", err=True)
            typer.echo(store.add_key(name))


@app.command("list")
def list_tenants(
    state_dir: StateDir = None, redis_url: RedisUrl = None, deployment: Deployment = "default"
) -> None:
    """List tenants."""
    lines = []
    with _store(state_dir, redis_url, deployment) as store:
        for tenant in store.tenants():
            state = "enabled" if tenant.enabled else "disabled"
            lines.append((tenant.name, tenant.group, state, len(store.keys(tenant.name))))
    show(rows(["tenant", "group", "state", "keys"], lines))


@app.command()
def remove(
    name: Name,
    state_dir: StateDir = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = "default",
) -> None:
    """Remove a tenant with its keys. What it cached stays until flushed or evicted."""
    with _store(state_dir, redis_url, deployment) as store:
        if not store.remove_tenant(name):
            raise UnknownTenantError(name)
    typer.echo(f"removed tenant {name}")


@keys_app.command("add")
def add_key(
    tenant: Name,
    state_dir: StateDir = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = "default",
) -> None:
    """Make another key for a tenant and print it, this once."""
    with _store(state_dir, redis_url, deployment) as store:
        typer.echo(store.add_key(tenant))


@keys_app.command("list")
def list_keys(
    tenant: Name,
    state_dir: StateDir = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = "default",
) -> None:
    """List a tenant's keys by their ids; the keys themselves are not kept."""
    lines = []
    with _store(state_dir, redis_url, deployment) as store:
        for key in store.keys(tenant):
            created = datetime.fromtimestamp(key.created, UTC)
            lines.append((key.key_id, created.isoformat(timespec="seconds")))
    show(rows(["key id", "created"], lines))


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `key list` gives it.")],
    state_dir: StateDir = None,
    redis_url: RedisUrl = None,
    deployment: Deployment = "default",
) -> None:
    """Revoke a key by its id."""
    with _store(state_dir, redis_url, deployment) as store:
        if not store.revoke_key(key_id):
            raise ConfigError(f"key: {key_id!r} is not known; `stemkv tenant key list` has the ids")
    typer.echo(f"revoked key {key_id}")
