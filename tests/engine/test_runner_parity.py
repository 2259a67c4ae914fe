"""The runner over paged blocks against transformers' own generation, in float32."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.paged_loop import make_plan, make_rig, run_greedy
from support.tiny_models import ARCHITECTURES, SLIDING_WINDOW
from transformers import AutoModelForCausalLM

from stemkv.kernels.select import select_backend

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NEW_TOKENS = 20
LENGTHS = (41, 5, 23)


def prompts() -> list[list[int]]:
    """Prompts of several lengths, the longest some times the sliding window."""
    random = np.random.default_rng(3)
    return [random.integers(0, 256, size=length).tolist() for length in LENGTHS]


def reference(folder: Path) -> torch.nn.Module:
    """Return the model as transformers runs it, with its own attention and cache."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def generate(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    """Return transformers' greedy continuation."""
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=259,
        )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_equal_generate(architecture: str, tiny_model: Callable[[str], Path]) -> None:
    """Chunked, mixed and paged, every architecture gives the tokens that transformers gives."""
    folder = tiny_model(architecture)
    assert max(LENGTHS) > 3 * SLIDING_WINDOW
    rig = make_rig(folder)
    sequences = [rig.sequence(prompt, NEW_TOKENS) for prompt in prompts()]
    run_greedy(rig, sequences, new_tokens=NEW_TOKENS, chunks=(7, 3, 11, 1))
    model = reference(folder)
    expected = [generate(model, prompt) for prompt in prompts()]
    assert [seq.output for seq in sequences] == expected
    assert len({token for output in expected for token in output}) > 5, "degenerate output"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_a_full_forward(architecture: str, tiny_model: Callable[[str], Path]) -> None:
    """The logits of chosen rows equal a whole forward pass, scaling and soft-capping included."""
    folder = tiny_model(architecture)
    rig = make_rig(folder)
    sequences = [rig.sequence(prompt, 0) for prompt in prompts()]
    parts = [(seq, len(seq.tokens)) for seq in sequences]
    logits = rig.runner.execute(make_plan(parts, 8, sample=[0, 2]))
    model = reference(folder)
    for row, number in zip(logits, (0, 2), strict=True):
        with torch.inference_mode():
            whole = model(torch.tensor([prompts()[number]]), use_cache=False).logits[0, -1]
        torch.testing.assert_close(row, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3"])
def test_cpu_backend_gives_the_same_tokens(
    architecture: str, tiny_model: Callable[[str], Path]
) -> None:
    """The backend that serves a CPU gives transformers' tokens as well."""
    folder = tiny_model(architecture)
    rig = make_rig(folder, backend=select_backend("cpu", torch.device("cpu")))
    sequences = [rig.sequence(prompt, NEW_TOKENS) for prompt in prompts()]
    run_greedy(rig, sequences, new_tokens=NEW_TOKENS, chunks=(9, 2, 5))
    model = reference(folder)
    assert [seq.output for seq in sequences] == [generate(model, p) for p in prompts()]


def test_bfloat16_stays_close_to_float32(tiny_model: Callable[[str], Path]) -> None:
    """In 16 bits, cache and all, logits stay within what rounding explains."""
    folder = tiny_model("qwen2")
    logits = []
    for dtype in ("float32", "bfloat16"):
        rig = make_rig(folder, dtype=dtype, backend=select_backend("cpu", torch.device("cpu")))
        sequences = [rig.sequence(prompt, 0) for prompt in prompts()]
        parts = [(seq, len(seq.tokens)) for seq in sequences]
        logits.append(rig.runner.execute(make_plan(parts, 8, sample=[0, 1, 2])))
    exact, rounded = logits
    assert rounded.dtype == torch.float32
    # 8 bits of mantissa, errors of some ten roundings a layer adding up at random.
    assert (exact - rounded).norm() < 0.05 * exact.norm()
    assert not torch.equal(exact, rounded)
