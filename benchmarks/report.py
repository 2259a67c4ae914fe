"""What a benchmark hands out: a table, the same as JSON, and targets to hold it to."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from stemkv import __version__


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement and the baseline of the same run.

    ours and baseline: in `unit`; baseline None means that there is none, and note says why.
    lower_is_better decides which way the ratio counts.
    """

    name: str
    unit: str
    ours: float
    baseline: float | None = None
    lower_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better than the baseline (above 1 is better)."""
        if self.baseline is None:
            return None
        return self.baseline / self.ours if self.lower_is_better else self.ours / self.baseline


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure must reach: `measured` at least `required`, both in `unit`."""

    name: str
    unit: str
    required: float
    measured: float

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.measured >= self.required


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run says. settings: what it was run with."""

    title: str
    baseline_name: str
    settings: Mapping[str, str | int | float]
    figures: Sequence[Figure]
    targets: Sequence[Target] = ()

    def show(self, console: Console) -> None:
        """Print the table, the settings and the targets."""
        table = Table(title=self.title)
        table.add_column("figure")
        table.add_column("unit")
        for heading in ("stemkv", self.baseline_name, "ratio"):
            table.add_column(heading, justify="right")
        table.add_column("note")
        for figure in self.figures:
            baseline = "missing" if figure.baseline is None else _number(figure.baseline)
            ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}x"
            ours = _number(figure.ours)
            table.add_row(figure.name, figure.unit, ours, baseline, ratio, figure.note)
        console.print(table)
        console.print(", ".join(f"{name} {value}" for name, value in self.settings.items()))
        for target in self.targets:
            state = "met" if target.met else "FALLEN SHORT"
            console.print(
                f"target {target.name}: at least {_number(target.required)} {target.unit}, "
                f"measured {_number(target.measured)}: {state}"
            )

    def write(self, path: Path) -> None:
        """Write the same as JSON."""
        content = {
            "title": self.title,
            "baseline": self.baseline_name,
            "machine": machine(),
            "settings": dict(self.settings),
            "figures": [{**asdict(figure), "ratio": figure.ratio} for figure in self.figures],
            "targets": [{**asdict(target), "met": target.met} for target in self.targets],
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def status(self, check: bool) -> int:
        """Return the exit status: 1 if a target is to be checked and fallen short of."""
        return int(check and not all(target.met for target in self.targets))


def machine() -> dict[str, str | int]:
    """Return what the figures depend on and no setting says."""
    return {
        "stemkv": __version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cpus": len(psutil.Process().cpu_affinity()) or psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
