"""`Operator`: a graph of computes with the methods that users call, and its reading from JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ekc.argument_checks import check_mapping
from ekc.display import format_html_table, format_html_text, format_line, shorten
from ekc.errors import InvalidInput
from ekc.host_memory import format_bytes
from ekc.ir import expr as ex
from ekc.ir.arrays import convert_like
from ekc.ir.compute import Axis, Compute, TensorSpec
from ekc.ir.compute_builder import append_compute, check_shape, make_compute
from ekc.ir.dtypes import parse_dtype
from ekc.ir.epilogue import append_epilogue
from ekc.ir.functions import NUMPY_FUNCTIONS
from ekc.ir.graph import OperatorGraph
from ekc.ir.reference import evaluate_reference
from ekc.ir.validate import check_kernel_name, check_size


@dataclass(frozen=True, repr=False)
class Operator(OperatorGraph):
    """A named graph of computes. `inputs` are the call's arguments, the last compute's output its result."""

    def reference(self, *arrays: Any) -> Any:
        """The result in NumPy with float64 accumulation; arrays in the order of `inputs`.

        Integers are exact; arithmetic on int32 inputs wraps modulo 2**32, as in a kernel.
        The result is an array of the first input's library, a tensor for tensors of PyTorch on the CPU.
        """
        result = evaluate_reference(self, arrays)
        return convert_like(arrays[0], result) if arrays else result

    def then(
        self,
        output: str,
        *,
        body: Any,
        axes: dict[str, int],
        reduce: dict[str, int] | None = None,
        inputs: dict[str, tuple[int, ...]] | None = None,
        combine: str = "sum",
        dtype: str | None = None,
        acc_dtype: str | None = None,
        out_dtype: str | None = None,
    ) -> Operator:
        """This operator followed by one more compute that may read everything before it.

        `dtype` is the type of the further inputs. By default it is the type that sums of the first input are
        stored as.

        >>> ekc.matmul(8, 8, 8).then("D", axes={"p": 8, "q": 8}, body=lambda C, p, q: ekc.relu(C[p, q]))
        """
        types = (dtype, acc_dtype, out_dtype)
        over, extra = {} if reduce is None else reduce, {} if inputs is None else inputs
        return append_compute(self, output, body, axes, over, extra, combine, *types)

    def epilogue(
        self, body: Callable[..., ex.Operand], /, *, out_dtype: str | None = None, **inputs: tuple[int, ...]
    ) -> Operator:
        """This operator with an elementwise function of its result: bias, activation, residual, scale.

        The first parameter of `body` is an element of the result; each further one is an element of an
        input of its own, whose shape is given by name and broadcasts against the last dimensions of the
        result as in NumPy. Inputs have the dtype of the result, which `out_dtype` changes (a cast).
        Epilogues chain; `Schedule.compute_inline` and the tuner fuse them into the kernel before.

        >>> ekc.matmul(64, 48, 32).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(48,))
        >>> ekc.conv2d(1, 8, 14, 14, out_channels=16).epilogue(lambda y, bias: y + bias, bias=(16, 1, 1))

        Raises `InvalidInput` for a shape that does not broadcast, a name that is taken, a body whose
        parameters are not the inputs or that leaves the result out.
        """
        return append_epilogue(self, body, inputs, out_dtype)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, tensors)) for tensors in (self.inputs, self.outputs))
        return format_line(self, f"{shorten(self.name)}({shorten(inputs, 60)}) -> {outputs}")

    def _repr_html_(self) -> str:
        """The formulas, and a table of the tensors."""
        named = [("input", t) for t in self.inputs] + [("output", t) for t in self.outputs]
        rows = [(kind, t.name, str(list(t.shape)), str(t.dtype), format_bytes(t.bytes)) for kind, t in named]
        note = f"{self.flops:,.0f} operations, {self.flops / self.min_bytes:.4g} for each byte that must move"
        table = format_html_table(("", "tensor", "shape", "type", "memory"), rows, note=note, label_count=2)
        return format_html_text(str(self)) + table


def expr_from_json(data: Any) -> ex.Expr:
    """The inverse of `ekc.ir.graph.expr_to_json`; `InvalidInput` for anything it cannot have written."""
    match data:
        case int() | float():
            return ex.as_expr(data)
        case ["var", str(name)]:
            return ex.Var(name)
        case ["load", str(tensor), *index]:
            return ex.Load(tensor, tuple(map(expr_from_json, index)))
        case ["call", str(function), argument] if function in NUMPY_FUNCTIONS:
            return ex.Call(function, expr_from_json(argument))
        case ["where", "==" | "<" as op, a, b, then, otherwise]:
            return ex.Where(op, *map(expr_from_json, (a, b, then, otherwise)))
        case ["+" | "-" | "*" | "/" | "//" | "%" | "min" | "max" as op, a, b]:
            return ex.Binary(op, expr_from_json(a), expr_from_json(b))
    raise InvalidInput(f"expression: {data!r} is not one that ekc writes")


def operator_from_json(data: Any) -> Operator:
    """The inverse of `Operator.to_json`; names and extents are checked again, whoever wrote them."""
    try:
        computes = tuple(
            Compute(
                _tensor_from_json(c["output"]),
                tuple(Axis(name, extent, bool(reduction)) for name, extent, reduction in c["axes"]),
                expr_from_json(check_size(str(data["name"]), c["body"], _list_parts)),
                c["combine"],
                parse_dtype(c["acc_dtype"]),
            )
            for c in data["computes"]
        )
        return Operator(data["name"], tuple(_tensor_from_json(t) for t in data["inputs"]), computes)
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        if isinstance(problem, InvalidInput):
            raise
        raise InvalidInput(f"operator: not the JSON of one ({type(problem).__name__}: {problem})") from None


def _list_parts(data: Any) -> list[Any]:
    """The parts of a nested list."""
    return data if isinstance(data, list) else []


def _tensor_from_json(data: Any) -> TensorSpec:
    name, shape, dtype = data
    return TensorSpec(name, tuple(shape), parse_dtype(dtype))


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
