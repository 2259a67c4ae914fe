"""The interface of an attention backend, and the batch that it works on.

Three backends implement it: Triton for GPUs (and for the interpreter), a CPU path, and a plain
torch oracle that the other two are held against.
"""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBatch:
    """One step's sequences: a flattened row of tokens, sequence after sequence.

    Tokens of sequence s are rows query_start[s] to query_start[s + 1]; its last query sits at
    position context_lens[s] - 1 and attends to positions 0 .. own, so a decode is a sequence with
    one row, a prefill chunk one with many.

    query_start: int32 [sequences + 1], on the device. context_lens: int32 [sequences], keys that
    the last query of each sees, itself included. block_tables: int32 [sequences, max_blocks],
    padded with anything. slots: int64 [tokens], block * block_size + offset where each row's key
    and value go, -1 for "already there, do not write".
    query_lens_host, context_lens_host: the same numbers as tuples, so that launch shapes need no
    copy from the device. decodes: how many leading sequences have exactly one row; the others
    follow them (decodes first).
    """

    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    slots: torch.Tensor
    query_lens_host: tuple[int, ...]
    context_lens_host: tuple[int, ...]
    decodes: int


class AttentionBackend(Protocol):
    """Attention over paged blocks, the write of new keys and values, and block copies."""

    name: str

    def write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """Write key and value [tokens, kv_heads, head_dim] to their slots; -1 writes nothing.

        k_cache, v_cache: one layer's [blocks, kv_heads, block_size, head_dim], any strides with
        the last dimension contiguous. A row shorter than the cache's fills the front.
        """
        ...

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
        """Causal attention of query [tokens, heads, head_dim] over cached blocks.

        The batch's own keys have been written before. heads is a multiple of kv_heads.
        sliding_window w: a query at position p sees positions p - w + 1 .. p. softcap c: scores
        become c * tanh(score / c) after scaling. sinks: [heads], one extra logit a head in the
        denominator. Sums are float32. Returns [tokens, heads, head_dim] in query's dtype.
        """
        ...

    def copy(
        self,
        cache: torch.Tensor,
        source: torch.Tensor,
        destination: torch.Tensor,
        tokens: torch.Tensor,
    ) -> None:
        """Copy the first tokens[i] positions of block source[i] to destination[i], all layers.

        cache: [blocks, layers, 2, kv_heads, block_size, head_dim]. The three are int64 [copies]
        on the cache's device. No destination is a source or another's destination.
        """
        ...
