"""Load a model with transformers, refuse what cannot be served, and size its cache."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from stemkv.engine.attention import PAGED_ATTENTION
from stemkv.engine.config import ConfigError
from stemkv.engine.fingerprint import fingerprint
from stemkv.engine.probe import LayerFacts, ModelError, probe
from stemkv.kernels.layout import CacheLayout

__all__ = ["LoadedModel", "ModelError", "load_model", "make_layout", "pool_blocks"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_MIN_BLOCKS = 2
# transformers' stand-in for "no limit known" is 10**30.
_NO_LIMIT = 10**9


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to run over the paged cache, with what the engine needs to know of it.

    model: transformers' causal language model, eval mode, paged attention set. tokenizer: its
    own. kv_heads, head_dim: of one layer's cache row, head_dim the largest of all layers.
    windows: positions that each layer's queries see, None for all. max_model_len: positions that
    the model was made for. eos_token_ids: whatever ends a text. fingerprint: see
    `engine.fingerprint`.
    """

    name: str
    model: torch.nn.Module
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    layers: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    fingerprint: str


def load_model(name: str, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Load a local Hugging Face folder or a hub id, and check that it can be served.

    dtype: "auto" takes the checkpoint's, else "float32", "bfloat16" or "float16". device: "auto"
    takes CUDA where there is one, else "cpu" or "cuda". Raises ModelError naming the model and
    why, ConfigError for a dtype or device that is not to be had.
    """
    target = _device(device)
    if dtype != "auto" and dtype not in _DTYPES:
        raise ConfigError(f"dtype: {dtype!r} is not one of auto, {', '.join(_DTYPES)}")
    source = _source(name)
    config = _config(name, source)
    model = _weights(name, source, "auto" if dtype == "auto" else _DTYPES[dtype]).to(target)
    tokenizer = _tokenizer(name, source)
    text = config.get_text_config(decoder=True)
    layers = int(text.num_hidden_layers)
    facts = probe(name, model, layers, int(text.vocab_size))
    kv_heads = _kv_heads(name, facts)
    digest = fingerprint(model, config.to_dict())
    model.set_attn_implementation(PAGED_ATTENTION)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        device=target,
        dtype=model.dtype,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=max(layer.head_dim for layer in facts),
        windows=tuple(layer.window for layer in facts),
        vocab_size=model.get_output_embeddings().weight.shape[0],
        max_model_len=_max_model_len(name, text, tokenizer),
        eos_token_ids=_eos_token_ids(model, tokenizer),
        fingerprint=digest,
    )


def make_layout(loaded: LoadedModel, block_size: int) -> CacheLayout:
    """Return the cache layout of a model, block_size tokens a block, in the model's dtype."""
    return CacheLayout(
        layers=loaded.layers,
        kv_heads=loaded.kv_heads,
        head_dim=loaded.head_dim,
        block_size=block_size,
        dtype=loaded.dtype,
    )


def pool_blocks(layout: CacheLayout, kv_memory: int | float, device: torch.device) -> int:
    """Return how many blocks fit into kv_memory: bytes, or a share of what is free now.

    Raises ConfigError with the numbers if that much memory is not free, or if it holds fewer
    than two blocks (one to read, one to write).
    """
    free = _free_bytes(device)
    budget = int(free * kv_memory) if isinstance(kv_memory, float) else kv_memory
    if budget > free:
        raise ConfigError(
            f"kv_memory: {budget:,} bytes are wanted, but {free:,} bytes are free on {device}"
        )
    blocks = budget // layout.block_bytes
    if blocks < _MIN_BLOCKS:
        raise ConfigError(
            f"kv_memory: {budget:,} bytes hold {blocks} blocks of {layout.block_bytes:,} bytes; "
            f"at least {_MIN_BLOCKS} are needed ({free:,} bytes are free on {device})"
        )
    return blocks


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' is not available: torch sees no CUDA device")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"device: {name!r} is not one of auto, cpu, cuda")
    return torch.device(name)


def _source(name: str) -> str:
    """Return what transformers is to load; a path that is none is refused here, by name."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model {name}: the folder has no config.json")
        return str(path)
    if path.is_file():
        raise ModelError(f"model {name}: a file; a Hugging Face folder or a hub id is needed")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelError(f"model {name}: no such folder")
    return name


def _config(name: str, source: str) -> Any:
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {name}: its configuration cannot be loaded: {error}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"model {name}: {config.model_type} is an encoder-decoder, not a causal language model"
        )
    return config


def _weights(name: str, source: str, dtype: torch.dtype | str) -> Any:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation="eager", output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"model {name}: cannot be loaded: {error}") from error
    # transformers would fill what is missing with random numbers.
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"model {name}: the checkpoint lacks {len(missing)} weights, {missing[0]} for one"
        )
    return model.eval().requires_grad_(False)


def _tokenizer(name: str, source: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {name}: its tokenizer cannot be loaded: {error}") from error


def _kv_heads(name: str, facts: tuple[LayerFacts, ...]) -> int:
    counts = sorted({layer.kv_heads for layer in facts})
    if len(counts) > 1:
        raise ModelError(
            f"model {name}: its layers have different numbers of key-value heads ({counts}); "
            "one cache row cannot hold them all"
        )
    for layer, fact in enumerate(facts):
        if fact.value_dim > fact.head_dim:
            raise ModelError(
                f"model {name}: layer {layer} has values of {fact.value_dim} elements, more than "
                f"the {fact.head_dim} of its keys"
            )
    return counts[0]


def _max_model_len(name: str, text_config: Any, tokenizer: Any) -> int:
    """Positions that the model was made for.

    Rotary embeddings of type "dynamic" and "longrope" change for a whole batch with its longest
    sequence, so that equal prefixes would have unequal keys; below the original length they
    do not, and that is where such a model is held.
    """
    limit: int | None = getattr(text_config, "max_position_embeddings", None)
    if limit is None:
        limit = int(getattr(tokenizer, "model_max_length", _NO_LIMIT))
    rope = getattr(text_config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if parameters.get("rope_type") in ("dynamic", "longrope"):
            limit = min(limit, parameters.get("original_max_position_embeddings") or limit)
    if limit >= _NO_LIMIT:
        raise ModelError(f"model {name}: neither its configuration nor tokenizer say its length")
    return limit


def _eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the generation settings' (or the configuration's) and the tokenizer's, together."""
    ids: set[int] = set()
    for source in (model.generation_config, tokenizer):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            ids.update([found] if isinstance(found, int) else found)
    return frozenset(ids)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    limited = cgroup_free_bytes(Path("/sys/fs/cgroup"))
    return available if limited is None else min(available, limited)


def cgroup_free_bytes(root: Path) -> int | None:
    """Return what a container's memory limit (cgroup v2) leaves, None where there is none.

    psutil knows the machine's memory only.
    """
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    # Clean file pages count as used, but are given back when asked for.
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
