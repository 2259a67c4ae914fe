"""Paged attention, registered in transformers' attention interface.

transformers' model code calls the function below once per layer with that layer's queries, keys
and values. The step that they belong to comes with the call, as a keyword argument that
`model.forward` hands down; nothing is kept between calls. No mask function is registered under
the name: transformers then builds no mask at all, and the backend masks by position.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from stemkv.kernels.backend import AttentionBackend, AttentionBatch

PAGED_ATTENTION = "stemkv_paged"
STEP_ARGUMENT = "stemkv_step"


@dataclass(frozen=True, slots=True, eq=False)
class AttentionStep:
    """What one forward pass needs beside the model's own tensors.

    layers: each layer's keys and values, [blocks, kv_heads, block_size, head_dim], views of the
    cache in the order of layers.
    """

    batch: AttentionBatch
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    backend: AttentionBackend


@dataclass(frozen=True, slots=True, eq=False)
class LayerCall:
    """What distinguishes one layer's attention, read from a call of the interface.

    scale multiplies scores; window: positions that a query sees, itself included, None for all;
    softcap, sinks [heads]: as in `AttentionBackend.attend`.
    """

    layer: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


def read_call(
    module: torch.nn.Module,
    query: torch.Tensor,
    arguments: Mapping[str, Any],
) -> LayerCall:
    """Read what transformers' layers pass, by the names that they pass it under.

    A layer that passes no window may carry one as an attribute. One that passes None sees
    everything, whatever its attribute says (EXAONE 4 does so).
    """
    scaling = arguments.get("scaling")
    if "sliding_window" in arguments:
        window = arguments["sliding_window"]
    else:
        window = getattr(module, "sliding_window", None)
    return LayerCall(
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=int(window) if window else None,
        softcap=arguments.get("softcap") or None,
        sinks=arguments.get("s_aux"),
    )


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write a layer's keys and values to their slots, then attend over the block tables.

    query [1, heads, tokens, head_dim], key and value [1, kv_heads, tokens, head_dim]; the size of
    a value's row may be smaller than a key's. Returns ([1, tokens, heads, value's head_dim], None).
    """
    step: AttentionStep = kwargs[STEP_ARGUMENT]
    assert attention_mask is None, "a model that masks by itself is refused when it is loaded"
    call = read_call(module, query, kwargs)
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    k_cache, v_cache = step.layers[call.layer]
    width = query.shape[-1]
    if width != k_cache.shape[-1]:  # layers may differ in size; the cache has the largest
        k_cache, v_cache = k_cache[..., :width], v_cache[..., :width]
    step.backend.write(keys, values, k_cache, v_cache, step.batch.slots)
    attended = step.backend.attend(
        queries,
        k_cache,
        v_cache,
        step.batch,
        scale=call.scale,
        sliding_window=call.window,
        softcap=call.softcap,
        sinks=call.sinks,
    )
    # The cache starts as zeros and nothing writes behind a short value, so what is cut is zero.
    return attended[None, ..., : value.shape[-1]], None


AttentionInterface.register(PAGED_ATTENTION, paged_attention)
