"""Arrays on a GPU as their owners hand them out, without a copy: DLPack and `__cuda_array_interface__`.

Formats: <https://dmlc.github.io/dlpack/latest/python_spec.html> and
<https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir.operator import TensorSpec

LEGACY_STREAM = 1
"""How both formats call CUDA's default stream, whose handle is 0; 2 is that of each thread, 2 for the driver
too."""
_CUDA, _CUDA_MANAGED = 2, 13
"""DLPack's kinds of device whose memory a kernel can use."""
_KINDS = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16", (0, 8): "int8", (0, 32): "int32"}
"""DLPack's (code, bits)."""
_TYPESTRS = {"<f4": "float32", "<f2": "float16", "|i1": "int8", "<i4": "int32"}


@dataclass(frozen=True)
class DeviceArray:
    """Where an array lies. `owner` keeps it there for as long as this lives."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    device: int | None
    """CUDA's number of the GPU; None where the format does not tell."""
    read_only: bool
    owner: Any


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def on_gpu(array: Any) -> bool:
    """Whether an object says that it lies in the memory of a CUDA GPU."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in (_CUDA, _CUDA_MANAGED)
    # A property that may raise: PyTorch's does for tensors on the CPU.
    return hasattr(array, "__cuda_array_interface__")


def device_of(array: Any) -> int | None:
    """CUDA's number of the GPU an array lies on, where it tells."""
    return int(array.__dlpack_device__()[1]) if hasattr(array, "__dlpack_device__") else None


def taken(array: Any, spec: TensorSpec, stream: int) -> DeviceArray:
    """An array of a tensor's shape and type, ready to be used on a stream (by the driver's handle).

    Raises `InvalidInput` for another shape or type, or elements that do not follow each other in row-major order.
    """
    found = _dlpack(array, stream) if hasattr(array, "__dlpack__") else _interface(array, spec.name)
    if found.shape != spec.shape:
        raise InvalidInput(f"{spec.name} has shape {found.shape}, needed {spec.shape}")
    if found.dtype != spec.dtype.cuda_array:
        raise InvalidInput(f"{spec.name} is {found.dtype}, needed {spec.dtype}")
    return found


def _dlpack(array: Any, stream: int) -> DeviceArray:
    """By DLPack. The capsule is not consumed: dropping it lets go of the array, as its own destructor says."""
    capsule = array.__dlpack__(stream=stream or LEGACY_STREAM)
    tensor = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    shape = tuple(tensor.shape[: tensor.ndim])
    kind = (tensor.dtype.code, tensor.dtype.bits)
    if tensor.strides:
        _check_dense(shape, tuple(tensor.strides[: tensor.ndim]))
    return DeviceArray(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        dtype=_KINDS.get(kind, f"of DLPack's type {kind}"),
        device=tensor.device_id,
        read_only=False,
        owner=capsule,
    )
