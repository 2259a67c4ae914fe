"""How the CPU kernels are compiled: one place for numba's flags.

Compiled code is cached on disk beside the module, or in the user's cache folder where that is
read-only; a cached kernel loads in milliseconds.
"""

from collections.abc import Callable
from typing import TypeVar

import numba
from numba.extending import overload

F = TypeVar("F", bound=Callable[..., object])

# The OpenMP layer shares libgomp, hence its threads, with torch; with a pool of its own the two
# would fight over the cores. Has no effect once a parallel kernel has run.
if numba.config.THREADING_LAYER == "default":
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

# Everything that LLVM may assume, but for "no NaN, no infinity": both occur in a cache.
_FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}


def serial(function: F) -> F:
    """Compile a kernel for one thread; the interpreter lock is free while it runs."""
    compiled: F = numba.njit(
        cache=True, nogil=True, error_model="numpy", fastmath=_FASTMATH, boundscheck=False
    )(function)
    return compiled


def parallel(function: F) -> F:
    """Compile a kernel whose `prange` loops use numba's threads."""
    compiled: F = numba.njit(
        cache=True,
        nogil=True,
        error_model="numpy",
        fastmath=_FASTMATH,
        boundscheck=False,
        parallel=True,
    )(function)
    return compiled


def inlined(function: F) -> F:
    """Compile a helper that is inlined where another kernel calls it."""
    compiled: F = numba.njit(
        cache=True,
        nogil=True,
        error_model="numpy",
        fastmath=_FASTMATH,
        boundscheck=False,
        forceinline=True,
    )(function)
    return compiled


def by_type(function: Callable[..., object]) -> Callable[[F], F]:
    """Return a decorator: the decorated chooses, from argument types, what kernels inline here.

    function itself is what runs with NUMBA_DISABLE_JIT=1.
    """
    decorator: Callable[[F], F] = overload(function, jit_options={"forceinline": True})
    return decorator
