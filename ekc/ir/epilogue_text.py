"""Epilogues written as text, for layer files and the command line: `relu(c + bias)`."""

from __future__ import annotations

import ast
import difflib
import inspect
import keyword
import operator
from collections.abc import Callable, Mapping

from ekc.errors import InvalidInput
from ekc.ir import expr as ex

FUNCTIONS: dict[str, Callable[..., ex.Operand | ex.Condition]] = {
    f.__name__: f
    for f in (
        *(ex.relu, ex.gelu, ex.silu, ex.sigmoid, ex.tanh, ex.exp, ex.erf),
        *(ex.sqrt, ex.rsqrt, ex.abs, ex.maximum, ex.minimum, ex.where, ex.equal, ex.less),
    )
}
"""The functions that a text may call."""
_TAKES = {"maximum": 2, "minimum": 2, "equal": 2, "less": 2, "where": 3}
"""How many values, where it is not one."""
_OPERATORS: dict[type[ast.AST], Callable[[ex.Expr, ex.Operand], ex.Expr]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def body_of(text: str, inputs: Mapping[str, object]) -> Callable[..., ex.Operand]:
    """The function that a text writes, for `Operator.epilogue`: of "relu(c + bias)" with the input "bias",
    `lambda c, bias: ekc.relu(c + bias)`.

    The one name that is no input is the result's element. Raises `InvalidInput` for what is no arithmetic
    expression of numbers, names and `FUNCTIONS`.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as problem:
        raise InvalidInput(f"epilogue: {text!r} is no expression ({problem.args[0]})") from problem
    for name in inputs:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidInput(f"epilogue: an input cannot be called {name!r}; write bias, say")
    own = [name for name in dict.fromkeys(_names(tree)) if name not in inputs]
    if own and own[0] in FUNCTIONS:
        # Else "relu" alone would be a name for the result, and leave it as it is.
        given = {2: "c, 0", 3: "less(c, 0), 0, c"}.get(_TAKES.get(own[0], 1), "c")
        raise InvalidInput(f"epilogue: {own[0]} is a function; write {own[0]}({given}), c being the result")
    if len(own) != 1:
        found = f"it names {' and '.join(own)}" if own else "it names none"
        raise InvalidInput(
            f"epilogue: {text!r} must name the result once, by a name that is no input; {found}; "
            f"the inputs are {', '.join(inputs) or 'none'}"
        )

    def body(*elements: ex.Expr, **more: ex.Expr) -> ex.Operand:
        try:
            return _check_number(_value(tree, dict(zip(own, elements, strict=True)) | more, text))
        except RecursionError as problem:
            raise InvalidInput(f"epilogue: a text that goes too far ({problem})") from problem

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in (*own, *inputs)]
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return body


def _names(tree: ast.expr) -> list[str]:
    """Names that stand for elements, in the order of the text."""
    called = {id(x.func) for x in ast.walk(tree) if isinstance(x, ast.Call)}
    found = [x for x in ast.walk(tree) if isinstance(x, ast.Name) and id(x) not in called]
    return [x.id for x in sorted(found, key=lambda x: x.col_offset)]


def _check_number(value: ex.Operand | ex.Condition) -> ex.Operand:
    """A part of the text that arithmetic can use: no condition."""
    return ex.as_expr(value) if isinstance(value, ex.Condition) else value


def _value(tree: ast.expr, elements: Mapping[str, ex.Expr], text: str) -> ex.Operand | ex.Condition:
    """The expression of a part of the text."""

    def value(part: ast.expr) -> ex.Operand | ex.Condition:
        return _value(part, elements, text)

    match tree:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return elements[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](ex.as_expr(value(left)), _check_number(value(right)))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_check_number(value(inner))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _called(name, [value(a) for a in args])
    shown = ast.get_source_segment(text.strip(), tree) or text
    raise InvalidInput(
        f"epilogue: {shown!r} cannot be used; write + - * /, numbers, names and "
        f"{', '.join(sorted(FUNCTIONS))}"
    )


def _called(name: str, values: list[ex.Operand | ex.Condition]) -> ex.Operand | ex.Condition:
    if name not in FUNCTIONS:
        near = difflib.get_close_matches(name, FUNCTIONS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(FUNCTIONS))}"
        raise InvalidInput(f"epilogue: there is no function {name!r}; {hint}")
    takes = _TAKES.get(name, 1)
    if len(values) != takes:
        raise InvalidInput(f"epilogue: {name} takes {takes} value{'s' * (takes > 1)}, got {len(values)}")
    return FUNCTIONS[name](*values)
