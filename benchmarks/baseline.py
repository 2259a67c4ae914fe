"""transformers' own `generate`, timed on the same prompts: what stemkv is compared with."""

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers.generation.streamers import BaseStreamer

from benchmarks.prompts import Message


class _FirstToken(BaseStreamer):  # type: ignore[misc]
    """Notes when the first generated token arrives; the prompt arrives before it."""

    def __init__(self) -> None:
        self.arrivals = 0
        self.first: float | None = None

    def put(self, value: Any) -> None:
        """Take the prompt (first call) or a token (each later one)."""
        del value
        self.arrivals += 1
        if self.arrivals == 2:
            self.first = time.perf_counter()

    def end(self) -> None:
        """Take the end of the stream."""


class Baseline:
    """A model and its tokenizer in this process, on the device and in the dtype that are told."""

    def __init__(self, model: str, device: str, dtype: str) -> None:
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model, padding_side="left")
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        self.device = device
        self.model: Any = loaded.to(device).eval()

    def first_token_seconds(self, messages: Sequence[Message]) -> float:
        """Return the time to the first token of a chat; every call computes the whole prompt."""
        streamer = _FirstToken()
        started = time.perf_counter()
        self._generate([messages], 1, streamer)
        self._wait()
        ended = time.perf_counter()
        return (streamer.first or ended) - started

    def throughput(self, chats: Sequence[Sequence[Message]], tokens: int) -> float:
        """Return generated tokens a second of one static batch, prompts included in the time."""
        started = time.perf_counter()
        self._generate(chats, tokens, None)
        self._wait()
        return len(chats) * tokens / (time.perf_counter() - started)

    def _generate(
        self, chats: Sequence[Sequence[Message]], tokens: int, streamer: BaseStreamer | None
    ) -> None:
        inputs = self.tokenizer.apply_chat_template(
            list(chats),
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        ).to(self.device)
        with torch.inference_mode():
            self.model.generate(
                **inputs,
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                streamer=streamer,
            )

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
