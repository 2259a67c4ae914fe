"""Writing new keys and values to their slots on a CPU."""

from typing import Any

from stemkv.kernels.jit import serial


@serial
def write_rows(
    new: Any, cache: Any, slots: Any, block_size: int, kv_heads: int, head_dim: int
) -> None:
    """Write the rows of new to the cache's slots; a slot below 0 is passed over.

    new: `Rows` of [1, tokens, kv_heads, head_dim]. cache: `Rows` of [blocks, kv_heads,
    block_size, at least head_dim] with the same carrier. slots: int64 [tokens]. One thread: a
    step's rows are far too few to be worth waking others.
    """
    for token in range(slots.shape[0]):
        slot = slots[token]
        if slot < 0:
            continue
        start = (slot // block_size) * cache.outer + (slot % block_size) * cache.inner
        for head in range(kv_heads):
            source = token * new.middle + head * new.inner
            target = start + head * cache.middle
            values = new.flat[source : source + head_dim]
            row = cache.flat[target : target + head_dim]
            for index in range(head_dim):
                row[index] = values[index]
