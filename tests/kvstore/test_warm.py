"""Nothing is compiled while requests wait."""

import subprocess
import sys
from pathlib import Path

import pytest

from stemkv.policies.eviction import EVICTION

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("policy", list(EVICTION))
def test_no_loop_is_compiled_after_the_warm_up(policy: str) -> None:
    """What traffic of all kinds calls was compiled before, in a process where nothing else did."""
    ran = subprocess.run(
        [sys.executable, "tests/support/warm_traffic.py", policy],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert ran.stdout == ""
