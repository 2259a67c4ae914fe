"""Paged prefill in Triton: tiles of queries over the cached blocks of their sequence.

One launch serves all chunks of a step, whatever their lengths: a program finds its sequence by
bisection in the batch's row offsets, so nothing is copied from the host. Twin:
`TorchBackend.attend`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# (the arguments of a kernel are pointers and numbers of the compiler's own)

import torch
import triton
import triton.language as tl

from stemkv.kernels.backend import AttentionBatch
from stemkv.kernels.triton_tile import ENDLESS, LOG2_E, attend_tile, tile_shape


@triton.jit
def find_sequence(query_start_ptr, tile, sequences, tile_queries):
    """Return the sequence that a tile belongs to.

    Sequence s has its first tile at (query_start[s] - query_start[0]) // tile_queries + s, which
    leaves each at least as many tiles as it needs.
    """
    origin = tl.load(query_start_ptr)
    low = tl.zeros([], dtype=tl.int32)
    high = low + sequences
    while high - low > 1:
        middle = (low + high) // 2
        first = (tl.load(query_start_ptr + middle) - origin) // tile_queries + middle
        low = tl.where(first <= tile, middle, low)
        high = tl.where(first <= tile, high, middle)
    return low


@triton.jit
def prefill_kernel(
    query_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    query_start_ptr,
    context_lens_ptr,
    sinks_ptr,
    output_ptr,
    query_row_stride,
    query_head_stride,
    k_block_stride,
    k_head_stride,
    k_row_stride,
    v_block_stride,
    v_head_stride,
    v_row_stride,
    table_stride,
    heads,
    sequences,
    scale,
    window,
    softcap,
    group: tl.constexpr,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
    capped: tl.constexpr,
    has_sinks: tl.constexpr,
):
    """Write the attention of one tile of one sequence's queries, for one key/value head.

    Grid: (tiles, kv_heads), see `find_sequence`. Row r of a tile is query r // group of the tile,
    head r % group of the key/value head's group. output: [tokens, heads, head_dim], contiguous.
    """
    tile_queries: tl.constexpr = tile_rows // group
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = find_sequence(query_start_ptr, tile, sequences, tile_queries)
    row_start = tl.load(query_start_ptr + sequence)
    row_count = tl.load(query_start_ptr + sequence + 1) - row_start
    origin = tl.load(query_start_ptr)
    first_query = (tile - (row_start - origin) // tile_queries - sequence) * tile_queries
    if first_query >= row_count:
        return
    context = tl.load(context_lens_ptr + sequence)
    first_position = context - row_count + first_query

    rows = tl.arange(0, tile_rows)
    dims = tl.arange(0, padded_dim)
    query_index = first_query + rows // group
    head = kv_head * group + rows % group
    real = (rows < tile_queries * group) & (query_index < row_count)
    loadable = real[:, None] & (dims < head_dim)[None, :]
    token = (row_start + query_index).to(tl.int64)
    query_rows = token * query_row_stride + head * query_head_stride
    query = tl.load(query_ptr + query_rows[:, None] + dims[None, :], mask=loadable, other=0.0)
    peak = tl.full([tile_rows], float("-inf"), dtype=tl.float32)
    total = tl.zeros([tile_rows], dtype=tl.float32)
    if has_sinks:  # a sink is a key whose value is zero: it starts the peak and the sum
        peak = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
        total += 1.0
    mixed, peak, total = attend_tile(
        query,
        tl.where(real, context - row_count + query_index, -1),
        peak,
        total,
        tl.maximum(first_position - window + 1, 0),
        tl.minimum(first_position + tile_queries, context),
        k_ptr + kv_head.to(tl.int64) * k_head_stride,
        v_ptr + kv_head.to(tl.int64) * v_head_stride,
        tables_ptr + sequence.to(tl.int64) * table_stride,
        k_block_stride,
        k_row_stride,
        v_block_stride,
        v_row_stride,
        scale,
        window,
        softcap,
        block_size,
        head_dim,
        padded_dim,
        tile_keys,
        capped,
    )
    # Rows that are padding have seen nothing; their division must not trap in the interpreter.
    total = tl.where(total == 0.0, 1.0, total)
    result = (mixed / total[:, None]).to(output_ptr.dtype.element_ty)
    output_rows = (token * heads + head) * head_dim
    tl.store(output_ptr + output_rows[:, None] + dims[None, :], result, mask=loadable)


def prefill(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    output: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    """Fill output's rows from `batch.decodes` on; see `AttentionBackend.attend`.

    output: [tokens, heads, head_dim], contiguous.
    """
    _, heads, head_dim = query.shape
    kv_heads, block_size = k_cache.shape[1:3]
    group = heads // kv_heads
    query_lens = batch.query_lens_host[batch.decodes :]
    tile = tile_shape(max(16, max(query_lens) * group), group, head_dim, k_cache.dtype)
    tiles = sum(query_lens) // (tile.rows // group) + len(query_lens)
    prefill_kernel[(tiles, kv_heads)](
        query,
        k_cache,
        v_cache,
        batch.block_tables[batch.decodes :],
        batch.query_start[batch.decodes :],
        batch.context_lens[batch.decodes :],
        output if sinks is None else sinks,
        output,
        *query.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        batch.block_tables.stride(0),
        heads,
        len(query_lens),
        scale,
        ENDLESS if sliding_window is None else sliding_window,
        softcap or 1.0,
        group=group,
        block_size=block_size,
        head_dim=head_dim,
        padded_dim=tile.head_dim,
        tile_rows=tile.rows,
        tile_keys=tile.keys,
        capped=softcap is not None,
        has_sinks=sinks is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
