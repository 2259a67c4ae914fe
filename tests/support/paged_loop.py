"""Drive a `ModelRunner` by hand: sequences with scattered block tables, and plans over them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from stemkv.engine.model import LoadedModel, load_model, make_layout
from stemkv.engine.plan import CopyPlan, StepPlan
from stemkv.engine.runner import ModelRunner
from stemkv.kernels.backend import AttentionBackend
from stemkv.kernels.layout import CacheLayout
from stemkv.kernels.reference import TorchBackend


@dataclass(eq=False)
class Paged:
    """One sequence: its tokens, the blocks that hold them, how many are in the cache."""

    tokens: list[int]
    table: list[int]
    computed: int = 0
    output: list[int] = field(default_factory=list)

    def slot(self, position: int, block_size: int) -> int:
        """Slot of a position through the block table."""
        return self.table[position // block_size] * block_size + position % block_size


@dataclass(eq=False)
class Rig:
    """A runner with its cache, and block numbers to hand out in a scattered order."""

    loaded: LoadedModel
    layout: CacheLayout
    cache: torch.Tensor
    runner: ModelRunner
    free: list[int]

    def sequence(self, tokens: Sequence[int], room: int) -> Paged:
        """Start a sequence with blocks for its tokens and `room` more."""
        count = -(-(len(tokens) + room) // self.layout.block_size)
        return Paged(list(tokens), [self.free.pop() for _ in range(count)])


def make_rig(
    folder: Path,
    *,
    block_size: int = 8,
    blocks: int = 64,
    dtype: str = "float32",
    backend: AttentionBackend | None = None,
) -> Rig:
    """Load a model on the CPU, with a cache of `blocks` blocks."""
    loaded = load_model(str(folder), dtype, "cpu")
    layout = make_layout(loaded, block_size)
    cache = layout.allocate(blocks, loaded.device)
    runner = ModelRunner(loaded, cache, layout, backend or TorchBackend())
    scattered = np.random.default_rng(7).permutation(blocks).tolist()
    return Rig(loaded, layout, cache, runner, scattered)


def no_copies() -> CopyPlan:
    """Return an empty copy plan."""
    none = np.empty(0, dtype=np.int64)
    return CopyPlan(none, none, none)


def make_plan(
    parts: Sequence[tuple[Paged, int]],
    block_size: int,
    *,
    sample: Sequence[int],
    copies: CopyPlan | None = None,
) -> StepPlan:
    """Plan the next `count` tokens of each sequence; those with one row must come first.

    sample: which of the parts are sampled, each at its last row.
    """
    rows = [(seq, p) for seq, count in parts for p in range(seq.computed, seq.computed + count)]
    ends = np.cumsum([count for _, count in parts], dtype=np.int64)
    tables = np.zeros((len(parts), max(len(seq.table) for seq, _ in parts)), dtype=np.int32)
    for number, (seq, _) in enumerate(parts):
        tables[number, : len(seq.table)] = seq.table
    decodes = 0
    while decodes < len(parts) and parts[decodes][1] == 1:
        decodes += 1
    return StepPlan(
        token_ids=np.array([seq.tokens[p] for seq, p in rows], dtype=np.int64),
        positions=np.array([p for _, p in rows], dtype=np.int64),
        slots=np.array([seq.slot(p, block_size) for seq, p in rows], dtype=np.int64),
        query_lens=tuple(count for _, count in parts),
        context_lens=tuple(seq.computed + count for seq, count in parts),
        block_tables=tables,
        decodes=decodes,
        copies=copies or no_copies(),
        sample_rows=ends[list(sample)] - 1,
    )


def run_greedy(
    rig: Rig, sequences: Sequence[Paged], *, new_tokens: int, chunks: Sequence[int]
) -> None:
    """Run all sequences to `new_tokens` outputs, chunk sizes taken in turn, mixed in each step."""
    turn = 0
    while open_ones := [seq for seq in sequences if len(seq.output) < new_tokens]:
        parts: list[tuple[Paged, int]] = []
        for seq in open_ones:
            left = len(seq.tokens) - seq.computed
            parts.append((seq, min(left, chunks[turn % len(chunks)])))
            turn += 1
        parts.sort(key=lambda part: part[1] != 1)
        sample = [
            number
            for number, (seq, count) in enumerate(parts)
            if seq.computed + count == len(seq.tokens)
        ]
        logits = rig.runner.execute(make_plan(parts, rig.layout.block_size, sample=sample))
        for seq, count in parts:
            seq.computed += count
        for row, number in zip(logits, sample, strict=True):
            token = int(row.argmax())
            parts[number][0].tokens.append(token)
            parts[number][0].output.append(token)
