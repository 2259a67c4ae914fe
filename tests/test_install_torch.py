"""Which torch the Makefile installs, decided with pip and nvidia-smi faked."""

import importlib.util
import json
import os
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "install_torch.py"
CPU_INDEX = "https://cpu.example/simple"
WANTED = "torch==2.13.0"

spec = importlib.util.spec_from_file_location("install_torch", SCRIPT)
assert spec is not None
assert spec.loader is not None
install_torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(install_torch)

CPU = [("torch", "2.13.0+cpu"), ("sympy", "1.14.0")]
PLAIN = [("torch", "2.13.0"), ("sympy", "1.14.0")]
CUDA = [("torch", "2.13.0"), ("nvidia-cublas", "13.1"), ("cuda-bindings", "13.0.3")]
CUDA_LOCAL = [("torch", "2.13.0+cu130")]
Packages = list[tuple[str, str]] | None


class FakePip:
    """Answers dry runs: what the configured indexes give, and what the CPU index adds."""

    def __init__(self, configured: Packages, with_cpu_index: Packages) -> None:
        self.configured = configured
        self.with_cpu_index = with_cpu_index
        self.asked: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Stand in for subprocess.run on a pip command."""
        assert "--dry-run" in command
        self.asked.append(list(command))
        packages = self.with_cpu_index if CPU_INDEX in command else self.configured
        if packages is None:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution\n")
        report = {"install": [{"metadata": {"name": n, "version": v}} for n, v in packages]}
        return subprocess.CompletedProcess(command, 0, json.dumps(report), "")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the machine one without a GPU."""
    monkeypatch.setattr(install_torch, "has_gpu", lambda _run: False)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("configured", [CPU, PLAIN, []])
def test_configured_cpu_build_is_taken(configured: Packages) -> None:
    """Where the configured indexes give a CPU build, or torch is there, no other is asked."""
    pip = FakePip(configured, None)
    assert install_torch.choose(WANTED, CPU_INDEX, pip) == [WANTED]
    assert len(pip.asked) == 1


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("configured", [CUDA, CUDA_LOCAL, None])
def test_cuda_build_is_passed_over_without_gpu(configured: Packages) -> None:
    """Where the configured indexes would bring CUDA, or nothing, the CPU index is used."""
    chosen = install_torch.choose(WANTED, CPU_INDEX, FakePip(configured, CPU))
    assert chosen == [WANTED, "--extra-index-url", CPU_INDEX]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("with_cpu_index", [CUDA, None])
def test_no_cpu_build_is_an_error_with_a_mend(with_cpu_index: Packages) -> None:
    """Without a CPU build anywhere nothing is chosen, and the message names the variables."""
    with pytest.raises(SystemExit, match="TORCH_INDEX= "):
        install_torch.choose(WANTED, CPU_INDEX, FakePip(CUDA, with_cpu_index))


def test_gpu_machine_takes_what_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU the configured build is taken unasked."""
    monkeypatch.setattr(install_torch, "has_gpu", lambda _run: True)
    pip = FakePip(CUDA, CPU)
    assert install_torch.choose(WANTED, CPU_INDEX, pip) == [WANTED]
    assert pip.asked == []


@pytest.mark.usefixtures("no_gpu")
def test_empty_index_takes_what_is_configured() -> None:
    """TORCH_INDEX= takes the configured build, CUDA or not."""
    assert install_torch.choose(WANTED, "", FakePip(CUDA, CPU)) == [WANTED]


def test_gpu_is_seen_by_device_file_or_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is a device file or a line of nvidia-smi; a tool that finds none is no GPU."""

    def smi(code: int, text: str) -> install_torch.Run:
        return lambda command: subprocess.CompletedProcess(command, code, text, "")

    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert not install_torch.has_gpu(smi(0, "GPU 0: x"), tmp_path)
    monkeypatch.setattr("shutil.which", lambda _name: "/bin/nvidia-smi")
    assert install_torch.has_gpu(smi(0, "GPU 0: x"), tmp_path)
    assert not install_torch.has_gpu(smi(0, "No devices found"), tmp_path)
    assert not install_torch.has_gpu(smi(9, ""), tmp_path)
    (tmp_path / "nvidia0").touch()
    assert install_torch.has_gpu(smi(9, ""), tmp_path)


def add_wheel(index: Path, name: str, version: str, *requires: str) -> None:
    """Put an empty wheel into a folder that pip can use as an index."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    wheel = f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", head + needs)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    links = "".join(f'<a href="{w.name}">{w.name}</a>\n' for w in sorted(folder.glob("*.whl")))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


@pytest.mark.usefixtures("no_gpu")
def test_real_pip_prefers_the_cpu_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a CUDA build in one index and a CPU build in the other, pip would install the latter."""
    configured, cpu = tmp_path / "configured", tmp_path / "cpu"
    add_wheel(configured, "stemkv-fake-torch", "1.0", "nvidia-stemkv-fake")
    add_wheel(configured, "nvidia-stemkv-fake", "1.0")
    add_wheel(cpu, "stemkv-fake-torch", "1.0+cpu")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", configured.as_uri())
    requirement = "stemkv-fake-torch==1.0"
    chosen = install_torch.choose(requirement, cpu.as_uri(), install_torch._run)
    assert chosen == [requirement, "--extra-index-url", cpu.as_uri()]
    dry_run = [*install_torch.PIP, "--dry-run", "--quiet", "--report", "-"]
    planned = json.loads(install_torch._run([*dry_run, *chosen]).stdout)["install"]
    versions = [(item["metadata"]["name"], item["metadata"]["version"]) for item in planned]
    assert versions == [("stemkv-fake-torch", "1.0+cpu")]
    add_wheel(configured, "stemkv-fake-torch", "1.0+cpu")
    assert install_torch.choose(requirement, cpu.as_uri(), install_torch._run) == [requirement]
