"""Reports of benchmarks: ratios, targets, exit status, JSON."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import Figure, Report, Target


def report(measured: float) -> Report:
    """Make a report with one target that asks for 5."""
    return Report(
        title="a title",
        baseline_name="other",
        settings={"device": "cpu"},
        figures=[
            Figure("latency", "ms", 10.0, 40.0, lower_is_better=True),
            Figure("rate", "tokens/s", 30.0, 20.0),
            Figure("alone", "ms", 1.0),
        ],
        targets=[Target("speed", "times", 5.0, measured)],
    )


def test_ratio_is_better_above_one() -> None:
    """Lower latency and higher rate both give ratios above 1; no baseline gives none."""
    latency, rate, alone = report(5).figures
    assert latency.ratio == 4.0
    assert rate.ratio == 1.5
    assert alone.ratio is None


@pytest.mark.parametrize(("measured", "met"), [(4.9, False), (5.0, True)])
def test_check_exits_by_target(measured: float, met: bool, tmp_path: Path) -> None:
    """A target that is fallen short of is named, and fails the run only if that is asked for."""
    made = report(measured)
    assert made.status(check=False) == 0
    assert made.status(check=True) == (0 if met else 1)
    output = io.StringIO()
    made.show(Console(file=output, width=200))
    assert ("FALLEN SHORT" in output.getvalue()) is not met
    assert "missing" in output.getvalue()
    made.write(tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["targets"][0]["met"] is met
    assert content["figures"][0]["ratio"] == 4.0
    assert content["machine"]["cpus"] >= 1
