"""Prefill attention on a CPU: a chunk's queries over the cached context of their sequence.

The context is gathered once for the chunk, which costs little beside the chunk's own work. Plain
attention goes through torch's fused kernel; soft-capping and sinks, which it lacks, through an
online softmax over tiles of keys. Tiles bound the memory: nothing of size queries x context is
made, neither scores nor mask.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from stemkv.kernels.reference import first_visible, gather_context

QUERY_TILE = 256  # rows of one mask; a causal chunk wastes half a tile at its diagonal
KEY_TILE = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One sequence's queries [rows, heads, head_dim], the last of them at position context - 1.

    block_table: int32 [max_blocks], the sequence's.
    """

    query: torch.Tensor
    block_table: torch.Tensor
    context: int


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """How scores are made: see `AttentionBackend.attend`."""

    scale: float
    sliding_window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


def prefill(
    chunk: Chunk, k_cache: torch.Tensor, v_cache: torch.Tensor, scoring: Scoring
) -> torch.Tensor:
    """Return the chunk's attention [rows, heads, head_dim] in the query's dtype.

    k_cache, v_cache: one layer's [blocks, kv_heads, block_size, head_dim], any strides.
    """
    rows, heads, head_dim = chunk.query.shape
    kv_heads = k_cache.shape[1]
    low = first_visible(chunk.context - rows, scoring.sliding_window)
    keys, values = (
        gather_context(cache, chunk.block_table, low, chunk.context)[..., :head_dim]
        for cache in (k_cache, v_cache)
    )
    # [kv_heads, group, rows, head_dim]: the query heads that share a key/value head stand together.
    query = chunk.query.view(rows, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    fused = scoring.softcap is None and scoring.sinks is None
    attend_tile = _fused_tile if fused else _online_tile
    first = chunk.context - rows
    output = torch.empty_like(chunk.query, memory_format=torch.contiguous_format)
    for start in range(0, rows, QUERY_TILE):
        end = min(start + QUERY_TILE, rows)
        seen_from = first_visible(first + start, scoring.sliding_window)
        seen = slice(seen_from - low, first + end - low)
        mixed = attend_tile(
            query[:, :, start:end], keys[:, None, seen], values[:, None, seen], scoring
        )
        output[start:end] = mixed.permute(2, 0, 1, 3).reshape(end - start, heads, head_dim)
    return output


def _fused_tile(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
) -> torch.Tensor:
    """Plain attention of a tile; the last query sits at the last key.

    query: [kv_heads, group, rows, head_dim]. keys, values: [kv_heads, 1, keys, head_dim].
    """
    shape = (*query.shape[:2], *keys.shape[2:])
    mask = _mask(query.shape[2], 0, keys.shape[2], keys.shape[2], scoring.sliding_window)
    return scaled_dot_product_attention(
        query, keys.expand(shape), values.expand(shape), attn_mask=mask, scale=scoring.scale
    )


def _online_tile(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
) -> torch.Tensor:
    """Attention with soft-capping or sinks; shapes as in `_fused_tile`. Sums are float32."""
    kv_heads, group, rows, _ = query.shape
    context = keys.shape[2]
    scaled = query.float() * scoring.scale
    mixed = torch.zeros_like(scaled)
    if scoring.sinks is None:
        peak = torch.full((kv_heads, group, rows, 1), -torch.inf)
        total = torch.zeros(kv_heads, group, rows, 1)
    else:  # a sink is a key whose value is zero: it starts the peak and the sum
        peak = scoring.sinks.float().view(kv_heads, group, 1, 1).expand(-1, -1, rows, 1)
        total = torch.ones(kv_heads, group, rows, 1)
    for start in range(0, context, KEY_TILE):
        end = min(start + KEY_TILE, context)
        scores = scaled @ keys[:, :, start:end].float().transpose(-1, -2)
        if scoring.softcap is not None:
            scores = scores.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
        mask = _mask(rows, start, end, context, scoring.sliding_window)
        scores.masked_fill_(~mask, -torch.inf)
        higher = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        # A row that has seen no key yet has no peak; any finite one keeps it at zero weight.
        level = higher.clamp_min(torch.finfo(torch.float32).min)
        weights = scores.sub_(level).exp_()
        shrink = (peak - level).exp()
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        mixed = mixed * shrink + weights @ values[:, :, start:end].float()
        peak = higher
    return (mixed / total).to(query.dtype)


def _mask(
    rows: int, start: int, end: int, context: int, sliding_window: int | None
) -> torch.Tensor:
    """Which of keys start .. end - 1 the last rows of context positions see: bool [rows, keys].

    As diagonals, which is twenty times quicker to make than a comparison of positions.
    """
    newest = context - rows - start  # column of the newest key that the first row sees
    mask = torch.ones(rows, end - start, dtype=torch.bool).tril_(newest)
    return mask if sliding_window is None else mask.triu_(newest - sliding_window + 1)
