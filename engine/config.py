"""Settings of one engine: read once, validated, never written again."""

import math
from dataclasses import dataclass
from typing import Literal


class ConfigError(ValueError):
    """A setting cannot be honoured; names the setting, its value and what would do."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine process is started with.

    model: local Hugging Face folder or hub id. kv_memory: bytes for the cache, or a share of the
    memory that is free when the model is loaded (a float in (0, 1]). max_model_len: None takes
    the model's own. dtype "auto" takes the checkpoint's. kernels "auto": Triton on cuda, the CPU
    path on cpu; "triton" on cpu needs TRITON_INTERPRET=1; "torch" is the oracle.
    max_batch_tokens: tokens of one step, prefill and decode together. max_running: sequences of
    one step. max_queue: requests that may wait. secret: the deployment's, 32 bytes; it keys
    hashes and tenant domains. explain_misses: say of each request why no more of its prompt was
    reused. keep_free: share of the pool that is free again whenever a sequence ends, so that what
    the next one writes pushes out nothing worth more. debug_audit: audit the store after each step.
    audit_seconds: how often the store is audited, and repaired, between steps; 0 for never.
    """

    model: str
    secret: bytes
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    kernels: Literal["auto", "triton", "cpu", "torch"] = "auto"
    kv_memory: int | float = 0.25
    block_size: int = 16
    max_model_len: int | None = None
    max_batch_tokens: int = 512
    max_running: int = 64
    max_queue: int = 1024
    prefix_cache: bool = True
    keep_free: float = 0.0
    hash_function: Literal["xxh3_128", "sha256"] = "xxh3_128"
    eviction: str = "lru"
    ordering: str = "fcfs"
    redis_url: str | None = None
    deployment: str = "default"
    lease_seconds: float = 10.0
    served_model_name: str | None = None
    explain_misses: bool = True
    debug_audit: bool = False
    audit_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what no engine can honour."""
        if isinstance(self.kv_memory, float) and not 0 < self.kv_memory <= 1:
            raise ConfigError(
                f"kv_memory: {self.kv_memory} is not a share in (0, 1] (bytes are whole numbers)"
            )
        if self.kv_memory <= 0:
            raise ConfigError(f"kv_memory: {self.kv_memory} bytes hold no block")
        if self.block_size not in (8, 16, 32, 64):
            raise ConfigError(f"block_size: {self.block_size} is not one of 8, 16, 32, 64")
        if not 0 <= self.keep_free < 1:
            raise ConfigError(f"keep_free: {self.keep_free} is not a share of the pool in [0, 1)")
        for name in ("max_batch_tokens", "max_running", "max_queue"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is less than 1")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(
                f"max_model_len: {self.max_model_len} leaves no room for a prompt and its output"
            )
        if not 0 <= self.audit_seconds < math.inf:
            raise ConfigError(f"audit_seconds: {self.audit_seconds} is no number of seconds")
        if self.lease_seconds <= 0:
            raise ConfigError(f"lease_seconds: {self.lease_seconds} is not positive")
        if len(self.secret) < 16:
            raise ConfigError(f"secret: {len(self.secret)} bytes are fewer than 16")
