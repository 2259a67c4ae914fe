"""Tenants and their keys: what the service asks of any store that keeps them.

A key is random and long, so its plain SHA-256 is kept: there is nothing to guess from.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stemkv.engine.config import ConfigError
from stemkv.engine.public_prefixes import NAME, NAME_RULE, DeclaredPrefix
from stemkv.engine.tenants_quota import percent
from stemkv.kvstore.quotas import Quota

KEY_PREFIX = "sk-stem-"
DIGEST_BYTES = 32

# Sums of shares such as three times 0.1 and 0.7 come out a little above 1.
_SHARE_ERROR = 1e-9


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


class OverReservedError(ConfigError):
    """The enabled tenants' reserves would be more than the pool, and more than they were.

    put: the tenants that were to be put. others: what all others reserve together.
    """

    def __init__(self, put: Sequence["Tenant"], others: float) -> None:
        asked = [tenant for tenant in put if tenant.enabled and tenant.quota.reserve]
        wanted = ", ".join(f"{percent(t.quota.reserve)} for {t.name!r}" for t in asked)
        total = others + sum(tenant.quota.reserve for tenant in asked)
        super().__init__(
            f"reserve: {wanted} on top of the {percent(others)} that others reserve are"
            f" {percent(total)} of the pool; at most 100% can be reserved"
        )


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who may ask. group: tenants of one group share cached prefixes; None shares with nobody.

    quota: what it may hold of the pool; a group has what its enabled members have together.
    Raises ConfigError on names that are empty, too long or of other characters.
    """

    name: str
    group: str | None = None
    enabled: bool = True
    quota: Quota = field(default_factory=Quota)

    def __post_init__(self) -> None:
        """Refuse names that would not print or not fit a path."""
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"tenant: {self.name!r} is not a name ({NAME_RULE})")
        if self.group is not None and not NAME.fullmatch(self.group):
            raise ConfigError(f"group: {self.group!r} is not a name ({NAME_RULE})")


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
        """Add a tenant, or change one of the same name; its keys stay.

        Raises OverReservedError.
        """
        ...

    def put_tenants(self, tenants: Sequence[Tenant]) -> None:
        """Add tenants, or change those of the same names; their keys stay. All or none.

        Raises OverReservedError.
        """
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

    def public_prefixes(self) -> tuple[DeclaredPrefix, ...]:
        """Return all public prefixes by name."""
        ...

    def add_public_prefix(self, prefix: DeclaredPrefix) -> None:
        """Keep a public prefix; raises PrefixNameTakenError, if it is not there just so."""
        ...

    def remove_public_prefix(self, name: str) -> bool:
        """Forget a public prefix; whether there was one."""
        ...

    def close(self) -> None:
        """Give back what the store holds open."""
        ...


def group_account(group: str) -> str:
    """Return what reports call a group's account: no tenant can have such a name."""
    return f"{group} (group)"


def new_key() -> str:
    """Return a fresh key: 32 random bytes in URL-safe text behind a prefix that scanners find."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def new_key_id() -> str:
    """Return a fresh id, which says nothing of its key."""
    return secrets.token_hex(6)


def digest_of(key: str) -> bytes:
    """SHA-256 of a key: what is kept of it."""
    return hashlib.sha256(key.encode()).digest()


def exceeds_pool(reserved: float, before: float) -> bool:
    """Whether so much reserved in all is to be refused: more than the pool, and than before."""
    return reserved > 1 + _SHARE_ERROR and reserved > before
