"""Engine cores for tests: over a tiny real model, or over a model that is a hash of its context."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stemkv.engine.config import EngineConfig
from stemkv.engine.core import EngineCore, build_core
from stemkv.engine.model import LoadedModel
from stemkv.engine.plan import StepPlan
from stemkv.engine.request import Delta, Event, Failed, Finished, Request, SamplingParams, Started
from stemkv.kvstore.config import StoreConfig
from stemkv.kvstore.directory.null import NullDirectory
from stemkv.kvstore.namespace import Namespace, domain_of
from stemkv.kvstore.store import BlockStore
from support.tiny_models import build_tokenizer

SECRET = b"a secret for the tests, 32 bytes"
ALICE = Namespace("alice", domain_of(SECRET, tenant="alice"))
BOB = Namespace("bob", domain_of(SECRET, tenant="bob"))
TINY_LLAMA_BLOCK_BYTES = 12288


def request(name: str, prompt: Sequence[int], **changes: Any) -> Request:
    """Return a greedy request of alice's; changes go to Request or SamplingParams by name."""
    of_request = {k: v for k, v in changes.items() if k in Request.__dataclass_fields__}
    sampling = {k: v for k, v in changes.items() if k not in of_request}
    base = Request(name, ALICE, np.array(prompt, np.int32), SamplingParams(temperature=0))
    return replace(base, sampling=replace(base.sampling, **sampling), **of_request)


@dataclass(slots=True)
class Outcome:
    """What one request's events said, put together."""

    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    deltas: list[Delta] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    started: Started | None = None
    finished: Finished | None = None
    failed: Failed | None = None


def collect(events: Iterable[Event]) -> dict[str, Outcome]:
    """Put events together by request, checking their order."""
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for event in events:
        outcome = outcomes[event.request_id]
        assert outcome.finished is None, "an event after the last one"
        assert outcome.failed is None, "an event after the last one"
        match event:
            case Started():
                assert not outcome.deltas
                outcome.started = event
            case Delta():
                assert outcome.started is not None
                assert event.index not in outcome.reasons, "a delta after a finish reason"
                outcome.texts[event.index] += event.text
                outcome.tokens[event.index] += event.token_ids
                outcome.deltas.append(event)
                if event.finish_reason is not None:
                    outcome.reasons[event.index] = event.finish_reason
            case Finished():
                outcome.finished = event
            case Failed():
                outcome.failed = event
    return outcomes


def run(core: EngineCore, *requests: Request, limit: int = 10_000) -> dict[str, Outcome]:
    """Submit requests at once and step until all have ended."""
    events: list[Event] = []
    for each in requests:
        events += core.submit(each)
    for _ in range(limit):
        if not core.has_work():
            break
        events += core.step()
    assert not core.has_work(), f"still work after {limit} steps"
    return collect(events)


@pytest.fixture(scope="session")
def make_core(tiny_model: Callable[[str], Path]) -> Callable[..., EngineCore]:
    """Return a function that builds a core over a tiny real llama, blocks and settings given."""

    def make(blocks: int = 200, model: str = "llama", **settings: Any) -> EngineCore:
        return build_core(
            EngineConfig(
                model=str(tiny_model(model)),
                secret=SECRET,
                kv_memory=blocks * TINY_LLAMA_BLOCK_BYTES,
                debug_audit=True,
                **settings,
            )
        )

    return make


class HashRunner:
    """A model whose next token is a hash of all tokens that its cache says came before.

    Stands in for `ModelRunner`: the "key and value" of a position is its token id, kept where the
    plan's slots say and read through the plan's block tables, so that any wrong block, copy or
    slot changes the output. fail_on: plans for which it raises.
    """

    kernels = "hash"

    def __init__(self, blocks: int, block_size: int, vocab: int) -> None:
        self._cache = np.full((blocks, block_size), -1, np.int64)
        self._vocab = vocab
        self.plans: list[StepPlan] = []
        self.rows_run = 0
        self.fail_on: Callable[[StepPlan], bool] = lambda plan: False

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Carry a plan out on the array; returns float32 [samples, vocab]."""
        self.plans.append(plan)
        if self.fail_on(plan):
            raise RuntimeError("a fault was injected")
        self.rows_run += len(plan.token_ids)
        copies = plan.copies
        for source, destination, count in zip(
            copies.source, copies.destination, copies.tokens, strict=True
        ):
            self._cache[destination] = -1
            self._cache[destination, :count] = self._cache[source, :count]
        flat = self._cache.reshape(-1)
        written = plan.slots >= 0
        flat[plan.slots[written]] = plan.token_ids[written]
        logits = torch.zeros(len(plan.sample_rows), self._vocab)
        ends = np.cumsum(plan.query_lens)
        for i, row in enumerate(plan.sample_rows):
            sequence = int(np.searchsorted(ends, row, side="right"))
            context = self._cache[plan.block_tables[sequence]].reshape(-1)
            seen = context[: plan.context_lens[sequence]]
            logits[i, next_token(seen.tolist(), self._vocab)] = 1.0
        return logits


def next_token(context: Sequence[int], vocab: int) -> int:
    """Return what a `HashRunner` says after these tokens (never one of the special ones)."""
    assert min(context) >= 0, "a position was read that nobody wrote"
    digest = hashlib.blake2b(np.array(context, "<i8").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % min(vocab, 256)


def continuation(prompt: Sequence[int], count: int, vocab: int) -> list[int]:
    """Return the `count` tokens that a `HashRunner` gives after a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab))
    return tokens[len(prompt) :]


@cache
def _tokenizer() -> Any:
    return build_tokenizer()


def hash_core(
    blocks: int = 32,
    block_size: int = 4,
    max_tokens: int = 64,
    *,
    watched: bool = False,
    **settings: Any,
) -> tuple[EngineCore, HashRunner]:
    """Return a core over a `HashRunner`, the store audited after every step.

    watched: keep events and curves, as a service does.
    """
    options = {"max_batch_tokens": 16, "max_running": 8, "debug_audit": True} | settings
    config = EngineConfig(model="hash", secret=SECRET, kv_memory=1, **options)
    tokenizer = _tokenizer()
    vocab = len(tokenizer)
    loaded = LoadedModel(
        name="hash",
        model=torch.nn.Module(),
        tokenizer=tokenizer,
        device=torch.device("cpu"),
        dtype=torch.float32,
        layers=1,
        kv_heads=1,
        head_dim=1,
        windows=(None,),
        vocab_size=vocab,
        max_model_len=max_tokens,
        eos_token_ids=frozenset({tokenizer.eos_token_id}),
        fingerprint="hash",
    )
    runner = HashRunner(blocks, block_size, vocab)
    store = BlockStore(
        StoreConfig(
            capacity_blocks=blocks,
            block_size=block_size,
            max_sequences=config.max_running,
            max_tokens=max_tokens,
            secret=SECRET,
            prefix_cache=config.prefix_cache,
            event_blocks=1000 if watched else 0,
            curves=watched,
        ),
        NullDirectory(),
    )
    return EngineCore(config, loaded, runner, store), runner
