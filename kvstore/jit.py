"""The one place that says how the store's inner loops are compiled.

``NUMBA_DISABLE_JIT=1`` runs them as plain Python: slow, and what a debugger wants. Compiled code
is cached on disk beside the source, or in the user's cache folder where that is read-only. numba
renews an entry when the function's own file changes; since loops here call loops of other files,
entries also carry a digest of all of those files.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

P = ParamSpec("P")
R = TypeVar("R")

COMPILES = not numba.config.DISABLE_JIT
"""Whether `compiled` compiles, or leaves functions as they are."""

_SOURCES = (
    "audit_open_ops.py",
    "audit_ops.py",
    "audit_tree_ops.py",
    "chains.py",
    "curve_ops.py",
    "leaf_heaps.py",
    "ops.py",
    "scoring.py",
    "victims.py",
    "xxh3.py",
)


@cache
def _digest() -> str:
    """Digest of every file that has compiled functions in it."""
    folder = Path(__file__).parent
    sources = b"".join((folder / name).read_bytes() for name in _SOURCES)
    return hashlib.sha256(sources).hexdigest()


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's disk cache of one function, renewed when any of the sources changes."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), _digest())


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function over numpy arrays and integers; it must not raise."""
    dispatcher = numba.njit(nogil=True, boundscheck=False, error_model="numpy")(function)
    if COMPILES:
        # Where neither the package's folder nor the user's can be written, nothing is cached.
        with suppress(RuntimeError):
            dispatcher._cache = _Cache(function)
    return cast(Callable[P, R], dispatcher)
