"""Paged decode in Triton: each sequence's one query over its cached blocks, split over the context.

Flash-decoding (Dao et al., 2023): programs share a sequence's context in chunks, a second kernel
merges them. Chunks begin at fixed multiples of CHUNK, so that a sequence's result does not depend
on what else is in the batch. Twin: `TorchBackend.attend`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# (the arguments of a kernel are pointers and numbers of the compiler's own)

import torch
import triton
import triton.language as tl

from stemkv.kernels.backend import AttentionBatch
from stemkv.kernels.triton_tile import ENDLESS, LOG2_E, attend_tile, tile_shape

CHUNK = 512  # positions; a multiple of every tile's keys
MERGE_CHUNKS = 8  # partial results that the merge loads at a time


@triton.jit
def decode_kernel(
    query_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    context_lens_ptr,
    mixed_ptr,
    peaks_ptr,
    totals_ptr,
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
    max_chunks,
    scale,
    window,
    softcap,
    group: tl.constexpr,
    chunk: tl.constexpr,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
    capped: tl.constexpr,
):
    """Write one chunk's partial result for the query heads of one key/value head.

    Grid: (sequences, kv_heads, max_chunks). mixed: float32 [sequences, heads, max_chunks,
    head_dim]; peaks, totals: float32 [sequences, heads, max_chunks].
    """
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    index = tl.program_id(2)
    context = tl.load(context_lens_ptr + sequence)
    low = tl.maximum(context - window, 0)
    begin = (low // chunk + index) * chunk
    if begin >= context:
        return
    rows = tl.arange(0, tile_rows)
    dims = tl.arange(0, padded_dim)
    head = kv_head * group + rows
    real = rows < group
    loadable = real[:, None] & (dims < head_dim)[None, :]
    query_rows = sequence.to(tl.int64) * query_row_stride + head * query_head_stride
    query = tl.load(query_ptr + query_rows[:, None] + dims[None, :], mask=loadable, other=0.0)
    mixed, peak, total = attend_tile(
        query,
        tl.where(real, context - 1, -1),
        tl.full([tile_rows], float("-inf"), dtype=tl.float32),
        tl.zeros([tile_rows], dtype=tl.float32),
        tl.maximum(low, begin),
        tl.minimum(context, begin + chunk),
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
    partial = (sequence.to(tl.int64) * heads + head) * max_chunks + index
    tl.store(mixed_ptr + partial[:, None] * head_dim + dims[None, :], mixed, mask=loadable)
    tl.store(peaks_ptr + partial, peak, mask=real)
    tl.store(totals_ptr + partial, total, mask=real)


@triton.jit
def merge_kernel(
    mixed_ptr,
    peaks_ptr,
    totals_ptr,
    sinks_ptr,
    context_lens_ptr,
    output_ptr,
    max_chunks,
    window,
    chunk: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    merge_chunks: tl.constexpr,
    has_sinks: tl.constexpr,
):
    """Merge the partial results of one head of one sequence. Grid: (sequences, heads).

    output: [sequences, heads, head_dim], contiguous.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    row = sequence.to(tl.int64) * tl.num_programs(1) + head
    context = tl.load(context_lens_ptr + sequence)
    chunks = tl.cdiv(context, chunk) - tl.maximum(context - window, 0) // chunk
    dims = tl.arange(0, padded_dim)
    in_row = dims < head_dim
    mixed = tl.zeros([padded_dim], dtype=tl.float32)
    # The first chunk of a sequence always has a key in sight, so the peak is finite from there on.
    peak = tl.load(peaks_ptr + row * max_chunks)
    total = 0.0
    if has_sinks:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
        peak = tl.maximum(peak, sink)
        total = tl.exp2(sink - peak)
    for start in range(0, chunks, merge_chunks):
        index = start + tl.arange(0, merge_chunks)
        exists = index < chunks
        partial = row * max_chunks + index
        peaks = tl.load(peaks_ptr + partial, mask=exists, other=float("-inf"))
        totals = tl.load(totals_ptr + partial, mask=exists, other=0.0)
        parts = tl.load(
            mixed_ptr + partial[:, None] * head_dim + dims[None, :],
            mask=exists[:, None] & in_row[None, :],
            other=0.0,
        )
        higher = tl.maximum(peak, tl.max(peaks, 0))
        shrink = tl.exp2(peak - higher)
        weights = tl.exp2(peaks - higher)
        total = total * shrink + tl.sum(totals * weights, 0)
        mixed = mixed * shrink + tl.sum(parts * weights[:, None], 0)
        peak = higher
    merged = (mixed / total).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row * head_dim + dims, merged, mask=in_row)


def decode(
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
    """Fill output's first `batch.decodes` rows, one a sequence; see `AttentionBackend.attend`.

    output: [tokens, heads, head_dim], contiguous.
    """
    sequences = batch.decodes
    _, heads, head_dim = query.shape
    kv_heads, block_size = k_cache.shape[1:3]
    group = heads // kv_heads
    window = ENDLESS if sliding_window is None else sliding_window
    max_chunks = max(
        triton.cdiv(context, CHUNK) - max(context - window, 0) // CHUNK
        for context in batch.context_lens_host[:sequences]
    )
    tile = tile_shape(group, group, head_dim, k_cache.dtype)
    mixed = query.new_empty((sequences, heads, max_chunks, head_dim), dtype=torch.float32)
    peaks = query.new_empty((sequences, heads, max_chunks), dtype=torch.float32)
    totals = torch.empty_like(peaks)
    decode_kernel[(sequences, kv_heads, max_chunks)](
        query,
        k_cache,
        v_cache,
        batch.block_tables,
        batch.context_lens,
        mixed,
        peaks,
        totals,
        *query.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        batch.block_tables.stride(0),
        heads,
        max_chunks,
        scale,
        window,
        softcap or 1.0,
        group=group,
        chunk=CHUNK,
        block_size=block_size,
        head_dim=head_dim,
        padded_dim=tile.head_dim,
        tile_rows=tile.rows,
        tile_keys=tile.keys,
        capped=softcap is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    merge_kernel[(sequences, heads)](
        mixed,
        peaks,
        totals,
        peaks if sinks is None else sinks,
        batch.context_lens,
        output,
        max_chunks,
        window,
        chunk=CHUNK,
        head_dim=head_dim,
        padded_dim=tile.head_dim,
        merge_chunks=MERGE_CHUNKS,
        has_sinks=sinks is not None,
    )
