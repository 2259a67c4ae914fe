"""Rows of logits to tokens.

A draw depends on the row's logits, seed and position alone: one uniform number from a
counter-based generator, looked up in the cumulative distribution in the order of token ids.
Neither the batch around it nor the device has a say.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stemkv.engine.request import SamplingParams

# Rows of one pass: bounds the float64 copies to some 64 MiB each.
_CHUNK_ELEMENTS = 1 << 23
# How many of the best tokens are sorted first for top-p; most distributions end before that.
_TOP_P_CANDIDATES = 512


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How to draw one row. seed: 64 bits, see `derive_seed`. position: of the token drawn."""

    params: SamplingParams
    seed: int
    position: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What became of one row.

    logprob and top (token, log-probability; best first) are there if logprobs were asked for;
    natural logarithms of the distribution before temperature and filters. error says why
    the row failed; token means nothing then.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] | None = None
    error: str | None = None


def derive_seed(seed: int, choice_index: int) -> int:
    """Return the 64-bit seed of one choice of a request: as if independent, always the same."""
    digest = hashlib.blake2b(f"{seed}/{choice_index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) of a seed (64 bits) and position.

    Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), keyed by
    the seed, the position as counter; the upper 53 bits of its first word.
    """
    # A block of the counter a position, so that streams of neighbours never overlap.
    generator = np.random.Philox(key=seed, counter=position << 64)
    return int(generator.random_raw() >> 11) / (1 << 53)


def sample(logits: torch.Tensor, rows: Sequence[RowSampling]) -> list[Sampled]:
    """Draw a token for each row of logits, float32 [rows, vocab].

    Temperature 0 (and top_k 1) takes the best token, the lowest id of equals. Otherwise logits are
    divided by the temperature, then min-p, top-k and top-p each remove tokens of what the one
    before left; tokens equal to the last one kept are kept. A row whose best logit is not finite,
    or that holds a NaN, fails alone.
    """
    assert logits.shape[0] == len(rows)
    if not rows:
        return []
    best, tokens = logits.max(dim=-1)  # NaN wins every comparison here
    usable = torch.isfinite(best).tolist()
    chosen: list[int] = tokens.tolist()
    drawn = [i for i, row in enumerate(rows) if usable[i] and not _greedy(row.params)]
    chunk = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    for start in range(0, len(drawn), chunk):
        part = drawn[start : start + chunk]
        picked = _draw(logits[part], [rows[i] for i in part])
        for i, token in zip(part, picked, strict=True):
            chosen[i] = token
    reported = [i for i, row in enumerate(rows) if usable[i] and row.params.logprobs is not None]
    logprobs = _logprobs(logits, chosen, rows, reported)
    return [
        Sampled(chosen[i], *logprobs.get(i, (None, None)))
        if usable[i]
        else Sampled(0, error="the model's logits are not finite")
        for i in range(len(rows))
    ]


def _greedy(params: SamplingParams) -> bool:
    return params.temperature == 0 or params.top_k == 1


def _draw(logits: torch.Tensor, rows: Sequence[RowSampling]) -> list[int]:
    """Inverse-transform sampling of [rows, vocab] in float64."""
    temperature = _column([row.params.temperature for row in rows], logits)
    # The largest becomes 0 first, so that no temperature, however small, overflows.
    scaled = (logits - logits.max(dim=-1, keepdim=True).values).double() / temperature
    _apply_min_p(scaled, [row.params.min_p for row in rows])
    _apply_top_k(scaled, [row.params.top_k for row in rows])
    _apply_top_p(scaled, [row.params.top_p for row in rows])
    cumulative = scaled.softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = _column([uniform(row.seed, row.position) for row in rows], logits) * total
    # Rounding may reach the total itself, where no token with a probability lies.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    picked = torch.searchsorted(cumulative, target, right=True)
    tokens: list[int] = picked[:, 0].tolist()
    return tokens


def _apply_min_p(scaled: torch.Tensor, min_p: Sequence[float]) -> None:
    """Remove, in place, tokens less likely than min_p times the likeliest; the largest is 0."""
    if any(min_p):
        floor = _column(min_p, scaled).log()  # log 0 removes nothing
        scaled.masked_fill_(scaled < floor, -torch.inf)


def _apply_top_k(scaled: torch.Tensor, top_k: Sequence[int]) -> None:
    """Remove, in place, whatever is less likely than the k-th likeliest; 0 removes nothing."""
    vocabulary = scaled.shape[1]
    limited = [i for i, k in enumerate(top_k) if 0 < k < vocabulary]
    if not limited:
        return
    widest = max(top_k[i] for i in limited)
    best = scaled[limited].topk(widest, dim=-1).values
    index = torch.tensor([[top_k[i] - 1] for i in limited], device=scaled.device)
    rows = scaled[limited]
    scaled[limited] = rows.masked_fill_(rows < best.gather(1, index), -torch.inf)


def _apply_top_p(scaled: torch.Tensor, top_p: Sequence[float]) -> None:
    """Keep, in place, the smallest set of likeliest tokens that has at least top_p in all."""
    vocabulary = scaled.shape[1]
    limited = [i for i, p in enumerate(top_p) if p < 1]
    for width in (min(_TOP_P_CANDIDATES, vocabulary), vocabulary):
        if not limited:
            return
        rows = scaled[limited]
        best = rows.topk(width, dim=-1).values
        mass = (best - rows.logsumexp(dim=-1, keepdim=True)).exp()
        before = mass.cumsum(dim=-1) - mass
        kept = (before < _column([top_p[i] for i in limited], scaled)).sum(dim=-1, keepdim=True)
        floor = best.gather(1, kept.clamp_min(1) - 1)
        # Where all candidates are kept, the set may go on behind them.
        ends = [k < width or width == vocabulary for k in kept[:, 0].tolist()]
        done = [n for n, end in enumerate(ends) if end]
        if done:
            cut = rows[done]
            scaled[[limited[n] for n in done]] = cut.masked_fill_(cut < floor[done], -torch.inf)
        limited = [i for i, end in zip(limited, ends, strict=True) if not end]


def _logprobs(
    logits: torch.Tensor,
    chosen: Sequence[int],
    rows: Sequence[RowSampling],
    reported: Sequence[int],
) -> dict[int, tuple[float, tuple[tuple[int, float], ...]]]:
    """Log-probabilities of the reported rows: the chosen token's and the best ones'."""
    if not reported:
        return {}
    wanted = [rows[i].params.logprobs or 0 for i in reported]
    logprobs = logits[list(reported)].log_softmax(dim=-1)
    tokens = torch.tensor([[chosen[i]] for i in reported], device=logits.device)
    own = logprobs.gather(1, tokens)[:, 0].tolist()
    values, indices = logprobs.topk(min(max(wanted), logits.shape[1]), dim=-1)
    best = [
        list(zip(i, v, strict=True)) for i, v in zip(indices.tolist(), values.tolist(), strict=True)
    ]
    return {i: (own[n], tuple(best[n][: wanted[n]])) for n, i in enumerate(reported)}


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """Float64 [rows, 1] on the device of `like`."""
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
