"""What a built wheel puts into a user's site-packages."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kvstore", "engine", "kernels", "policies")


def test_wheel_holds_real_files_under_stemkv_alone(tmp_path: Path) -> None:
    """The wheel has every module below stemkv/ as a file, and no folder of ours at its top."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (*FOLDERS, "stemkv"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "."]
    outcome = subprocess.run(
        [*command, "--quiet", "--no-input", "--wheel-dir", str(tmp_path)],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    tops = {name.split("/")[0] for name in held}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"stemkv"}
    for folder in FOLDERS:
        for path in (tree / folder).rglob("*.py"):
            name = f"stemkv/{path.relative_to(tree)}"
            assert held.get(name) == path.read_bytes(), name
    assert "stemkv/py.typed" in held
