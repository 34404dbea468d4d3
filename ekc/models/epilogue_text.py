"""An operator in a few words for tables: its kind, the shapes of its tensors, and its epilogue as a text."""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.operator import Operator
from ekc.models.functions import ACTIVATIONS, FUNCTIONS

_SUFFIX = "_epilogue"
_ARGUMENT = ex.Var("x")
_ACTIVATION_FORMS = {name: ex.as_expr(FUNCTIONS[name].write([_ARGUMENT], {})) for name in ACTIVATIONS}


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
    last = op.computes[-1]
    body = ex.replace_loads(last.body, lambda load: ex.Var(names.get(load.tensor, load.tensor)))
    axes = {a.name: ex.Var(a.name.removesuffix("_out")) for a in last.axes}
    return str(_shorten(ex.substitute(body, axes)))


def _shorten(e: ex.Expr) -> ex.Expr:
    """The expression with calls for activations, which expressions have no nodes for."""
    for name, form in _ACTIVATION_FORMS.items():
        found: list[ex.Expr] = []
        if _has_form(form, e, found):
            return ex.Call(name, _shorten(found[0]))
    if isinstance(e, ex.Binary):
        return ex.Binary(e.op, _shorten(e.a), _shorten(e.b))
    if isinstance(e, ex.Call):
        return ex.Call(e.function, _shorten(e.argument))
    if isinstance(e, ex.Where):
        return ex.Where(e.op, *map(_shorten, ex.children(e)))
    return e


def _has_form(form: ex.Expr, e: ex.Expr, found: list[ex.Expr]) -> bool:
    """Whether an expression has a form; `found` gets what is in place of its variable."""
    if form == _ARGUMENT:
        found.append(e)
        return e == found[0]
    if not isinstance(form, ex.Binary | ex.Call | ex.Where):
        return form == e
    return (
        isinstance(e, type(form))
        and ex.name_operation(form) == ex.name_operation(e)
        and all(_has_form(a, b, found) for a, b in zip(ex.children(form), ex.children(e), strict=True))
    )
