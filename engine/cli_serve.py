"""`stemkv serve`: from flags and files to a running service."""

import logging

from rich.console import Console

from stemkv.engine import cli_options as options
from stemkv.engine.cli_state import (
    Deployment,
    RedisUrl,
    StateDir,
    deployment_secret,
    open_tenants,
)
from stemkv.engine.cli_values import parse_kv_memory
from stemkv.engine.config import EngineConfig
from stemkv.engine.state import StateFolder
from stemkv.engine.tenants_seed import seed_from_toml

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def serve(
    model: options.Model = None,
    served_model_name: options.ServedModelName = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    kernels: options.Kernels = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_memory: options.KvMemory = "25%",
    block_size: options.BlockSize = 16,
    prefix_cache: options.PrefixCache = True,
    hash_function: options.HashFunction = "xxh3_128",
    eviction: options.Eviction = "lru",
    keep_free: options.KeepFree = 0.0,
    max_batch_tokens: options.MaxBatchTokens = 512,
    max_running: options.MaxRunning = 64,
    max_queue: options.MaxQueue = 1024,
    redis_url: RedisUrl = None,
    deployment: Deployment = "default",
    lease_seconds: options.LeaseSeconds = 10.0,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    config: options.Config = None,
    state_dir: StateDir = None,
    log_level: options.LogLevel = "info",
    explain_misses: options.ExplainMisses = True,
    request_records: options.RequestRecords = 1000,
    audit_seconds: options.AuditSeconds = 60.0,
    debug_audit: options.DebugAudit = False,
) -> None:
    """Serve a model over HTTP until SIGINT or SIGTERM."""
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    state = StateFolder(state_dir)
    settings = EngineConfig(
        model=model or "",
        secret=deployment_secret(state, redis_url, deployment),
        device=device,
        dtype=dtype,
        kernels=kernels,
        kv_memory=parse_kv_memory(str(kv_memory)),
        block_size=block_size,
        max_model_len=max_model_len,
        max_batch_tokens=max_batch_tokens,
        max_running=max_running,
        max_queue=max_queue,
        prefix_cache=prefix_cache,
        hash_function=hash_function,
        eviction=eviction,
        keep_free=keep_free,
        redis_url=redis_url,
        deployment=deployment,
        lease_seconds=lease_seconds,
        served_model_name=served_model_name,
        explain_misses=explain_misses,
        audit_seconds=audit_seconds,
        debug_audit=debug_audit,
    )
    # torch and transformers take seconds to import; the other commands, and those that end
    # above, do without them.
    from stemkv.engine import serving

    tenants = open_tenants(state, redis_url, deployment)
    try:
        if config is not None:
            seed_from_toml(tenants, config)
        listen = serving.Listen(host, port, request_records)
        serving.serve(settings, listen, tenants, state.admin_key(), Console(stderr=True))
    finally:
        tenants.close()
