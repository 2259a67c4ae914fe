"""Every Triton kernel under Triton's interpreter, on CPU tensors, against its torch twin."""

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

from stemkv.kernels import triton_decode
from stemkv.kernels.select import select_backend
from stemkv.kernels.triton_backend import TritonBackend


@pytest.mark.parametrize("shape", [*SHAPES, MIXED, LONG], ids=str)
def test_plain_attention_in_odd_shapes(shape: Shape) -> None:
    """Decode and prefill agree with the oracle in every odd shape, in float32."""
    check_attend(TritonBackend(), make_case(shape, torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES[1:6], MIXED], ids=str)
def test_plain_attention_in_halves(shape: Shape, dtype: torch.dtype) -> None:
    """Decode and prefill agree with the oracle in bfloat16 and float16."""
    check_attend(TritonBackend(), make_case(shape, dtype))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_window_softcap_and_sinks(options: Options) -> None:
    """Sliding window, soft-capping and sinks agree with the oracle in a mixed batch."""
    check_attend(TritonBackend(), make_case(MIXED, torch.float32, options))


@pytest.mark.parametrize("options", OPTIONS[-2:], ids=str)
def test_options_over_a_split_context(options: Options) -> None:
    """The same across chunks of a long context, whose parts are merged."""
    check_attend(TritonBackend(), make_case(LONG, torch.float16, options))


def test_merge_of_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context of more chunks than the merge loads at a time agrees with the oracle."""
    monkeypatch.setattr(triton_decode, "CHUNK", 64)
    monkeypatch.setattr(triton_decode, "MERGE_CHUNKS", 2)
    shape = Shape((1, 1), (64 * 11 + 3, 64), 2, 1, 64, 16)
    for options in (Options(), Options(sliding_window=333), Options(sinks=True)):
        check_attend(TritonBackend(), make_case(shape, torch.float32, options))


def test_decode_does_not_depend_on_the_rest_of_the_batch() -> None:
    """A decode's result is the same to the bit whether its neighbours' contexts are long or not."""
    shape = Shape((1, 1), (70, 600), 3, 1, 64, 16)
    case = make_case(shape, torch.float32)
    backend = TritonBackend()
    output = backend.attend(case.query, case.k_cache, case.v_cache, case.batch, **case.arguments)
    first = type(case.batch)(
        query_start=case.batch.query_start[:2],
        context_lens=case.batch.context_lens[:1],
        block_tables=case.batch.block_tables[:1],
        slots=case.batch.slots[:1],
        query_lens_host=(1,),
        context_lens_host=(70,),
        decodes=1,
    )
    alone = backend.attend(case.query[:1], case.k_cache, case.v_cache, first, **case.arguments)
    assert torch.equal(alone[0], output[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_fills_exactly_its_slots(dtype: torch.dtype) -> None:
    """A write fills the slots it is given, and no others."""
    check_write(TritonBackend(), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_moves_the_first_tokens_of_all_layers(dtype: torch.dtype) -> None:
    """A block copy moves the first tokens of each pair, and nothing else."""
    check_copy(TritonBackend(), dtype)


def test_triton_is_chosen_on_a_cpu_when_interpreted() -> None:
    """With TRITON_INTERPRET=1, the triton backend may be chosen for CPU tensors."""
    assert select_backend("triton", torch.device("cpu")).name == "triton"
