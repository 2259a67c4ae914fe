"""What the documents say of flags, files and commands is so."""

import inspect
import re
from pathlib import Path

import pytest

from stemkv.engine.cli_serve import serve

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_readme_lists_every_flag_of_serve() -> None:
    """The settings table of the README has a row for each flag, and none that is not there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("## Settings")[1].split("## Layout")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `--")]
    listed = {flag for row in rows for flag in re.findall(r"--[a-z-]+", row)}
    flags = {f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters}
    assert listed == flags | {"--no-prefix-cache", "--no-explain-misses"}


def test_readme_gives_the_defaults() -> None:
    """Where a flag has a plain default, its row has it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, parameter in inspect.signature(serve).parameters.items():
        if isinstance(parameter.default, bool) or parameter.default is None:
            continue
        flag = f"--{name.replace('_', '-')}"
        (row,) = [
            line for line in text.splitlines() if line.startswith("|") and f"`{flag}`" in line
        ]
        assert (
            f"`{parameter.default:g}`" in row
            if isinstance(parameter.default, float)
            else (f"`{parameter.default}`" in row)
        )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link of a document names a file that is there, and a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, target
