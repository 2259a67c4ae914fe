"""What goes into the engine and what comes out: frozen values that cross the process border."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from stemkv.kvstore.namespace import Namespace
from stemkv.kvstore.views import Explanation

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when a sequence ends.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. seed None draws one at
    submission. logprobs: how many of the best tokens to report beside the chosen one; None
    reports nothing. stop strings are cut from the text; stop token ids end it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One prompt and what to do with it.

    prompt: int32 [tokens], at least one. cache_read: may reuse cached blocks. cache_write: may
    leave blocks for others. skip_special_tokens: leave special tokens out of the text.
    """

    request_id: str
    namespace: Namespace
    prompt: npt.NDArray[np.int32]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    cache_read: bool = True
    cache_write: bool = True
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural, of the unmodified distribution) of one token, with its best rivals.

    text: the token's own text. raw: its bytes. top: best first, (token id, text, raw, logprob).
    """

    token: int
    text: str
    raw: bytes
    logprob: float
    top: tuple[tuple[int, str, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. cached_tokens: prompt tokens whose keys and values were reused."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one choice of one request.

    text may be empty (half a character, or a possible stop string, is held back).
    finish_reason is set on a choice's last delta; stop_reason is the string or id that ended it.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A request's first token is there. cached_tokens is final from here on.

    miss: why not more was reused, for the operator alone; None if all was, or nobody asks.
    """

    request_id: str
    cached_tokens: int
    miss: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Every choice of a request has ended; nothing follows."""

    request_id: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ended with an error; nothing follows.

    kind "rejected": the request's own fault (it can never fit, say), field names what was wrong;
    "overloaded": the queue is full; "internal": ours.
    """

    request_id: str
    kind: Literal["rejected", "overloaded", "internal"]
    message: str
    field: str | None = None


Event = Started | Delta | Finished | Failed


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the front needs to know of a started engine.

    capacity_blocks: size of the pool. block_bytes: bytes of one block's keys and values.
    longest_prompt: tokens of the longest prompt with one token of output that the pool can hold
    (never more than max_model_len - 1).
    """

    model: str
    fingerprint: str
    max_model_len: int
    longest_prompt: int
    vocab_size: int
    block_size: int
    capacity_blocks: int
    block_bytes: int
    device: str
    dtype: str
    kernels: str
    worker: str
    settings: Mapping[str, str] = field(default_factory=dict)
