"""Tenants and their keys: what the service asks of any store that keeps them.

A key is random and long, so its plain SHA-256 is kept: there is nothing to guess from.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Protocol

from stemkv.engine.config import ConfigError

KEY_PREFIX = "sk-stem-"
DIGEST_BYTES = 32

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first"


class TenantStoreError(Exception):
    """The store of tenants cannot be read or written."""


class UnknownTenantError(LookupError):
    """No tenant has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"tenant {name!r} is not known")


class KeyTakenError(ValueError):
    """The key already belongs to another tenant."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"the key already belongs to tenant {owner!r}")


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who may ask. group: tenants of one group share cached prefixes; None shares with nobody.

    Raises ConfigError on names that are empty, too long or of other characters.
    """

    name: str
    group: str | None = None
    enabled: bool = True

    def __post_init__(self) -> None:
        """Refuse names that would not print or not fit a path."""
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"tenant: {self.name!r} is not a name ({_NAME_RULE})")
        if self.group is not None and not _NAME.fullmatch(self.group):
            raise ConfigError(f"group: {self.group!r} is not a name ({_NAME_RULE})")


@dataclass(frozen=True, slots=True)
class TenantKey:
    """What may be told of a key. created: unix seconds."""

    key_id: str
    tenant: str
    created: float


class TenantStore(Protocol):
    """Where tenants and their keys are kept. Safe for several threads and processes.

    Every method may wait for a disk or a network, and raises TenantStoreError.
    """

    def authenticate(self, key: str) -> Tenant | None:
        """Return whose key this is, None if nobody's; a disabled tenant is returned too."""
        ...

    def tenants(self) -> tuple[Tenant, ...]:
        """Return all tenants by name."""
        ...

    def empty(self) -> bool:
        """Whether there is no tenant at all."""
        ...

    def put_tenant(self, tenant: Tenant) -> None:
        """Add a tenant, or change one of the same name; its keys stay."""
        ...

    def remove_tenant(self, name: str) -> bool:
        """Remove a tenant with its keys; whether there was one."""
        ...

    def add_key(self, tenant: str) -> str:
        """Make a key and return it, this once; raises UnknownTenantError."""
        ...

    def add_key_digest(self, tenant: str, digest: bytes) -> None:
        """Add a key by its SHA-256 (32 bytes); nothing changes if the tenant has it already.

        Raises UnknownTenantError, KeyTakenError.
        """
        ...

    def keys(self, tenant: str) -> tuple[TenantKey, ...]:
        """Return a tenant's keys, oldest first; raises UnknownTenantError."""
        ...

    def revoke_key(self, key_id: str) -> bool:
        """Remove a key; whether there was one."""
        ...

    def close(self) -> None:
        """Give back what the store holds open."""
        ...


def new_key() -> str:
    """Return a fresh key: 32 random bytes in URL-safe text behind a prefix that scanners find."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def new_key_id() -> str:
    """Return a fresh id, which says nothing of its key."""
    return secrets.token_hex(6)


def digest_of(key: str) -> bytes:
    """SHA-256 of a key: what is kept of it."""
    return hashlib.sha256(key.encode()).digest()
