"""Find out at load whether a model's attention is one that the paged cache can serve.

Two short sequences go through the model in one flattened row, with an attention that records
what each layer asks for. Then the first one is changed: the second's logits must stay as they
were, or the model carries state from token to token outside its attention (state-space layers,
convolutions). Last, each goes through alone with the model's own attention: the logits must agree,
or the model's attention does something that ours does not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from stemkv.engine.attention import STEP_ARGUMENT, LayerCall, read_call
from stemkv.engine.config import ConfigError

_PROBE_ATTENTION = "stemkv_probe"
_SEGMENT_TOKENS = [7, 5]
# Relative errors that rounding explains, (float32, 16 bits). A neighbour's content changes no sum,
# except where experts work on groups of tokens; another attention changes the order of all sums.
_NEIGHBOUR_TOLERANCE = (1e-5, 0.05)
_OWN_TOLERANCE = (1e-3, 0.25)
_KNOWN_TENSORS = frozenset({"s_aux", "position_ids", "cache_position"})


class ModelError(ConfigError):
    """A model cannot be served; names the model and why."""


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One attention layer. window: positions that a query sees, itself included; None for all.

    head_dim: elements of a key's row (and a query's); value_dim: of a value's, at most head_dim.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None


@dataclass(slots=True)
class _Recorder:
    """What the layers asked for in one forward pass, in the order of their calls."""

    name: str
    layers: dict[int, LayerFacts] = field(default_factory=dict)


def probe(
    name: str, model: torch.nn.Module, layers: int, vocab_size: int
) -> tuple[LayerFacts, ...]:
    """Return each layer's facts; raise ModelError if paged attention would not compute the same.

    model: transformers' causal language model in eval mode; its attention implementation is
    "eager" afterwards. layers: how many attention layers it must have.
    """
    first, second = _tokens(vocab_size, 13, model), _tokens(vocab_size, 31, model)
    recorder = _Recorder(name)
    together = _forward(name, model, _PROBE_ATTENTION, first, recorder)
    found = recorder.layers
    if sorted(found) != list(range(layers)):
        raise ModelError(
            f"model {name}: {len(found)} of its {layers} layers pass through transformers' "
            "attention interface, so its keys and values cannot be paged"
        )
    neighbour = _forward(name, model, _PROBE_ATTENTION, (second[0], first[1]), _Recorder(name))
    if not (error := _error(together[1], neighbour[1])) <= _tolerance(_NEIGHBOUR_TOLERANCE, model):
        raise ModelError(
            f"model {name}: a sequence's logits change by {error:.2g} (relative) with another one "
            "in its batch: the model keeps state between tokens outside its attention"
        )
    for segment, logits in zip(first, together, strict=True):
        (own,) = _forward(name, model, "eager", (segment,), None)
        if not (error := _error(own, logits)) <= _tolerance(_OWN_TOLERANCE, model):
            raise ModelError(
                f"model {name}: its logits over paged attention differ by {error:.2g} (relative) "
                "from its own: it attends in a way that is not supported"
            )
    return tuple(found[layer] for layer in range(layers))


def _tokens(vocab_size: int, start: int, model: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    """Return token ids of each segment, spread over the vocabulary."""
    ids = [(7919 * i + start) % vocab_size for i in range(sum(_SEGMENT_TOKENS))]
    device = next(model.parameters()).device
    return torch.split(torch.tensor(ids, device=device), _SEGMENT_TOKENS)


def _error(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Return the distance of logits, relative to their spread; NaN compares as too much."""
    expected, found = expected.float(), found.float()
    spread = torch.linalg.vector_norm(expected - expected.mean(dim=-1, keepdim=True))
    distance = torch.linalg.vector_norm(expected - found)
    return float(distance / spread.clamp_min(1e-30))


def _tolerance(bounds: tuple[float, float], model: torch.nn.Module) -> float:
    exact = next(model.parameters()).dtype in (torch.float32, torch.float64)
    return bounds[0] if exact else bounds[1]


def _forward(
    name: str,
    model: torch.nn.Module,
    implementation: str,
    segments: tuple[torch.Tensor, ...],
    recorder: _Recorder | None,
) -> tuple[torch.Tensor, ...]:
    """Return each segment's logits [tokens, vocab]; the segments run as one flattened row."""
    positions = [torch.arange(len(s), device=s.device) for s in segments]
    extra = {} if recorder is None else {STEP_ARGUMENT: recorder}
    try:
        model.set_attn_implementation(implementation)  # type: ignore[operator]
        with torch.inference_mode():
            output = model(
                input_ids=torch.cat(segments)[None],
                position_ids=torch.cat(positions)[None],
                use_cache=False,
                **extra,
            )
    except ModelError:
        raise
    # Foreign model code fails in ways of its own; all of them mean the same here.
    except Exception as error:
        raise ModelError(
            f"model {name}: its forward pass takes no flattened batch of sequences: "
            f"{type(error).__name__}: {error}"
        ) from error
    return torch.split(output.logits[0], [len(segment) for segment in segments])


def _probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Record a layer's call, then attend densely inside each segment."""
    recorder: _Recorder = kwargs[STEP_ARGUMENT]
    call = read_call(module, query, kwargs)
    _refuse(recorder, module, call, attention_mask, kwargs)
    recorder.layers[call.layer] = LayerFacts(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        head_dim=key.shape[-1],
        value_dim=value.shape[-1],
        window=call.window,
    )
    group = query.shape[1] // key.shape[1]
    keys, values = (t[0].float().repeat_interleave(group, dim=0) for t in (key, value))
    scores = query[0].float() @ keys.mT * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores.masked_fill(~_visible(call.window, query.device), -torch.inf)
    if call.sinks is not None:
        column = call.sinks.float()[:, None, None].expand(*scores.shape[:2], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[1]]
    return (weights @ values).to(query.dtype).transpose(0, 1)[None], None


def _visible(window: int | None, device: torch.device) -> torch.Tensor:
    """Bool [tokens, tokens]: same segment, not later, inside the window."""
    lengths = torch.tensor(_SEGMENT_TOKENS, device=device)
    segment = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
    index = torch.arange(int(lengths.sum()), device=device)
    distance = index[:, None] - index[None, :]
    mask = (segment[:, None] == segment[None, :]) & (distance >= 0)
    return mask if window is None else mask & (distance < window)


def _refuse(
    recorder: _Recorder,
    module: torch.nn.Module,
    call: LayerCall,
    attention_mask: torch.Tensor | None,
    arguments: dict[str, Any],
) -> None:
    """Raise ModelError for what a layer asks of its attention that paged attention has not."""
    where = f"model {recorder.name}: layer {call.layer}"
    if call.layer in recorder.layers:
        raise ModelError(f"{where} attends twice (cross-attention, or layers that share a number)")
    causal = arguments.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise ModelError(f"{where} is not causal: each token would see later ones")
    for name, argument in arguments.items():
        if isinstance(argument, torch.Tensor) and name not in _KNOWN_TENSORS:
            raise ModelError(f"{where} passes {name} to its attention, which is not supported")
    told = None if attention_mask is None else int(attention_mask.flatten()[0]) or None
    if attention_mask is not None and told != call.window:
        raise ModelError(
            f"{where} masks {'everything' if told is None else f'what is {told} tokens'} away, "
            f"but tells its attention a window of {call.window} (chunked attention, for one, is "
            "not supported)"
        )


def _probe_mask(
    *, q_length: int, kv_length: int, device: torch.device, **kwargs: Any
) -> torch.Tensor:
    """Stand-in for a mask: [1, 1, queries, keys], filled with the window's width, 0 for none.

    The model hands it to the layers that it is meant for, which so reveals each layer's mask.
    """
    width = kwargs.get("local_size") or 0
    return torch.full((1, 1, q_length, kv_length), width, dtype=torch.int64, device=device)


AttentionInterface.register(_PROBE_ATTENTION, _probe_attention)
_register_mask: Callable[[str, Callable[..., torch.Tensor]], None] = AttentionMaskInterface.register
_register_mask(_PROBE_ATTENTION, _probe_mask)
