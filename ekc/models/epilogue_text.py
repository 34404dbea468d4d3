"""An operator in a few words for tables: its kind, the shapes of its tensors, and its epilogue as a text."""

from __future__ import annotations

from collections.abc import Mapping

from ekc.ir import expr as ex
from ekc.ir.operator import Operator

_SUFFIX = "_epilogue"


def format_kind(op: Operator) -> str:
    """The operator without its epilogue: "conv2d"."""
    return op.name.removesuffix(_SUFFIX)


def format_shapes(op: Operator) -> str:
    """The shapes of the tensors without those of the epilogue: "128x768 768x3072 -> 128x3072"."""
    last = op.computes[-1]
    inputs = op.inputs
    if op.name.endswith(_SUFFIX):
        before = {load.tensor for c in op.computes[:-1] for load in ex.find_loads(c.body)}
        inputs = tuple(t for t in op.inputs if t.name in before)
    shapes = [format_shape(t.shape) for t in inputs if t.name not in ("gamma", "beta")]
    return f"{' '.join(shapes)} -> {format_shape(last.output.shape)}"


def format_shape(shape: tuple[int, ...]) -> str:
    """A shape as 128x768."""
    return "x".join(map(str, shape)) or "1"


def format_dtype(op: Operator) -> str:
    """The element types of the first input and of the result, one where they are equal."""
    first, last = (op.inputs or op.outputs)[0].dtype.name, op.outputs[0].dtype.name
    return first if first == last else f"{first} -> {last}"


def format_epilogue(op: Operator) -> str:
    """The epilogue as layer files write it: "relu(c + bias)"; "" where there is none."""
    if not op.name.endswith(_SUFFIX):
        return ""
    result = op.computes[-2].output.name
    names = {t.name: t.name for t in op.inputs} | {result: result.lower()}
    body = _name_loads(op.computes[-1].body, names)
    axes = {a.name: ex.Var(a.name.removesuffix("_out")) for a in op.computes[-1].axes}
    return _format_expr(ex.substitute(body, axes))


def _name_loads(e: ex.Expr, names: Mapping[str, str]) -> ex.Expr:
    """The expression with the name of a tensor for each read, and known functions by name."""
    return ex.replace_loads(e, lambda load: ex.Var(names.get(load.tensor, load.tensor)))


def _format_expr(e: ex.Expr) -> str:
    """An expression in which activations have their names."""
    return str(_shorten(e))


def _shorten(e: ex.Expr) -> ex.Expr:
    """The expression with calls for activations, which expressions have no nodes for."""
    for name, argument in _find_activations(e):
        return ex.Call(name, _shorten(argument))
    if isinstance(e, ex.Binary):
        return ex.Binary(e.op, _shorten(e.a), _shorten(e.b))
    if isinstance(e, ex.Call):
        return ex.Call(e.function, _shorten(e.argument))
    if isinstance(e, ex.Where):
        return ex.Where(e.op, *map(_shorten, ex.children(e)))
    return e


def _find_activations(e: ex.Expr) -> list[tuple[str, ex.Expr]]:
    """The activation that an expression is, and its argument."""
    if not isinstance(e, ex.Binary):
        return []
    if e.op == "max" and e.b == ex.Const(0):
        return [("relu", e.a)]
    if e.op == "/" and e == ex.silu(e.a):
        return [("silu", e.a)]
    inner = e.a.b if isinstance(e.a, ex.Binary) else None
    if e.op == "*" and inner is not None:
        for form in ("none", "tanh"):
            if e == ex.gelu(inner, form):
                return [("gelu" if form == "none" else "gelu_tanh", inner)]
    if e.op == "*" and e == e.a * ex.minimum(ex.maximum(e.a / 6 + 0.5, 0), 1):
        return [("hardswish", e.a)]
    if e.op == "/" and e.a == ex.Const(1):
        argument = _find_exponent(e.b)
        if argument is not None and e == ex.sigmoid(argument):
            return [("sigmoid", argument)]
    return []


def _find_exponent(e: ex.Expr) -> ex.Expr | None:
    """x of 1 + exp(0 - x)."""
    match e:
        case ex.Binary(op="+", b=ex.Call(function="exp", argument=ex.Binary(op="-", b=x))):
            return x
    return None
