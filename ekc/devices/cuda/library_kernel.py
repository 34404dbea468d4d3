"""Calls of cuBLASLt and cuDNN as data: the product or convolution that an operator is, and one algorithm of a
library for it, which a GPU measures in place of a compiled kernel.

An operator is recognised by its expression, not by its name. Anything more (a bias, an activation, a sum in
another type) is no call of these libraries as used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.affine import NotAffineError, make_variable, to_affine
from ekc.ir.compute import Compute, TensorSpec
from ekc.ir.dtypes import FLOAT32
from ekc.ir.operator import Operator
from ekc.ir.operators import conv2d

MULTIPLIED_TYPES = ("float32", "tf32", "float16", "bfloat16")
"""Element types that both libraries multiply with sums in float32."""
TERMS = 2
"""Inputs of a product and of a convolution."""
IMAGE_DIMS = 4
"""Dimensions of images and filters."""


@dataclass(frozen=True)
class Matrix:
    """A matrix of a product as cuBLAS sees it: stored column by column."""

    tensor: str
    rows: int
    columns: int
    leading: int
    """Elements from the start of one column to that of the next."""
    is_transposed: bool
    """Whether the transposed matrix is multiplied."""
    batch_stride: int
    """Elements from one matrix of the batch to the next."""


@dataclass(frozen=True)
class MatrixProduct:
    """result = left right, for each matrix of a batch."""

    left: Matrix
    right: Matrix
    result: Matrix
    batch: int
    dtype: str
    """Element type of the factors."""
    result_dtype: str


@dataclass(frozen=True)
class Convolution:
    """A convolution over images of two dimensions."""

    image: tuple[int, int, int, int]
    """Images, channels, height, width."""
    filters: tuple[int, int, int, int]
    """Output channels, input channels of a group, height, width."""
    output: tuple[int, int, int, int]
    padding: tuple[int, int]
    """Rows at the top, columns on the left."""
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    channels_last: bool
    dtype: str
    result_dtype: str


LibraryCall = MatrixProduct | Convolution


@dataclass(frozen=True)
class LibraryKernel:
    """One algorithm of a library for an operator. A GPU times, meters and samples it as a compiled kernel."""

    name: str
    """Library, version and place in the library's own order: "cuBLASLt 13.1.0, algorithm 2"."""
    call: LibraryCall
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    algorithm: bytes = b""
    """The algorithm as the library describes it."""
    workspace_bytes: int = 0

    @property
    def nvrtc_version(self) -> str:
        """Library and version, in place of the compiler, which is not known."""
        return self.name.split(",")[0]


def derive_library_call(op: Operator) -> LibraryCall | None:
    """The call of a library that computes an operator; None where there is none."""
    compute = op.computes[0]
    is_product = isinstance(compute.body, ex.Binary) and compute.body.op == "*" and compute.combine == "sum"
    types = {spec.dtype for spec in op.inputs}
    if len(op.computes) > 1 or len(op.inputs) != TERMS or len(types) != 1 or not is_product:
        return None
    if types.pop().name not in MULTIPLIED_TYPES or compute.acc_dtype is not FLOAT32:
        return None
    return _read_product(op, compute) or _read_convolution(op, compute)


def _read_product(op: Operator, compute: Compute) -> MatrixProduct | None:
    if len(compute.loads) != TERMS or len(compute.reduction_axes) != 1:
        return None
    extents = {a.name: a.extent for a in compute.axes}
    result = dict(zip([a.name for a in compute.spatial_axes], compute.output.strides, strict=True))
    summed = compute.reduction_axes[0].name
    reads = [(load.tensor, _read_strides(op.tensors[load.tensor], load)) for load in compute.loads]
    first, second = (set(strides) for _, strides in reads)
    own, shared = [first - second, second - first], (first & second) - {summed}
    if summed not in first & second or first | second != set(extents) or len(shared) > 1:
        return None
    # Rows of the result lie side by side in memory.
    left = next((i for i in (1, 0) if any(result[name] == 1 for name in own[i])), 0)
    names = ["".join(own[left]), "".join(own[1 - left])]
    if max(map(len, own)) > 1 or result.get(names[0], 1) != 1:
        return None
    batch, rows, columns = "".join(shared), extents.get(names[0], 1), extents.get(names[1], 1)
    factors = [
        _read_factor(*reads[left], (names[0], summed), batch, extents),
        _read_factor(*reads[1 - left], (summed, names[1]), batch, extents),
    ]
    if factors[0] is None or factors[1] is None:
        return None
    leading = max(result.get(names[1], rows), rows)
    matrix = Matrix(compute.output.name, rows, columns, leading, False, result.get(batch, 0))
    types = op.inputs[0].dtype.name, compute.output.dtype.name
    return MatrixProduct(factors[0], factors[1], matrix, extents.get(batch, 1), *types)


def _read_strides(spec: TensorSpec, load: ex.Load) -> dict[str, int]:
    """Stride of each axis in a tensor; {} where an index is more than an axis, or an axis occurs twice."""
    names = [index.name for index in load.index if isinstance(index, ex.Var)]
    if len(set(names)) != len(spec.shape):
        return {}
    return dict(zip(names, spec.strides, strict=True))


def _read_factor(
    tensor: str, strides: Mapping[str, int], axes: tuple[str, str], batch: str, extents: Mapping[str, int]
) -> Matrix | None:
    """A factor of two axes, the first along its rows; "" is one of extent 1."""
    rows, columns = (extents.get(name, 1) for name in axes)
    steps = [strides.get(name, 1) for name in axes]
    if steps[0] == 1:
        return Matrix(tensor, rows, columns, max(steps[1], rows), False, strides.get(batch, 0))
    if steps[1] == 1:
        return Matrix(tensor, columns, rows, max(steps[0], columns), True, strides.get(batch, 0))
    return None


def _read_convolution(op: Operator, compute: Compute) -> Convolution | None:
    """The convolution that this is: its numbers are read, and the operator made of them is compared."""
    if any(len(spec.shape) != IMAGE_DIMS for spec in op.inputs):
        return None
    for channels_last in (False, True):
        with suppress(InvalidInput, NotAffineError, KeyError, StopIteration):
            found = _read_numbers(op, compute, channels_last)
            if _make_operator(found).computes == op.computes:
                return found
    return None


def _read_numbers(op: Operator, compute: Compute, channels_last: bool) -> Convolution:
    image, filters = op.inputs
    load = next(one for one in compute.loads if one.tensor == image.name)
    order = (0, 3, 1, 2) if channels_last else (0, 1, 2, 3)
    axes = {a.name: make_variable(a.name) for a in compute.axes}
    forms = [to_affine(load.index[order[d]], axes) for d in (2, 3)]
    terms = [dict(form.terms) for form in forms]
    shapes = [tuple(spec.shape[d] for d in order) for spec in (image, filters, compute.output)]
    return Convolution(  # type: ignore[misc]
        *shapes,  # type: ignore[arg-type]
        padding=(-forms[0].const, -forms[1].const),
        stride=(terms[0]["p"], terms[1]["q"]),
        dilation=(terms[0]["r"], terms[1]["s"]),
        groups=shapes[0][1] // shapes[1][1],
        channels_last=channels_last,
        dtype=image.dtype.name,
        result_dtype=compute.output.dtype.name,
    )


def _make_operator(call: Convolution) -> Operator:
    return conv2d(
        *call.image,
        out_channels=call.filters[0],
        kernel=call.filters[2:],
        stride=call.stride,
        padding=call.padding,
        dilation=call.dilation,
        groups=call.groups,
        layout="NHWC" if call.channels_last else "NCHW",
        dtype=call.dtype,
        out_dtype=call.result_dtype,
    )
