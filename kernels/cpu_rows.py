"""How CPU kernels see torch tensors: flat numpy arrays with strides, and exact widening to float32.

numba vectorises a loop only over memory that it knows to be contiguous, which a strided view of
the cache is not. So a kernel gets the memory as one flat array and finds rows by its own strides.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch

from stemkv.kernels.jit import by_type, inlined

# numba has neither type on a CPU: bfloat16 bits travel as uint16, float16 bits as int16, so that
# the type of an array says how to widen it.
_CARRIERS = {torch.float32: torch.float32, torch.bfloat16: torch.uint16, torch.float16: torch.int16}

_FLOAT16_INFINITY = np.int32(0x7C00)
_FLOAT32_INFINITY = np.int32(0x7F800000)
_TWO_TO_112 = np.float32(2.0**112)  # difference of the two formats' exponent biases: 127 - 15


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


def widen(source: Any, target: Any) -> None:
    """Write the values of one row of carrier bits to target [n], as float32, exactly.

    Inside kernels numba puts the loop for the carrier's type in its place; this body is what runs
    with NUMBA_DISABLE_JIT=1.
    """
    if source.dtype == np.uint16:
        target[:] = (source.astype(np.uint32) << 16).view(np.float32)
    elif source.dtype == np.int16:
        target[:] = source.view(np.float16)
    else:
        target[:] = source


def _widen_float32(source: Any, target: Any) -> None:
    for index in range(target.shape[0]):
        target[index] = source[index]


def _widen_bfloat16(source: Any, target: Any) -> None:
    for index in range(target.shape[0]):
        bits = np.uint32(np.uint32(source[index]) << np.uint32(16))
        target[index] = bits.view(np.float32)


def _widen_float16(source: Any, target: Any) -> None:
    # The bits moved into float32's place are the value times 2**-112, subnormals included;
    # infinity and NaN need float32's largest exponent instead.
    for index in range(target.shape[0]):
        bits = np.int32(source[index])
        magnitude = np.int32(bits & np.int32(0x7FFF))
        moved = np.int32(magnitude << np.int32(13))
        scaled = np.float32(moved.view(np.float32) * _TWO_TO_112).view(np.int32)
        special = np.int32(moved | _FLOAT32_INFINITY)
        chosen = special if magnitude >= _FLOAT16_INFINITY else scaled
        signed = np.int32(chosen | (bits & np.int32(-0x80000000)))
        target[index] = signed.view(np.float32)


@by_type(widen)
def _overload_widen(source: Any, target: Any) -> Any:
    del target
    loops = {
        numba.types.float32: _widen_float32,
        numba.types.uint16: _widen_bfloat16,
        numba.types.int16: _widen_float16,
    }
    return loops.get(source.dtype)


@inlined
def exp(x: np.float32) -> np.float32:
    """Return e**x in float32 for x <= 0 (0 .. -87; below, about 1e-38), to about 1e-7.

    Written out so that it vectorises: a call into the maths library does not. NaN stays NaN.
    """
    bounded = np.float32(-87.0) if x < np.float32(-87.0) else x
    power = bounded * np.float32(1.4426950408889634)
    whole = np.floor(power + np.float32(0.5))
    part = power - whole
    # Taylor series of 2**part on -0.5 .. 0.5; the next term is below 6e-9.
    value = np.float32(1.5252733804059838e-05)
    value = value * part + np.float32(1.5403530393381606e-04)
    value = value * part + np.float32(1.3333558146428443e-03)
    value = value * part + np.float32(9.6181291076284770e-03)
    value = value * part + np.float32(5.5504108664821580e-02)
    value = value * part + np.float32(2.4022650695910072e-01)
    value = value * part + np.float32(6.9314718055994530e-01)
    value = value * part + np.float32(1.0)
    bits = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return np.float32(value * bits.view(np.float32))


@inlined
def capped(score: np.float32, cap: np.float32) -> np.float32:
    """Return cap * tanh(score / cap)."""
    size = np.float32(abs(score))
    small = exp(np.float32(-2.0) * size / cap)
    bent = cap * (np.float32(1.0) - small) / (np.float32(1.0) + small)
    return np.float32(-bent) if score < np.float32(0.0) else np.float32(bent)
