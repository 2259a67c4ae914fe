"""The one place that says how the store's inner loops are compiled.

``NUMBA_DISABLE_JIT=1`` runs them as plain Python: slow, and what a debugger wants. Compiled code
is cached on disk beside the source, or in the user's cache folder where that is read-only.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function over numpy arrays and integers; it must not raise."""
    compile_lazily = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
    return cast(Callable[P, R], compile_lazily(function))
