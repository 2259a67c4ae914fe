"""The inner loop that paged decode and paged prefill share, and the tile sizes of both.

A tile is a number of rows, each one query of one head, against one key/value head: the query heads
that share it stand together, so its keys are read once for all of them (grouped-query attention,
Ainslie et al., 2023) and matrix units get enough rows. Softmax runs online in base 2 and float32
(Dao et al., 2022).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# (the arguments of a kernel are pointers and numbers of the compiler's own)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)

# Triton's interpreter multiplies bfloat16 operands as if their bits were integers (seen in 3.9).
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

ENDLESS = 2**31 - 1  # a sliding window that every context fits in


@dataclass(frozen=True, slots=True)
class TileShape:
    """Rows and keys of one tile, both powers of two, and how a program is launched."""

    rows: int
    keys: int
    head_dim: int
    warps: int
    stages: int


def tile_shape(wanted_rows: int, group: int, head_dim: int, dtype: torch.dtype) -> TileShape:
    """Return a tile of at least wanted_rows rows where memory allows, and of a whole group.

    Sizes keep a program under 99 KiB of shared memory, what every chip from sm_80 on has.
    """
    padded = max(16, triton.next_power_of_2(head_dim))
    if dtype == torch.float32:
        # float32 dots run without matrix units, where a larger tile would only spill registers.
        limit, wide = 16, padded > 64
    else:
        limit, wide = max(16, min(128, 128 * 128 // padded)), padded > 128
    rows = max(16, min(wanted_rows, limit), group)
    rows = triton.next_power_of_2(rows)
    warps = 8 if rows * padded >= 64 * 128 else 4
    # Half a kilobyte a key is as much as two stages of keys and values leave room for.
    stages = 1 if padded * dtype.itemsize > 512 else 2
    return TileShape(rows, 32 if wide else 64, padded, warps, stages)


@triton.jit
def dot(left, right):
    """Return left @ right in float32, its operands taken as they are (no TF32)."""
    if INTERPRETED:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def attend_tile(
    query,
    positions,
    peak,
    total,
    start,
    end,
    k_ptr,
    v_ptr,
    table_ptr,
    k_block_stride,
    k_row_stride,
    v_block_stride,
    v_row_stride,
    scale,
    window,
    softcap,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    tile_keys: tl.constexpr,
    capped: tl.constexpr,
):
    """Attend query [rows, padded_dim] to positions start .. end - 1; return mixed, peak, total.

    positions: int32 [rows], each row's own position; -1 sees nothing. peak, total: float32
    [rows], what the softmax starts from: the largest score so far, times log2(e), and the sum of
    weights under it. k_ptr, v_ptr: the key/value head's place in block 0. table_ptr: the
    sequence's block table. mixed: float32 [rows, padded_dim], not divided by total.
    """
    dims = tl.arange(0, padded_dim)
    in_row = dims < head_dim
    mixed = tl.zeros([query.shape[0], padded_dim], dtype=tl.float32)
    for tile in range(start, end, tile_keys):
        keys_at = tile + tl.arange(0, tile_keys)
        exists = keys_at < end
        block = tl.load(table_ptr + keys_at // block_size, mask=exists, other=0).to(tl.int64)
        offset = keys_at % block_size
        loadable = exists[:, None] & in_row[None, :]
        k_rows = block * k_block_stride + offset * k_row_stride
        keys = tl.load(k_ptr + k_rows[:, None] + dims[None, :], mask=loadable, other=0.0)
        scores = dot(query, tl.trans(keys)) * scale
        if capped:
            # tanh(x) = 2 * sigmoid(2x) - 1, which every target has.
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        distance = positions[:, None] - keys_at[None, :]
        seen = exists[None, :] & (distance >= 0) & (distance < window)
        scores = tl.where(seen, scores * LOG2_E, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen no key yet has no peak; any finite one keeps its weights at zero.
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - level[:, None])
        shrink = tl.exp2(peak - level)
        total = total * shrink + tl.sum(weights, 1)
        v_rows = block * v_block_stride + offset * v_row_stride
        values = tl.load(v_ptr + v_rows[:, None] + dims[None, :], mask=loadable, other=0.0)
        mixed = mixed * shrink[:, None]
        mixed += dot(weights.to(values.dtype), values)
        peak = higher
    return mixed, peak, total
