"""Loading: what is read from a model, what is refused, and how its cache is sized."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, build_model, build_tokenizer
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from stemkv.engine.config import ConfigError
from stemkv.engine.model import (
    ModelError,
    cgroup_free_bytes,
    load_model,
    make_layout,
    pool_blocks,
)
from stemkv.kernels.layout import CacheLayout

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CPU = torch.device("cpu")
LAYOUT = CacheLayout(layers=2, kv_heads=2, head_dim=16, block_size=16, dtype=torch.float32)


def save(folder: Path, model_type: str, auto: Any = AutoModelForCausalLM, **sizes: Any) -> Path:
    """Save a random model of that type with a tokenizer."""
    config = AutoConfig.for_model(model_type, vocab_size=VOCAB_SIZE, **sizes)
    auto.from_config(config, dtype=torch.float32).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def test_facts_of_a_model(tiny_model: Callable[[str], Path]) -> None:
    """What the engine needs to know is read from the model itself."""
    loaded = load_model(str(tiny_model("gemma3")), device="cpu")
    assert (loaded.layers, loaded.kv_heads, loaded.head_dim) == (3, 2, 16)
    assert loaded.windows == (12, None, 12)
    assert (loaded.vocab_size, loaded.max_model_len) == (VOCAB_SIZE, 512)
    assert loaded.eos_token_ids == {EOS_TOKEN_ID}
    assert (loaded.dtype, loaded.device) == (torch.float32, CPU)
    assert not loaded.model.training
    layout = make_layout(loaded, 32)
    assert layout == CacheLayout(3, 2, 16, 32, torch.float32)


def test_eos_tokens_come_from_everywhere(tmp_path: Path) -> None:
    """Generation settings with several ends of text, and the tokenizer's, all count."""
    folder = build_model("llama", tmp_path)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [5, 6]}))
    assert load_model(str(folder), device="cpu").eos_token_ids == {5, 6, EOS_TOKEN_ID}


def test_dtype_is_the_checkpoints_unless_told(tiny_model: Callable[[str], Path]) -> None:
    """The dtype "auto" keeps what was saved; a named one converts, and gives another cache."""
    folder = str(tiny_model("llama"))
    saved = load_model(folder, device="cpu")
    told = load_model(folder, "bfloat16", "cpu")
    assert (saved.dtype, told.dtype) == (torch.float32, torch.bfloat16)
    assert make_layout(told, 16).dtype == torch.bfloat16
    assert saved.fingerprint != told.fingerprint


def test_fingerprint_is_of_content(tmp_path: Path) -> None:
    """Equal weights under another path are equal; one changed weight, or setting, is not."""
    original = build_model("llama", tmp_path / "original")
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    weight = Path(shutil.copytree(original, tmp_path / "weight"))
    tensors = load_file(weight / "model.safetensors")
    changed = tensors["model.layers.1.mlp.up_proj.weight"]
    changed[3, 5] = torch.nextafter(changed[3, 5], torch.tensor(9.0))
    save_file(tensors, weight / "model.safetensors", metadata={"format": "pt"})
    setting = Path(shutil.copytree(original, tmp_path / "setting"))
    path = setting / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 1e-4}))
    first, same, *others = (
        load_model(str(folder), device="cpu").fingerprint
        for folder in (original, copy, weight, setting)
    )
    assert first == same
    assert len({first, *others}) == 3
    assert len(bytes.fromhex(first)) == 16


def test_fingerprint_is_equal_in_every_process(tiny_model: Callable[[str], Path]) -> None:
    """Another process, with another seed for Python's own hashes, finds the same fingerprint."""
    folder = str(tiny_model("llama"))
    program = (
        "import sys; from stemkv.engine.model import load_model; "
        "print(load_model(sys.argv[1], device='cpu').fingerprint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == [load_model(folder, device="cpu").fingerprint]


@pytest.mark.parametrize(
    ("model_type", "auto", "sizes", "reason"),
    [
        ("t5", AutoModel, {"d_model": 16, "d_ff": 16, "num_layers": 1}, "encoder-decoder"),
        (
            "bert",
            AutoModelForCausalLM,
            {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2},
            "not causal",
        ),
        (
            "falcon",
            AutoModelForCausalLM,
            {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2},
            "attention interface",
        ),
        (
            "bloom",
            AutoModelForCausalLM,
            {"hidden_size": 32, "n_head": 2, "n_layer": 2},
            "attention interface",
        ),
        (
            "mamba",
            AutoModelForCausalLM,
            {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
            "flattened batch|attention interface",
        ),
        (
            "falcon_h1",
            AutoModelForCausalLM,
            {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "mamba_d_ssm": 32,
                "mamba_n_heads": 4,
                "mamba_d_head": 8,
                "mamba_d_state": 8,
                "mamba_n_groups": 1,
            },
            "keeps state between tokens",
        ),
        (
            "llama4_text",
            AutoModelForCausalLM,
            {
                "hidden_size": 32,
                "intermediate_size": 32,
                "intermediate_size_mlp": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "num_local_experts": 2,
                "attention_chunk_size": 64,
            },
            "chunked",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(
    model_type: str, auto: Any, sizes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Models that the paged cache cannot serve are refused by name, with the reason."""
    folder = save(tmp_path / "model", model_type, auto, **sizes)
    with pytest.raises(ModelError, match=reason) as caught:
        load_model(str(folder), device="cpu")
    assert str(folder) in str(caught.value)


def test_heads_that_differ_between_layers_are_refused(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cache row holds every layer's heads, so layers must have the same number."""
    model_class = type(load_model(str(tiny_model("llama")), device="cpu").model)
    original = model_class.from_pretrained.__func__

    def uneven(cls: Any, *args: Any, **kwargs: Any) -> Any:
        model, report = original(cls, *args, **kwargs)
        attention = model.model.layers[1].self_attn
        for name in ("k_proj", "v_proj"):
            projection = getattr(attention, name)
            projection.weight = torch.nn.Parameter(projection.weight[:16].clone())
        attention.num_key_value_groups = 4
        return model, report

    monkeypatch.setattr(model_class, "from_pretrained", classmethod(uneven))
    with pytest.raises(ModelError, match=r"key-value heads \(\[1, 2\]\)"):
        load_model(str(tiny_model("llama")), device="cpu")


def test_length_dependent_rope_is_held_to_the_original_length(tmp_path: Path) -> None:
    """Where rotary embeddings change with the longest in the batch, prompts stay below that."""
    long, short = [4.0] * 6, [1.0] * 6
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "long_factor": long,
        "short_factor": short,
        "original_max_position_embeddings": 64,
    }
    folder = build_model(
        "phi3", tmp_path, rope_parameters=rope, original_max_position_embeddings=64
    )
    assert load_model(str(folder), device="cpu").max_model_len == 64


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    """A checkpoint that lacks a tensor is refused, instead of served with random numbers."""
    folder = build_model("llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 weights, model\.layers\.1"):
        load_model(str(folder), device="cpu")


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    """A missing folder, an empty one, a file, a folder without tokenizer: each says which."""
    with pytest.raises(ModelError, match="no such folder"):
        load_model(str(tmp_path / "missing"))
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(str(tmp_path))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="a file"):
        load_model(str(file))
    folder = build_model("llama", tmp_path / "bare")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        load_model(str(folder), device="cpu")


def test_settings_that_cannot_be_had(tiny_model: Callable[[str], Path]) -> None:
    """An unknown dtype or device, or one that is not there, is named."""
    folder = str(tiny_model("llama"))
    with pytest.raises(ConfigError, match="dtype: 'int8'"):
        load_model(folder, "int8", "cpu")
    with pytest.raises(ConfigError, match="device: 'tpu'"):
        load_model(folder, device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            load_model(folder, device="cuda")


def test_pool_of_bytes() -> None:
    """A pool holds as many whole blocks as the bytes allow."""
    assert pool_blocks(LAYOUT, 10 * LAYOUT.block_bytes + 5, CPU) == 10


def test_pool_of_a_share() -> None:
    """A share is of what is free now."""
    blocks = pool_blocks(LAYOUT, 0.01, CPU)
    assert 2 <= blocks <= 0.02 * psutil.virtual_memory().total / LAYOUT.block_bytes


def test_pool_that_cannot_be_had() -> None:
    """Too much and too little memory are both refused with the numbers."""
    with pytest.raises(ConfigError, match=r"kv_memory: 1,000,000,000,000,000 bytes are wanted"):
        pool_blocks(LAYOUT, 10**15, CPU)
    with pytest.raises(ConfigError, match=r"hold 1 blocks of 8,192 bytes"):
        pool_blocks(LAYOUT, LAYOUT.block_bytes * 2 - 1, CPU)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    """Inside a memory limit, free is what the limit leaves, clean file pages included."""
    assert cgroup_free_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("7000\n")
    (tmp_path / "memory.stat").write_text("anon 5000\ninactive_file 1500\n")
    assert cgroup_free_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("10000\n")
    assert cgroup_free_bytes(tmp_path) == 4500
    (tmp_path / "memory.current").write_text("19000\n")
    assert cgroup_free_bytes(tmp_path) == 0
