"""What the runner does with a plan, beside the model's mathematics."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.paged_loop import Paged, Rig, make_plan, make_rig, no_copies

from stemkv.engine.plan import CopyPlan, StepPlan

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BLOCK_SIZE = 8
PROMPT = list(range(40, 61))


@pytest.fixture
def rig(tiny_model: Callable[[str], Path]) -> Rig:
    """Return a tiny Llama over a fresh cache."""
    return make_rig(tiny_model("llama"), block_size=BLOCK_SIZE)


def prefilled(rig: Rig) -> tuple[Paged, torch.Tensor]:
    """Return a sequence whose prompt is in the cache, and its last row's logits."""
    sequence = rig.sequence(PROMPT, 11)
    plan = make_plan([(sequence, len(PROMPT))], BLOCK_SIZE, sample=[0])
    logits = rig.runner.execute(plan)
    sequence.computed = len(PROMPT)
    return sequence, logits[0]


def test_no_samples_give_no_rows(rig: Rig) -> None:
    """A step that samples nothing returns no logits, and yet fills the cache."""
    sequence = rig.sequence(PROMPT, 0)
    logits = rig.runner.execute(make_plan([(sequence, 13)], BLOCK_SIZE, sample=[]))
    assert logits.shape == (0, rig.loaded.vocab_size)
    assert logits.dtype == torch.float32
    sequence.computed = 13
    chunked = rig.runner.execute(make_plan([(sequence, 8)], BLOCK_SIZE, sample=[0]))
    _, whole = prefilled(rig)
    torch.testing.assert_close(chunked[0], whole, rtol=1e-4, atol=1e-4)


def test_sample_rows_keep_their_order(rig: Rig) -> None:
    """Logits come in the order of sample_rows, whatever that is."""
    sequence = rig.sequence(PROMPT, 0)
    plan = make_plan([(sequence, len(PROMPT))], BLOCK_SIZE, sample=[0])
    forward = rig.runner.execute(replace(plan, sample_rows=np.array([3, 20, 9])))
    backward = rig.runner.execute(replace(plan, sample_rows=np.array([9, 20, 3])))
    torch.testing.assert_close(forward.flip(0), backward)
    assert not torch.allclose(forward[0], forward[1])


def test_copies_come_before_writes(rig: Rig) -> None:
    """A fork that copies a half-full block in its own step sees the block as it was."""
    original, _ = prefilled(rig)
    token = 99
    original.tokens.append(token)
    expected = rig.runner.execute(make_plan([(original, 1)], BLOCK_SIZE, sample=[0]))
    last = len(PROMPT) // BLOCK_SIZE
    fork = Paged([*PROMPT, token], [*original.table[:last], rig.free.pop()], len(PROMPT))
    rig.cache[fork.table[last]] = torch.nan
    rig.cache[fork.table[last], ..., len(PROMPT) % BLOCK_SIZE + 1 :, :] = 0
    copies = CopyPlan(
        np.array([original.table[last]]),
        np.array([fork.table[last]]),
        np.array([len(PROMPT) % BLOCK_SIZE]),
    )
    forked = rig.runner.execute(make_plan([(fork, 1)], BLOCK_SIZE, sample=[0], copies=copies))
    torch.testing.assert_close(forked, expected)


def test_plan_without_tokens_only_copies(rig: Rig) -> None:
    """A plan may copy blocks and compute nothing."""
    sequence, _ = prefilled(rig)
    source, destination = sequence.table[0], rig.free.pop()
    none = np.empty(0, dtype=np.int64)
    plan = StepPlan(
        token_ids=none,
        positions=none,
        slots=none,
        query_lens=(),
        context_lens=(),
        block_tables=np.empty((0, 0), dtype=np.int32),
        decodes=0,
        copies=CopyPlan(np.array([source]), np.array([destination]), np.array([5])),
        sample_rows=none,
    )
    assert rig.runner.execute(plan).shape == (0, rig.loaded.vocab_size)
    assert rig.cache[source].abs().sum() > 0
    assert torch.equal(rig.cache[destination, ..., :5, :], rig.cache[source, ..., :5, :])
    assert rig.cache[destination, ..., 5:, :].abs().sum() == 0
    assert len(no_copies().source) == 0


def test_slot_minus_one_writes_nothing(rig: Rig) -> None:
    """Computing a token whose key is cached already leaves the cache untouched."""
    sequence, expected = prefilled(rig)
    before = rig.cache.clone()
    sequence.computed = len(PROMPT) - 1
    plan = make_plan([(sequence, 1)], BLOCK_SIZE, sample=[0])
    again = rig.runner.execute(replace(plan, slots=np.array([-1])))
    torch.testing.assert_close(again[0], expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(rig.cache, before)
