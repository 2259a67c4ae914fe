"""The function that stands between transformers' layers and the attention backends."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.paged_loop import make_plan, make_rig, run_greedy

from stemkv.engine.attention import STEP_ARGUMENT, AttentionStep, paged_attention, read_call
from stemkv.kernels.backend import AttentionBatch
from stemkv.kernels.layout import CacheLayout
from stemkv.kernels.reference import TorchBackend
from stemkv.kernels.select import select_backend

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CPU = torch.device("cpu")
QUERY = torch.zeros(1, 4, 3, 16)


@pytest.mark.parametrize(
    ("attributes", "arguments", "window"),
    [
        ({}, {}, None),
        ({}, {"sliding_window": 12}, 12),
        ({}, {"sliding_window": 0}, None),
        ({"sliding_window": 12}, {}, 12),
        ({"sliding_window": 12}, {"sliding_window": None}, None),
        ({"sliding_window": None}, {"sliding_window": 7}, 7),
    ],
)
def test_window_of_a_layer(
    attributes: dict[str, Any], arguments: dict[str, Any], window: int | None
) -> None:
    """What a layer passes counts before what it carries; None and 0 mean everything."""
    module: Any = SimpleNamespace(layer_idx=2, **attributes)
    call = read_call(module, QUERY, arguments)
    assert (call.layer, call.window) == (2, window)


def test_other_arguments_of_a_layer() -> None:
    """Scale, soft-capping and sinks are read under transformers' names, with its defaults."""
    module: Any = SimpleNamespace(layer_idx=0)
    plain = read_call(module, QUERY, {"dropout": 0.0, "softcap": None})
    assert (plain.scale, plain.softcap, plain.sinks) == (0.25, None, None)
    sinks = torch.ones(4)
    full = read_call(module, QUERY, {"scaling": 0.5, "softcap": 30.0, "s_aux": sinks})
    assert (full.scale, full.softcap) == (0.5, 30.0)
    assert full.sinks is sinks


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_rows_shorter_than_the_caches(backend: str) -> None:
    """A layer with shorter keys, and values shorter still, uses the front of each row."""
    layout = CacheLayout(layers=2, kv_heads=2, head_dim=32, block_size=8, dtype=torch.float32)
    cache = layout.allocate(3, CPU)
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(1, 4, 5, 16, generator=generator)
    key = torch.randn(1, 2, 5, 16, generator=generator)
    value = torch.randn(1, 2, 5, 8, generator=generator)
    batch = AttentionBatch(
        query_start=torch.tensor([0, 5], dtype=torch.int32),
        context_lens=torch.tensor([5], dtype=torch.int32),
        block_tables=torch.tensor([[2]], dtype=torch.int32),
        slots=torch.arange(16, 21),
        query_lens_host=(5,),
        context_lens_host=(5,),
        decodes=0,
    )
    layers = tuple(layout.layer_views(cache, layer) for layer in range(2))
    step = AttentionStep(batch, layers, select_backend(backend, CPU))  # type: ignore[arg-type]
    module: Any = SimpleNamespace(layer_idx=1)
    output, weights = paged_attention(module, query, key, value, None, **{STEP_ARGUMENT: step})
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    assert weights is None
    torch.testing.assert_close(output, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)
    assert torch.equal(cache[2, 1, 0, :, :5, :16], key[0])
    assert torch.equal(cache[2, 1, 1, :, :5, :8], value[0])
    assert cache[:, 0].abs().sum() == 0
    assert cache[..., 16:].abs().sum() == 0


def test_two_runners_share_nothing(tiny_model: Callable[[str], Path]) -> None:
    """Steps of two runners in turn give what each gives alone: no state is kept between calls."""
    alone = []
    for architecture in ("llama", "gemma2"):
        rig = make_rig(tiny_model(architecture))
        sequence = rig.sequence(range(30, 50), 6)
        run_greedy(rig, [sequence], new_tokens=6, chunks=(20,))
        alone.append(sequence.output)
    rigs = [make_rig(tiny_model(architecture)) for architecture in ("llama", "gemma2")]
    sequences = [rig.sequence(range(30, 50), 6) for rig in rigs]
    for count in range(1, 7):
        for rig, sequence in zip(rigs, sequences, strict=True):
            run_greedy(rig, [sequence], new_tokens=count, chunks=(20,))
    assert [sequence.output for sequence in sequences] == alone


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_what_a_block_held_before_is_never_seen(
    backend: str, tiny_model: Callable[[str], Path]
) -> None:
    """Not even a NaN left in a reused block reaches the sequence that has the block now."""
    chosen = select_backend(backend, CPU)  # type: ignore[arg-type]
    prompts = [list(range(30, 49)), list(range(90, 95))]
    outputs = []
    for poison in (0.0, torch.nan):
        rig = make_rig(tiny_model("mistral"), backend=chosen)
        rig.cache.fill_(poison)
        sequences = [rig.sequence(prompt, 6) for prompt in prompts]
        run_greedy(rig, sequences, new_tokens=6, chunks=(7, 2))
        outputs.append([sequence.output for sequence in sequences])
    assert outputs[0] == outputs[1]


def test_a_neighbour_that_is_not_finite_stays_alone(tiny_model: Callable[[str], Path]) -> None:
    """A sequence whose cached keys are broken does not touch the others of its batch."""
    rig = make_rig(tiny_model("llama"), backend=TorchBackend())
    good, bad = rig.sequence(range(30, 50), 1), rig.sequence(range(60, 80), 1)
    rig.runner.execute(make_plan([(good, 19), (bad, 19)], 8, sample=[]))
    good.computed = bad.computed = 19
    expected = rig.runner.execute(make_plan([(good, 1), (bad, 1)], 8, sample=[0, 1]))
    rig.cache[bad.table[0]] = torch.nan
    found = rig.runner.execute(make_plan([(good, 1), (bad, 1)], 8, sample=[0, 1]))
    assert torch.equal(found[0], expected[0])
    assert found[1].isnan().all()
