"""`stemkv tenant`: who may ask, and with which keys. Works while the service runs, or before."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

import typer

from stemkv.engine.cli_groups import grouped
from stemkv.engine.cli_state import Deployment, RedisUrl, StateDir, open_tenants
from stemkv.engine.cli_tables import rows, show
from stemkv.engine.config import ConfigError
from stemkv.engine.state import StateFolder
from stemkv.engine.tenants import Tenant, TenantStore, UnknownTenantError
from stemkv.engine.tenants_quota import percent, read_quota, written
from stemkv.kvstore.quotas import Quota

app = typer.Typer(no_args_is_help=True, help="Add, list and remove tenants and their keys.")
keys_app = typer.Typer(no_args_is_help=True, help="Add, list and revoke a tenant's keys.")
app.add_typer(keys_app, name="key")

Name = Annotated[str, typer.Argument(help="Name of the tenant.")]
Group = Annotated[str | None, typer.Option(help="Tenants of one group share cached prefixes.")]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tenants are kept."""

    state_dir: StateDir = None
    redis_url: RedisUrl = None
    deployment: Deployment = "default"

    @contextmanager
    def opened(self) -> Iterator[TenantStore]:
        """Open the store for a while; raises ConfigError for a tenant that is not there."""
        store = open_tenants(StateFolder(self.state_dir), self.redis_url, self.deployment)
        try:
            yield store
        except UnknownTenantError as error:
            raise ConfigError(f"{error}; `stemkv tenant list` names those that are") from error
        finally:
            store.close()


@dataclass(frozen=True, slots=True)
class QuotaIn:
    """What is told of a quota."""

    reserve: Annotated[
        str | None, typer.Option(help="Share of the pool that is always its own (10%, 0.1).")
    ] = None
    cap: Annotated[str | None, typer.Option(help="Share of the pool that it never exceeds.")] = None
    weight: Annotated[
        str | None, typer.Option(help="Of the rest of the pool, as a ratio to other tenants' (2).")
    ] = None
    pins: Annotated[
        str | None, typer.Option(help="Share of the pool that may be pinned for it.")
    ] = None

    def over(self, base: Quota) -> Quota:
        """Return a quota with what is told here, the rest as it was; raises ConfigError."""
        told = {name: text for name, text in asdict(self).items() if text is not None}
        return read_quota(told, base)


@app.command()
@grouped
def add(
    name: Name,
    *,
    group: Group = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Refuse its requests.")] = False,
    quota_in: QuotaIn,
    place: Place,
) -> None:
    """Add a tenant and print its first key; one that is there becomes as told here.

    Without --group it is in none, without --disabled it is enabled, and it has no quota but what
    is told. `stemkv tenant set` changes a part.
    """
    quota = quota_in.over(Quota())
    with place.opened() as store:
        known = any(tenant.name == name for tenant in store.tenants())
        tenant = Tenant(name=name, group=group, enabled=not disabled, quota=quota)
        store.put_tenant(tenant)
        if known:
            typer.echo(_changed(tenant))
        else:
            typer.echo(f"added tenant {name}; its key, shown this once:", err=True)
            typer.echo(store.add_key(name))


@app.command("set")
@grouped
def change(
    name: Name,
    *,
    group: Group = None,
    no_group: Annotated[bool, typer.Option("--no-group", help="Take it out of its group.")] = False,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Take or refuse its requests.")
    ] = None,
    quota_in: QuotaIn,
    place: Place,
) -> None:
    """Change what is told of a tenant, and leave the rest. Quotas are in force seconds later."""
    if group is None and not no_group and enabled is None and quota_in == QuotaIn():
        raise ConfigError("set: nothing to change; give what is to be, say --reserve 10%")
    if group is not None and no_group:
        raise ConfigError(f"group: {group!r} and --no-group exclude each other; give one")
    with place.opened() as store:
        found = next((tenant for tenant in store.tenants() if tenant.name == name), None)
        if found is None:
            raise UnknownTenantError(name)
        tenant = replace(
            found,
            group=None if no_group else group or found.group,
            enabled=found.enabled if enabled is None else enabled,
            quota=quota_in.over(found.quota),
        )
        store.put_tenant(tenant)
    typer.echo(_changed(tenant))


@app.command("list")
@grouped
def list_tenants(
    place: Place,
    raw: Annotated[bool, typer.Option("--json", help="Print JSON, shares from 0 to 1.")] = False,
) -> None:
    """List tenants with their quotas."""
    with place.opened() as store:
        found = [(tenant, len(store.keys(tenant.name))) for tenant in store.tenants()]
    if raw:
        typer.echo(json.dumps([asdict(each) | {"keys": keys} for each, keys in found], indent=1))
        return
    lines = []
    for tenant, keys in found:
        state = "enabled" if tenant.enabled else "disabled"
        lines.append((tenant.name, tenant.group, state, keys, *written(tenant.quota).values()))
    show(rows(["tenant", "group", "state", "keys", *written(Quota())], lines))
    reserved = sum(tenant.quota.reserve for tenant, _ in found if tenant.enabled)
    if reserved:
        typer.echo(f"reserved in all: {percent(reserved)} of the pool")


def _changed(tenant: Tenant) -> str:
    state = "enabled" if tenant.enabled else "disabled"
    shared = f"group {tenant.group}" if tenant.group else "no group"
    usual = written(Quota())
    quota = "".join(
        f", {name} {text}" for name, text in written(tenant.quota).items() if text != usual[name]
    )
    return f"changed tenant {tenant.name}: {shared}, {state}{quota}; its keys stay"


@app.command()
@grouped
def remove(
    name: Name,
    place: Place,
) -> None:
    """Remove a tenant with its keys. What it cached stays until flushed or evicted."""
    with place.opened() as store:
        if not store.remove_tenant(name):
            raise UnknownTenantError(name)
    typer.echo(f"removed tenant {name}")


@keys_app.command("add")
@grouped
def add_key(
    tenant: Name,
    place: Place,
) -> None:
    """Make another key for a tenant and print it, this once."""
    with place.opened() as store:
        typer.echo(store.add_key(tenant))


@keys_app.command("list")
@grouped
def list_keys(
    tenant: Name,
    place: Place,
) -> None:
    """List a tenant's keys by their ids; the keys themselves are not kept."""
    lines = []
    with place.opened() as store:
        for key in store.keys(tenant):
            created = datetime.fromtimestamp(key.created, UTC)
            lines.append((key.key_id, created.isoformat(timespec="seconds")))
    show(rows(["key id", "created"], lines))


@keys_app.command("revoke")
@grouped
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `key list` gives it.")],
    place: Place,
) -> None:
    """Revoke a key by its id."""
    with place.opened() as store:
        if not store.revoke_key(key_id):
            raise ConfigError(f"key: {key_id!r} is not known; `stemkv tenant key list` has the ids")
    typer.echo(f"revoked key {key_id}")
