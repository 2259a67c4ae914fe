"""Copying the first tokens of blocks in Triton, all layers at once. Twin: `TorchBackend.copy`."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# (the arguments of a kernel are pointers and numbers of the compiler's own)

import torch
import triton
import triton.language as tl

TILE_ELEMENTS = 1024  # elements of a row that one program moves at a time


@triton.jit
def copy_kernel(
    cache_ptr,
    source_ptr,
    destination_ptr,
    tokens_ptr,
    block_stride,
    row_elements,
    head_dim,
    tile_elements: tl.constexpr,
):
    """Copy the front of one row: one layer's keys or values of one head. Grid: (copies, rows).

    A row is contiguous, its positions in order: row_elements = block_size * head_dim.
    """
    copy = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64) * row_elements
    source = tl.load(source_ptr + copy) * block_stride + row
    destination = tl.load(destination_ptr + copy) * block_stride + row
    count = tl.load(tokens_ptr + copy).to(tl.int32) * head_dim
    for start in range(0, count, tile_elements):
        elements = start + tl.arange(0, tile_elements)
        moved = tl.load(cache_ptr + source + elements, mask=elements < count)
        tl.store(cache_ptr + destination + elements, moved, mask=elements < count)


def copy(
    cache: torch.Tensor, source: torch.Tensor, destination: torch.Tensor, tokens: torch.Tensor
) -> None:
    """See `AttentionBackend.copy`; the cache is contiguous."""
    assert cache.is_contiguous()
    _, layers, two, kv_heads, block_size, head_dim = cache.shape
    copies = source.numel()
    if copies == 0:
        return
    copy_kernel[(copies, layers * two * kv_heads)](
        cache,
        source.contiguous(),
        destination.contiguous(),
        tokens.contiguous(),
        cache.stride(0),
        block_size * head_dim,
        head_dim,
        tile_elements=TILE_ELEMENTS,
    )
