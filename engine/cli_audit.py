"""`stemkv audit`: the store's properties, tried on the installed version, with a report."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

import stemkv
from stemkv.engine.cli_tables import show
from stemkv.engine.compiled import home_folder, keep_compiled
from stemkv.engine.config import ConfigError
from stemkv.engine.model_fetch import cache_root

if TYPE_CHECKING:
    from stemkv.engine.audit_report import Report
    from stemkv.kvstore.properties.running import Budget, Outcome, Property

_FORMATS = (".md", ".json")


def audit(
    examples: Annotated[int, typer.Option("--examples", min=1, help="Examples a property.")] = 200,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Calls in one example of the store's machine.")
    ] = 40,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Same seed, same examples. A new one if absent."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Name of one property. May be repeated; all if absent."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a report: FILE.md or FILE.json.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, and no progress.")
    ] = False,
) -> int:
    """Try the rules of the block store on the installed version, with made-up calls and prompts.

    Exit status: 0 all properties hold, 1 one does not, 2 nothing could be tried.
    """
    if not __debug__:
        raise ConfigError("python -O takes the checks away; run it without -O or PYTHONOPTIMIZE")
    _need_hypothesis()
    _need_report(report)
    keep_compiled(os.environ, Path(stemkv.__file__).parent, home_folder(), cache_root())
    # Not before numba knows where to keep what it compiles; and hypothesis is an extra.
    from stemkv.engine.audit_report import Report
    from stemkv.kvstore.properties.running import Budget

    chosen = _chosen(only)
    budget = Budget(examples, steps, secrets.randbelow(2**32) if seed is None else seed)
    result = Report(budget, _run(chosen, budget, quiet=as_json))
    if report is not None:
        text = result.to_json() + "\n" if report.suffix == ".json" else result.to_markdown()
        report.write_text(text, encoding="utf-8")
    _print(result, as_json=as_json)
    return 1 if result.failures else 0


def _need_hypothesis() -> None:
    try:
        import hypothesis  # noqa: F401 - optional: stemkv[audit]
    except ImportError as error:
        raise ConfigError(
            "hypothesis is not installed, which makes the examples; pip install 'stemkv[audit]'"
        ) from error


def _need_report(path: Path | None) -> None:
    """Refuse a file that could not be written, before minutes are spent on it."""
    if path is None:
        return
    if path.suffix not in _FORMATS:
        raise ConfigError(f"report: {str(path)!r} ends neither in {' nor in '.join(_FORMATS)}")
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"report: {path}: {error.strerror}") from error
    if not existed:
        # An audit that is interrupted leaves no empty report behind.
        with suppress(OSError):
            path.unlink()


def _chosen(names: list[str] | None) -> "list[Property]":
    # All of them are imported whichever are run: what hypothesis draws depends on what is loaded.
    from stemkv.kvstore.properties.suite import PROPERTIES

    known = {property_.name: property_ for property_ in PROPERTIES}
    for name in names or ():
        if name not in known:
            raise ConfigError(f"only: {name!r} is not one of {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names or known)]


def _run(chosen: "list[Property]", budget: "Budget", *, quiet: bool) -> "list[Outcome]":
    from stemkv.kvstore.properties.running import run_property

    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn())
    outcomes = []
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), disable=quiet, transient=True
    ) as progress:
        for property_ in chosen:
            task = progress.add_task(property_.name, total=budget.examples)

            def tell(example: int, task: TaskID = task) -> None:
                # Cases that are always tried, and those that make a failure smaller, come on top.
                progress.update(task, completed=min(example, budget.examples))

            outcomes.append(run_property(property_, budget, tell))
            progress.update(task, completed=budget.examples)
    return outcomes


def _print(result: "Report", *, as_json: bool) -> None:
    if as_json:
        typer.echo(result.to_json())
        return
    show(result.table())
    for outcome in result.failures:
        typer.echo(result.told(outcome) + "\n")
    held = sum(outcome.word == "held" for outcome in result.outcomes)
    typer.echo(f"{held} of {len(result.outcomes)} properties hold; seed {result.budget.seed}")
