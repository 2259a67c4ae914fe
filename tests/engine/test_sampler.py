"""Draws follow the exact distribution, and depend on logits, seed and position alone."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stemkv.engine.request import SamplingParams
from stemkv.engine.sampler import RowSampling, Sampled, derive_seed, sample, uniform

pytestmark = pytest.mark.usefixtures("one_torch_thread")

VOCAB = 40
# 0.9999 quantiles of chi-square, degrees of freedom to bound.
CHI_SQUARE_BOUND = {9: 33.7, 39: 81.1}


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    """Return float32 [rows, vocab] from a fixed seed."""
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def row(seed: int = 1, position: int = 0, **params: object) -> RowSampling:
    """Return how to draw one row."""
    return RowSampling(SamplingParams(**params), seed, position)  # type: ignore[arg-type]


def exact(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Return the exact probabilities after temperature and filters, token by token."""
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < params.min_p * weights.max()] = 0
    order = np.argsort(-weights, kind="stable")
    if params.top_k:
        weights[weights < weights[order[min(params.top_k, len(order)) - 1]]] = 0
    weights /= weights.sum()
    mass, kept = 0.0, []
    for token in order:
        if mass >= params.top_p and kept:
            break
        kept.append(token)
        mass += weights[token]
    result = np.zeros_like(weights)
    result[kept] = weights[kept]
    return result / result.sum()


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"top_k": 10},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.parametrize("settings_", FILTERS)
def test_draws_follow_the_exact_probabilities(settings_: dict[str, float]) -> None:
    """Chi-square over many positions against the distribution worked out token by token."""
    draws = 20_000
    logits = random_logits(1)
    params = SamplingParams(**settings_)  # type: ignore[arg-type]
    rows = [RowSampling(params, 12345, position) for position in range(draws)]
    counts = Counter(s.token for s in sample(logits.expand(draws, VOCAB), rows))
    expected = exact(logits[0].numpy(), params) * draws
    assert set(counts) <= set(np.flatnonzero(expected).tolist())
    seen = expected >= 5
    observed = np.array([counts[token] for token in range(VOCAB)])
    statistic = float(((observed - expected)[seen] ** 2 / expected[seen]).sum())
    # The bound for 39 degrees of freedom holds for fewer all the more.
    assert statistic < CHI_SQUARE_BOUND[39]


def test_uniform_numbers_are_uniform_over_positions_and_seeds() -> None:
    """Neither neighbouring positions nor neighbouring seeds give related numbers."""
    for numbers in (
        np.array([uniform(7, position) for position in range(20_000)]),
        np.array([uniform(seed, 3) for seed in range(20_000)]),
    ):
        observed, _ = np.histogram(numbers, bins=10, range=(0, 1))
        assert float(((observed - 2000) ** 2 / 2000).sum()) < CHI_SQUARE_BOUND[9]
        # Standard error of the correlation is 1 / sqrt(20,000) = 0.007.
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
        assert len(np.unique(numbers)) == len(numbers)


def test_uniform_is_the_published_generator() -> None:
    """Two numbers stay as they are for good: recorded outputs must be reproducible."""
    generator = np.random.Generator(np.random.Philox(key=99, counter=[0, 4, 0, 0]))
    assert uniform(99, 4) == generator.random()
    assert uniform(2**64 - 1, 2**31) < 1


@pytest.mark.parametrize(
    ("settings_", "allowed"),
    [
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 1}, {0}),
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.5}, {0, 1}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.3}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"temperature": 1e-30}, {0}),
        ({"top_k": 3, "top_p": 0.75}, {0, 1}),
        ({"min_p": 0.2, "top_p": 0.85}, {0, 1, 2}),
    ],
)
def test_filters_keep_exactly_what_they_should(
    settings_: dict[str, float], allowed: set[int]
) -> None:
    """Over probabilities 0.4, 0.25, 0.15, 0.1, 0.06, 0.04 each filter keeps a known set."""
    logits = torch.tensor([[0.4, 0.25, 0.15, 0.1, 0.06, 0.04]]).log()
    rows = [row(position=position, **settings_) for position in range(2000)]
    assert {s.token for s in sample(logits.expand(2000, 6), rows)} == allowed


def test_top_p_beyond_the_sorted_candidates() -> None:
    """A nearly flat distribution keeps its share of tokens, far more than are sorted first."""
    vocab = 4000
    logits = torch.linspace(0, 0.01, vocab)[None]
    rows = [row(position=position, top_p=0.5) for position in range(1000)]
    tokens = [s.token for s in sample(logits.expand(1000, vocab), rows)]
    kept = np.flatnonzero(exact(logits[0].numpy(), SamplingParams(top_p=0.5)))
    assert min(tokens) >= kept.min() > 1900
    assert max(tokens) <= kept.max()
    assert len(set(tokens)) > 500


def test_equal_tokens_stand_or_fall_together() -> None:
    """Tokens as likely as the last one kept are kept, so that no sort order matters."""
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    for settings_ in ({"top_k": 2}, {"top_p": 0.6}):
        rows = [row(position=position, **settings_) for position in range(500)]
        assert {s.token for s in sample(logits.expand(500, 4), rows)} == {0, 1, 2}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_batch_composition_changes_nothing(data: st.DataObject) -> None:
    """A row's outcome is the same alone as among any others, in any place."""
    logits = random_logits(6, seed=data.draw(st.integers(0, 1000)))
    rows = [
        row(
            seed=data.draw(st.integers(0, 2**64 - 1)),
            position=data.draw(st.integers(0, 5000)),
            temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
            top_k=data.draw(st.sampled_from([0, 1, 5, 30])),
            top_p=data.draw(st.sampled_from([1.0, 0.9, 0.3])),
            min_p=data.draw(st.sampled_from([0.0, 0.05])),
            logprobs=data.draw(st.sampled_from([None, 0, 4])),
        )
        for _ in range(6)
    ]
    order = data.draw(st.permutations(range(6)))
    together = sample(logits[order], [rows[i] for i in order])
    for place, number in enumerate(order):
        alone = sample(logits[number : number + 1], [rows[number]])[0]
        assert together[place].token == alone.token
        assert together[place].logprob == pytest.approx(alone.logprob)


def test_greedy_takes_the_first_of_the_best() -> None:
    """Temperature 0 needs no randomness, and breaks ties by token id."""
    logits = torch.tensor([[0.0, 5.0, 5.0], [7.0, 5.0, 7.0]])
    rows = [row(seed=s, temperature=0.0) for s in (1, 2)]
    assert sample(logits, rows) == [Sampled(1), Sampled(0)]


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    """Temperature and filters change the draw, never what is reported of the distribution."""
    logits = random_logits(3)
    rows = [
        row(temperature=0.2, top_k=2, logprobs=5),
        row(temperature=0.0, logprobs=0),
        row(temperature=0.0),
    ]
    first, second, third = sample(logits, rows)
    expected = logits.double().log_softmax(-1)
    assert first.top is not None
    assert [t for t, _ in first.top] == expected[0].topk(5).indices.tolist()
    assert [v for _, v in first.top] == pytest.approx(expected[0].topk(5).values.tolist(), abs=1e-5)
    assert first.logprob == pytest.approx(expected[0, first.token].item(), abs=1e-5)
    assert second.top == ()
    assert second.logprob == pytest.approx(expected[1].max().item(), abs=1e-5)
    assert (third.logprob, third.top) == (None, None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    """One broken row gets an error; its neighbours get what they get without it."""
    logits = random_logits(3)
    rows = [row(seed=s, temperature=temperature, logprobs=1) for s in range(3)]
    expected = sample(logits, rows)
    broken = logits.clone()
    broken[1, 17] = bad
    found = sample(broken, rows)
    assert found[1].error is not None
    assert found[1].logprob is None
    assert [found[0], found[2]] == [expected[0], expected[2]]
    assert expected[1].error is None


def test_a_row_without_any_token_fails() -> None:
    """Minus infinity removes a token; where it removes all of them, the row fails."""
    logits = random_logits(2)
    logits[0, 1:] = -torch.inf
    logits[1] = -torch.inf
    only, none = sample(logits, [row(), row()])
    assert (only.token, only.error) == (0, None)
    assert none.error is not None


def test_seeds_of_choices_differ_and_stay() -> None:
    """Choices of one request draw differently; the same request draws the same again."""
    seeds = [derive_seed(42, index) for index in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [derive_seed(42, index) for index in range(100)]
    assert all(0 <= seed < 2**64 for seed in [*seeds, derive_seed(-5, 0), derive_seed(2**80, 1)])


def test_no_rows_give_nothing() -> None:
    """A step that samples nothing is no special case for the caller."""
    assert sample(torch.empty(0, VOCAB), []) == []
