"""`stemkv simulate`: traces through the real store; exact figures of the published traces."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from stemkv.engine.cli import run
from stemkv.engine.simulation import optimum, simulate
from stemkv.engine.traces import Trace, read_trace

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
CONVERSATION, SYNTHETIC = "mooncake_conversation.jsonl.gz", "mooncake_synthetic.jsonl.gz"

# Hits of LRU; percent that LRU, the optimum and the adaptive policy have at least.
FIGURES = [
    (CONVERSATION, 3655, 22_865, 7.92, 31.42, 14.5),
    (CONVERSATION, 9139, 56_479, 19.58, 36.64, 21.3),
    (CONVERSATION, 18279, 80_466, 27.89, 36.64, 28.7),
    (CONVERSATION, 36558, 99_632, 34.53, 36.64, 34.3),
    (SYNTHETIC, 8784, 47_907, 39.31, 60.80, 39.3),
    ("agentic.npz", 1778, 675_985, 7.16, 43.30, 25.0),
    ("agentic.npz", 3557, 2_766_009, 29.28, 64.76, 43.0),
    ("agentic.npz", 7114, 6_373_641, 67.47, 83.81, 68.0),
    ("agentic.npz", 17785, 8_688_338, 91.97, 95.03, 91.9),
]
SMALL = [figures for figures in FIGURES if figures[0] != "agentic.npz"]


def shared(name: str) -> Trace:
    """Read a published trace, if it is there."""
    if not (TRACES / name).is_file():
        pytest.skip(f"{name} is not beside the repository, in shared/traces")
    return read_trace(TRACES / name)


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """Write a trace of four requests, whose hits can be counted by hand."""
    chains = [[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 6]]
    path = tmp_path / "trace.jsonl"
    lines = (json.dumps({"timestamp": 10 * i, "hash_ids": c}) for i, c in enumerate(chains))
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("size", "lru", "best"),
    # 3: 1 2 3 | 4 5 1 | 1 2 3 | 1 2 6: the third hits 1, the fourth 1 2. At best 4 5 are declined.
    [(1, 1, 2), (2, 2, 4), (3, 3, 5), (4, 4, 5), (5, 5, 5), (100, 5, 5)],
)
def test_hits_of_a_small_trace(trace_file: Path, size: int, lru: int, best: int) -> None:
    """Leading runs are counted as by hand, from a cold start, tails older than heads."""
    trace = read_trace(trace_file)
    assert simulate(trace, "lru", size).hits == lru
    assert optimum(trace, size).hits == best


def test_the_table_and_the_files(
    trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each policy and the optimum get a line a size; JSON says the same; the curve is a PNG."""
    out, plot = tmp_path / "out.json", tmp_path / "curves.png"
    arguments = ["simulate", str(trace_file), "--policy", "lru", "--sizes", "4,2,2"]
    pytest.importorskip("matplotlib")
    assert run([*arguments, "--json", str(out), "--plot", str(plot)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["4", "requests,", "11", "blocks,", "6", "different"]
    assert lines[2:] == [
        ["2", "lru", "2", "18.18"],
        ["2", "optimum", "4", "36.36"],
        ["4", "lru", "4", "36.36"],
        ["4", "optimum", "5", "45.45"],
    ]
    rows = json.loads(out.read_text())
    assert [(row["size"], row["policy"], row["hits"]) for row in rows] == [
        (2, "lru", 2),
        (2, "optimum", 4),
        (4, "lru", 4),
        (4, "optimum", 5),
    ]
    assert plot.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["absent.jsonl"], 1, "absent.jsonl: No such file"),
        (["TRACE", "--policy", "belady"], 2, "policy: 'belady' is not one of lru, adaptive"),
        (["TRACE", "--sizes", "5,x"], 2, "sizes: 'x' is not a number of blocks"),
        (["TRACE", "--sizes", "0"], 2, "sizes: '0' is not a number of blocks"),
        (["TRACE", "--sizes", ""], 2, "sizes: '' is not a number of blocks"),
        (["TRACE", "--sizes", "2", "--json", "/nowhere/x"], 1, "/nowhere/x: No such file"),
        (["TRACE", "--sizes", "2", "--plot", "/nowhere/x"], 1, "/nowhere/x: No such file"),
    ],
)
def test_what_is_wrong_is_one_line(
    trace_file: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    """A wrong flag is status 2, a file that cannot be read or written 1; both name it."""
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    given = [str(trace_file) if a == "TRACE" else a for a in arguments]
    assert run(["simulate", *given]) == status
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_optimum_bounds_every_policy_and_grows_with_size() -> None:
    """On random chains no policy hits more than the bound; a larger cache never bounds lower."""
    draws = np.random.default_rng(1)
    chains = [[int(draws.zipf(1.3)) % 50] + [0] * int(draws.integers(4)) for _ in range(400)]
    offsets = np.cumsum([0, *(len(chain) for chain in chains)])
    numbers: dict[tuple[int, ...], int] = {}
    blocks = [
        numbers.setdefault(tuple(chain[: i + 1]), len(numbers))
        for chain in chains
        for i in range(len(chain))
    ]
    trace = Trace(offsets, np.array(blocks), np.arange(400.0))
    bounds = [optimum(trace, size).hits for size in (2, 5, 10, 30, 200)]
    assert all(a <= b for a, b in pairwise(bounds))
    for size, bound in zip((2, 5, 10, 30, 200), bounds, strict=True):
        for policy in ("lru", "adaptive"):
            assert 0 < simulate(trace, policy, size).hits <= bound


@pytest.mark.parametrize(("name", "size", "hits", "percent", "best", "adaptive"), SMALL[::2])
def test_lru_and_the_optimum_have_the_published_hits(
    name: str, size: int, hits: int, percent: float, best: float, adaptive: float
) -> None:
    """LRU is exact to the hit, the optimum to the hundredth of a percent."""
    trace = shared(name)
    result = simulate(trace, "lru", size)
    assert result.hits == hits
    assert result.percent == pytest.approx(percent, abs=0.01)
    assert optimum(trace, size).percent == pytest.approx(best, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "hits", "percent", "best", "adaptive"), FIGURES)
def test_every_published_figure(
    name: str, size: int, hits: int, percent: float, best: float, adaptive: float
) -> None:
    """All sizes of all traces, and the adaptive policy reaches its table."""
    trace = shared(name)
    assert simulate(trace, "lru", size).hits == hits
    assert optimum(trace, size).percent == pytest.approx(best, abs=0.006)
    assert simulate(trace, "adaptive", size).percent >= max(adaptive, percent - 0.6)
