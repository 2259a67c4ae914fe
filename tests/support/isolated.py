"""Test modules that need a process of their own, with another environment than the suite's."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_isolated(module: Path, environment: dict[str, str | None], timeout_seconds: int) -> int:
    """Run a test module by pytest in a fresh process; return how many of its tests passed.

    environment: what is set there beyond this process's own, None takes a variable away. Raises
    AssertionError with the end of the output if any test failed or was skipped, or none ran.
    """
    changed = {**os.environ, "STEMKV_ISOLATED": module.stem, **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(module)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={name: value for name, value in changed.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    tail = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
    summary = re.search(r"^(\d+) passed(?:, \d+ warnings?)? in ", done.stdout, re.MULTILINE)
    assert done.returncode == 0, tail
    assert summary is not None, tail
    return int(summary.group(1))
