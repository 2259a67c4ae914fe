"""Writing new keys and values to their slots in Triton. Twin: `TorchBackend.write`."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# (the arguments of a kernel are pointers and numbers of the compiler's own)

import torch
import triton
import triton.language as tl

TILE_HEADS = 8  # key/value heads that one program writes


@triton.jit
def write_kernel(
    key_ptr,
    value_ptr,
    k_ptr,
    v_ptr,
    slots_ptr,
    key_row_stride,
    key_head_stride,
    value_row_stride,
    value_head_stride,
    k_block_stride,
    k_head_stride,
    k_row_stride,
    v_block_stride,
    v_head_stride,
    v_row_stride,
    kv_heads,
    block_size: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    tile_heads: tl.constexpr,
):
    """Write one token's key and value, for tile_heads heads. Grid: (tokens, head tiles)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    block = slot // block_size
    offset = slot % block_size
    heads = (tl.program_id(1) * tile_heads + tl.arange(0, tile_heads))[:, None].to(tl.int64)
    dims = tl.arange(0, padded_dim)[None, :]
    exists = heads < kv_heads
    in_key = exists & (dims < key_dim)
    in_value = exists & (dims < value_dim)
    key_at = key_ptr + token * key_row_stride + heads * key_head_stride + dims
    value_at = value_ptr + token * value_row_stride + heads * value_head_stride + dims
    k_at = k_ptr + block * k_block_stride + heads * k_head_stride + offset * k_row_stride + dims
    v_at = v_ptr + block * v_block_stride + heads * v_head_stride + offset * v_row_stride + dims
    key = tl.load(key_at, mask=in_key).to(k_ptr.dtype.element_ty)
    value = tl.load(value_at, mask=in_value).to(v_ptr.dtype.element_ty)
    tl.store(k_at, key, mask=in_key)
    tl.store(v_at, value, mask=in_value)


def write(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """See `AttentionBackend.write`; key and value with their last dimension contiguous."""
    tokens, kv_heads, key_dim = key.shape
    value_dim = value.shape[2]
    if tokens == 0:
        return
    write_kernel[(tokens, triton.cdiv(kv_heads, TILE_HEADS))](
        key,
        value,
        k_cache,
        v_cache,
        slots.contiguous(),
        *key.stride()[:2],
        *value.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        kv_heads,
        block_size=k_cache.shape[2],
        key_dim=key_dim,
        value_dim=value_dim,
        padded_dim=triton.next_power_of_2(max(key_dim, value_dim)),
        tile_heads=TILE_HEADS,
    )
