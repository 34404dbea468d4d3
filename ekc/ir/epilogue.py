"""Elementwise computes appended to an operator: bias, activation, residual, scale.

Epilogues written as text, for layer files and the command line: `relu(c + bias)`.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import keyword
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import MAX_ELEMENTS, Axis, Compute, TensorSpec
from ekc.ir.dtypes import FLOAT32, DType, parse_dtype
from ekc.ir.graph import Graph, OperatorGraph, rename_hidden_parts
from ekc.ir.validate import (
    MAX_EXPR_DEPTH,
    check_identifier,
    check_int,
    check_shape_value,
    check_size,
    list_required_parameters,
    to_tuple,
)

_OUTPUT_SUFFIX = re.compile(r"_out\d*\Z")


def append_epilogue(
    op: Graph,
    body: Callable[..., ex.Operand],
    shapes: Mapping[str, tuple[int, ...]],
    out_dtype: str | None,
) -> Graph:
    """`op` and one more compute, elementwise in its result; see `Operator.epilogue`."""
    if out_dtype is not None and not isinstance(out_dtype, (str, DType)):
        raise InvalidInput(
            f"epilogue: out_dtype={format_value(out_dtype)} is no type; call an input out_dtype_ instead"
        )
    op = rename_hidden_parts(op, shapes)
    result, last = op.outputs[0], op.computes[-1]
    taken = {*op.tensors, *(a.name for c in op.computes for a in c.axes), *shapes}
    axes = tuple(Axis(_make_output_name(a.name, taken), a.extent) for a in last.spatial_axes)
    out = parse_dtype(result.dtype if out_dtype is None else out_dtype)
    # Integers that become floats are scaled by floats, and in floats.
    element = out if result.dtype.is_integer and not out.is_integer else result.dtype
    acc = FLOAT32 if not element.is_integer else last.acc_dtype
    inputs = tuple(TensorSpec(n, _check_shape(op, result, n, s), element) for n, s in shapes.items())
    loads = [_make_broadcast_load(t, axes) for t in (result, *inputs)]
    output = TensorSpec(_make_output_name(result.name, taken), result.shape, out)
    compute = Compute(output, axes, _trace_body(body, result, shapes, loads), "sum", acc)
    name = op.name if op.name.endswith("_epilogue") else f"{op.name}_epilogue"
    return replace(op, name=name, inputs=(*op.inputs, *inputs), computes=(*op.computes, compute))


def _make_output_name(name: str, taken: set[str]) -> str:
    """`C` -> `C_out`, `C_out` -> `C_out2`: the first name that is free."""
    root, number = _OUTPUT_SUFFIX.sub("", name), 1
    while (found := f"{root}_out{number if number > 1 else ''}") in taken:
        number += 1
    return found


def _check_shape(op: OperatorGraph, result: TensorSpec, name: str, shape: Any) -> tuple[int, ...]:
    check_identifier("tensor", name)
    if name in op.tensors:
        raise InvalidInput(f"epilogue: {name!r} is a tensor of {op.name} already; try {name + '_2'!r}")
    given = to_tuple(check_shape_value(name, shape))
    if not given:
        near = shape if type(shape) is int and 0 < shape <= MAX_ELEMENTS else 1
        raise InvalidInput(
            f"epilogue: shape of {name}: {format_value(shape)} is not a tuple of extents; try ({near},)"
        )
    extents = tuple(check_int(f"extent of {name}", e, MAX_ELEMENTS) for e in given)
    last = result.shape[max(0, len(result.shape) - len(extents)) :]
    if len(extents) > len(last) or any(e not in (1, of) for e, of in zip(extents, last, strict=True)):
        raise InvalidInput(
            f"epilogue: {name} of shape {extents} does not broadcast to {result.name} of shape "
            f"{result.shape}; use {last}"
        )
    return extents


def _make_broadcast_load(tensor: TensorSpec, axes: tuple[Axis, ...]) -> ex.Load:
    """The element that broadcasts to one of the result: aligned at the last dimension, 1 stretches."""
    along = zip(tensor.shape, axes[len(axes) - len(tensor.shape) :], strict=True)
    return ex.Load(tensor.name, tuple(ex.Var(a.name) if e == a.extent else ex.Const(0) for e, a in along))


def _trace_body(
    body: Callable[..., ex.Operand], result: TensorSpec, shapes: Mapping[str, Any], loads: list[ex.Load]
) -> ex.Expr:
    """The body called with elements: the first parameter is the result's, the others go by name."""
    if not callable(body):
        raise InvalidInput(f"epilogue: {format_value(body)} is no function; try lambda c: ekc.relu(c)")
    asked = list_required_parameters(body, shapes)
    if not asked:
        raise InvalidInput("epilogue: the body takes no element; try lambda c: ekc.relu(c)")
    first, *others = asked
    if set(others) != set(shapes):
        given, needed = ", ".join(shapes) or "none", ", ".join(others) or "nothing"
        raise InvalidInput(
            f"epilogue: the body takes {needed} beside {first!r}, the inputs given are {given}; "
            f"give each parameter after the first its shape"
        )
    own, *rest = loads
    value = body(own, **dict(zip(shapes, rest, strict=True)))
    if isinstance(value, ex.Condition):
        value = ex.as_expr(value)
    if isinstance(value, ex.Expr):
        check_size(result.name, value, ex.children)
    if not isinstance(value, ex.Expr) or own not in ex.find_loads(value):
        raise InvalidInput(
            f"epilogue: the body gives {value}, which has no element of {result.name}; use {first!r}"
        )
    return value


EPILOGUE_FUNCTIONS: dict[str, Callable[..., ex.Expr | ex.Condition]] = {
    f.__name__: f
    for f in (
        *(ex.relu, ex.gelu, ex.silu, ex.sigmoid, ex.tanh, ex.exp, ex.log, ex.erf),
        *(ex.sqrt, ex.rsqrt, ex.abs, ex.maximum, ex.minimum, ex.where, ex.equal, ex.less),
    )
}
"""The functions that a text may call."""
_MAX_TEXT_CHARS = 20_000
"""Characters of a text that is read."""
_MAX_MESSAGE_CHARS = 60
"""Characters of a text that a message shows."""
_BINARY_OPERATORS: dict[type[ast.AST], Callable[[ex.Operand, ex.Operand], ex.Operand]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def parse_epilogue(text: str, inputs: Mapping[str, object]) -> Callable[..., ex.Operand]:
    """The function that a text describes, for `Operator.epilogue`: "relu(c + bias)" with the input "bias" ->
    `lambda c, bias: ekc.relu(c + bias)`.

    The one name that is no input is the result's element. Raises `InvalidInput` for what is no arithmetic
    expression of numbers, names and `EPILOGUE_FUNCTIONS`.
    """
    if len(text) > _MAX_TEXT_CHARS:
        raise InvalidInput(
            f"epilogue: a text of {len(text)} characters, at most {_MAX_TEXT_CHARS}; write several epilogues"
        )
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as problem:
        raise InvalidInput(f"epilogue: {_quote_text(text)} is no expression ({problem.args[0]})") from problem
    except (RecursionError, MemoryError) as problem:
        # Errors of the parser of Python for operations too deep inside one another.
        raise InvalidInput(
            f"epilogue: {_quote_text(text)} goes deeper than {MAX_EXPR_DEPTH} operations inside one another; "
            "write it in several epilogues"
        ) from problem
    for name in inputs:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidInput(f"epilogue: an input cannot be called {name!r}; write bias, say")
    for part in ast.walk(tree):
        if isinstance(part, ast.Attribute):
            raise _refuse_part(ast.get_source_segment(text, part) or text)
    own = [name for name in dict.fromkeys(_list_element_names(tree)) if name not in inputs]
    if own and own[0] in EPILOGUE_FUNCTIONS:
        # Else "relu" alone would be a name for the result, and leave it as it is.
        given = {2: "c, 0", 3: "less(c, 0), 0, c"}.get(_count_arguments(own[0]), "c")
        raise InvalidInput(f"epilogue: {own[0]} is a function; write {own[0]}({given}), c being the result")
    if len(own) != 1:
        found = f"it names {' and '.join(own)}" if own else "it names none"
        raise InvalidInput(
            f"epilogue: {_quote_text(text)} must name the result once, by a name that is no input; {found}; "
            f"the inputs are {', '.join(inputs) or 'none'}; {_suggest_names(own)}"
        )

    def body(*elements: ex.Expr, **more: ex.Expr) -> ex.Operand:
        try:
            return _check_number(_parse_value(tree, dict(zip(own, elements, strict=True)) | more, text))
        except RecursionError as problem:
            raise InvalidInput(
                f"epilogue: {_quote_text(text)} goes deeper than {MAX_EXPR_DEPTH} operations inside one "
                "another; write it in several epilogues"
            ) from problem

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in (*own, *inputs)]
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return body


def _suggest_names(own: list[str]) -> str:
    """The remedy where a text names these instead of the result alone."""
    if not own:
        return "call the result c, as in relu(c)"
    options = " ".join(f"--input {name}=SHAPE" for name in own[1:])
    entries = ", ".join(f"{name} = [...]" for name in own[1:])
    return f"if {own[0]} is the result, add {options}, in a layer file inputs = {{ {entries} }}"


def _list_element_names(tree: ast.expr) -> list[str]:
    """Names of elements, in the order of the text."""
    called = {id(x.func) for x in ast.walk(tree) if isinstance(x, ast.Call)}
    found = [x for x in ast.walk(tree) if isinstance(x, ast.Name) and id(x) not in called]
    return [x.id for x in sorted(found, key=lambda x: x.col_offset)]


def _check_number(value: ex.Operand | ex.Condition) -> ex.Operand:
    """A part of the text as a number; `InvalidInput` for a condition."""
    return ex.as_expr(value) if isinstance(value, ex.Condition) else value


def _parse_value(tree: ast.expr, elements: Mapping[str, ex.Expr], text: str) -> ex.Operand | ex.Condition:
    """The expression of a part of the text."""

    def value(part: ast.expr) -> ex.Operand | ex.Condition:
        return _parse_value(part, elements, text)

    shown = ast.get_source_segment(text, tree) or text
    match tree:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _check_finite(number, shown)
        case ast.Name(id=name):
            return elements[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY_OPERATORS:
            a, b = _check_number(value(left)), _check_number(value(right))
            if isinstance(op, ast.Div) and not isinstance(b, ex.Expr) and np.float32(b) == 0:
                raise InvalidInput(f"epilogue: {_quote_text(shown)} divides by 0; write another divisor")
            made = _BINARY_OPERATORS[type(op)](a, b)
            return made if isinstance(made, ex.Expr) else _check_finite(made, shown)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_check_number(value(inner))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            values = [value(a) for a in args]
            called = _call_function(name, values)
            if isinstance(called, ex.Condition) or any(isinstance(v, ex.Expr | ex.Condition) for v in values):
                return called
            return _evaluate_constant(called, shown)
    raise _refuse_part(shown)


def _refuse_part(text: str) -> InvalidInput:
    """The error for a part of a text that no epilogue has."""
    return InvalidInput(
        f"epilogue: {_quote_text(text)} cannot be used; write + - * /, numbers, names and "
        f"{', '.join(sorted(EPILOGUE_FUNCTIONS))}"
    )


def _check_finite(number: float, text: str) -> float:
    """A number of a text, written or computed; refused where it is beyond float32."""
    if not -ex.FLOAT32_OVERFLOW < number < ex.FLOAT32_OVERFLOW:
        raise InvalidInput(
            f"epilogue: {_quote_text(text)} is no number of float32; the largest is {ex.MAX_FLOAT32:.6g}"
        )
    return number


def _evaluate_constant(constant: ex.Expr, text: str) -> float:
    """The number that a function of numbers gives."""
    with np.errstate(all="ignore"):
        found = ex.evaluate(constant, {}, lambda _: 0)
    return _check_finite(found.item() if isinstance(found, np.generic) else found, text)


def _quote_text(text: str) -> str:
    """The text in quotes, cut where it is long."""
    return repr(text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}...")


def _count_arguments(name: str) -> int:
    """How many values a function takes."""
    parameters = inspect.signature(EPILOGUE_FUNCTIONS[name]).parameters.values()
    return sum(p.default is p.empty for p in parameters)


def _call_function(name: str, values: list[ex.Operand | ex.Condition]) -> ex.Expr | ex.Condition:
    if name not in EPILOGUE_FUNCTIONS:
        near = difflib.get_close_matches(name, EPILOGUE_FUNCTIONS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(EPILOGUE_FUNCTIONS))}"
        raise InvalidInput(f"epilogue: there is no function {name!r}; {hint}")
    takes = _count_arguments(name)
    if len(values) != takes:
        raise InvalidInput(f"epilogue: {name} takes {takes} value{'s' * (takes > 1)}, got {len(values)}")
    return EPILOGUE_FUNCTIONS[name](*values)
