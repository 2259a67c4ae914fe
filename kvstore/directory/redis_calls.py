"""The calls that a worker makes to Redis, typed, and with Redis's errors made ours."""

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from stemkv.kvstore.directory import redis_scripts
from stemkv.kvstore.directory.flush_text import FlushTextError, decode_flush, encode_flush
from stemkv.kvstore.directory.holdings import Changes
from stemkv.kvstore.directory.journal import LogEntry, LogGapError, Snapshot
from stemkv.kvstore.directory.protocol import DirectoryMismatch, DirectoryUnavailable
from stemkv.kvstore.flush import Flush, FlushKind, scope_of
from stemkv.kvstore.ids import BlockKey, FlushId, WorkerId

RETENTION_MS = 7 * 24 * 3600 * 1000
"""How long flushes and acknowledgements are kept. A worker that was away for longer makes
everyone begin anew, for it cannot know what it missed."""

SECRET_BYTES = 32

_LOG_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a heartbeat learns. alive: the lease had not ended before it."""

    alive: bool
    epoch: bytes
    number: int
    workers: frozenset[WorkerId]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who joins. deployment: names the keys. fingerprint: of model and KV format."""

    deployment: str
    secret: bytes
    fingerprint: str
    worker: WorkerId
    lease_ms: int


class RedisCalls:
    """One worker's calls; safe for several threads. All raise DirectoryUnavailable.

    timeout_seconds: how long to wait for a connection, and for an answer. reconnects: see
    `connect`; 0 lets the caller see every loss, after which Redis may be another. Raises
    ValueError when the address is not one.
    """

    def __init__(
        self, url: str, identity: Identity, timeout_seconds: float, *, reconnects: int
    ) -> None:
        self._redis = connect(url, timeout_seconds, reconnects=reconnects)
        self._identity = identity
        self._prefix = f"stemkv:{identity.deployment}:"
        register = self._redis.register_script
        self._join = register(redis_scripts.JOIN)
        self._renew_epoch = register(redis_scripts.RENEW_EPOCH)
        self._heartbeat = register(redis_scripts.HEARTBEAT)
        self._record = register(redis_scripts.RECORD)
        self._announce = register(redis_scripts.ANNOUNCE)
        self._acknowledgements = register(redis_scripts.ACKNOWLEDGEMENTS)

    def join(self, epoch: bytes | None, scopes: Mapping[str, Flush]) -> Snapshot:
        """Register, begin an epoch if there is none, and read where the log ends.

        epoch and scopes: what the worker knows from before; the scopes are given back to a
        deployment that lost them. Raises DirectoryMismatch.
        """
        me = self._identity
        known = [part for scope, flush in scopes.items() for part in (scope, encode_flush(flush))]
        names = ("fingerprint", "secret-check", "epoch", "scopes", "flush-number", "flushes")
        check = hashlib.sha256(b"stemkv/secret-check/1" + me.secret).hexdigest()
        with mapped():
            reply: Any = self._join(
                keys=[*map(self._key, names), self._key("workers")],
                args=[
                    *(me.fingerprint, check, me.worker, me.lease_ms, epoch or b""),
                    *_new_epoch(),
                    RETENTION_MS,
                    *known,
                ],
            )
        if reply[0] != b"ok":
            self._raise_mismatch(reply[0].decode())
        fields = reply[4]
        pairs = zip(fields[::2], fields[1::2], strict=True)
        # what cannot be read is of a newer version: it must not pass for "no flush"
        read = {scope.decode(): _readable(text, scope) for scope, text in pairs}
        return Snapshot(reply[1], int(reply[2]), reply[3], read)

    def _raise_mismatch(self, what: str) -> None:
        own = f" (this one's is {self._identity.fingerprint})" if what == "fingerprint" else ""
        raise DirectoryMismatch(
            f"deployment {self._identity.deployment!r} has another {what}{own};"
            " workers of another model or secret need a deployment name of their own"
        )

    def renew_epoch(self, epoch: bytes) -> None:
        """Make every worker begin anew, unless another worker has ordered it already."""
        with mapped():
            self._renew_epoch(
                keys=[self._key("epoch"), self._key("scopes")], args=[epoch, *_new_epoch()]
            )

    def heartbeat(self) -> Pulse:
        """Renew the lease, unless it has ended."""
        me = self._identity
        names = ("workers", f"held:{me.worker}", "epoch", "flush-number")
        with mapped():
            reply: Any = self._heartbeat(
                keys=list(map(self._key, names)), args=[me.worker, me.lease_ms]
            )
        return Pulse(bool(reply[0]), reply[1], int(reply[2]), frozenset(_workers(reply[3])))

    def record(self, changes: Changes) -> bool:
        """Tell what is held; whether it was taken (the lease may have ended)."""
        me = self._identity
        with mapped():
            taken: Any = self._record(
                keys=[self._key("workers"), self._key(f"held:{me.worker}")],
                args=[
                    *(me.worker, me.lease_ms, int(changes.restart), len(changes.stored)),
                    *changes.stored,
                    *changes.removed,
                ],
            )
        return bool(taken)

    def announce(self, flush: Flush, *, acknowledge: bool) -> tuple[bytes, int]:
        """Put a flush into the log, atomically with its nonce; returns epoch and number."""
        names = ("epoch", "scopes", "flush-number", "flushes", f"acks:{flush.flush_id}")
        worker = self._identity.worker if acknowledge else ""
        with mapped():
            reply: Any = self._announce(
                keys=list(map(self._key, names)),
                args=[worker, encode_flush(flush), scope_of(flush) or "", RETENTION_MS],
            )
        if not reply:
            raise DirectoryUnavailable("redis has lost its data, and no worker has restored it yet")
        return reply[0], int(reply[1])

    def acknowledge(self, flush_ids: Sequence[FlushId]) -> None:
        """Say that this worker has carried these flushes out."""
        with mapped():
            pipeline = self._redis.pipeline(transaction=False)
            for flush_id in flush_ids:
                pipeline.sadd(self._key(f"acks:{flush_id}"), self._identity.worker)
                pipeline.pexpire(self._key(f"acks:{flush_id}"), RETENTION_MS)
            pipeline.execute()

    def acknowledgements(self, flush_id: FlushId) -> tuple[set[WorkerId], set[WorkerId]]:
        """Return the live workers, and those that have carried the flush out."""
        with mapped():
            reply: Any = self._acknowledgements(
                keys=[self._key("workers"), self._key(f"acks:{flush_id}")]
            )
        return _workers(reply[0]), _workers(reply[1])

    def read_log(self, after: bytes, *, block_seconds: float = 0.0) -> list[LogEntry]:
        """Return up to 1,000 flushes after a place, waiting for the first if asked to.

        Raises LogGapError when one of them cannot be read.
        """
        milliseconds = round(block_seconds * 1000)
        with mapped():
            # block=0 would wait forever
            reply: Any = self._redis.xread(
                {self._key("flushes"): after}, count=_LOG_PAGE, block=milliseconds or None
            )
        return [
            _entry(stream_id, fields) for _, entries in reply or () for stream_id, fields in entries
        ]

    def live_workers(self) -> set[WorkerId]:
        """Return the workers whose lease has not ended."""
        return self.acknowledgements(FlushId(""))[0]

    def held(self, workers: Sequence[WorkerId], keys: Sequence[BlockKey]) -> list[list[bool]]:
        """For each worker, which of the keys it holds; one round trip."""
        with mapped():
            pipeline = self._redis.pipeline(transaction=False)
            for worker in workers:
                pipeline.smismember(self._key(f"held:{worker}"), list(keys))
            replies: Any = pipeline.execute()
        return [[bool(held) for held in reply] for reply in replies]

    def shared_secret(self) -> bytes | None:
        """Return the secret that the deployment keeps in Redis, None if it keeps none there."""
        with mapped():
            secret: Any = self._redis.get(self._key("secret"))
        return None if secret is None else bytes(secret)

    def restore_secret(self) -> None:
        """Give the secret back to a Redis that lost it."""
        with mapped():
            self._redis.set(self._key("secret"), self._identity.secret, nx=True)

    def withdraw(self) -> None:
        """Leave nothing behind."""
        with mapped():
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.zrem(self._key("workers"), self._identity.worker)
            pipeline.delete(self._key(f"held:{self._identity.worker}"))
            pipeline.execute()

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _key(self, name: str) -> str:
        return self._prefix + name


def shared_secret(url: str, deployment: str, *, timeout_seconds: float = 2.0) -> bytes:
    """Return the deployment's secret from Redis, made by the first who asks: 32 bytes.

    Whoever reads the Redis can read it. Raises DirectoryUnavailable, DirectoryMismatch (what is
    there is no secret), ValueError (url).
    """
    key = f"stemkv:{deployment}:secret"
    client = connect(url, timeout_seconds)
    try:
        with mapped():
            client.set(key, secrets.token_bytes(SECRET_BYTES), nx=True)
            secret: Any = client.get(key)
    finally:
        client.close()
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        raise DirectoryMismatch(f"{key} in redis does not hold {SECRET_BYTES} bytes")
    return secret


def connect(url: str, timeout_seconds: float, *, reconnects: int = 0) -> redis.Redis:
    """Make a client. reconnects: how often a call is made again when the connection is gone."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=Retry(NoBackoff(), reconnects, supported_errors=(redis.ConnectionError,)),
        protocol=2,  # one shape of replies, whatever the server's version
    )


@contextmanager
def mapped() -> Iterator[None]:
    """Turn Redis's errors into DirectoryUnavailable."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise DirectoryUnavailable(f"redis: {error}") from error


def _new_epoch() -> tuple[str, str]:
    """Name an epoch, with the flush of everything that begins it."""
    name = secrets.token_hex(16)
    flush = Flush(FlushId(f"epoch-{name}"), FlushKind.ALL, secrets.token_bytes(16))
    return name, encode_flush(flush)


def _readable(text: bytes, scope: bytes) -> Flush:
    try:
        return decode_flush(text)
    except FlushTextError as error:
        raise DirectoryMismatch(f"the last flush of {scope!r} cannot be read: {error}") from error


def _entry(stream_id: bytes, fields: Mapping[bytes, bytes]) -> LogEntry:
    try:
        return LogEntry(stream_id, int(fields[b"n"]), decode_flush(fields[b"flush"]))
    except (FlushTextError, KeyError, ValueError) as error:
        raise LogGapError(f"entry {stream_id!r} cannot be read: {error}") from error


def _workers(names: Sequence[bytes]) -> set[WorkerId]:
    return {WorkerId(name.decode()) for name in names}
