"""`TritonBackend`: attention on a GPU, or on CPU tensors under Triton's interpreter."""

import torch

from stemkv.kernels import triton_copy, triton_decode, triton_prefill, triton_write
from stemkv.kernels.backend import AttentionBatch


class TritonBackend:
    """Attention over paged blocks in Triton; float32, bfloat16 and float16 caches.

    Query and cache have one dtype. float32 is computed in full precision, without TF32.
    """

    name = "triton"

    def write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """See `AttentionBackend.write`."""
        triton_write.write(_rows(key), _rows(value), k_cache, v_cache, slots)

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
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        rows = _rows(query).to(k_cache.dtype)
        parts = (
            (triton_decode.decode, batch.decodes),
            (triton_prefill.prefill, len(batch.query_lens_host) - batch.decodes),
        )
        for part, sequences in parts:
            if sequences:
                part(
                    rows,
                    k_cache,
                    v_cache,
                    batch,
                    output,
                    scale=scale,
                    sliding_window=sliding_window,
                    softcap=softcap,
                    sinks=sinks,
                )
        return output

    def copy(
        self,
        cache: torch.Tensor,
        source: torch.Tensor,
        destination: torch.Tensor,
        tokens: torch.Tensor,
    ) -> None:
        """See `AttentionBackend.copy`; the cache is contiguous."""
        triton_copy.copy(cache, source, destination, tokens)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its last dimension contiguous, as kernels address it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
