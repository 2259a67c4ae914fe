"""Run the model once over every kind of batch, so that no request waits for a compiler."""

import numpy as np

from stemkv.engine.plan import CopyPlan, StepPlan
from stemkv.engine.runner import ModelRunner


def warm_up(runner: ModelRunner, max_batch_tokens: int) -> None:
    """Run decodes alone, a prefill alone, both together, and a block copy.

    Works on the first two blocks of a cache that nobody uses yet; what it leaves there is never
    read, since a block is read only where it has been written for its holder.
    """
    chunk = max(2, min(max_batch_tokens, 8))
    copies = CopyPlan(np.array([0]), np.array([1]), np.array([1]))
    for query_lens in ((1, 1), (chunk,), (1, chunk)):
        runner.execute(_plan(query_lens, copies))


def _plan(query_lens: tuple[int, ...], copies: CopyPlan) -> StepPlan:
    """Sequences of token 0 that lie in block 0; only the first row is written."""
    rows = sum(query_lens)
    return StepPlan(
        token_ids=np.zeros(rows, np.int64),
        positions=np.concatenate([np.arange(count) for count in query_lens]),
        slots=np.array([0, *[-1] * (rows - 1)], np.int64),
        query_lens=query_lens,
        context_lens=query_lens,
        block_tables=np.zeros((len(query_lens), 1), np.int32),
        decodes=sum(count == 1 for count in query_lens),
        copies=copies,
        sample_rows=np.arange(len(query_lens), dtype=np.int64),
    )
