"""The Triton kernels, interpreted and compiled, each in a process of its own.

Triton reads TRITON_INTERPRET when it is imported, which decides for the whole process; these
modules need it set and not set.
"""

from pathlib import Path

from support.isolated import run_isolated

MODULES = Path(__file__).parent / "isolated"


def test_kernels_agree_with_their_twins_under_the_interpreter() -> None:
    """Every test of the interpreted kernels passes."""
    environment = {"TRITON_INTERPRET": "1"}
    assert run_isolated(MODULES / "test_interpreted.py", environment, timeout_seconds=280) >= 30


def test_kernels_compile_for_two_generations_of_gpu(tmp_path: Path) -> None:
    """Every test of the compiled kernels passes, with nothing compiled beforehand."""
    environment = {"TRITON_INTERPRET": None, "TRITON_CACHE_DIR": str(tmp_path)}
    assert run_isolated(MODULES / "test_compiled.py", environment, timeout_seconds=280) >= 20
