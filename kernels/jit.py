"""How the CPU kernels are compiled: one place for numba's flags.

Compiled code is cached on disk beside the module, or in the user's cache folder where that is
read-only. numba renews it when the kernel's own file changes and at no other time, so what a
kernel calls must stand in the file of the kernel.
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

_FLAGS = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    # Everything that LLVM may assume, but for "no NaN, no infinity": both occur in a cache.
    "fastmath": {"nsz", "arcp", "contract", "afn", "reassoc"},
}


def serial(function: F) -> F:
    """Compile a kernel for one thread; the interpreter lock is free while it runs."""
    return _compile(function)


def parallel(function: F) -> F:
    """Compile a kernel whose `prange` loops use numba's threads."""
    return _compile(function, parallel=True)


def inlined(function: F) -> F:
    """Compile a helper that is inlined where another kernel calls it."""
    return _compile(function, forceinline=True)


def by_type(function: Callable[..., object]) -> Callable[[F], F]:
    """Return a decorator: the decorated chooses, from argument types, what kernels inline here.

    function itself is what runs with NUMBA_DISABLE_JIT=1.
    """
    decorator: Callable[[F], F] = overload(function, jit_options={"forceinline": True})
    return decorator


def _compile(function: F, **options: bool) -> F:
    try:
        compiled: F = numba.njit(cache=True, **_FLAGS, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written
        compiled = numba.njit(**_FLAGS, **options)(function)
    return compiled
