"""The torch oracle, against attention written down without pages."""

import pytest
import torch
from support.attention import DTYPES, MIXED, Options, check_copy, check_write, make_case

from stemkv.kernels.reference import TorchBackend


def dense_attention(case, sequence: int, options: Options) -> torch.Tensor:
    """Attend one sequence row by row over keys picked one position at a time, in float64."""
    batch, block_size = case.batch, case.k_cache.shape[2]
    rows, context = batch.query_lens_host[sequence], batch.context_lens_host[sequence]
    start = sum(batch.query_lens_host[:sequence])
    group = case.query.shape[1] // case.k_cache.shape[1]
    outputs = torch.zeros(rows, *case.query.shape[1:], dtype=torch.float64)
    for row in range(rows):
        position = context - rows + row
        window = options.sliding_window or position + 1
        seen = range(max(0, position - window + 1), position + 1)
        slots = [(int(batch.block_tables[sequence, p // block_size]), p % block_size) for p in seen]
        for head in range(case.query.shape[1]):
            keys = torch.stack([case.k_cache[b, head // group, o] for b, o in slots]).double()
            values = torch.stack([case.v_cache[b, head // group, o] for b, o in slots]).double()
            scores = keys @ case.query[start + row, head].double() * case.arguments["scale"]
            if options.softcap:
                scores = options.softcap * torch.tanh(scores / options.softcap)
            weights = torch.exp(scores)
            total = weights.sum()
            if options.sinks:
                total = total + torch.exp(case.arguments["sinks"][head].double())
            outputs[row, head] = weights @ values / total
    return outputs


@pytest.mark.parametrize(
    "options", [Options(), Options(sliding_window=5), Options(4, 3.0, True)], ids=str
)
def test_oracle_equals_attention_without_pages(options: Options) -> None:
    """The oracle gives what sums over single positions give, for every option."""
    case = make_case(MIXED, torch.float64, options)
    output = TorchBackend(torch.float64).attend(
        case.query, case.k_cache, case.v_cache, case.batch, **case.arguments
    )
    expected = [dense_attention(case, s, options) for s in range(len(MIXED.rows))]
    torch.testing.assert_close(output, torch.cat(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_fills_exactly_its_slots(dtype: torch.dtype) -> None:
    """A write fills the slots it is given, and no others."""
    check_write(TorchBackend(), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_moves_the_first_tokens_of_all_layers(dtype: torch.dtype) -> None:
    """A block copy moves the first tokens of each pair, and nothing else."""
    check_copy(TorchBackend(), dtype)
