"""`stemkv simulate`: what policies of eviction would hit on a trace, beside the offline optimum."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stemkv.engine.config import ConfigError
from stemkv.engine.simulation import Result, optimum, simulate
from stemkv.engine.traces import Trace, TraceError, read_trace
from stemkv.policies.eviction import EVICTION

_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_ROW = "{:>10}  {:<12}{:>12}  {:>7}"


def simulate_trace(
    path: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="JSON lines with timestamp and hash_ids, or .npz."),
    ],
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", help=f"Of {', '.join(EVICTION)}; may be repeated. All if absent."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            help="Blocks kept between requests, comma-separated. Shares of all blocks if absent.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw miss-ratio curves to this PNG file.")
    ] = None,
) -> None:
    """Replay a trace through the block store, one request after the other, from a cold start.

    A hit is a block of a request's leading run of cached blocks. A running request's own blocks
    are not counted in the size, as in the published figures.
    """
    names = list(dict.fromkeys(policies or EVICTION))
    for name in names:
        if name not in EVICTION:
            raise ConfigError(f"policy: {name!r} is not one of {', '.join(EVICTION)}")
    wanted = None if sizes is None else _parse_sizes(sizes)
    if plot is not None:
        _matplotlib()
    trace = read_trace(path)
    if wanted is None:
        wanted = sorted({max(1, round(share * trace.distinct)) for share in _SHARES})
    requests = len(trace.seconds)
    typer.echo(f"{requests} requests, {trace.accesses} blocks, {trace.distinct} different")
    typer.echo(_ROW.format("size", "policy", "hits", "hit %"))
    results = [result for size in wanted for result in _run(trace, names, size)]
    if json_file is not None:
        rows = [{**asdict(result), "percent": result.percent} for result in results]
        _write(json_file, (json.dumps(rows, indent=1) + "\n").encode())
    if plot is not None:
        _draw(plot, results, path.name)


def _run(trace: Trace, names: Sequence[str], size: int) -> list[Result]:
    results = []
    for name in (*names, None):
        result = optimum(trace, size) if name is None else simulate(trace, name, size)
        typer.echo(_ROW.format(size, result.policy, result.hits, f"{result.percent:.2f}"))
        results.append(result)
    return results


def _parse_sizes(text: str) -> list[int]:
    sizes = []
    for part in text.split(","):
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit()) or not 0 < int(digits) < 1 << 28:
            raise ConfigError(
                f"sizes: {part.strip()!r} is not a number of blocks in 1..{(1 << 28) - 1}"
            )
        sizes.append(int(digits))
    return sorted(set(sizes))


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error


def _matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401 - optional: stemkv[simulate]
    except ImportError as error:
        raise ConfigError(
            "plot: needs matplotlib, which is not installed; pip install 'stemkv[simulate]'"
        ) from error


def _draw(path: Path, results: Sequence[Result], title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for policy in dict.fromkeys(result.policy for result in results):
        own = [result for result in results if result.policy == policy]
        misses = [100 - result.percent for result in own]
        style = "--" if policy == "optimum" else "-"
        axes.plot([result.size for result in own], misses, style, marker="o", label=policy)
    axes.set(xlabel="size (blocks)", ylabel="misses (%)", title=title, xscale="log", ylim=(0, 100))
    axes.legend()
    try:
        figure.savefig(path, format="png", dpi=150)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
