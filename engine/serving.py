"""From settings to a running service: everything that `stemkv serve` puts together."""

import logging
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import AutoTokenizer

from stemkv.engine.api.auth import check_bind
from stemkv.engine.api.server import run_service
from stemkv.engine.api.settings import ServiceSettings
from stemkv.engine.config import ConfigError, EngineConfig
from stemkv.engine.model_fetch import SMOLLM2_135M_INSTRUCT, cache_root, fetch_model
from stemkv.engine.process import ProcessClient
from stemkv.engine.request import EngineInfo
from stemkv.engine.state import AdminKey
from stemkv.engine.tenants import TenantStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the service listens, and how many requests it tells of. port 0 takes a free one."""

    host: str
    port: int
    request_records: int = 1000


def public_name(model: str) -> str:
    """Return the name that a model is served under unless told: a folder's own, or the hub id."""
    if not model:
        return SMOLLM2_135M_INSTRUCT.name
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


def serve(
    config: EngineConfig,
    listen: Listen,
    tenants: TenantStore,
    admin_key: AdminKey,
    console: Console,
) -> None:
    """Serve until SIGINT or SIGTERM; blocks.

    An empty config.model takes the default model, fetched if it is absent. Raises ConfigError,
    EngineUnavailable, ModelFetchError, TenantStoreError.
    """
    name = config.served_model_name or public_name(config.model)
    settings = ServiceSettings(
        served_model_name=name,
        secret=config.secret,
        admin_key_sha256=admin_key.sha256,
        created=int(time.time()),
        host=listen.host,
        port=listen.port,
        request_records=listen.request_records,
    )
    check_bind(listen.host, tenants)
    model = config.model or str(fetch_model(SMOLLM2_135M_INSTRUCT, cache_root(), console))
    config = replace(config, model=model, served_model_name=name)
    # Bars do not belong into a log, and tqdm's lock outlives the engine process.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logger.info("loading %s", model)
    tokenizer = load_tokenizer(model)

    def on_ready(info: EngineInfo, port: int) -> None:
        announce(console, settings, info, port, admin_key, has_tenants=not tenants.empty())

    run_service(settings, ProcessClient(config), tenants, tokenizer, on_ready=on_ready)


def load_tokenizer(model: str) -> Any:
    """Return the tokenizer of a local folder or hub id; raises ConfigError."""
    path = Path(model).expanduser()
    if not path.is_dir() and (path.is_absolute() or model.startswith((".", "~"))):
        raise ConfigError(f"model: {model!r} is no folder; give one, or a hub id")
    try:
        return AutoTokenizer.from_pretrained(str(path) if path.is_dir() else model)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(
            f"model: {model!r}: its tokenizer cannot be loaded: {error}; "
            "give a folder or hub id that transformers can load"
        ) from error


def announce(
    console: Console,
    settings: ServiceSettings,
    info: EngineInfo,
    port: int,
    admin_key: AdminKey,
    *,
    has_tenants: bool,
) -> None:
    """Print the address, the admin key's place, and a line to try."""
    host = settings.host.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound here
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    key = ' -H "authorization: Bearer $KEY"' if has_tenants else ""
    pool_tokens = info.capacity_blocks * info.block_size
    body = (
        f'{{"model": "{settings.served_model_name}", '
        '"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    )
    lines = (
        f"stemkv serves {settings.served_model_name} on {address} "
        f"({info.device}, {info.dtype}, kernels {info.kernels})",
        f"cache: {pool_tokens:,} tokens in {info.capacity_blocks:,} blocks, "
        f"{info.capacity_blocks * info.block_bytes / 1e9:.2f} GB; "
        f"longest prompt {info.longest_prompt:,} tokens",
        f"admin key: {admin_key.source}",
        "try it:",
        f"  curl {address}/v1/chat/completions -H 'content-type: application/json'{key} \\",
        f"    -d '{body}'",
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
