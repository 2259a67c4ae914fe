"""The path that a GPU takes, end to end without one: Triton's kernels under its interpreter."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serve_process import ServeProcess, serving

FLAGS = (
    *("--device=cpu", "--dtype=float32", "--kv-memory=1MB", "--max-batch-tokens=48"),
    *("--served-model-name=tiny", "--debug-audit"),
)
STEM = [{"role": "system", "content": "be brief and be kind"}]


def chat(service: ServeProcess, text: str, **changes: Any) -> tuple[list[str], int]:
    """Ask greedily; return the choices' texts and how many prompt tokens were cached."""
    body = {
        "model": "tiny",
        "messages": [*STEM, {"role": "user", "content": text}],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
    }
    reply = httpx.post(f"{service.url}/v1/chat/completions", json=body | changes, timeout=240)
    answer = reply.raise_for_status().json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    return texts, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    # gemma2 needs more of the kernels: windows beside full attention, soft-capping
    "model",
    ["gemma2", pytest.param("llama", marks=pytest.mark.slow)],
)
def test_triton_kernels_serve_what_the_cpu_kernels_serve(
    tiny_model: Callable[[str], Path], tmp_path: Path, model: str
) -> None:
    """Cold, warm, forked and concurrent chats through Triton equal those of the CPU path."""
    folder = tiny_model(model)
    answers = {}
    for kernels in ("cpu", "triton"):
        environment = {"TRITON_INTERPRET": "1"} if kernels == "triton" else {}
        flags = (*FLAGS, f"--kernels={kernels}")
        with serving(folder, tmp_path / kernels, flags, environment) as service:
            seen = [chat(service, "what of it?"), chat(service, "what of it?")]
            seen.append(chat(service, "what of it? And of that?", n=2))
            with ThreadPoolExecutor(3) as pool:
                texts = ("one", "two, and a half", "what of it?")
                seen += pool.map(lambda text: chat(service, text), texts)
            assert service.admin("GET", "audit").json()["clean"] is True
        answers[kernels] = seen
    assert answers["triton"] == answers["cpu"]
    cold, warm = answers["triton"][:2]
    assert (cold[1], warm[0]) == (0, cold[0])
    assert warm[1] > 48
