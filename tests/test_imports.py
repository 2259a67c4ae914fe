"""The direction of imports: engine → {kvstore, kernels, policies}, kvstore → policies."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kvstore", "engine", "kernels", "policies")
ALLOWED = {
    "engine": {"engine", "kvstore", "kernels", "policies"},
    "kvstore": {"kvstore", "policies"},
    "kernels": {"kernels"},
    "policies": {"policies"},
}
# Heavy or foreign to a folder's job: bookkeeping knows no tensors, a policy no stores.
BANNED = {
    "kvstore": {"torch", "triton", "transformers", "fastapi", "uvicorn"},
    "policies": {"torch", "triton", "transformers", "redis", "fastapi", "uvicorn"},
    "kernels": {"transformers", "redis", "fastapi", "uvicorn"},
    "engine": set[str](),
}


def imported(source: str) -> list[str]:
    """Return every dotted name that a module imports, wherever the statement stands."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names.append(module)
            names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def violations(folder: str, source: str) -> list[str]:
    """Return the imports of a module in folder that the rules forbid."""
    wrong = []
    for name in imported(source):
        parts = name.split(".")
        ours = parts[0] == "stemkv"
        if name.startswith("."):
            wrong.append(f"{name}: relative")
        elif parts[0] in FOLDERS or parts[0] in BANNED[folder]:
            wrong.append(f"{name}: banned here")
        elif ours and len(parts) > 1 and parts[1] in FOLDERS and parts[1] not in ALLOWED[folder]:
            wrong.append(f"{name}: {folder} may not know {parts[1]}")
        elif ours and len(parts) > 1 and parts[1] not in {*FOLDERS, "__version__"}:
            wrong.append(f"{name}: not one of the four folders")
    return wrong


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder: str) -> None:
    """No module of a folder imports what stands above it, a bare name, or a relative one."""
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert modules
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in modules
        if (wrong := violations(folder, path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("kvstore", "import stemkv.engine.plan"),
        ("kvstore", "def late():\n    from stemkv import kernels"),
        ("kvstore", "import torch"),
        ("kernels", "from stemkv.kvstore.ids import BlockId"),
        ("policies", "from stemkv.kvstore import ids"),
        ("engine", "from kernels import layout"),
        ("engine", "from . import plan"),
        ("engine", "import stemkv.tests"),
    ],
)
def test_the_check_sees_what_is_wrong(folder: str, source: str) -> None:
    """Each kind of forbidden import is found."""
    assert violations(folder, source) != []


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("engine", "from stemkv.kvstore.ids import BlockId\nimport torch"),
        ("kvstore", "from stemkv.policies.lru import score"),
        ("engine", "from stemkv import __version__"),
    ],
)
def test_the_check_lets_through_what_is_right(folder: str, source: str) -> None:
    """Imports that point down are not found fault with."""
    assert violations(folder, source) == []


def test_kernels_is_no_package_of_its_own() -> None:
    """kernels/ has no __init__.py: another project owns that top-level name."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
