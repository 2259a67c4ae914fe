"""Where compiled kernels are kept, if not where numba and Triton would put them.

numba writes beside the module that it compiles, Triton below the home folder. An installation that
the service may not write to, or an account without a home, has neither.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable, MutableMapping
from pathlib import Path

from stemkv.engine.config import ConfigError

NUMBA_VARIABLE = "NUMBA_CACHE_DIR"
TRITON_VARIABLE = "TRITON_CACHE_DIR"
TRITON_HOME_VARIABLE = "TRITON_HOME"

_COMPILED = ("kvstore", "policies", "kernels")


def keep_compiled(
    environ: MutableMapping[str, str], package: Path, home: Path | None, cache: Path
) -> None:
    """Set numba's and Triton's variables where their own choice cannot be written to.

    Call it before numba or Triton is imported; processes started later inherit it. package: the
    folder of stemkv. home: None if the account has none. cache: the folder for it; if that cannot
    be written to either, what is compiled lies in a temporary folder until this process ends.
    What the environment says already stays. Raises ConfigError when there is no folder at all.
    """
    wanted = {}
    modules = (file for name in _COMPILED for file in (package / name).rglob("*.py"))
    beside = {module.parent / "__pycache__" for module in modules}
    if NUMBA_VARIABLE not in environ and not _all_writable(beside):
        wanted[NUMBA_VARIABLE] = "numba"
    triton_is_told = TRITON_VARIABLE in environ or TRITON_HOME_VARIABLE in environ
    if not triton_is_told and (home is None or not _all_writable([home / ".triton" / "cache"])):
        wanted[TRITON_VARIABLE] = "triton"
    if not wanted:
        return
    folder = cache / "compiled"
    if not _made(folder):
        folder = _temporary()
    environ.update({variable: str(folder / name) for variable, name in wanted.items()})


def home_folder() -> Path | None:
    """Return the account's home folder, None if it has none."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _all_writable(folders: Iterable[Path]) -> bool:
    """Whether each folder can be written to, or made."""
    for folder in folders:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            return False
    return True


def _made(folder: Path) -> bool:
    """Make a folder; whether it is there and can be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return _all_writable([folder])


def _temporary() -> Path:
    # of this process alone: compiled code that others can write would be theirs to choose
    try:
        folder = Path(tempfile.mkdtemp(prefix="stemkv-compiled-"))
    except OSError as error:
        raise ConfigError(
            f"no folder for compiled kernels: {error}; set STEMKV_CACHE_DIR to one that can be "
            "written to"
        ) from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
