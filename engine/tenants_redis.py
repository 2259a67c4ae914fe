"""Tenants in Redis, for services that run on several machines.

Keys, P = "stemkv:{deployment}:":
  P tenants   hash   name   -> JSON {"group", "enabled"}
  P keys      hash   digest -> JSON {"key_id", "tenant", "created"}
  P key-ids   hash   key id -> digest
  P tenants-kept  string  there since the first tenant was put; gone when Redis lost the tenants
Scripts change them, so that no process ever sees one without the other.
"""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from stemkv.engine.config import ConfigError
from stemkv.engine.tenants import (
    KeyTakenError,
    Tenant,
    TenantKey,
    TenantStoreError,
    UnknownTenantError,
    digest_of,
    new_key,
    new_key_id,
)
from stemkv.engine.tenants_memory import LastKnown

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0

# Returns {1 if the tenants are kept}, with the tenant's name and record behind it if there is one.
_AUTHENTICATE = """
local kept = redis.call('EXISTS', KEYS[4])
local key = redis.call('HGET', KEYS[2], ARGV[1])
if not key then return {kept} end
local name = cjson.decode(key).tenant
local tenant = redis.call('HGET', KEYS[1], name)
if not tenant then return {kept} end
return {kept, name, tenant}
"""

# Returns {1 if the tenants are kept, 1 if there is one}.
_EXIST = "return {redis.call('EXISTS', KEYS[4]), redis.call('EXISTS', KEYS[1])}"

_PUT_TENANT = """
redis.call('SET', KEYS[4], '1')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
"""

_ADD_KEY = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return {'unknown'} end
local held = redis.call('HGET', KEYS[2], ARGV[2])
if held then
  local owner = cjson.decode(held).tenant
  if owner ~= ARGV[1] then return {'taken', owner} end
  return {'ok'}
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[2])
return {'ok'}
"""

_REMOVE_TENANT = """
local keys = redis.call('HGETALL', KEYS[2])
for i = 1, #keys, 2 do
  local key = cjson.decode(keys[i + 1])
  if key.tenant == ARGV[1] then
    redis.call('HDEL', KEYS[2], keys[i])
    redis.call('HDEL', KEYS[3], key.key_id)
  end
end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""

_REVOKE_KEY = """
local digest = redis.call('HGET', KEYS[3], ARGV[1])
if not digest then return 0 end
redis.call('HDEL', KEYS[2], digest)
return redis.call('HDEL', KEYS[3], ARGV[1])
"""


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
        names = ("tenants", "keys", "key-ids", "tenants-kept")
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
            kept, *found = self._script(_AUTHENTICATE, digest)
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
            kept, exists = self._script(_EXIST)
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
        """Add a tenant, or change one of the same name; its keys stay."""
        value = json.dumps({"group": tenant.group, "enabled": tenant.enabled})
        self._script(_PUT_TENANT, tenant.name, value)
        self._check_not_lost(1)

    def remove_tenant(self, name: str) -> bool:
        """Remove a tenant with its keys; whether there was one."""
        return bool(self._script(_REMOVE_TENANT, name))

    def add_key(self, tenant: str) -> str:
        """Make a key and return it, this once; raises UnknownTenantError."""
        key = new_key()
        self.add_key_digest(tenant, digest_of(key))
        return key

    def add_key_digest(self, tenant: str, digest: bytes) -> None:
        """Add a key by its SHA-256; raises UnknownTenantError, KeyTakenError."""
        key_id = new_key_id()
        record = json.dumps({"key_id": key_id, "tenant": tenant, "created": time.time()})
        reply = self._script(_ADD_KEY, tenant, digest, key_id, record)
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
        return bool(self._script(_REVOKE_KEY, key_id))

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
    return Tenant(name.decode(), fields["group"], fields["enabled"])
