"""Paged-attention cases in odd shapes, and the checks that every attention backend is held to.

Whatever a kernel has no business with is NaN: other layers, blocks of nobody, positions behind the
context or outside every query's window, the back of rows wider than the query's. One read of it
that reaches a sum shows.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from stemkv.kernels.backend import AttentionBackend, AttentionBatch
from stemkv.kernels.layout import CacheLayout
from stemkv.kernels.reference import TorchBackend, first_visible

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LAYERS, LAYER = 2, 1


@dataclass(frozen=True)
class Shape:
    """Sequences by rows and context, heads, and the cache they lie in."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    cache_dim: int | None = None

    def __str__(self) -> str:
        """Name the case in a test's id."""
        sequences = "+".join(f"{r}@{c}" for r, c in zip(self.rows, self.contexts, strict=True))
        return f"{sequences}-h{self.heads}/{self.kv_heads}x{self.head_dim}-b{self.block_size}"


SHAPES = (
    Shape((1,), (1,), 4, 4, 64, 16),
    Shape((1, 1, 1), (1, 17, 301), 3, 1, 80, 8),
    Shape((1, 1), (513, 1027), 8, 1, 64, 32),
    Shape((37,), (37,), 2, 2, 128, 16),
    Shape((19, 70), (219, 70), 8, 1, 80, 32),
    Shape((1, 9), (33, 41), 6, 2, 256, 8),
    Shape((1, 4), (20, 21), 2, 2, 64, 16, cache_dim=80),
    Shape((1, 3), (65, 130), 20, 1, 16, 64),
)
MIXED = Shape((1, 1, 5, 33, 1), (40, 7, 5, 90, 13), 6, 2, 64, 16)
LONG = Shape((1, 1, 2), (1029, 300, 600), 3, 1, 64, 16)


@dataclass(frozen=True)
class Options:
    """What `attend` is asked for beyond plain attention."""

    sliding_window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    def __str__(self) -> str:
        """Name the options in a test's id."""
        parts = [f"window{self.sliding_window}"] if self.sliding_window else []
        parts += ["softcap"] if self.softcap else []
        parts += ["sinks"] if self.sinks else []
        return "+".join(parts)


OPTIONS = (
    Options(sliding_window=1),
    Options(sliding_window=29),
    Options(softcap=3.0),
    Options(sinks=True),
    Options(sliding_window=11, softcap=2.0, sinks=True),
)


@dataclass
class Case:
    """One batch over a poisoned cache. query: strided [tokens, heads, head_dim]."""

    query: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    batch: AttentionBatch
    arguments: dict[str, Any] = field(default_factory=dict)


def make_case(
    shape: Shape,
    dtype: torch.dtype,
    options: Options | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Case:
    """Build a case whose blocks lie in random order; the same for the same arguments."""
    options = options or Options()
    rng = torch.Generator().manual_seed(seed)
    cache, tables = _fill_cache(shape, dtype, options.sliding_window, rng)
    tokens = sum(shape.rows)
    starts = torch.tensor([0, *shape.rows]).cumsum(0).to(torch.int32)
    ones = [rows == 1 for rows in shape.rows]
    batch = AttentionBatch(
        query_start=starts.to(device),
        context_lens=torch.tensor(shape.contexts, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        slots=torch.full((tokens,), -1, dtype=torch.int64, device=device),
        query_lens_host=shape.rows,
        context_lens_host=shape.contexts,
        decodes=ones.index(False) if False in ones else len(ones),
    )
    # Doubled, so that weights are uneven and a wrong position shows.
    query = 2 * torch.randn(shape.heads, tokens, shape.head_dim, generator=rng)
    sinks = torch.randn(shape.heads, generator=rng) if options.sinks else None
    arguments = {
        "scale": shape.head_dim**-0.5,
        "sliding_window": options.sliding_window,
        "softcap": options.softcap,
        "sinks": None if sinks is None else sinks.to(device=device, dtype=dtype),
    }
    placed = cache.to(device)
    return Case(
        query.to(device=device, dtype=dtype).transpose(0, 1),
        placed[:, LAYER, 0],
        placed[:, LAYER, 1],
        batch,
        arguments,
    )


def _fill_cache(
    shape: Shape, dtype: torch.dtype, window: int | None, rng: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cache that is NaN but for what the case's queries see, and its block tables."""
    needed = [-(-context // shape.block_size) for context in shape.contexts]
    blocks = sum(needed) + 2
    order = torch.randperm(blocks, generator=rng).to(torch.int32)
    width = shape.cache_dim or shape.head_dim
    layout = CacheLayout(LAYERS, shape.kv_heads, width, shape.block_size, dtype)
    cache = layout.allocate(blocks, "cpu").fill_(torch.nan)
    tables = torch.full((len(needed), max(needed) + 1), 2**31 - 1, dtype=torch.int32)
    used = 0
    for sequence, count in enumerate(needed):
        tables[sequence, :count] = order[used : used + count]
        used += count
        context, rows = shape.contexts[sequence], shape.rows[sequence]
        seen = torch.arange(first_visible(context - rows, window), context)
        physical = tables[sequence, seen // shape.block_size].long()
        for part in (0, 1):
            by_slot = cache[:, LAYER, part].transpose(1, 2)[..., : shape.head_dim]
            values = torch.randn(len(seen), shape.kv_heads, shape.head_dim, generator=rng)
            by_slot[physical, seen % shape.block_size] = values.to(dtype)
    return cache, tables


def check_attend(backend: AttentionBackend, case: Case) -> None:
    """Hold the backend's attention to the oracle in float64, within what the dtype can tell apart.

    Output and weights are each rounded to the dtype, at worst by one spacing (Triton's interpreter
    cuts off instead of rounding): together two spacings of the mean of |value| under the same
    weights. Scores and sums are float32, whose share is the second term.
    """
    output = backend.attend(case.query, case.k_cache, case.v_cache, case.batch, **case.arguments)
    assert output.dtype == case.query.dtype
    assert output.shape == case.query.shape
    assert output.is_contiguous()
    oracle = TorchBackend(torch.float64)
    query = case.query.double()
    expected = oracle.attend(query, case.k_cache, case.v_cache, case.batch, **case.arguments)
    sizes = oracle.attend(query, case.k_cache, case.v_cache.abs(), case.batch, **case.arguments)
    spacing = torch.finfo(case.query.dtype).eps
    bound = (2 * spacing + 64 * torch.finfo(torch.float32).eps) * sizes
    error = (output.double() - expected).abs()
    assert bool((error <= bound).all()), (
        f"error {error.max().item():.3g}, at most {(error / bound).max().item():.2f} of its bound"
    )


def check_write(
    backend: AttentionBackend, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """Hold a write to a loop over tokens: every slot right, everything else untouched."""
    rng = torch.Generator().manual_seed(3)
    blocks, kv_heads, block_size, width, key_dim, value_dim = 5, 9, 8, 80, 80, 64
    cache = torch.randn(blocks, LAYERS, 2, kv_heads, block_size, width, generator=rng).to(dtype)
    slots = [17, -1, 0, blocks * block_size - 1, -1, 8, 30]
    new = torch.randn(kv_heads, len(slots), key_dim + value_dim, generator=rng).to(dtype)
    key, value = new.transpose(0, 1).split([key_dim, value_dim], dim=-1)
    expected = cache.clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            place = expected[slot // block_size, LAYER, :, :, slot % block_size]
            place[0, :, :key_dim] = key[token]
            place[1, :, :value_dim] = value[token]
    placed = cache.to(device)
    moved = new.to(device).transpose(0, 1).split([key_dim, value_dim], dim=-1)
    k_cache, v_cache = placed[:, LAYER, 0], placed[:, LAYER, 1]
    spread = torch.tensor([[slot, 3] for slot in slots], device=device)[:, 0]
    backend.write(moved[0], moved[1], k_cache, v_cache, spread)
    assert torch.equal(placed.cpu(), expected)
    nothing = torch.tensor([], dtype=torch.int64, device=device)
    backend.write(moved[0][:0], moved[1][:0], k_cache, v_cache, nothing)
    assert torch.equal(placed.cpu(), expected)


def check_copy(
    backend: AttentionBackend, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """Hold block copies to a loop: the first tokens of each, in all layers, and nothing more."""
    rng = torch.Generator().manual_seed(4)
    cache = torch.randn(7, 3, 2, 2, 16, 80, generator=rng).to(dtype)
    source, destination, tokens = [1, 1, 6], [0, 5, 2], [16, 3, 1]
    expected = cache.clone()
    for i in range(3):
        for position in range(tokens[i]):
            moved = cache[source[i], :, :, :, position]
            expected[destination[i], :, :, :, position] = moved
    placed = cache.to(device)
    # Columns of a table of pairs: the numbers of one kind do not lie side by side.
    table = torch.tensor([*zip(source, destination, tokens, strict=True)], device=device)
    indices = table.unbind(1)
    backend.copy(placed, *indices)
    assert torch.equal(placed.cpu(), expected)
    backend.copy(placed, *(index[:0] for index in indices))
    assert torch.equal(placed.cpu(), expected)
