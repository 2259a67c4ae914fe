"""Tenants from a TOML file, for operators who keep them in version control.

[tenants.acme]
group = "partners"                # optional: shares cached prefixes within it
enabled = true                    # optional
reserve = "10%"                   # optional, as cap, weight and pins: see `Quota`
keys = ["sk-..."]                 # the keys themselves, or
key_sha256 = ["<64 hex digits>"]  # their SHA-256
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stemkv.engine.config import ConfigError
from stemkv.engine.tenants import (
    KeyTakenError,
    OverReservedError,
    Tenant,
    TenantStore,
    digest_of,
)
from stemkv.engine.tenants_quota import QUOTA_FIELDS, read_quota

SHORTEST_KEY = 8

_FIELDS = ("group", "enabled", *QUOTA_FIELDS, "keys", "key_sha256")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class SeedTenant:
    """One tenant of the file, with the SHA-256 of each of its keys."""

    tenant: Tenant
    digests: tuple[bytes, ...]


def seed_from_toml(store: TenantStore, path: Path) -> None:
    """Put the file's tenants and keys into the store; what else is in the store stays.

    The file is checked as a whole before anything is written. Seeding again changes nothing,
    except that it gives back a key of the file that was revoked, and undoes changes of group,
    state and quota. Raises ConfigError, which names file, field and value (of a key only its
    place).
    """
    seeds = read_seed(path)
    try:
        store.put_tenants([seed.tenant for seed in seeds])
    except OverReservedError as error:
        raise ConfigError(f"{path}: {error}") from error
    for seed in seeds:
        for digest in seed.digests:
            try:
                store.add_key_digest(seed.tenant.name, digest)
            except KeyTakenError as error:
                raise ConfigError(
                    f"{path}: tenants.{seed.tenant.name}: one of its keys is refused: {error}"
                ) from error


def read_seed(path: Path) -> tuple[SeedTenant, ...]:
    """Read and check the file; raises ConfigError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    unknown = sorted(set(content) - {"tenants", "serve"})  # [serve] is the command line's
    if unknown:
        raise ConfigError(f"{path}: {unknown[0]}: is not known here (only serve and tenants are)")
    tables = content.get("tenants", {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{path}: tenants: {tables!r} is not a table of tenants")
    seeds = tuple(_read_tenant(path, name, table) for name, table in tables.items())
    _check_keys_differ(path, seeds)
    return seeds


def _read_tenant(path: Path, name: str, table: object) -> SeedTenant:
    where = f"{path}: tenants.{name}"
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {table!r} is not a table; write [tenants.{name}]")
    for key, value in table.items():
        if key not in _FIELDS:
            raise ConfigError(
                f"{where}.{key}: {value!r}: no such field (only {', '.join(_FIELDS)})"
            )
    group = table.get("group")
    if group is not None and not isinstance(group, str):
        raise ConfigError(f"{where}.group: {group!r} is not text")
    enabled = table.get("enabled", True)
    if not isinstance(enabled, bool):
        raise ConfigError(f"{where}.enabled: {enabled!r} is not true or false")
    try:
        quota = read_quota({field: table[field] for field in QUOTA_FIELDS if field in table})
        tenant = Tenant(name, group, enabled, quota)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    plain = [digest_of(key) for key in _read_keys(where, table)]
    return SeedTenant(tenant, (*plain, *_read_digests(where, table)))


def _read_keys(where: str, table: Mapping[str, object]) -> list[str]:
    keys = _strings(f"{where}.keys", table.get("keys", []), is_secret=True)
    for index, key in enumerate(keys):
        if len(key) < SHORTEST_KEY or not key.isascii() or any(c.isspace() for c in key):
            raise ConfigError(
                f"{where}.keys[{index}]: a key of {len(key)} characters; it needs at least"
                f" {SHORTEST_KEY} of ASCII without spaces"
            )
    return keys


def _read_digests(where: str, table: Mapping[str, object]) -> list[bytes]:
    digests = _strings(f"{where}.key_sha256", table.get("key_sha256", []), is_secret=False)
    for index, digest in enumerate(digests):
        if not _DIGEST.fullmatch(digest):
            raise ConfigError(f"{where}.key_sha256[{index}]: {digest!r} is not 64 hex digits")
    return [bytes.fromhex(digest) for digest in digests]


def _strings(where: str, values: object, *, is_secret: bool) -> list[str]:
    if not isinstance(values, list):
        shown = type(values).__name__ if is_secret else repr(values)
        raise ConfigError(f"{where}: {shown} is not a list of text")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            shown = type(value).__name__ if is_secret else repr(value)
            raise ConfigError(f"{where}[{index}]: {shown} is not text")
    return list(values)


def _check_keys_differ(path: Path, seeds: tuple[SeedTenant, ...]) -> None:
    owners: dict[bytes, str] = {}
    for seed in seeds:
        for digest in seed.digests:
            owner = owners.setdefault(digest, seed.tenant.name)
            if owner != seed.tenant.name:
                raise ConfigError(
                    f"{path}: tenants.{seed.tenant.name}: one of its keys is also tenants.{owner}'s"
                )
