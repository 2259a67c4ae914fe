"""A digest that names a model by what it computes, equal in every process that loads it."""

import hashlib
import json
from typing import Any

import torch
import xxhash

# Where a model came from and how it is run, rather than what it computes. The dtypes of the
# weights themselves count.
_VOLATILE = frozenset(
    {
        "_name_or_path",
        "_attn_implementation",
        "_experts_implementation",
        "architectures",
        "dtype",
        "torch_dtype",
        "transformers_version",
    }
)


def fingerprint(model: torch.nn.Module, config: dict[str, Any]) -> str:
    """Return 32 hex digits over the configuration and every weight, bit for bit.

    config: the model's configuration as plain values. All weights are read in full: two
    fine-tunings may differ in one layer, and must never share a cache. Names, shapes and dtypes
    count, the files' format and sharding do not. Costs one pass over the weights (xxh3, some
    gigabytes a second).
    """
    total = hashlib.sha256()
    total.update(json.dumps(_lasting(config), sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        content = xxhash.xxh3_128_hexdigest(memoryview(flat.numpy()))
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {content}\n".encode())
    return total.hexdigest()[:32]


def _lasting(value: Any) -> Any:
    """Return the configuration without volatile keys, in nested configurations neither."""
    if isinstance(value, dict):
        return {str(k): _lasting(v) for k, v in value.items() if k not in _VOLATILE}
    return value
