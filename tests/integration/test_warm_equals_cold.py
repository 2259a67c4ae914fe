"""Greedy output with everything cached equals output with an empty cache, on real chats."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.chats import airline_conversations, mt_bench_questions
from support.cores import ALICE, SECRET, Outcome, request, run

from stemkv.engine.config import EngineConfig
from stemkv.engine.core import EngineCore, build_core
from stemkv.engine.messages import DoAudit, DoFlush, GetStats
from stemkv.engine.request import Request
from stemkv.kvstore.flush import FlushKind

BLOCK_BYTES = 737280
"""Of the default model in float32: 30 layers, keys and values of 3 heads of 64, 16 tokens."""

TIE = 2e-4
"""Natural log-probability. Sums taken in another order (one row instead of a chunk) move float32
logits of this model by some 1e-5; only where the two best are closer than this may a token differ.
"""

OUTPUT_TOKENS = 16


def build(model: Path, blocks: int, **settings: Any) -> EngineCore:
    """Return a core over the default model in float32 with so many blocks."""
    return build_core(
        EngineConfig(
            model=str(model),
            secret=SECRET,
            dtype="float32",
            kv_memory=blocks * BLOCK_BYTES,
            **settings,
        )
    )


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[list[int]]:
    """Token ids of real chats: second turns of questions, and a tool-using one with its history."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(default_model)
    chats = [
        [
            {"role": "user", "content": first},
            {"role": "assistant", "content": "Certainly. What follows is a draft."},
            {"role": "user", "content": second},
        ]
        for first, second in mt_bench_questions()[:80:16]
    ]
    # Two continuations of one real history behind the long system prompt.
    airline = airline_conversations()[0]
    chats += [airline[:2], airline[:4]]
    return [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        for chat in chats
    ]


def asked(prompts: Sequence[Sequence[int]], **changes: Any) -> list[Request]:
    """Return one greedy request a prompt, with the two best log-probabilities of each token."""
    return [
        request(f"r{i}", p, max_tokens=OUTPUT_TOKENS, logprobs=2, **changes)
        for i, p in enumerate(prompts)
    ]


def assert_same(warm: Outcome, cold: Outcome) -> None:
    """Hold two outputs against each other up to the first true tie."""
    assert len(warm.deltas) == len(cold.deltas)
    for a, b in zip(warm.deltas, cold.deltas, strict=True):
        if a.token_ids != b.token_ids:
            best, second = (top[3] for top in b.logprobs[0].top)
            assert best - second < TIE, f"{a.text!r} for {b.text!r}, {best - second} apart"
            return


def test_warm_equals_cold(default_model: Path, prompts: list[list[int]]) -> None:
    """All but the last token of each chat is cached, and every token of output is the same."""
    core = build(default_model, 600)
    cold = run(core, *asked(prompts, cache_read=False))
    core.admin(DoFlush(FlushKind.ALL)).finish()
    first = run(core, *asked(prompts))
    warm = run(core, *asked(prompts))
    for i, prompt in enumerate(prompts):
        name = f"r{i}"
        finished = warm[name].finished
        assert finished is not None
        assert finished.usage.cached_tokens == len(prompt) - 1
        assert_same(first[name], cold[name])
        assert_same(warm[name], cold[name])
    # The second airline prompt shares the first one's history with it, within one engine run.
    shared = first[f"r{len(prompts) - 1}"].finished
    assert shared is not None
    assert shared.usage.cached_tokens > 1000
    assert core.admin(DoAudit()).violations == ()


def test_preemption_equals_cold(default_model: Path, prompts: list[list[int]]) -> None:
    """With a fifth of the blocks that all need at once, requests are preempted and answer alike."""
    questions = prompts[:5]
    variants = [[*p[:-1], p[-2], p[-1]] for p in questions] + questions
    roomy = build(default_model, 400)
    cold = run(roomy, *asked(variants, cache_read=False, cache_write=False))
    need = sum(-(-(len(p) + OUTPUT_TOKENS) // 16) for p in variants)
    longest = max(-(-(len(p) + OUTPUT_TOKENS) // 16) for p in variants)
    tight = build(default_model, max(need // 5, longest), max_running=16)
    outcomes = run(tight, *asked(variants))
    for name, outcome in outcomes.items():
        assert_same(outcome, cold[name])
    stats = tight.admin(GetStats())
    assert stats.preemptions > 0
    assert stats.in_use_blocks == 0
    assert tight.admin(DoAudit()).violations == ()
    assert ALICE.tenant in stats.tenants
