"""What a simulation shows: a table on stdout, the figures as JSON, miss-ratio curves as PNG."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from stemkv.engine.config import ConfigError
from stemkv.engine.simulation import Result, optimum, simulate
from stemkv.engine.traces import Trace, read_trace
from stemkv.policies.eviction import EVICTION

_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Sizes if none are given, as shares of the trace's different blocks."""

_ROW = "{:>10}  {:<12}{:>12}  {:>7}"


@dataclass(frozen=True, slots=True)
class Output:
    """Files to write beside the table, None for none."""

    json: Path | None
    plot: Path | None


def known_policies(names: Sequence[str] | None) -> list[str]:
    """Return the policies named, each once, or all; raises ConfigError for one that is none."""
    for name in names or ():
        if name not in EVICTION:
            raise ConfigError(f"policy: {name!r} is not one of {', '.join(EVICTION)}")
    return list(dict.fromkeys(names or EVICTION))


def need_matplotlib() -> None:
    """Raise ConfigError if there is no matplotlib, before a simulation has taken minutes."""
    try:
        import matplotlib.figure  # noqa: F401 - optional: stemkv[simulate]
    except ImportError as error:
        raise ConfigError(
            "plot: needs matplotlib, which is not installed; pip install 'stemkv[simulate]'"
        ) from error


def run(path: Path, policies: Sequence[str], sizes: Sequence[int] | None, output: Output) -> None:
    """Replay a trace under each policy at each size, and show the results as they come.

    Raises TraceError for a trace that cannot be read, OSError for a file that cannot be written.
    """
    trace = read_trace(path)
    if sizes is None:
        sizes = sorted({max(1, round(share * trace.distinct)) for share in _SHARES})
    requests = len(trace.seconds)
    typer.echo(f"{requests} requests, {trace.accesses} blocks, {trace.distinct} different")
    typer.echo(_ROW.format("size", "policy", "hits", "hit %"))
    results = []
    for result in _results(trace, policies, sizes):
        percent = f"{result.percent:.2f}"
        typer.echo(_ROW.format(result.size, result.policy, result.hits, percent))
        results.append(result)
    if output.json is not None:
        rows = [{**asdict(result), "percent": result.percent} for result in results]
        output.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if output.plot is not None:
        _draw(output.plot, results, path.name)


def _results(trace: Trace, policies: Sequence[str], sizes: Sequence[int]) -> Iterator[Result]:
    for size in sizes:
        for policy in policies:
            yield simulate(trace, policy, size)
        yield optimum(trace, size)


def _draw(path: Path, results: Sequence[Result], title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for policy in dict.fromkeys(result.policy for result in results):
        own = [result for result in results if result.policy == policy]
        misses = [100 - result.percent for result in own]
        style = "--" if policy == "optimum" else "-"
        axes.plot([result.size for result in own], misses, style, marker="o", label=policy)
    sizes = sorted({result.size for result in results})
    axes.set(xlabel="size (blocks)", ylabel="misses (%)", title=title, xscale="log", ylim=(0, 100))
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=150)
