"""`stemkv model`: fetch models that need no hub, and say where they lie."""

from typing import Annotated

import typer
from rich.console import Console

from stemkv.engine.cli_tables import rows, show
from stemkv.engine.config import ConfigError
from stemkv.engine.model_fetch import (
    CATALOG,
    DEFAULT_MODEL,
    ModelFetchError,
    ModelSource,
    cache_root,
    fetch_model,
    is_fetched,
    model_path,
)

app = typer.Typer(no_args_is_help=True, help="Fetch models that need no hub; say where they lie.")

Name = Annotated[str, typer.Argument(help="Name of the model, as `stemkv model list` gives it.")]


def source_of(name: str) -> ModelSource:
    """Return the source of a model of the catalogue; raises ConfigError."""
    if name not in CATALOG:
        known = ", ".join(sorted(CATALOG))
        raise ConfigError(f"model: {name!r} is not one that stemkv fetches; known: {known}")
    return CATALOG[name]


@app.command()
def fetch(name: Name = DEFAULT_MODEL) -> None:
    """Download a model from the package index, check and convert it, unless it is there."""
    source, root = source_of(name), cache_root()
    there = is_fetched(source, root)
    folder = fetch_model(source, root, Console(stderr=True))
    typer.echo(f"{name} is {'already ' if there else ''}in {folder}")


@app.command()
def path(name: Name = DEFAULT_MODEL) -> None:
    """Print the folder of a fetched model; exit status 1 if it is not there."""
    source, root = source_of(name), cache_root()
    if not is_fetched(source, root):
        raise ModelFetchError(f"{name} is not fetched; run `stemkv model fetch {name}`")
    typer.echo(model_path(source, root))


@app.command("list")
def list_models() -> None:
    """List the models that stemkv fetches, and which are there."""
    root = cache_root()
    lines = []
    for source in CATALOG.values():
        there = is_fetched(source, root)
        where = str(model_path(source, root)) if there else "not fetched"
        lines.append((source.name, source.requirement, f"{source.wheel_bytes / 1e6:.0f} MB", where))
    show(rows(["model", "from", "download", "folder"], lines))
