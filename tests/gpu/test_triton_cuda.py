"""The Triton kernels on a real CUDA device, held to the same checks as under the interpreter."""

import pytest
import torch
from support.attention import (
    DTYPES,
    LONG,
    MIXED,
    OPTIONS,
    SHAPES,
    Options,
    Shape,
    check_attend,
    check_copy,
    check_write,
    make_case,
)

from stemkv.kernels.select import select_backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
LARGE = Shape((1, 1, 1, 700, 2100), (9000, 2048, 77, 5000, 2100), 24, 8, 128, 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, MIXED, LONG, LARGE], ids=str)
def test_plain_attention_in_odd_shapes(shape: Shape, dtype: torch.dtype) -> None:
    """Decode and prefill agree with the oracle in every odd shape and dtype, and in large ones."""
    check_attend(select_backend("triton", CUDA), make_case(shape, dtype, device=CUDA))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [MIXED, LONG, LARGE], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_window_softcap_and_sinks(options: Options, shape: Shape, dtype: torch.dtype) -> None:
    """Sliding window, soft-capping and sinks agree with the oracle, alone and together."""
    check_attend(select_backend("triton", CUDA), make_case(shape, dtype, options, device=CUDA))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_fills_exactly_its_slots(dtype: torch.dtype) -> None:
    """A write fills the slots it is given, and no others."""
    check_write(select_backend("triton", CUDA), dtype, CUDA)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_moves_the_first_tokens_of_all_layers(dtype: torch.dtype) -> None:
    """A block copy moves the first tokens of each pair, and nothing else."""
    check_copy(select_backend("triton", CUDA), dtype, CUDA)


def test_auto_is_triton_on_cuda() -> None:
    """On a CUDA device, auto means triton."""
    assert select_backend("auto", CUDA).name == "triton"
