"""cuBLASLt and cuDNN through ctypes, for the worker of a GPU: their algorithms for a call, and the call.

Both add in float32, as our kernels do: exact float32 uses no TF32, and parts of a sum are not added in 16
bits. Descriptors live as long as the worker, one set for each call.

Numbers of types and attributes are those of `cublasLt.h`, `library_types.h`, `cudnn_ops.h` and `cudnn_cnn.h`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from functools import partial
from typing import Any

from ekc.devices.cuda.driver import DriverError
from ekc.devices.cuda.library_kernel import Convolution, LibraryKernel, Matrix, MatrixProduct
from ekc.errors import DeviceError

MAX_ALGORITHMS = 16
"""Algorithms that are asked of a library for a call, at most. cuDNN has eight."""
MAX_PRODUCT_WORKSPACE_BYTES = 64 << 20
"""Workspace of a product in bytes, at most. NVIDIA recommends 32 MiB for Hopper."""
MAX_CONVOLUTION_WORKSPACE_BYTES = 1 << 30
"""Workspace of a convolution in bytes, at most: transforms of whole images need hundreds of MiB."""


class NvidiaLibrary:
    """A library that is found as a wheel or in a toolkit, loaded by its name for the dynamic linker."""

    title = ""
    file = ""
    """Name of the library: "cudnn" is libcudnn.so."""
    majors: tuple[int, ...] = ()
    """Major versions whose functions are those called here."""
    wheels = ""

    def __init__(self) -> None:
        """Load the library and check its version. Raises `DeviceError` where there is none to use."""
        self._library = self._load()
        count = getattr(self._library, f"{self.file}GetVersion")
        count.restype = c_size_t
        parts = self._split_version(count())
        self.label = f"{self.title} {'.'.join(map(str, parts))}"
        if parts[0] not in self.majors:
            known = " and ".join(map(str, self.majors))
            raise DeviceError(f"{self.label} is not called, only versions {known}: install {self.wheels}")
        self._handle = c_void_p()
        self._one, self._zero = c_float(1.0), c_float(0.0)

    def list_algorithms(self, kernel: LibraryKernel, count: int) -> tuple[LibraryKernel, ...]:
        """The kernel with each algorithm, in the order of the library. Raises `DeviceError`."""
        raise NotImplementedError

    def prepare(self, kernel: LibraryKernel, places: Mapping[str, int], workspace: int) -> Callable[[], None]:
        """The function that queues a call; `places` are device addresses by tensor."""
        raise NotImplementedError

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises `DriverError`, after which the worker ends."""
        if not hasattr(self._library, name):
            raise DriverError(name, f"{self.label} does not have it")
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DriverError(name, f"status {status}", self._describe_status(status))

    def create(self, name: str, *arguments: Any) -> c_void_p:
        """Create a descriptor, whose place is the first argument."""
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return made

    def _describe_status(self, status: int) -> str:
        describe = getattr(self._library, self._status_function, None)
        if describe is None:
            return self.label
        describe.restype = ctypes.c_char_p
        text: bytes | None = describe(status)
        return f"{text.decode(errors='replace')}, {self.label}" if text else self.label

    _status_function = ""

    @staticmethod
    def _split_version(number: int) -> tuple[int, int, int]:
        return number // 10000, number // 100 % 100, number % 100

    def _load(self) -> Any:
        names = [f"lib{self.file}.so.{major}" for major in reversed(self.majors)]
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            return ctypes.CDLL(load_nvidia_dynamic_lib(self.file).abs_path)
        except Exception:
            # An older finder does not know each library, and raises what it likes.
            for name in names:
                try:
                    return ctypes.CDLL(name)
                except OSError:
                    continue
        raise DeviceError(f"{self.title} is not found: pip install {self.wheels}")


class HeuristicResult(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


CUDA_TYPES = {"float32": 0, "tf32": 0, "float16": 2, "bfloat16": 14}
"""cudaDataType_t."""
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MAX_WORKSPACE, _REDUCTION_SCHEMES = 1, 3
_FLOAT32_REDUCTIONS = 3
"""In place, or in the compute type; not in the type of the output."""


class CublasLt(NvidiaLibrary):
    """Products of matrices."""

    title, file, majors = "cuBLASLt", "cublasLt", (12, 13)
    wheels = "nvidia-cublas (CUDA 13) or nvidia-cublas-cu12"
    _status_function = "cublasLtGetStatusString"

    def __init__(self, stream: int) -> None:
        super().__init__()
        self._stream = c_void_p(stream)
        self._descriptions: dict[MatrixProduct, tuple[c_void_p, ...]] = {}
        self.call("cublasLtCreate", byref(self._handle))

    def list_algorithms(self, kernel: LibraryKernel, count: int) -> tuple[LibraryKernel, ...]:
        """See `NvidiaLibrary`: by the library's heuristic."""
        assert isinstance(kernel.call, MatrixProduct)
        product, left, right, result = self._describe(kernel.call)
        preference = self.create("cublasLtMatmulPreferenceCreate")
        limit, schemes = c_uint64(MAX_PRODUCT_WORKSPACE_BYTES), c_uint32(_FLOAT32_REDUCTIONS)
        for attribute, value in ((_MAX_WORKSPACE, limit), (_REDUCTION_SCHEMES, schemes)):
            self._set("cublasLtMatmulPreferenceSetAttribute", preference, attribute, value)
        found, number = (HeuristicResult * count)(), c_int()
        self.call(
            *("cublasLtMatmulAlgoGetHeuristic", self._handle, product, left, right, result, result),
            *(preference, count, found, byref(number)),
        )
        self.call("cublasLtMatmulPreferenceDestroy", preference)
        usable = [one for one in found[: number.value] if not one.state]
        return tuple(
            replace(
                kernel,
                name=f"{self.label}, algorithm {place}",
                algorithm=bytes(one.algorithm),
                workspace_bytes=one.workspace_bytes,
            )
            for place, one in enumerate(usable, 1)
        )

    def prepare(self, kernel: LibraryKernel, places: Mapping[str, int], workspace: int) -> Callable[[], None]:
        """See `NvidiaLibrary`."""
        call = kernel.call
        assert isinstance(call, MatrixProduct)
        product, left, right, result = self._describe(call)
        a, b, d = (c_void_p(places[one.tensor]) for one in (call.left, call.right, call.result))
        algorithm = (c_uint64 * 8).from_buffer_copy(kernel.algorithm)
        return partial(
            self.call,
            *("cublasLtMatmul", self._handle, product, byref(self._one), a, left, b, right),
            *(byref(self._zero), d, result, d, result, algorithm),
            *(c_void_p(workspace), c_size_t(kernel.workspace_bytes), self._stream),
        )

    def _describe(self, call: MatrixProduct) -> tuple[c_void_p, ...]:
        """Descriptors of the product, of its factors and of its result; made once."""
        if call not in self._descriptions:
            compute = _COMPUTE_32F_FAST_TF32 if call.dtype == "tf32" else _COMPUTE_32F
            product = self.create("cublasLtMatmulDescCreate", compute, CUDA_TYPES["float32"])
            for attribute, matrix in ((_TRANSPOSE_A, call.left), (_TRANSPOSE_B, call.right)):
                transposed = c_int32(matrix.is_transposed)
                self._set("cublasLtMatmulDescSetAttribute", product, attribute, transposed)
            factors = (self._describe_matrix(one, call.dtype, call.batch) for one in (call.left, call.right))
            result = self._describe_matrix(call.result, call.result_dtype, call.batch)
            self._descriptions[call] = (product, *factors, result)
        return self._descriptions[call]

    def _describe_matrix(self, matrix: Matrix, dtype: str, batch: int) -> c_void_p:
        sizes = c_uint64(matrix.rows), c_uint64(matrix.columns), c_int64(matrix.leading)
        layout = self.create("cublasLtMatrixLayoutCreate", CUDA_TYPES[dtype], *sizes)
        if batch > 1:
            for attribute, value in (
                (_BATCH_COUNT, c_int32(batch)),
                (_BATCH_STRIDE, c_int64(matrix.batch_stride)),
            ):
                self._set("cublasLtMatrixLayoutSetAttribute", layout, attribute, value)
        return layout

    def _set(self, name: str, descriptor: c_void_p, attribute: int, value: Any) -> None:
        self.call(name, descriptor, attribute, byref(value), c_size_t(ctypes.sizeof(value)))


class ForwardPerformance(ctypes.Structure):
    """`cudnnConvolutionFwdAlgoPerf_t`."""

    _fields_ = (
        ("algorithm", c_int),
        ("status", c_int),
        ("time_ms", c_float),
        ("memory_bytes", c_size_t),
        ("determinism", c_int),
        ("math", c_int),
        ("reserved", c_int * 3),
    )


CUDNN_TYPES = {"float32": 0, "tf32": 0, "float16": 2, "bfloat16": 9}
"""cudnnDataType_t."""
_CROSS_CORRELATION = 1
_DEFAULT_MATH, _TENSOR_MATH, _FMA_MATH = 0, 1, 3
_MATH_BY_TYPE = {"float32": _FMA_MATH, "tf32": _DEFAULT_MATH}
"""cudnnMathType_t: the default allows TF32 for float32."""


class Cudnn(NvidiaLibrary):
    """Convolutions over images of two dimensions, by the functions that cuDNN 8 and 9 have."""

    title, file, majors = "cuDNN", "cudnn", (8, 9)
    wheels = "nvidia-cudnn-cu13 or nvidia-cudnn-cu12"
    _status_function = "cudnnGetErrorString"

    def __init__(self, stream: int) -> None:
        super().__init__()
        self._descriptions: dict[tuple[Convolution, int], tuple[c_void_p, ...]] = {}
        self.call("cudnnCreate", byref(self._handle))
        self.call("cudnnSetStream", self._handle, c_void_p(stream))

    def list_algorithms(self, kernel: LibraryKernel, count: int) -> tuple[LibraryKernel, ...]:
        """See `NvidiaLibrary`: by the library's heuristic."""
        assert isinstance(kernel.call, Convolution)
        wanted = _MATH_BY_TYPE.get(kernel.call.dtype, _TENSOR_MATH)
        image, filters, window, output = self._describe(kernel.call, wanted)
        found, number = (ForwardPerformance * count)(), c_int()
        self.call(
            *("cudnnGetConvolutionForwardAlgorithm_v7", self._handle, image, filters, window, output),
            *(count, byref(number), found),
        )
        kernels: dict[tuple[int, int], LibraryKernel] = {}
        for one in found[: number.value]:
            # Exact float32 stays exact, whatever the heuristic proposes.
            math = wanted if wanted == _FMA_MATH else one.math
            if not one.status and one.memory_bytes <= MAX_CONVOLUTION_WORKSPACE_BYTES:
                kernels.setdefault((one.algorithm, math), self._choose(kernel, one, math))
        return tuple(kernels.values())

    def prepare(self, kernel: LibraryKernel, places: Mapping[str, int], workspace: int) -> Callable[[], None]:
        """See `NvidiaLibrary`."""
        assert isinstance(kernel.call, Convolution)
        algorithm, math = struct.unpack("=ii", kernel.algorithm)
        image, filters, window, output = self._describe(kernel.call, math)
        names = (*(spec.name for spec in kernel.inputs), kernel.output.name)
        x, w, y = (c_void_p(places[name]) for name in names)
        return partial(
            self.call,
            *("cudnnConvolutionForward", self._handle, byref(self._one), image, x, filters, w),
            *(window, algorithm, c_void_p(workspace), c_size_t(kernel.workspace_bytes)),
            *(byref(self._zero), output, y),
        )

    @staticmethod
    def _split_version(number: int) -> tuple[int, int, int]:
        """8904 is 8.9.4, 91900 is 9.19.0."""
        if number >= 90000:
            return NvidiaLibrary._split_version(number)
        return number // 1000, number // 100 % 10, number % 100

    def _choose(self, kernel: LibraryKernel, found: ForwardPerformance, math: int) -> LibraryKernel:
        words = f"{self.label}, algorithm {found.algorithm}" + " on tensor cores" * (math == _TENSOR_MATH)
        algorithm = struct.pack("=ii", found.algorithm, math)
        return replace(kernel, name=words, algorithm=algorithm, workspace_bytes=found.memory_bytes)

    def _describe(self, call: Convolution, math: int) -> tuple[c_void_p, ...]:
        """Descriptors of image, filters, convolution and output; made once."""
        if (call, math) not in self._descriptions:
            order, dtype = int(call.channels_last), CUDNN_TYPES[call.dtype]
            image, output = (self.create("cudnnCreateTensorDescriptor") for _ in range(2))
            self.call("cudnnSetTensor4dDescriptor", image, order, dtype, *call.image)
            result = CUDNN_TYPES[call.result_dtype]
            self.call("cudnnSetTensor4dDescriptor", output, order, result, *call.output)
            filters = self.create("cudnnCreateFilterDescriptor")
            self.call("cudnnSetFilter4dDescriptor", filters, dtype, order, *call.filters)
            window = self.create("cudnnCreateConvolutionDescriptor")
            self.call(
                *("cudnnSetConvolution2dDescriptor", window, *call.padding, *call.stride, *call.dilation),
                *(_CROSS_CORRELATION, CUDNN_TYPES["float32"]),
            )
            self.call("cudnnSetConvolutionGroupCount", window, call.groups)
            self.call("cudnnSetConvolutionMathType", window, math)
            self._descriptions[call, math] = image, filters, window, output
        return self._descriptions[call, math]


def open_library(kernel: LibraryKernel, stream: int) -> NvidiaLibrary:
    """The library of a call, which queues on a stream. Raises `DeviceError` where it cannot be used."""
    return CublasLt(stream) if isinstance(kernel.call, MatrixProduct) else Cudnn(stream)
