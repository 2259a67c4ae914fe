"""The inner loops as plain Python do what the compiled ones do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_rules_hold_without_the_compiler() -> None:
    """NUMBA_DISABLE_JIT=1 passes the tests of hits, copies, eviction, flush, index and audit."""
    audits = ("audit", "audit_halves")
    names = ("hits", "copies", "eviction", "flush", "index", "inspect", "explain")
    files = [f"tests/kvstore/test_{name}.py" for name in (*names, *audits)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", *files],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert " passed" in ran.stdout
