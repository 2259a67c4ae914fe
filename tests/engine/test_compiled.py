"""Where compiled kernels are kept on installations that cannot be written to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stemkv import __main__ as program
from stemkv.engine import compiled
from stemkv.engine.compiled import NUMBA_VARIABLE, TRITON_VARIABLE, keep_compiled
from stemkv.engine.config import ConfigError


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Make a folder as the installed package has it."""
    for name in ("kvstore", "policies/eviction", "kernels"):
        (tmp_path / "package" / name).mkdir(parents=True)
        (tmp_path / "package" / name / "module.py").write_text("")
    return tmp_path / "package"


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Folders below which nothing can be written, whoever runs the tests."""
    folders: set[Path] = set()
    access = os.access

    def checked(path: Path, mode: int) -> bool:
        return folders.isdisjoint((path, *path.parents)) and access(path, mode)

    monkeypatch.setattr(compiled.os, "access", checked)
    return folders


def test_what_can_be_written_is_left_alone(tmp_path: Path, package: Path) -> None:
    """With a writable installation and home the environment stays as it is."""
    environ: dict[str, str] = {}
    keep_compiled(environ, package, tmp_path / "home", tmp_path / "cache")
    assert environ == {}
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("folder", ["kernels", "policies/eviction"])
def test_read_only_installation(
    tmp_path: Path, package: Path, unwritable: set[Path], folder: str
) -> None:
    """One folder of the package that cannot be written to sends numba to the cache folder."""
    unwritable.add(package / folder)
    environ: dict[str, str] = {}
    keep_compiled(environ, package, tmp_path / "home", tmp_path / "cache")
    assert environ == {NUMBA_VARIABLE: str(tmp_path / "cache" / "compiled" / "numba")}


@pytest.mark.parametrize("home", [None, Path(os.devnull) / "home"])
def test_account_without_home(tmp_path: Path, package: Path, home: Path | None) -> None:
    """Without a home, or with one that cannot be made, Triton goes to the cache folder."""
    environ: dict[str, str] = {}
    keep_compiled(environ, package, home, tmp_path / "cache")
    assert environ == {TRITON_VARIABLE: str(tmp_path / "cache" / "compiled" / "triton")}


def test_cache_folder_that_cannot_be_made(tmp_path: Path, package: Path) -> None:
    """A cache folder that looks as if it could be made and cannot be is passed over."""
    environ: dict[str, str] = {}
    keep_compiled(environ, package, None, Path("/proc/none"))
    assert Path(environ[TRITON_VARIABLE]).parent.is_dir()


def test_what_the_environment_says_stays(
    tmp_path: Path, package: Path, unwritable: set[Path]
) -> None:
    """Variables that are set already are not changed, be they writable or not."""
    unwritable.add(package)
    told = {NUMBA_VARIABLE: "/somewhere", "TRITON_HOME": "/else"}
    environ = dict(told)
    keep_compiled(environ, package, None, tmp_path / "cache")
    assert environ == told


def test_temporary_folder_is_this_process_s_own(
    tmp_path: Path, package: Path, unwritable: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any other folder a private temporary one is taken; without that it is an error."""
    (tmp_path / "cache").mkdir()
    unwritable.update((package, tmp_path / "cache"))
    monkeypatch.setattr(compiled.tempfile, "tempdir", str(tmp_path))
    environ: dict[str, str] = {}
    keep_compiled(environ, package, None, tmp_path / "cache")
    folder = Path(environ[NUMBA_VARIABLE]).parent
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Path(environ[TRITON_VARIABLE]).parent == folder
    monkeypatch.setattr(compiled.tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="STEMKV_CACHE_DIR"):
        keep_compiled({}, package, None, tmp_path / "cache")


def test_numba_takes_it(tmp_path: Path) -> None:
    """A compiled function of ours leaves its code in the folder that the variable names."""
    code = (
        "import numpy as np\n"
        "from stemkv.policies.ordering import ORDERING\n"
        "from stemkv.kernels.cpu_decode import exp\n"
        "exp(np.float32(-1))\n"
    )
    environ = {**os.environ, NUMBA_VARIABLE: str(tmp_path / "numba")}
    environ.pop("NUMBA_DISABLE_JIT", None)
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=240)
    assert list((tmp_path / "numba").rglob("*.nbi"))


def test_every_command_sees_to_it_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program chooses the folders before any command; if there is none, it says so."""
    asked: list[Path] = []

    def choose(environ: object, package: Path, home: object, cache: object) -> None:
        asked.append(package)
        if len(asked) > 1:
            raise ConfigError("no folder")

    monkeypatch.setattr(program, "keep_compiled", choose)
    monkeypatch.setattr(sys, "argv", ["stemkv", "version"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("stemkv ")
    assert (asked[0] / "kernels").is_dir()
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "stemkv: no folder\n"
