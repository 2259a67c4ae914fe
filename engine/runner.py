"""Carry out a `StepPlan`: copies, one forward pass over the mixed batch, logits.

Knows nothing of requests, tenants or block keys: numbers in, logits out.
"""

from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from stemkv.engine.attention import STEP_ARGUMENT, AttentionStep
from stemkv.engine.model import LoadedModel
from stemkv.engine.plan import CopyPlan, StepPlan
from stemkv.kernels.backend import AttentionBackend, AttentionBatch
from stemkv.kernels.layout import CacheLayout


class ModelRunner:
    """A loaded model with its cache.

    cache: [blocks, layers, 2, kv_heads, block_size, head_dim] as `layout` says, on the model's
    device; the runner is the only one that writes it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        cache: torch.Tensor,
        layout: CacheLayout,
        backend: AttentionBackend,
    ) -> None:
        self._model = loaded.model
        self._device = loaded.device
        self._vocab_size = loaded.vocab_size
        self._cache = cache
        self._layers = tuple(layout.layer_views(cache, layer) for layer in range(layout.layers))
        self._backend = backend

    @property
    def kernels(self) -> str:
        """Name of the attention backend that was chosen."""
        return self._backend.name

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Copy blocks, run the batch, return the wanted rows' logits.

        Returns float32 [samples, vocab] on the model's device, in the order of
        `plan.sample_rows`. A plan without tokens only copies.
        """
        with torch.inference_mode():
            self._copy(plan.copies)
            if len(plan.token_ids) == 0:
                return torch.empty(0, self._vocab_size, device=self._device)
            step = AttentionStep(self._batch(plan), self._layers, self._backend)
            # transformers selects the rows before the output projection: rows that nobody
            # samples cost no projection, and none at all is an empty product.
            output = self._model(
                input_ids=self._to_device(plan.token_ids)[None],
                position_ids=self._to_device(plan.positions)[None],
                logits_to_keep=self._to_device(plan.sample_rows),
                use_cache=False,
                **{STEP_ARGUMENT: step},
            )
            logits: torch.Tensor = output.logits[0].float()
            return logits

    def _copy(self, copies: CopyPlan) -> None:
        if len(copies.source) == 0:
            return
        self._backend.copy(
            self._cache,
            self._to_device(copies.source),
            self._to_device(copies.destination),
            self._to_device(copies.tokens),
        )

    def _batch(self, plan: StepPlan) -> AttentionBatch:
        starts = np.fromiter(accumulate(plan.query_lens, initial=0), dtype=np.int32)
        contexts = np.asarray(plan.context_lens, dtype=np.int32)
        return AttentionBatch(
            query_start=self._to_device(starts),
            context_lens=self._to_device(contexts),
            block_tables=self._to_device(plan.block_tables),
            slots=self._to_device(plan.slots),
            query_lens_host=plan.query_lens,
            context_lens_host=plan.context_lens,
            decodes=plan.decodes,
        )

    def _to_device(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        # Kernels address what they are given as one contiguous run.
        return torch.as_tensor(np.ascontiguousarray(array), device=self._device)
