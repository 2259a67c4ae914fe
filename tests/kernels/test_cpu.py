"""The CPU backend, held to the oracle in all its dtypes, and its own promises."""

import math

import numba
import numpy as np
import pytest
import torch
from support.attention import (
    DTYPES,
    LONG,
    MIXED,
    OPTIONS,
    SHAPES,
    Case,
    Options,
    Shape,
    check_attend,
    check_copy,
    check_write,
    make_case,
)

from stemkv.kernels import cpu_prefill
from stemkv.kernels.backend import AttentionBatch
from stemkv.kernels.cpu import CpuBackend
from stemkv.kernels.cpu_decode import exp, widen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, MIXED, LONG], ids=str)
def test_plain_attention_in_odd_shapes(shape: Shape, dtype: torch.dtype) -> None:
    """Plain attention agrees with the oracle in every odd shape and dtype."""
    check_attend(CpuBackend(), make_case(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [MIXED, LONG], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_window_softcap_and_sinks(options: Options, shape: Shape, dtype: torch.dtype) -> None:
    """Sliding window, soft-capping and sinks agree with the oracle, alone and together."""
    check_attend(CpuBackend(), make_case(shape, dtype, options))


@pytest.mark.parametrize("options", [Options(), Options(50, 3.0, True)], ids=str)
def test_prefill_across_tiles(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk longer than the tiles of queries and of keys agrees with the oracle."""
    monkeypatch.setattr(cpu_prefill, "QUERY_TILE", 32)
    monkeypatch.setattr(cpu_prefill, "KEY_TILE", 24)
    shape = Shape((75,), (130,), 6, 2, 64, 16)
    check_attend(CpuBackend(), make_case(shape, torch.float32, options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_fills_exactly_its_slots(dtype: torch.dtype) -> None:
    """A write fills the slots it is given, and no others."""
    check_write(CpuBackend(), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_moves_the_first_tokens_of_all_layers(dtype: torch.dtype) -> None:
    """A block copy moves the first tokens of each pair, and nothing else."""
    check_copy(CpuBackend(), dtype)


def alone(case: Case, sequence: int) -> AttentionBatch:
    """Return the batch with one of its decodes only."""
    batch, picked = case.batch, slice(sequence, sequence + 1)
    return AttentionBatch(
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        context_lens=batch.context_lens[picked],
        block_tables=batch.block_tables[picked],
        slots=batch.slots[picked],
        query_lens_host=(1,),
        context_lens_host=batch.context_lens_host[picked],
        decodes=1,
    )


def test_decode_does_not_depend_on_the_rest_of_the_batch() -> None:
    """A decode's result is the same to the bit alone, in a batch, and on one thread."""
    case = make_case(Shape((1, 1, 1), (700, 1029, 3), 6, 2, 64, 16), torch.bfloat16)
    backend = CpuBackend()
    together = backend.attend(case.query, case.k_cache, case.v_cache, case.batch, **case.arguments)
    for sequence in range(3):
        query = case.query[sequence : sequence + 1]
        single = backend.attend(
            query, case.k_cache, case.v_cache, alone(case, sequence), **case.arguments
        )
        assert torch.equal(single[0], together[sequence])
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        narrow = backend.attend(
            case.query, case.k_cache, case.v_cache, case.batch, **case.arguments
        )
    finally:
        numba.set_num_threads(threads)
    assert torch.equal(narrow, together)


@pytest.mark.parametrize("rows", [1, 5])
def test_no_work_depends_on_the_size_of_the_pool(rows: int) -> None:
    """A pool too large to be copied is served: only the sequence's own blocks are touched."""
    blocks, block_size, heads, head_dim = 10**11, 8, 2, 16
    block = torch.randn(1, heads, block_size, head_dim)
    pool = block.expand(blocks, heads, block_size, head_dim)
    query = torch.randn(rows, heads, head_dim)
    batch = AttentionBatch(
        query_start=torch.tensor([0, rows], dtype=torch.int32),
        context_lens=torch.tensor([block_size], dtype=torch.int32),
        block_tables=torch.tensor([[7]], dtype=torch.int32),
        slots=torch.full((rows,), -1),
        query_lens_host=(rows,),
        context_lens_host=(block_size,),
        decodes=int(rows == 1),
    )
    output = CpuBackend().attend(query, pool, pool, batch, scale=0.25)
    assert torch.equal(
        output,
        CpuBackend().attend(
            query, block.expand(8, -1, -1, -1), block.expand(8, -1, -1, -1), batch, scale=0.25
        ),
    )


def test_a_bad_value_in_the_context_shows_in_the_result() -> None:
    """A NaN that a query does see makes its output NaN, so that damage is never hidden."""
    case = make_case(Shape((1, 4), (300, 40), 2, 1, 64, 16), torch.bfloat16)
    case.k_cache[int(case.batch.block_tables[0, 3]), 0, 5, 7] = torch.nan
    output = CpuBackend().attend(
        case.query, case.k_cache, case.v_cache, case.batch, **case.arguments
    )
    assert output[0].isnan().all()
    assert output[1:].isfinite().all()


def test_a_dtype_without_kernel_is_refused() -> None:
    """A float64 cache raises TypeError that names the dtype."""
    case = make_case(SHAPES[0], torch.float64)
    with pytest.raises(TypeError, match="float64"):
        CpuBackend().attend(case.query, case.k_cache, case.v_cache, case.batch, **case.arguments)


@numba.njit  # without numba's cache on disk, which would not see that `widen` has changed
def widen_all(source, target) -> None:
    """Call `widen` from compiled code."""
    widen(source, target)


@pytest.mark.parametrize(
    ("dtype", "carrier"), [(torch.bfloat16, np.uint16), (torch.float16, np.int16)], ids=str
)
def test_every_half_widens_exactly(dtype: torch.dtype, carrier: type) -> None:
    """All 65,536 bit patterns of a half widen to the float that torch says, NaN to NaN."""
    bits = np.arange(2**16, dtype=np.uint16).view(carrier)
    compiled, plain = np.empty(2**16, np.float32), np.empty(2**16, np.float32)
    widen_all(bits, compiled)
    widen(bits, plain)
    expected = torch.from_numpy(bits.view(np.int16)).view(dtype).float().numpy()
    for widened in (compiled, plain):
        np.testing.assert_array_equal(widened, expected)
        np.testing.assert_array_equal(np.signbit(widened), np.signbit(expected))


def test_exp_is_as_exact_as_float32_allows() -> None:
    """The exponential is within 5e-7 near 0, within its argument's rounding elsewhere, 1 at 0."""
    points = np.linspace(-86, 0, 4001).astype(np.float32)
    worst = max(abs(exp(x) / math.exp(x) - 1) for x in points)
    assert worst < 1e-5  # the argument itself is rounded: 86 * 2**-24
    near = max(abs(exp(x) / math.exp(x) - 1) for x in np.linspace(-4, 0, 999).astype(np.float32))
    assert near < 5e-7
    assert exp(np.float32(0)) == 1
    assert math.isnan(exp(np.float32("nan")))
    assert 0 <= exp(np.float32("-inf")) < 2e-38
