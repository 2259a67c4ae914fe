"""Turns a GGUF file into a Hugging Face folder.

Run as `python -m stemkv.engine.model_convert GGUF FOLDER`: bfloat16 safetensors, tokenizer, chat
template, generation config. The folder must not exist; it is checked before this returns, and
left behind half-made if something fails: the caller owns it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import Digits, Sequence

# Text that a wrong pre-tokenizer, decoder or space rule would not give back unchanged.
ROUND_TRIPS = (
    "Hello world",
    " leading, and  two  spaces ",
    "12345 + 67 = 2024-10-01",
    "don't; it's",
    "\n\ttabs\n\n\nand lines\n",
    "héllo 😀 漢字 a\u200db",
)
READABLE_BY_ALL = 0o644


class ConversionError(Exception):
    """The file cannot be converted, or what came out of it is wrong."""


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in gguf to folder as a Hugging Face checkpoint.

    Raises ConversionError if the result would not work; OSError if it cannot be written.
    """
    location = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**location)
    _mend_digits(gguf, tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **location, dtype=torch.bfloat16, **_dequantized()
    )
    config = model.config
    config.architectures = [type(model).__name__]
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights written below are plain
    tokenizer.model_max_length = config.max_position_embeddings
    folder.mkdir()
    _save_weights(model, folder / "model.safetensors")
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    _forget_origin(folder)
    _check_tokenizer(folder)


def _mend_digits(gguf: Path, tokenizer: Any) -> None:
    """Split digits one by one before anything else, where the file says so.

    transformers drops that step of the "smollm" pre-tokenizer; spaces before a number would
    then fall into other tokens than those that the model was trained on.
    """
    kind = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    if kind is not None and kind.contents() == "smollm":
        backend = tokenizer.backend_tokenizer
        steps = [Digits(individual_digits=True), backend.pre_tokenizer]
        backend.pre_tokenizer = Sequence(steps)


def _dequantized() -> dict[str, Any]:
    """Ask for plain weights where transformers would otherwise keep them packed."""
    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _save_weights(model: Any, path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            raise ConversionError(f"{name} is still packed ({tensor.dtype})")
        if not bool(torch.isfinite(tensor).all()):
            raise ConversionError(f"{name} holds values that are not finite")
        tensors[name] = tensor.to(torch.bfloat16).contiguous()
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)  # the embedding, which is written once
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(READABLE_BY_ALL)  # save_file makes it the owner's alone


def _forget_origin(folder: Path) -> None:
    """Take out of the written files what tells of this run rather than of the model."""
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        for key in ("_model_name_or_path", "is_local", "local_files_only"):
            content.pop(key, None)
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def _check_tokenizer(folder: Path) -> None:
    """Hold the saved tokenizer to what a chat needs."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ROUND_TRIPS:
        back = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
        if back != text:
            raise ConversionError(f"the tokenizer turns {text!r} into {back!r}")
    if tokenizer.eos_token_id is None:
        raise ConversionError("the tokenizer has no end-of-sequence token")
    if tokenizer.chat_template is None:
        raise ConversionError("the file has no chat template")
    if len(tokenizer(tokenizer.eos_token, add_special_tokens=False)["input_ids"]) != 1:
        raise ConversionError(f"{tokenizer.eos_token!r} is not one token")


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except (ConversionError, OSError, ValueError, RuntimeError, ImportError) as error:
        message = " ".join(str(error).split())
        sys.exit(f"{type(error).__name__}: {message}")
