"""How CPU kernels see torch tensors: flat numpy arrays with strides.

numba vectorises a loop only over memory that it knows to be contiguous, which a strided view of
the cache is not. So a kernel gets the memory as one flat array and finds rows by its own strides.
"""

from typing import Any, NamedTuple

import numpy.typing as npt
import torch

# numba has neither type on a CPU: bfloat16 bits travel as uint16, float16 bits as int16, so that
# the type of an array says how to widen it.
_CARRIERS = {torch.float32: torch.float32, torch.bfloat16: torch.uint16, torch.float16: torch.int16}


class Rows(NamedTuple):
    """A tensor [a, b, c, head_dim] as flat memory: row (i, j, k) starts at i*a + j*b + k*c.

    flat: float32, uint16 (bfloat16 bits) or int16 (float16 bits), contiguous. outer, middle,
    inner: strides of the first three dimensions, in elements.
    """

    flat: npt.NDArray[Any]
    outer: int
    middle: int
    inner: int


def rows_of(tensor: torch.Tensor) -> Rows:
    """Return a CPU tensor of three leading dimensions as `Rows` over the same memory.

    The last dimension must be contiguous. Raises TypeError for a dtype other than float32,
    bfloat16 and float16.
    """
    carrier = _CARRIERS.get(tensor.dtype)
    if carrier is None:
        raise TypeError(f"the cpu backend has no kernel for a cache of {tensor.dtype}")
    assert tensor.stride(-1) == 1
    strides = tensor.stride()
    last = sum(s * (n - 1) for s, n in zip(strides, tensor.shape, strict=True))
    extent = last + 1 if tensor.numel() else 0
    flat = tensor.as_strided((extent,), (1,)).view(carrier).numpy()
    return Rows(flat, strides[0], strides[1], strides[2])
