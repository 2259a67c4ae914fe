"""The serving benchmark runs to its end; what it measures is not judged here."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.tiny_models import build_tokenizer

from benchmarks.prompts import chat, text_of

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("tokens", [1, 40, 1500])
def test_prompts_have_the_length_that_is_told(tokens: int) -> None:
    """A text has exactly the tokens asked for, repeats with its seed and differs without."""
    tokenizer = build_tokenizer()
    text = text_of(tokenizer, tokens, seed=3)
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == tokens
    assert text == text_of(tokenizer, tokens, seed=3)
    assert tokens < 40 or text != text_of(tokenizer, tokens, seed=4)


def test_questions_differ_under_one_system_prompt() -> None:
    """Chats with one system prompt differ in their question alone."""
    chats = [chat("a system prompt", question) for question in range(8)]
    assert len({messages[0]["content"] for messages in chats}) == 1
    assert len({messages[1]["content"] for messages in chats}) == 8


@pytest.mark.slow
def test_it_runs_to_its_end(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """With a tiny model it starts a service, measures both sides and writes every figure."""
    output = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.serve", "--model", str(tiny_model("llama"))]
    command += ["--system-tokens=200", "--short-tokens=8", "--output-tokens=4", "--repeats=1"]
    command += ["--streams", "1", "3", "--serve-flag=--kv-memory=8MB", "--json", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads(output.read_text())
    figures = {figure["name"]: figure for figure in content["figures"]}
    assert set(figures) == {
        "time to first token, cold",
        "time to first token, warm",
        "throughput, 1 stream",
        "throughput, 3 streams",
    }
    assert all(f["ours"] > 0 and f["baseline"] > 0 and f["ratio"] > 0 for f in figures.values())
    assert [target["required"] for target in content["targets"]] == [5.0]
