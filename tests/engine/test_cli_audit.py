"""`stemkv audit`: what it reports, that it can be repeated, and that it finds what is broken."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stemkv.engine.cli import run
from stemkv.kvstore.flush import Flush, FlushReport
from stemkv.kvstore.ids import SequenceId
from stemkv.kvstore.properties.keys import Fields
from stemkv.kvstore.properties.suite import PROPERTIES, RULES
from stemkv.kvstore.store import BlockStore

ROOT = Path(__file__).parents[2]
FEW = ["--examples", "10", "--steps", "5"]
NAMES = [property_.name for property_ in PROPERTIES]


def reported(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """Run an audit and return its JSON without what differs from run to run."""
    assert run(["audit", "--json", *arguments]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    report = json.loads(captured.out)
    del report["date"]
    for entry in report["properties"]:
        assert entry.pop("seconds") >= 0
    return report


def test_a_sound_store_passes_and_the_report_says_what_ran(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All properties hold with status 0; versions, seed, counts and rules are in the report."""
    report = reported(capsys, *FEW, "--seed", "3")
    assert report["holds"]
    assert (report["seed"], report["examples"], report["steps"]) == (3, 10, 5)
    assert report["environment"].keys() >= {"stemkv", "python", "numba", "numpy", "hypothesis"}
    assert [entry["name"] for entry in report["properties"]] == NAMES
    for entry in report["properties"]:
        assert entry["outcome"] == "held" or entry["not_run_because"]
        assert entry["failure"] is None
    by_name = {entry["name"]: entry for entry in report["properties"]}
    assert 10 <= by_name["store"]["steps"] <= by_name["store"]["examples"] * 5 <= 50
    assert by_name["index"]["steps"] is None
    reached = by_name["store"]["reached"]
    assert len(reached["blocks in the pool"]) > 2
    assert reached["blocks in the pool"] == sorted(reached["blocks in the pool"])
    assert set(reached["eviction"]) <= {"by list", "by score"}
    assert reached["bits of the hash"]
    rules = {rule["rule"]: rule for rule in report["rules"]}
    assert rules.keys() == RULES.keys()
    assert "store" in rules[10]["properties"]
    assert all(rule["properties"] or rule["not_covered"] for rule in rules.values())


def test_one_seed_gives_one_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of one seed report the same but for dates and seconds."""
    only = ["--only", "store", "--only", "isolation", "--only", "index"]
    one, two = (reported(capsys, *FEW, *only, "--seed", "5") for _ in range(2))
    assert one == two
    assert [entry["name"] for entry in one["properties"]] == ["store", "isolation", "index"]


def test_seeds_are_drawn_where_none_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a seed each run has a new one, and says which."""
    seeds = {reported(capsys, *FEW, "--only", "encoding")["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_what_was_not_chosen_is_not_said_to_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """A rule whose properties did not run is listed as not covered, with their names."""
    report = reported(capsys, *FEW, "--only", "encoding", "--seed", "1")
    rules: Mapping[int, Any] = {rule["rule"]: rule for rule in report["rules"]}
    assert rules[1]["properties"] == ["encoding"]
    assert "root-keys was not chosen." in rules[1]["not_covered"]
    assert rules[10]["properties"] == []


def leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a release leave its blocks referenced."""
    release = BlockStore.release

    def leaking(store: BlockStore, sequence: SequenceId) -> None:
        store.fork(sequence)
        release(store, sequence)

    monkeypatch.setattr(BlockStore, "release", leaking)


def miscount(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a flush say that one block more went."""
    flush = BlockStore.flush

    def wrong(store: BlockStore, order: Flush) -> FlushReport:
        report = flush(store, order)
        return replace(report, blocks=report.blocks + 1)

    monkeypatch.setattr(BlockStore, "flush", wrong)


def run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode fields without their lengths."""

    def plain(fields: Fields) -> bytes:
        return b"".join(tag + value for tag, value in fields)

    monkeypatch.setattr("stemkv.kvstore.properties.keys.encode_fields", plain)


@pytest.mark.parametrize(
    ("plant", "name", "rule"),
    [
        (leak, "store", "10 (Conservation)"),
        (miscount, "flush-scopes", "12 (Flush)"),
        (run_together, "encoding", "1 (Keys)"),
    ],
)
def test_a_planted_bug_is_found_and_found_again(
    plant: Callable[[pytest.MonkeyPatch], None],
    name: str,
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status 1; the rule, the example and a command are told, and that finds the same example."""
    plant(monkeypatch)
    numbers = ["--examples", "60", "--steps", "20", "--seed", "11"]
    assert run(["audit", "--only", name, "--only", "flush-text", *numbers]) == 1
    told = capsys.readouterr().out
    assert re.search(rf"^{name}: FAILED, rules? .*{re.escape(rule)}", told, re.MULTILINE)
    assert "1 of 2 properties hold; seed 11" in told
    (command,) = re.findall(r"^again: (?:NUMBA_DISABLE_JIT=1 )?stemkv (.*)$", told, re.MULTILINE)
    again = shlex.split(command)
    assert again[:5] == ["audit", "--only", name, "--seed", "11"]
    assert run(again) == 1
    second = capsys.readouterr().out
    start, end = f"{name}: FAILED", "again: "
    assert _between(told, start, end) == _between(second, start, end)
    failure = reported(capsys, *again[1:], status=1)["properties"][0]["failure"]
    assert set(map(str, failure["rules"])) >= {rule.split()[0]}
    assert failure["place"].startswith("kvstore/properties/")
    assert failure["example"]
    assert failure["example"] in told


def _between(text: str, start: str, end: str) -> str:
    return text[text.index(start) : text.index(end)]


def test_what_a_broken_store_raises_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception of any kind out of the store is a failed property, not a crash of the tool."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(BlockStore, "release", broken)
    report = reported(capsys, *FEW, "--only", "flush-scopes", "--seed", "1", status=1)
    failure = report["properties"][0]["failure"]
    assert failure["error"] == "ZeroDivisionError: planted"
    assert "kvstore/properties/flush_scopes.py" in failure["place"]


def test_report_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suffix chooses Markdown or JSON; both have the rules, and a failure with its command."""
    miscount(monkeypatch)
    arguments = ["audit", *FEW, "--seed", "2", "--only", "flush-scopes", "--report"]
    markdown, as_json = tmp_path / "r.md", tmp_path / "r.json"
    assert run([*arguments, str(markdown)]) == 1
    assert run([*arguments, str(as_json)]) == 1
    text = markdown.read_text(encoding="utf-8")
    assert text.startswith("# stemkv audit: 1 FAILED\n")
    for number, title in RULES.items():
        assert f"\n| {number} | {title} | " in text
    assert "## Failure: flush-scopes" in text
    report = json.loads(as_json.read_text(encoding="utf-8"))
    assert not report["holds"]
    assert report["properties"][0]["command"] in text
    assert "flush-scopes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing"], "only: 'nothing' is not one of store, encoding"),
        (["--examples", "0"], "--examples"),
        (["--steps", "0"], "--steps"),
        (["--seed", "-1"], "--seed"),
        (["--report", "report.txt"], "'report.txt' ends neither in .md nor in .json"),
        (["--report", "/nowhere/r.md"], "/nowhere/r.md: No such file"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag that cannot be honoured is status 2 and named, before anything runs."""
    assert run(["audit", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_without_hypothesis_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where hypothesis is not installed, one line says what to install."""
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert run(["audit", *FEW]) == 2
    error = capsys.readouterr().err
    assert "pip install 'stemkv[audit]'" in error
    assert error.count("\n") == 1


# Run where nothing but the installed package is: whatever of the tests it imports is an error.
ALONE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tests", "support", "pytest", "benchmarks"):
            raise ImportError(f"{name} is no part of the product")

sys.meta_path.insert(0, Blocker())
import stemkv
from stemkv.engine.cli import run
assert stemkv.__file__.startswith(sys.argv[1]), stemkv.__file__
sys.exit(run(["audit", "--json", "--examples", "4", "--steps", "4", "--seed", "1"]))
"""


def alone(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the tool from a copy of the package as a wheel lays it out, without the compiler."""
    site = folder / "site"
    if not site.exists():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "stemkv", site / "stemkv", symlinks=False, ignore=ignore)
    return subprocess.run(
        [sys.executable, *flags, "-c", ALONE, str(site)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_the_tool_runs_without_the_tests(tmp_path: Path) -> None:
    """The package alone is enough, compiled or not; what cannot be tried then is said not to be."""
    outcome = alone(tmp_path)
    assert outcome.returncode == 0, outcome.stderr[-2000:] + outcome.stdout[-2000:]
    report = json.loads(outcome.stdout)
    assert report["environment"]["store code"].startswith("plain Python")
    words = {entry["name"]: entry["outcome"] for entry in report["properties"]}
    assert words == {name: "not run" if name == "xxh3" else "held" for name in NAMES}


@pytest.mark.slow
def test_checks_that_python_would_skip_are_not_run(tmp_path: Path) -> None:
    """Under -O, which takes assertions away, the tool refuses instead of passing everything."""
    outcome = alone(tmp_path, "-O")
    assert outcome.returncode == 2
    assert "python -O takes the checks away" in outcome.stderr
    assert outcome.stdout == ""


def test_the_guide_has_every_property() -> None:
    """docs/auditing.md tells of each property under its name."""
    guide = (ROOT / "docs" / "auditing.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in guide] == []
