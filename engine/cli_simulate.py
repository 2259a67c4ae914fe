"""`stemkv simulate`: what policies of eviction would hit on a trace, beside the offline optimum."""

import os
from pathlib import Path
from typing import Annotated

import typer

import stemkv
from stemkv.engine.compiled import home_folder, keep_compiled
from stemkv.engine.config import ConfigError
from stemkv.engine.model_fetch import cache_root

_MOST_BLOCKS = (1 << 28) - 1


class SimulateError(Exception):
    """A trace cannot be read, or a file not be written; one line with the file and the cause."""


def simulate_trace(
    path: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="JSON lines with timestamp and hash_ids, or .npz."),
    ],
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", help="Policy of eviction: lru, adaptive. May be repeated; all if absent."
        ),
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
    wanted = None if sizes is None else _parse_sizes(sizes)
    keep_compiled(os.environ, Path(stemkv.__file__).parent, home_folder(), cache_root())
    # Not before numba knows where to keep what it compiles; the other commands do without it.
    from stemkv.engine import simulation_report as report
    from stemkv.engine.traces import TraceError

    names = report.known_policies(policies)
    if plot is not None:
        report.need_matplotlib()
    try:
        report.run(path, names, wanted, report.Output(json_file, plot))
    except TraceError as error:
        raise SimulateError(str(error)) from error
    except OSError as error:
        raise SimulateError(f"{error.filename}: {error.strerror}") from error


def _parse_sizes(text: str) -> list[int]:
    sizes = []
    for part in text.split(","):
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit()) or not 0 < int(digits) <= _MOST_BLOCKS:
            raise ConfigError(f"sizes: {digits!r} is not a number of blocks in 1..{_MOST_BLOCKS}")
        sizes.append(int(digits))
    return sorted(set(sizes))
