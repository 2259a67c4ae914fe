"""`StepPlan`: what one step computes, decided in full before anything runs.

Made by the scheduler from bookkeeping alone, carried out by the runner, which knows nothing of
requests. Rows are tokens of the flattened batch, decodes first, then prefill chunks.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class CopyPlan:
    """Blocks to copy before the step writes: the first tokens[i] positions of source[i].

    Each int64 [copies]. No destination is a source or another's destination; sources stay
    referenced until the step's outcome is applied.
    """

    source: npt.NDArray[np.int64]
    destination: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One flattened row of tokens over several sequences, and which rows need logits.

    token_ids, positions: int64 [tokens]. slots: int64 [tokens], where each key and value goes
    (block * block_size + offset), -1 where it is there already. query_lens, context_lens: one
    number a sequence: rows in this step, and keys seen by the last of them, itself included.
    block_tables: int32 [sequences, widest table], padded with 0. decodes: how many leading
    sequences have one row. sample_rows: int64 [samples], rows whose logits are wanted.
    """

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: npt.NDArray[np.int32]
    decodes: int
    copies: CopyPlan
    sample_rows: npt.NDArray[np.int64]
