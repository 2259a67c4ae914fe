"""Tiny random models of real architectures, saved as Hugging Face folders.

Weights are random from a fixed seed and larger than transformers would draw them, so that
attention is peaked and greedy output is not one token over and over.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS) + 4
"""Four ids more than the tokenizer knows, as real checkpoints have them for padding."""

EOS_TOKEN_ID = 258
SLIDING_WINDOW = 12

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_MIXED_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_GPT2_SIZES = {
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 512,
    "vocab_size": VOCAB_SIZE,
}

_ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SIZES),
    "mistral": ("mistral", _SIZES | {"sliding_window": SLIDING_WINDOW}),
    "qwen2": ("qwen2", _SIZES),
    "qwen3": ("qwen3", _SIZES),
    "gemma2": (
        "gemma2",
        _SIZES
        | {
            "sliding_window": SLIDING_WINDOW,
            "layer_types": _MIXED_LAYERS,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 9.0,
            "query_pre_attn_scalar": 20,
        },
    ),
    "gemma3": (
        "gemma3_text",
        _SIZES
        | {
            "sliding_window": SLIDING_WINDOW,
            "layer_types": _MIXED_LAYERS,
            "query_pre_attn_scalar": 20,
        },
    ),
    "phi3": ("phi3", _SIZES | {"head_dim": None, "pad_token_id": 259}),
    "olmo2": ("olmo2", _SIZES),
    "gpt_neox": ("gpt_neox", _SIZES),
    "starcoder2": ("starcoder2", _SIZES | {"sliding_window": SLIDING_WINDOW}),
    "cohere2": (
        "cohere2",
        _SIZES
        | {"sliding_window": SLIDING_WINDOW, "layer_types": _MIXED_LAYERS, "logit_scale": 0.5},
    ),
    "granite": (
        "granite",
        _SIZES | {"attention_multiplier": 0.2, "logits_scaling": 3.0, "residual_multiplier": 0.7},
    ),
    "mixtral": ("mixtral", _SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": (
        "gpt_oss",
        _SIZES
        | {
            "sliding_window": SLIDING_WINDOW,
            "layer_types": _MIXED_LAYERS,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "exaone4": (
        "exaone4",
        _SIZES | {"sliding_window": SLIDING_WINDOW, "layer_types": _MIXED_LAYERS},
    ),
    "opt": ("opt", _SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 48}),
    "gpt2": ("gpt2", _GPT2_SIZES),
    "deepseek_v3": (
        "deepseek_v3",
        _SIZES
        | {
            "head_dim": None,
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
}
ARCHITECTURES = tuple(_ARCHITECTURES)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer: 256 bytes, four special tokens, a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def build_model(architecture: str, folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Save a random float32 model of that architecture with its tokenizer; return the folder."""
    model_type, settings = _ARCHITECTURES[architecture]
    settings = {key: value for key, value in (settings | changes).items() if value is not None}
    ids = {"bos_token_id": 256, "eos_token_id": EOS_TOKEN_ID}
    config = AutoConfig.for_model(model_type, **settings, **ids)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                fan_in = parameter.shape[-1]
                parameter.normal_(0.0, 1.6 * fan_in**-0.5, generator=generator)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.generation_config.eos_token_id = EOS_TOKEN_ID
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from an architecture's name to a folder with a tiny model of it."""

    @cache
    def build(architecture: str) -> Path:
        return build_model(architecture, tmp_path_factory.mktemp(architecture))

    return build
