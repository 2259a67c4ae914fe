"""Which attention backend serves a device; Triton and numba are imported only when chosen."""

import os
from typing import Literal

import torch

from stemkv.kernels.backend import AttentionBackend
from stemkv.kernels.reference import TorchBackend

BackendName = Literal["auto", "triton", "cpu", "torch"]


class BackendUnavailable(RuntimeError):
    """The backend cannot run here; the message says which one and why."""


def select_backend(name: BackendName, device: torch.device) -> AttentionBackend:
    """Return the backend of that name for tensors on device.

    auto: Triton on a CUDA device, the CPU path on a CPU, the torch oracle elsewhere. triton on a
    CPU needs TRITON_INTERPRET=1 in the environment before the process first imports triton (and
    numpy below 2.4 with Triton 3.6, whose interpreter turns arrays into loop bounds).
    Raises BackendUnavailable if the named backend cannot serve the device or its package is not
    installed, ValueError for an unknown name.
    """
    if name == "auto":
        automatic: dict[str, BackendName] = {"cuda": "triton", "cpu": "cpu"}
        name = automatic.get(device.type, "torch")
    if name == "torch":
        return TorchBackend()
    if name == "cpu":
        return _cpu(device)
    if name == "triton":
        return _triton(device)
    raise ValueError(f"unknown attention backend {name!r}; known: auto, triton, cpu, torch")


def _cpu(device: torch.device) -> AttentionBackend:
    if device.type != "cpu":
        raise BackendUnavailable(f"the cpu attention backend cannot serve device {device}")
    try:
        from stemkv.kernels.cpu import CpuBackend
    except ImportError as error:
        raise BackendUnavailable(f"the cpu attention backend needs numba: {error}") from error
    return CpuBackend()


def _triton(device: torch.device) -> AttentionBackend:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        raise BackendUnavailable(
            f"the triton attention backend cannot serve device {device}: "
            "it needs a CUDA device, or TRITON_INTERPRET=1 in the environment"
        )
    try:
        from stemkv.kernels.triton_backend import TritonBackend
    except ImportError as error:
        raise BackendUnavailable(f"the triton attention backend needs triton: {error}") from error
    return TritonBackend()
