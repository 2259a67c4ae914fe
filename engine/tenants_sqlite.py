"""Tenants in an SQLite file."""

import hmac
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from stemkv.engine.public_prefixes import DeclaredPrefix, PrefixNameTakenError
from stemkv.engine.tenants import (
    KeyTakenError,
    OverReservedError,
    Tenant,
    TenantKey,
    TenantStoreError,
    UnknownTenantError,
    digest_of,
    exceeds_pool,
    new_key,
    new_key_id,
)
from stemkv.kvstore.quotas import Quota

_BUSY_SECONDS = 5.0
_RETRY_SECONDS = 0.01
# Each brings a file from the version that is its place here to the next; a fresh one has 0.
_MIGRATIONS = (
    """
CREATE TABLE tenants (
    name TEXT PRIMARY KEY,
    share_group TEXT,
    enabled INTEGER NOT NULL
) STRICT;
CREATE TABLE keys (
    digest BLOB PRIMARY KEY,
    key_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    created REAL NOT NULL
) STRICT;
CREATE INDEX keys_by_tenant ON keys (tenant);
""",
    """
ALTER TABLE tenants ADD COLUMN reserve REAL NOT NULL DEFAULT 0.0;
ALTER TABLE tenants ADD COLUMN cap REAL NOT NULL DEFAULT 1.0;
ALTER TABLE tenants ADD COLUMN weight REAL NOT NULL DEFAULT 1.0;
ALTER TABLE tenants ADD COLUMN pins REAL NOT NULL DEFAULT 0.25;
CREATE TABLE public_prefixes (
    name TEXT PRIMARY KEY,
    adapter TEXT NOT NULL,
    prompt BLOB NOT NULL,
    fingerprint TEXT NOT NULL,
    text_sha256 BLOB NOT NULL,
    created REAL NOT NULL
) STRICT;
""",
)
_VERSION = len(_MIGRATIONS)
_TENANT_COLUMNS = "t.name, t.share_group, t.enabled, t.reserve, t.cap, t.weight, t.pins"
_RESERVED = "SELECT coalesce(sum(reserve), 0.0) FROM tenants WHERE enabled"


class SqliteTenantStore:
    """`TenantStore` in one file, in write-ahead mode; see there for the methods.

    One connection behind a lock serves all threads; processes are kept apart by SQLite.
    Raises TenantStoreError when the file cannot be opened or is of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise TenantStoreError(f"{path}: {error}") from error
        try:
            with self._reading() as connection:
                _to_wal(connection)
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA foreign_keys = ON")
            self._migrate()
        except TenantStoreError:
            self._connection.close()
            raise

    def authenticate(self, key: str) -> Tenant | None:
        """Return whose key this is, None if nobody's."""
        digest = digest_of(key)
        with self._reading() as connection:
            row = connection.execute(
                f"SELECT k.digest, {_TENANT_COLUMNS}"  # noqa: S608 - a constant
                " FROM keys k JOIN tenants t ON t.name = k.tenant WHERE k.digest = ?",
                (digest,),
            ).fetchone()
        if row is None or not hmac.compare_digest(row[0], digest):
            return None
        return _tenant(row[1:])

    def tenants(self) -> tuple[Tenant, ...]:
        """Return all tenants by name."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {_TENANT_COLUMNS} FROM tenants t ORDER BY t.name"  # noqa: S608
            ).fetchall()
        return tuple(_tenant(row) for row in rows)

    def empty(self) -> bool:
        """Whether there is no tenant at all."""
        with self._reading() as connection:
            return connection.execute("SELECT 1 FROM tenants LIMIT 1").fetchone() is None

    def put_tenant(self, tenant: Tenant) -> None:
        """Add a tenant, or change one of the same name; raises OverReservedError."""
        self.put_tenants([tenant])

    def put_tenants(self, tenants: Sequence[Tenant]) -> None:
        """Add tenants, or change those of the same names; all or none.

        Raises OverReservedError.
        """
        with self._writing() as connection:
            (before,) = connection.execute(_RESERVED).fetchone()
            connection.executemany(
                "INSERT INTO tenants (name, share_group, enabled, reserve, cap, weight, pins)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE"
                " SET share_group = excluded.share_group, enabled = excluded.enabled,"
                " reserve = excluded.reserve, cap = excluded.cap, weight = excluded.weight,"
                " pins = excluded.pins",
                [_tenant_row(tenant) for tenant in tenants],
            )
            (after,) = connection.execute(_RESERVED).fetchone()
            if exceeds_pool(after, before):
                put = sum(tenant.quota.reserve for tenant in tenants if tenant.enabled)
                raise OverReservedError(tenants, after - put)

    def remove_tenant(self, name: str) -> bool:
        """Remove a tenant with its keys; whether there was one."""
        with self._writing() as connection:
            return connection.execute("DELETE FROM tenants WHERE name = ?", (name,)).rowcount > 0

    def add_key(self, tenant: str) -> str:
        """Make a key and return it, this once; raises UnknownTenantError."""
        key = new_key()
        self.add_key_digest(tenant, digest_of(key))
        return key

    def add_key_digest(self, tenant: str, digest: bytes) -> None:
        """Add a key by its SHA-256; raises UnknownTenantError, KeyTakenError."""
        with self._writing() as connection:
            _require_tenant(connection, tenant)
            row = connection.execute(
                "SELECT tenant FROM keys WHERE digest = ?", (digest,)
            ).fetchone()
            if row is not None:
                if row[0] != tenant:
                    raise KeyTakenError(row[0])
                return
            connection.execute(
                "INSERT INTO keys (digest, key_id, tenant, created) VALUES (?, ?, ?, ?)",
                (digest, new_key_id(), tenant, time.time()),
            )

    def keys(self, tenant: str) -> tuple[TenantKey, ...]:
        """Return a tenant's keys, oldest first; raises UnknownTenantError."""
        with self._reading() as connection:
            _require_tenant(connection, tenant)
            rows = connection.execute(
                "SELECT key_id, tenant, created FROM keys WHERE tenant = ?"
                " ORDER BY created, key_id",
                (tenant,),
            ).fetchall()
        return tuple(TenantKey(*row) for row in rows)

    def revoke_key(self, key_id: str) -> bool:
        """Remove a key; whether there was one."""
        with self._writing() as connection:
            return connection.execute("DELETE FROM keys WHERE key_id = ?", (key_id,)).rowcount > 0

    def public_prefixes(self) -> tuple[DeclaredPrefix, ...]:
        """Return all public prefixes by name."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT name, prompt, fingerprint, text_sha256, created, adapter"
                " FROM public_prefixes ORDER BY name"
            ).fetchall()
        return tuple(DeclaredPrefix(*row) for row in rows)

    def add_public_prefix(self, prefix: DeclaredPrefix) -> None:
        """Keep a public prefix; raises PrefixNameTakenError."""
        with self._writing() as connection:
            row = connection.execute(
                "SELECT name, prompt, fingerprint, text_sha256, created, adapter"
                " FROM public_prefixes WHERE name = ?",
                (prefix.name,),
            ).fetchone()
            if row is not None:
                if not prefix.same_as(DeclaredPrefix(*row)):
                    raise PrefixNameTakenError(prefix.name)
                return
            connection.execute(
                "INSERT INTO public_prefixes"
                " (name, prompt, fingerprint, text_sha256, created, adapter)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                astuple(prefix),
            )

    def remove_public_prefix(self, name: str) -> bool:
        """Forget a public prefix; whether there was one."""
        with self._writing() as connection:
            done = connection.execute("DELETE FROM public_prefixes WHERE name = ?", (name,))
            return done.rowcount > 0

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _migrate(self) -> None:
        with self._writing() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise TenantStoreError(
                    f"{self._path}: version {version} was written by a newer program"
                    f" (this one knows {_VERSION})"
                )
            for migration in _MIGRATIONS[version:]:
                for statement in migration.split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise TenantStoreError(f"{self._path}: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that takes the write lock at once, so that it never has to be retried."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")


def _tenant(row: tuple[str, str | None, int, float, float, float, float]) -> Tenant:
    name, group, enabled, *shares = row
    return Tenant(name, group, bool(enabled), Quota(*shares))


def _tenant_row(tenant: Tenant) -> tuple[str, str | None, int, float, float, float, float]:
    quota = tenant.quota
    shares = (quota.reserve, quota.cap, quota.weight, quota.pins)
    return (tenant.name, tenant.group, int(tenant.enabled), *shares)


def _to_wal(connection: sqlite3.Connection) -> None:
    """Change to write-ahead logging; SQLite does not wait by itself for who does so right now."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _require_tenant(connection: sqlite3.Connection, name: str) -> None:
    if connection.execute("SELECT 1 FROM tenants WHERE name = ?", (name,)).fetchone() is None:
        raise UnknownTenantError(name)
