"""Arrays on a GPU that other libraries own, taken without a copy: DLPack and `__cuda_array_interface__`.

Formats: <https://dmlc.github.io/dlpack/latest/python_spec.html> and
<https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>.

Libraries differ in two ways that are handled here: their current stream, and how to make a new array. A
kernel needs arrays aligned to its widest access, and a result that overlaps no input.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ekc.codegen.compiled import CompiledKernel
from ekc.errors import InvalidInput
from ekc.ir.arrays import is_torch_tensor
from ekc.ir.compute import TensorSpec

LEGACY_STREAM = 1
"""Handle of CUDA's default stream in both formats; CUDA itself has 0. Other streams have their handles."""
_CUDA_DEVICE_TYPES = (2, 13)
"""DLPack device types whose memory a kernel can use: CUDA and CUDA managed."""
_DLPACK_DTYPES = {
    (2, 32): "float32",
    (2, 16): "float16",
    (4, 16): "bfloat16",
    (0, 8): "int8",
    (0, 32): "int32",
}
"""DLPack (code, bits) by element type."""
_TYPESTRS = {"<f4": "float32", "<f2": "float16", "|i1": "int8", "<i4": "int32"}


@dataclass(frozen=True)
class DeviceArray:
    """Address and layout of an array on a GPU. `owner` keeps the memory while this object lives."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None
    """Strides in elements; None for row-major without gaps."""
    stream: int | None
    """Stream that a user must wait for; None where the owner made the caller's stream wait already."""
    is_read_only: bool
    owner: Any


class _DlpackType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DlpackTensor(ctypes.Structure):
    """The C struct DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DlpackType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def is_on_gpu(array: Any) -> bool:
    """Whether an object says that it is in the memory of a CUDA GPU."""
    if is_torch_tensor(array):
        # A meta tensor raises when asked by DLPack.
        return bool(array.device.type == "cuda")
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in _CUDA_DEVICE_TYPES
    return hasattr(array, "__cuda_array_interface__")


def take_array(array: Any, spec: TensorSpec, stream: int) -> DeviceArray:
    """An array of a tensor's shape and type, for use on a stream. Raises `InvalidInput` for another shape or
    type, for gaps, and where the owner refuses."""
    try:
        found = _read_dlpack(array, stream) if hasattr(array, "__dlpack__") else _read_cuda_interface(array)
    except (BufferError, RuntimeError, TypeError, AttributeError) as problem:
        raise InvalidInput(f"{spec.name} cannot be taken: {str(problem).partition(chr(10))[0]}") from problem
    needed = spec.dtype.numpy_dtype.name
    if found.shape != spec.shape:
        raise InvalidInput(f"{spec.name} has shape {found.shape}, needed {spec.shape}")
    if found.dtype != needed:
        raise InvalidInput(f"{spec.name} is {found.dtype}, needed {needed}")
    if found.strides is not None and not _is_dense(found.strides, spec):
        raise InvalidInput(
            f"{spec.name} has strides {found.strides}, needed {spec.strides}: make it contiguous"
        )
    return found


def _is_dense(strides: tuple[int, ...], spec: TensorSpec) -> bool:
    """Whether strides are row-major without gaps; the stride of a dimension of one element has no meaning."""
    dimensions = zip(strides, spec.strides, spec.shape, strict=True)
    return all(stride == needed for stride, needed, extent in dimensions if extent > 1)


def _read_dlpack(array: Any, stream: int) -> DeviceArray:
    """Read an array by DLPack. The capsule is not consumed: its destructor releases the array."""
    capsule = array.__dlpack__(stream=stream or LEGACY_STREAM)
    tensor = _DlpackTensor.from_address(_get_capsule_pointer(capsule))
    kind = (tensor.dtype.code, tensor.dtype.bits)
    return DeviceArray(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[: tensor.ndim]),
        dtype=_DLPACK_DTYPES.get(kind, f"of DLPack's kind {kind}"),
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        stream=None,
        is_read_only=False,
        owner=capsule,
    )


def _get_capsule_pointer(capsule: Any) -> int:
    """Pointer in a capsule."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, b"dltensor"))


def _read_cuda_interface(array: Any) -> DeviceArray:
    """Read an array by `__cuda_array_interface__`, whose strides are bytes."""
    interface = array.__cuda_array_interface__
    address, read_only = interface["data"]
    kind = _TYPESTRS.get(interface["typestr"], f"of type {interface['typestr']}")
    size, strides = int(interface["typestr"][2:]), interface.get("strides")
    stream = interface.get("stream")
    return DeviceArray(
        address=address,
        shape=tuple(interface["shape"]),
        dtype=kind,
        strides=None if strides is None else tuple(s // size for s in strides),
        stream=0 if stream == LEGACY_STREAM else stream,
        is_read_only=read_only,
        owner=array,
    )


def find_current_stream(array: Any) -> int:
    """Handle of the stream on which the array's library queues work now. For an unknown library: the stream
    that the array names, or the default one."""
    library = sys.modules.get(_find_library(array))
    match _find_library(array):
        case "torch":
            return int(library.cuda.current_stream(array.device).cuda_stream)  # type: ignore[union-attr]
        case "cupy":
            return int(library.cuda.get_current_stream().ptr)  # type: ignore[union-attr]
    stream = getattr(array, "__cuda_array_interface__", {}).get("stream")
    return 0 if stream in (None, 1) else int(stream)


def use_device_of(array: Any) -> AbstractContextManager[Any]:
    """Make the array's GPU the current one of its library, since PyTorch allocates on that GPU only."""
    if _find_library(array) == "torch":
        return sys.modules["torch"].cuda.device(array.device)  # type: ignore[no-any-return]
    return nullcontext()


def allocate_like(array: Any, spec: TensorSpec) -> Any:
    """A new array for a tensor, of the array's library and GPU. `InvalidInput` for an unknown library."""
    library, name = sys.modules.get(_find_library(array)), spec.dtype.numpy_dtype.name
    match _find_library(array):
        case "torch":
            return library.empty(spec.shape, dtype=getattr(library, name), device=array.device)  # type: ignore[union-attr]
        case "cupy":
            with array.device:
                return library.empty(spec.shape, dtype=name)  # type: ignore[union-attr]
        case "numba":
            return library.cuda.device_array(spec.shape, dtype=name)  # type: ignore[union-attr]
    raise InvalidInput(
        f"{spec.name}: ekc cannot make an array of {type(array).__module__}; pass one for the result as out="
    )


def _find_library(array: Any) -> str:
    """The library that made an array's class, or the class that it is derived from."""
    libraries = [kind.__module__.partition(".")[0] for kind in type(array).__mro__]
    return next((name for name in libraries if name in ("torch", "cupy", "numba")), libraries[0])


_ACCESS_PATTERN = re.compile(
    r"\b(?:ld|st|red|atom)(?:\.\w+)*?\.global(?:\.\w+)*?(?:\.v(\d))?\.[a-z]+(\d+)(?:x(\d))?\s"
)
_ASYNC_COPY_PATTERN = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\S*\s+[^,;]+,[^,;]+,\s*(\d+)")


def check_addresses(
    compiled: CompiledKernel,
    arrays_by_name: Mapping[str, DeviceArray],
    inputs: tuple[TensorSpec, ...],
    out: TensorSpec,
) -> None:
    """Raises `InvalidInput` for an address unfit for the widest access, and for a result over an input."""
    width = measure_widest_access(compiled.ptx)
    for name, array in arrays_by_name.items():
        if array.address % width:
            raise InvalidInput(
                f"{name} begins {array.address % width} bytes past a multiple of {width}, and "
                f"{compiled.name} moves {width} bytes at a time: pass a copy of it"
            )
    begin = arrays_by_name[out.name].address
    for spec in inputs:
        at = arrays_by_name[spec.name].address
        if begin < at + spec.bytes and at < begin + out.bytes:
            raise InvalidInput(f"out overlaps {spec.name}, which is read meanwhile: pass memory of its own")


@lru_cache(maxsize=1024)
def measure_widest_access(ptx: str) -> int:
    """Bytes of the widest access to global memory; addresses must be multiples of it."""
    accesses = _ACCESS_PATTERN.findall(ptx)
    widths = [int(lanes or 1) * int(bits) * int(pair or 1) // 8 for lanes, bits, pair in accesses]
    return max([1, *widths, *map(int, _ASYNC_COPY_PATTERN.findall(ptx))])
