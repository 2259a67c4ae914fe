"""The plain torch oracle: what every other backend must compute, said as simply as possible.

Slow by design. It reads a sequence's whole context into one tensor, computes in float32 (or in
float64, for tests), and loops over sequences. Every Triton and CPU kernel is held against it.
"""

import torch

from stemkv.kernels.backend import AttentionBatch


def gather_context(
    cache: torch.Tensor, block_table: torch.Tensor, start: int, end: int
) -> torch.Tensor:
    """Return positions start .. end - 1 of one sequence as [kv_heads, end - start, head_dim].

    cache: one layer's keys or values [blocks, kv_heads, block_size, head_dim], any strides.
    block_table: [max_blocks]; entries of blocks outside the range are not looked at.
    """
    _, kv_heads, block_size, head_dim = cache.shape
    first = start // block_size
    blocks = block_table[first : -(-end // block_size)].long()
    # Not index_select: given a strided view, it first copies all of the view, the whole pool.
    gathered = cache.transpose(0, 1)[:, blocks]
    rows = gathered.reshape(kv_heads, blocks.numel() * block_size, head_dim)
    return rows[:, start - first * block_size : end - first * block_size]


def visible(
    query_positions: torch.Tensor, key_positions: torch.Tensor, sliding_window: int | None
) -> torch.Tensor:
    """Return bool [queries, keys]: may the query see the key? Causal, and within the window."""
    distance = query_positions[:, None] - key_positions[None, :]
    mask = distance >= 0
    if sliding_window is not None:
        mask &= distance < sliding_window
    return mask


def first_visible(position: int, sliding_window: int | None) -> int:
    """Return the first position that a query at this position sees."""
    return 0 if sliding_window is None else max(0, position - sliding_window + 1)


class TorchBackend:
    """Attention, writes and copies in plain torch, on any device.

    compute_dtype: the precision of scores and sums; float32 as the interface says, or float64
    where a test wants a reference that has next to no error of its own.
    """

    name = "torch"

    def __init__(self, compute_dtype: torch.dtype = torch.float32) -> None:
        self._compute_dtype = compute_dtype

    def write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """See `AttentionBackend.write`."""
        rows = torch.nonzero(slots >= 0).flatten()
        block_size = k_cache.shape[2]
        blocks = torch.div(slots[rows], block_size, rounding_mode="floor")
        offsets = slots[rows] % block_size
        for new, cache in ((key, k_cache), (value, v_cache)):
            by_slot = cache.transpose(1, 2)[..., : new.shape[-1]]
            by_slot[blocks, offsets] = new[rows].to(cache.dtype)

    def attend(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        output = torch.zeros_like(query, memory_format=torch.contiguous_format)
        start = 0
        for sequence, rows in enumerate(batch.query_lens_host):
            context = batch.context_lens_host[sequence]
            low = first_visible(context - rows, sliding_window)
            table = batch.block_tables[sequence]
            keys = self._widen(gather_context(k_cache, table, low, context), query)
            values = self._widen(gather_context(v_cache, table, low, context), query)
            scores = torch.einsum(
                "qhd,hkd->hqk", query[start : start + rows].to(self._compute_dtype) * scale, keys
            )
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            mask = visible(
                torch.arange(context - rows, context, device=query.device),
                torch.arange(low, context, device=query.device),
                sliding_window,
            )
            weights = self._softmax(scores.masked_fill(~mask, -torch.inf), sinks)
            mixed = torch.einsum("hqk,hkd->qhd", weights, values)
            output[start : start + rows] = mixed.to(query.dtype)
            start += rows
        return output

    def copy(
        self,
        cache: torch.Tensor,
        source: torch.Tensor,
        destination: torch.Tensor,
        tokens: torch.Tensor,
    ) -> None:
        """See `AttentionBackend.copy`."""
        moves = zip(source.tolist(), destination.tolist(), tokens.tolist(), strict=True)
        for from_block, to_block, count in moves:
            cache[to_block, ..., :count, :] = cache[from_block, ..., :count, :]

    def _widen(self, context: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Keys or values of each query head: [heads, keys, head_dim of query]."""
        group = query.shape[1] // context.shape[0]
        narrowed = context[..., : query.shape[2]].to(self._compute_dtype)
        return narrowed.repeat_interleave(group, dim=0)

    @staticmethod
    def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        """Softmax over the last dimension of [heads, queries, keys], sinks in the denominator."""
        if sinks is None:
            return torch.softmax(scores, dim=-1)
        column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:2], 1)
        return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
