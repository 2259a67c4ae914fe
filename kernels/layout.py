"""`CacheLayout`: where the keys and values of a block lie in the cache tensor.

One tensor for all layers, block-major, so that a block moves to another tier as one contiguous
piece and one head's block is contiguous. Nothing else may assume the order of dimensions.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Shape of the paged cache: [blocks, layers, 2, kv_heads, block_size, head_dim].

    Index 0 of the third dimension is keys, 1 is values. head_dim is the larger of the key's and
    the value's; a layer with a smaller one uses the front of each row.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: keys and values of block_size tokens in all layers."""
        elements = self.layers * 2 * self.kv_heads * self.block_size * self.head_dim
        return elements * self.dtype.itemsize

    def allocate(self, blocks: int, device: torch.device | str) -> torch.Tensor:
        """Return a zeroed cache [blocks, layers, 2, kv_heads, block_size, head_dim]."""
        shape = (blocks, self.layers, 2, self.kv_heads, self.block_size, self.head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=device)

    def layer_views(self, cache: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one layer's keys and values.

        Each is a strided view [blocks, kv_heads, block_size, head_dim].
        """
        return cache[:, layer, 0], cache[:, layer, 1]
