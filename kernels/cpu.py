"""`CpuBackend`: attention on CPU tensors, decode by numba in place, prefill by torch."""

import numpy as np
import torch

from stemkv.kernels.backend import AttentionBatch
from stemkv.kernels.cpu_decode import Context, decode
from stemkv.kernels.cpu_prefill import Chunk, Scoring, prefill
from stemkv.kernels.cpu_rows import rows_of
from stemkv.kernels.cpu_write import write_rows

_ENDLESS = 2**62  # a sliding window that every context fits in


class CpuBackend:
    """Attention over paged blocks on a CPU; float32, bfloat16 and float16 caches."""

    name = "cpu"

    def write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """See `AttentionBackend.write`. Raises TypeError for a cache dtype without kernel."""
        slot_numbers = slots.contiguous().numpy()
        for new, cache in ((key, k_cache), (value, v_cache)):
            _, kv_heads, head_dim = new.shape
            rows = new.detach().to(cache.dtype)
            if rows.stride(-1) != 1:
                rows = rows.contiguous()
            write_rows(
                rows_of(rows[None]),
                rows_of(cache),
                slot_numbers,
                cache.shape[2],
                kv_heads,
                head_dim,
            )

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
        """See `AttentionBackend.attend`. Raises TypeError for a cache dtype without kernel."""
        scoring = Scoring(scale, sliding_window, softcap, sinks)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        if batch.decodes:
            output[: batch.decodes] = _decode(query, k_cache, v_cache, batch, scoring)
        start = batch.decodes
        for sequence in range(batch.decodes, len(batch.query_lens_host)):
            end = start + batch.query_lens_host[sequence]
            chunk = Chunk(
                query[start:end], batch.block_tables[sequence], batch.context_lens_host[sequence]
            )
            output[start:end] = prefill(chunk, k_cache, v_cache, scoring)
            start = end
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
            cache[to_block, ..., :count, :].copy_(cache[from_block, ..., :count, :])


def _decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    scoring: Scoring,
) -> torch.Tensor:
    """Attention of the batch's leading decodes: float32 [decodes, heads, head_dim]."""
    context = Context(
        rows_of(k_cache),
        rows_of(v_cache),
        batch.block_tables.contiguous().numpy(),  # kernels are compiled for contiguous tables
        k_cache.shape[2],
        k_cache.shape[1],
    )
    no_sinks = np.empty(0, np.float32)
    mixed = decode(
        query[: batch.decodes].detach().float().mul(scoring.scale).contiguous().numpy(),
        context,
        np.array(batch.context_lens_host[: batch.decodes], np.int64),
        _ENDLESS if scoring.sliding_window is None else scoring.sliding_window,
        np.float32(scoring.softcap or 0.0),
        no_sinks if scoring.sinks is None else scoring.sinks.detach().float().contiguous().numpy(),
    )
    return torch.from_numpy(mixed)
