"""Installs torch into the environment that runs this, and no CUDA where there is no NVIDIA GPU.

On Linux the package index gives a build of torch that pulls gigabytes of CUDA libraries. Where no
GPU is seen, pip is asked first what it would install from the indexes it is configured with; if
that comes with CUDA, the build is taken from PyTorch's own index of CPU builds instead.

    python scripts/install_torch.py REQUIREMENT [CPU_INDEX_URL]

An empty CPU_INDEX_URL takes whatever the configured indexes give. Needs pip 23.2 or newer.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

CUDA_PREFIXES = ("nvidia-", "cuda-", "nvidia_", "cuda_")
PIP = (sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check")

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def has_gpu(run: Run, devices: Path = Path("/dev")) -> bool:
    """Whether an NVIDIA GPU is here: its device file, or nvidia-smi that lists one."""
    if any(devices.glob("nvidia[0-9]*")):
        return True
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return False
    listed = run([smi, "-L"])
    return listed.returncode == 0 and "GPU" in listed.stdout


def cuda_packages(report: str) -> list[str]:
    """Return the CUDA packages of a pip installation report, torch itself if it is a CUDA build."""
    found = []
    for item in json.loads(report).get("install", []):
        name, version = item["metadata"]["name"].lower(), item["metadata"]["version"]
        if name.startswith(CUDA_PREFIXES) or (name == "torch" and "+cu" in version):
            found.append(f"{name} {version}")
    return found


def choose(requirement: str, cpu_index: str, run: Run) -> list[str]:
    """Return pip's arguments that install the right build; raises SystemExit with the reason."""
    plain = [requirement]
    if not cpu_index or has_gpu(run):
        return plain
    outcome = run([*PIP, "--dry-run", "--quiet", "--report", "-", requirement])
    if outcome.returncode == 0:
        cuda = cuda_packages(outcome.stdout)
        if not cuda:
            return plain
        print(f"no NVIDIA GPU here, but {requirement} would bring {len(cuda)} CUDA packages")
    # pip ranks 2.13.0+cpu above 2.13.0, so the CPU build wins; its dependencies may come from
    # the configured indexes.
    print(f"taking the CPU build from {cpu_index}")
    from_cpu_index = [requirement, "--extra-index-url", cpu_index]
    outcome = run([*PIP, "--dry-run", "--quiet", "--report", "-", *from_cpu_index])
    if outcome.returncode != 0:
        lines = [line for line in outcome.stderr.splitlines() if line.startswith("ERROR:")]
        cause = lines[0].removeprefix("ERROR:").strip() if lines else "pip failed"
        raise SystemExit(_failure(requirement, cpu_index, cause))
    if cuda_packages(outcome.stdout):
        raise SystemExit(_failure(requirement, cpu_index, "only CUDA builds were found"))
    return from_cpu_index


def _failure(requirement: str, cpu_index: str, cause: str) -> str:
    return (
        f"no CPU build of {requirement} ({cause}); TORCH_INDEX={cpu_index} can be another index "
        "that has one, TORCH another version, and TORCH_INDEX= (empty) takes the CUDA build"
    )


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own arguments, no shell
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def main(arguments: Sequence[str]) -> int:
    """Install; returns pip's exit status."""
    requirement, cpu_index = arguments[0], arguments[1] if len(arguments) > 1 else ""
    chosen = choose(requirement, cpu_index, _run)
    return subprocess.run([*PIP, *chosen], check=False).returncode  # noqa: S603 - as above


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
