"""Tables on stdout: whole values, in as many lines as they need."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_FILE_COLUMNS = 400  # what is piped on is not cut to the width of a terminal that nobody sees
_SHORT = 16  # so many characters stay in one piece; longer values give way first


def show(table: Table) -> None:
    """Print a table on stdout."""
    Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS).print(table)


def rows(headings: Sequence[str], lines: Iterable[Sequence[object]]) -> Table:
    """Return a table with a line for each row; what does not fit goes on below, uncut."""
    table = Table()
    texts = [[shown(value) for value in line] for line in lines]
    for number, heading in enumerate(headings):
        longest = max((len(line[number]) for line in texts), default=0)
        # The words of a heading stand below each other: figures are narrower than both together.
        stacked = "\n".join(heading.split())
        table.add_column(stacked, overflow="fold", no_wrap=longest <= _SHORT)
    for line in texts:
        table.add_row(*line)
    return table


def records(items: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of like mappings, under the names of the first; "none" if there are none."""
    if not items:
        return rows(["none"], [])
    headings = [name.replace("_", " ") for name in items[0]]
    return rows(headings, [list(item.values()) for item in items])


def pairs(title: str, values: Mapping[str, Any]) -> Table:
    """Return a table of names and values."""
    table = Table(title=title, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(name.replace("_", " "), shown(value))
    return table


def shown(value: object) -> str:
    """Return a value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return escape(f"{value:,}" if isinstance(value, int) else str(value))
