"""Which backend serves which device, and what choosing one imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stemkv
from stemkv.kernels.select import BackendUnavailable, select_backend

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
KERNELS = Path(stemkv.__file__).parent / "kernels"


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("auto", CPU, "cpu"),
        ("auto", torch.device("meta"), "torch"),
        ("cpu", CPU, "cpu"),
        ("torch", CPU, "torch"),
        ("torch", CUDA, "torch"),
    ],
)
def test_a_backend_for_each_device(name: str, device: torch.device, expected: str) -> None:
    """Each name gives its backend, and auto the fastest that the device has."""
    assert select_backend(name, device).name == expected


def test_the_cpu_backend_refuses_other_devices() -> None:
    """The cpu backend on a GPU is refused, naming backend and device."""
    with pytest.raises(BackendUnavailable, match="cpu attention backend cannot serve device cuda"):
        select_backend("cpu", CUDA)


def test_triton_on_a_cpu_is_refused_unless_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The triton backend on a CPU is refused, with the way out in the message."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendUnavailable, match="TRITON_INTERPRET=1"):
        select_backend("triton", CPU)


@pytest.mark.parametrize(
    ("name", "device", "package", "module"),
    [("cpu", CPU, "numba", "cpu"), ("triton", CUDA, "triton", "triton_backend")],
)
def test_a_missing_package_is_named(
    name: str,
    device: torch.device,
    package: str,
    module: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its package a backend is refused, and the message names what is missing."""
    for loaded in list(sys.modules):
        if (
            loaded.startswith(f"stemkv.kernels.{module.split('_')[0]}")
            or loaded == "stemkv.kernels.jit"
        ):
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendUnavailable, match=f"needs {package}"):
        select_backend(name, device)


def test_an_unknown_name_is_refused() -> None:
    """An unknown backend raises ValueError with the names that exist."""
    with pytest.raises(ValueError, match=r"'cuda'.*auto, triton, cpu, torch"):
        select_backend("cuda", CUDA)


def test_choosing_torch_imports_neither_triton_nor_numba() -> None:
    """What a backend needs is imported only when that backend is chosen."""
    program = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "from stemkv.kernels.select import select_backend\n"
        "select_backend('torch', torch.device('cpu'))\n"
        "late = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(late & {'triton', 'numba'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_kernels_import_nothing_else_of_ours() -> None:
    """kernels/ stands alone: of stemkv it imports stemkv.kernels only."""
    files = sorted(KERNELS.glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, file
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            ours = [name for name in names if name.split(".")[0] == "stemkv"]
            assert all(name.startswith("stemkv.kernels.") for name in ours), (file, ours)
