"""The flags of `stemkv serve`, each once: type, name, group, help."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stemkv.engine.cli_values import number, read_serve_table, whole_number

MODEL = "The model"
CACHE = "The cache"
SCHEDULING = "Scheduling"
SEVERAL = "Several workers"
SERVICE = "The service"


def _option(name: str, panel: str, text: str, *, parser: Callable[[Any], Any] | None = None) -> Any:
    return typer.Option(name, rich_help_panel=panel, help=text, parser=parser)


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Let the file's [serve] table stand in for flags that are not given; raises ConfigError."""
    if path is not None:
        names = {parameter.name for parameter in context.command.params}
        known = {name: name for name in names if name not in (None, "config", "help")}
        context.default_map = read_serve_table(path, known)
    return path


Model = Annotated[
    str | None,
    _option(
        "--model",
        MODEL,
        "Local Hugging Face folder or hub id (default: SmolLM2-135M-Instruct, fetched if absent).",
    ),
]
ServedModelName = Annotated[
    str | None, _option("--served-model-name", MODEL, "Name that requests give.")
]
Device = Annotated[Literal["auto", "cpu", "cuda"], _option("--device", MODEL, "Where it runs.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    _option("--dtype", MODEL, "Of weights and cache; auto is the checkpoint's."),
]
Kernels = Annotated[
    Literal["auto", "triton", "cpu", "torch"],
    _option("--kernels", MODEL, "auto: Triton on cuda, the CPU path on cpu."),
]
MaxModelLen = Annotated[
    int | None,
    _option(
        "--max-model-len",
        MODEL,
        "Tokens of prompt and answer together (default: the model's own).",
        parser=whole_number,
    ),
]
KvMemory = Annotated[
    str,
    _option(
        "--kv-memory",
        CACHE,
        "Bytes (512MiB, 2GB), or a share of what is free once the model is loaded (0.3, 30%).",
    ),
]
BlockSize = Annotated[
    int, _option("--block-size", CACHE, "Tokens a block: 8, 16, 32, 64.", parser=whole_number)
]
PrefixCache = Annotated[
    bool, _option("--prefix-cache/--no-prefix-cache", CACHE, "Reuse cached prefixes.")
]
HashFunction = Annotated[
    Literal["xxh3_128", "sha256"], _option("--hash-function", CACHE, "Makes the blocks' keys.")
]
Eviction = Annotated[
    str, _option("--eviction", CACHE, "Which cached blocks give way first: lru, adaptive.")
]
KeepFree = Annotated[
    float,
    _option(
        "--keep-free",
        CACHE,
        "Share of the cache that is free again when a request ends; adaptive wants some.",
        parser=number,
    ),
]
MaxBatchTokens = Annotated[
    int, _option("--max-batch-tokens", SCHEDULING, "Tokens of one step.", parser=whole_number)
]
MaxRunning = Annotated[
    int, _option("--max-running", SCHEDULING, "Sequences of one step.", parser=whole_number)
]
MaxQueue = Annotated[
    int, _option("--max-queue", SCHEDULING, "Requests that may wait.", parser=whole_number)
]
LeaseSeconds = Annotated[
    float,
    _option(
        "--lease-seconds",
        SEVERAL,
        "After which a dead worker's entries are gone from Redis.",
        parser=number,
    ),
]
Host = Annotated[str, _option("--host", SERVICE, "Address to bind.")]
Port = Annotated[int, _option("--port", SERVICE, "0 takes a free one.", parser=whole_number)]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        rich_help_panel=SERVICE,
        help=r"TOML file: \[tenants.NAME] tables, and these flags in a \[serve] table.",
        callback=read_config,
        is_eager=True,
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    _option("--log-level", SERVICE, "What is logged on stderr."),
]
ExplainMisses = Annotated[
    bool,
    _option(
        "--explain-misses/--no-explain-misses",
        SERVICE,
        "Say of each request why no more of its prompt was cached: in the log, in its record.",
    ),
]
RequestRecords = Annotated[
    int,
    _option(
        "--request-records",
        SERVICE,
        "The latest requests that the admin API tells of; 0: none.",
        parser=whole_number,
    ),
]
AuditSeconds = Annotated[
    float,
    _option(
        "--audit-seconds",
        SERVICE,
        "How often the store is audited, and repaired, between steps; 0: never.",
    ),
]
DebugAudit = Annotated[
    bool, _option("--debug-audit", SERVICE, "Audit the store after every step (slow).")
]
