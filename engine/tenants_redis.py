"""Tenants in Redis, for services that run on several machines.

Keys, P = "stemkv:{deployment}:":
  P tenants   hash   name   -> JSON {"group", "enabled", "quota"}; those of older programs have none
  P keys      hash   digest -> JSON {"key_id", "tenant", "created"}
  P key-ids   hash   key id -> digest
  P tenants-kept  string  there since something was put here; gone when Redis lost the tenants
  P public-prefixes  hash  name -> JSON of a `DeclaredPrefix`, bytes as base64
Scripts change them, so that no process ever sees one without the other.
"""

import base64
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from stemkv.engine.config import ConfigError
from stemkv.engine.public_prefixes import DeclaredPrefix, PrefixNameTakenError
from stemkv.engine.tenants import (
    KeyTakenError,
    OverReservedError,
    Tenant,
    TenantKey,
    TenantStoreError,
    UnknownTenantError,
    digest_of,
    new_key,
    new_key_id,
)
from stemkv.engine.tenants_memory import LastKnown
from stemkv.engine.tenants_redis_scripts import (
    ADD_KEY,
    ADD_PREFIX,
    AUTHENTICATE,
    EXIST,
    PUT_TENANTS,
    REMOVE_TENANT,
    REVOKE_KEY,
)
from stemkv.kvstore.quotas import Quota

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0


class RedisTenantStore:
    """`TenantStore` in Redis; see there for the methods.

    Connects at the first call. grace_seconds: how long `authenticate` and `empty` go on with
    what Redis last said when it is away, or has come back without the tenants that it had, so
    that serving goes on and nothing is opened by a loss. Raises ConfigError when the address is
    not one.
    """

    def __init__(
        self, url: str, *, deployment: str = "default", grace_seconds: float = 3600.0
    ) -> None:
        try:
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                # once more at once: a pooled connection may have died since its last use; but
                # not after a timeout, which would double the wait for a Redis that hangs
                retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            )
        except ValueError as error:
            raise ConfigError(f"redis_url: {error}") from error
        self._known = LastKnown(grace_seconds)
        prefix = f"stemkv:{deployment}:"
        self._tenants_key = prefix + "tenants"
        names = ("tenants", "keys", "key-ids", "tenants-kept", "public-prefixes")
        self._key_names = [prefix + name for name in names]
        self._was_kept = False
        self._is_lost = False

    def authenticate(self, key: str) -> Tenant | None:
        """Return whose key this is, None if nobody's; while Redis is away, as it last said."""
        digest = digest_of(key)
        try:
            self._check_worth_asking()
            # The look-up is by a hash that the client cannot steer, and compares inside Redis:
            # its time says nothing of how much of a key was right.
            kept, *found = self._script(AUTHENTICATE, digest)
            self._check_not_lost(kept)
        except TenantStoreError:
            self._known.failed()
            tenant = self._known.tenant(digest)
            if tenant is None:
                raise
            return tenant
        tenant = _tenant(found[0], found[1]) if found else None
        self._known.note_tenant(digest, tenant)
        return tenant

    def tenants(self) -> tuple[Tenant, ...]:
        """Return all tenants by name."""
        with _mapped():
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.exists(self._key_names[3])
            pipeline.hgetall(self._tenants_key)
            kept, rows = pipeline.execute()
        self._check_not_lost(kept)
        return tuple(_tenant(name, rows[name]) for name in sorted(rows))

    def empty(self) -> bool:
        """Whether there is no tenant at all; while Redis is away, as it last said."""
        try:
            self._check_worth_asking()
            kept, exists = self._script(EXIST)
            self._check_not_lost(kept)
        except TenantStoreError:
            self._known.failed()
            known = self._known.empty()
            if known is None:
                raise
            return known
        self._known.note_empty(not exists)
        return not exists

    def put_tenant(self, tenant: Tenant) -> None:
        """Add a tenant, or change one of the same name; raises OverReservedError."""
        self.put_tenants([tenant])

    def put_tenants(self, tenants: Sequence[Tenant]) -> None:
        """Add tenants, or change those of the same names; all or none.

        Raises OverReservedError.
        """
        if not tenants:
            return
        records = [text for tenant in tenants for text in (tenant.name, _record(tenant))]
        others = self._script(PUT_TENANTS, *records)
        if others is not None:
            raise OverReservedError(tenants, float(others))
        self._check_not_lost(1)

    def remove_tenant(self, name: str) -> bool:
        """Remove a tenant with its keys; whether there was one."""
        return bool(self._script(REMOVE_TENANT, name))

    def add_key(self, tenant: str) -> str:
        """Make a key and return it, this once; raises UnknownTenantError."""
        key = new_key()
        self.add_key_digest(tenant, digest_of(key))
        return key

    def add_key_digest(self, tenant: str, digest: bytes) -> None:
        """Add a key by its SHA-256; raises UnknownTenantError, KeyTakenError."""
        key_id = new_key_id()
        record = json.dumps({"key_id": key_id, "tenant": tenant, "created": time.time()})
        reply = self._script(ADD_KEY, tenant, digest, key_id, record)
        if reply[0] == b"unknown":
            raise UnknownTenantError(tenant)
        if reply[0] == b"taken":
            raise KeyTakenError(reply[1].decode())

    def keys(self, tenant: str) -> tuple[TenantKey, ...]:
        """Return a tenant's keys, oldest first; raises UnknownTenantError."""
        with _mapped():
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.hexists(self._key_names[0], tenant)
            pipeline.hvals(self._key_names[1])
            exists, values = pipeline.execute()
        if not exists:
            raise UnknownTenantError(tenant)
        records = [json.loads(value) for value in values]
        found = [TenantKey(**record) for record in records if record["tenant"] == tenant]
        return tuple(sorted(found, key=lambda key: (key.created, key.key_id)))

    def revoke_key(self, key_id: str) -> bool:
        """Remove a key; whether there was one."""
        return bool(self._script(REVOKE_KEY, key_id))

    def public_prefixes(self) -> tuple[DeclaredPrefix, ...]:
        """Return all public prefixes by name."""
        with _mapped():
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.exists(self._key_names[3])
            pipeline.hgetall(self._key_names[4])
            kept, rows = pipeline.execute()
        self._check_not_lost(kept)
        return tuple(_prefix(rows[name]) for name in sorted(rows))

    def add_public_prefix(self, prefix: DeclaredPrefix) -> None:
        """Keep a public prefix; raises PrefixNameTakenError."""
        fields = asdict(prefix)
        for name in ("prompt", "text_sha256"):
            fields[name] = base64.b64encode(fields[name]).decode()
        held = self._script(ADD_PREFIX, prefix.name, json.dumps(fields))
        if held is not None and not prefix.same_as(_prefix(held)):
            raise PrefixNameTakenError(prefix.name)

    def remove_public_prefix(self, name: str) -> bool:
        """Forget a public prefix; whether there was one."""
        with _mapped():
            return bool(self._redis.hdel(self._key_names[4], name))

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _check_worth_asking(self) -> None:
        if not self._known.should_ask:
            raise TenantStoreError("redis: it did not answer a moment ago")

    def _check_not_lost(self, kept: int) -> None:
        """Raise TenantStoreError if Redis had tenants, and knows nothing of that any more."""
        if kept:
            self._was_kept, self._is_lost = True, False
        elif self._was_kept:
            if not self._is_lost:
                logger.error(
                    "redis has lost the tenants: keys seen lately go on working for %g s;"
                    " put them back, or start again with the file that has them",
                    self._known.grace_seconds,
                )
            self._is_lost = True
            raise TenantStoreError("redis: it has lost the tenants")

    def _script(self, script: str, *arguments: str | bytes) -> Any:
        with _mapped():
            return self._redis.eval(script, len(self._key_names), *self._key_names, *arguments)


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise TenantStoreError(f"redis: {error}") from error


def _tenant(name: bytes, value: bytes) -> Tenant:
    fields = json.loads(value)
    quota = Quota(**fields.get("quota", {}))
    return Tenant(name.decode(), fields["group"], fields["enabled"], quota)


def _record(tenant: Tenant) -> str:
    fields = {"group": tenant.group, "enabled": tenant.enabled, "quota": asdict(tenant.quota)}
    return json.dumps(fields)


def _prefix(value: bytes) -> DeclaredPrefix:
    fields = json.loads(value)
    for name in ("prompt", "text_sha256"):
        fields[name] = base64.b64decode(fields[name])
    return DeclaredPrefix(**fields)
