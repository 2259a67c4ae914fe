"""Settings of the HTTP service: read once, validated, never written again."""

import ipaddress
from dataclasses import dataclass

from stemkv.engine.config import ConfigError


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What the HTTP service is started with.

    served_model_name: the only name that requests may ask for. created: unix seconds, told by
    `/v1/models`. secret: the deployment's, it keys tenant domains. admin_key_sha256: 64 hex
    digits of the admin key's SHA-256. port 0 takes a free one. max_body_bytes: largest request
    body, which must arrive within body_timeout_seconds. max_choices: prompts times n of one
    request. drain_seconds: how long running requests may go on after a stop was asked for.
    admin_timeout_seconds: how long an admin call waits for the engine, which answers between steps.
    sync_seconds: how often the tenants are looked at for quotas and public prefixes that changed.
    tokenizer_threads: prompts tokenised at once. request_records: the latest requests that are
    kept for the operator, 0: none. retry_after_seconds: told to clients that met a
    full queue; restart_seconds: to those that met an engine that is being started.
    """

    served_model_name: str
    secret: bytes
    admin_key_sha256: str
    created: int
    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 8 * 1024 * 1024
    body_timeout_seconds: float = 60.0
    max_choices: int = 128
    drain_seconds: float = 30.0
    admin_timeout_seconds: float = 60.0
    sync_seconds: float = 3.0
    tokenizer_threads: int = 2
    request_records: int = 1000
    retry_after_seconds: int = 1
    restart_seconds: int = 5

    def __post_init__(self) -> None:
        """Refuse what no service can honour."""
        if not self.served_model_name:
            raise ConfigError("served_model_name: is empty")
        if len(self.secret) < 16:
            raise ConfigError(f"secret: {len(self.secret)} bytes are fewer than 16")
        if len(self.admin_key_sha256) != 64 or set(self.admin_key_sha256) - set("0123456789abcdef"):
            raise ConfigError("admin_key_sha256: is not 64 lower-case hex digits")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: {self.port} is not in 0..65535")
        if self.drain_seconds < 0:
            raise ConfigError(f"drain_seconds: {self.drain_seconds} is negative")
        if self.sync_seconds <= 0:
            raise ConfigError(f"sync_seconds: {self.sync_seconds} is not positive")
        if self.request_records < 0:
            raise ConfigError(f"request_records: {self.request_records} is negative")
        for name in ("max_body_bytes", "max_choices", "tokenizer_threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is less than 1")

    @property
    def loopback(self) -> bool:
        """Whether the service is bound where only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host name or address (IPv6 with or without brackets) is this machine's loopback."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
