"""Arrays in the memory of a scripted driver, given out as by real libraries: by interface, or by DLPack."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ekc.devices.cuda.device_arrays import _DlpackTensor
from tests.scripted.cuda.driver import ScriptedDriver

CODES = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int8": (0, 8), "int32": (0, 32)}
_NEW = ctypes.pythonapi.PyCapsule_New
_NEW.restype, _NEW.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@dataclass
class OnGpu:
    """An array of a library that ekc does not know, with `__cuda_array_interface__`."""

    driver: ScriptedDriver
    host: np.ndarray
    read_only: bool = False
    stream: int | None = None
    strides: tuple[int, ...] | None = None
    address: int = field(init=False)

    def __post_init__(self) -> None:
        self.driver.push_context(0)
        self.address = self.driver.allocate(self.host.nbytes)
        self.driver.upload(self.address, np.ascontiguousarray(self.host))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.address, self.read_only),
            "shape": self.host.shape,
            "typestr": self.host.dtype.str,
            "strides": self.strides,
            "stream": self.stream,
            "version": 3,
        }

    def numpy(self) -> np.ndarray:
        found = np.empty_like(self.host)
        self.driver.download(found, self.address)
        return found


@dataclass
class ByDlpack:
    """An array with DLPack alone."""

    array: OnGpu
    kind: int = 2
    asked: list[int | None] = field(default_factory=list)
    refuses: str = ""

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, stream: int | None = None) -> Any:
        if self.refuses:
            raise BufferError(self.refuses)
        self.asked.append(stream)
        host = self.array.host
        self._tensor = _DlpackTensor(device_type=self.kind, ndim=host.ndim, byte_offset=0)
        # An offset, as a view into a larger array has one.
        self._tensor.data, self._tensor.byte_offset = self.array.address - 64, 64
        code, bits = CODES[host.dtype.name]
        self._tensor.dtype.code, self._tensor.dtype.bits, self._tensor.dtype.lanes = code, bits, 1
        self._shape = (ctypes.c_int64 * host.ndim)(*host.shape)
        self._tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        if self.array.strides is not None:
            self._strides = (ctypes.c_int64 * host.ndim)(*self.array.strides)
            self._tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
        return _NEW(ctypes.addressof(self._tensor), b"dltensor", None)
