"""`compute`: an operator from axes, inputs and a body. The built-in operators are made with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekc.argument_checks import check_mapping
from ekc.ir import expr as ex
from ekc.ir.compute import TensorSpec
from ekc.ir.compute_builder import check_shape, make_compute
from ekc.ir.dtypes import parse_dtype
from ekc.ir.operator import Operator
from ekc.ir.validate import check_kernel_name


def compute(
    name: str,
    *,
    axes: Mapping[str, int],
    inputs: Mapping[str, tuple[int, ...]],
    body: Callable[..., ex.Expr],
    reduce: Mapping[str, int] | None = None,
    combine: str = "sum",
    output: str = "C",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """An operator of your own: output[axes] = combine over `reduce` of body.

    `body` is called with the tensors and axes it names as parameters. Reading outside a tensor
    gives 0. A banded matrix product, with 33 diagonals:

    >>> ekc.compute("band", axes={"i": 512, "j": 512}, reduce={"b": 33},
    ...             inputs={"A": (512, 33), "B": (512, 512)},
    ...             body=lambda A, B, i, j, b: A[i, b] * B[i + b - 16, j])

    Raises `InvalidInput` for extents outside 1 to 2**40, names that are no identifiers, indices
    that are not sums of integer multiples of axes.
    """
    element = parse_dtype(dtype)
    tensors = list(check_mapping("inputs", inputs, 'inputs={"A": (64,)}'))
    types, over = (element, acc_dtype, out_dtype), {} if reduce is None else reduce
    stage = make_compute(output, body, axes, over, tensors, combine, *types)
    specs = tuple(TensorSpec(n, check_shape(n, s), element) for n, s in inputs.items())
    return Operator(check_kernel_name("operator", name), specs, (stage,))
