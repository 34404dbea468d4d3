"""Steps written as Python, for the free text field: `split("i", (2, 16, 4)).bind("i.0", "block.y")`.

The text is parsed, never executed: calls of the steps of a schedule, with literal arguments.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir.schedule import STEP_CLASSES
from ekc.ir.schedule.schedule import Schedule

MAX_TEXT_CHARS = 4000
_EXAMPLE = 'write a step such as split("i", (16,))'


def apply_text(schedule: Schedule, text: str) -> Schedule:
    """The schedule after the steps of a text, each checked by its own rules. Raises `InvalidInput` for a text
    that is no list of steps, and `ScheduleError` for a step that is not legal."""
    for kind, positional, named in parse_steps(text):
        method = getattr(schedule, kind)
        try:
            inspect.signature(method).bind(*positional, **named)
        except TypeError as problem:
            takes = ", ".join(inspect.signature(method).parameters)
            raise InvalidInput(f"{kind}: {problem}; it takes {takes}") from None
        schedule = method(*positional, **named)
    return schedule


def parse_steps(text: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """(kind, positional arguments, named arguments) of each step. Raises `InvalidInput`."""
    text = text.strip()
    if not text:
        raise InvalidInput(f"step: nothing is written; {_EXAMPLE}")
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidInput(
            f"step: {len(text)} characters, at most {MAX_TEXT_CHARS}; write fewer steps at once"
        )
    try:
        return _parse_calls(text)
    except InvalidInput:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        reason = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        raise InvalidInput(f"step: not Python ({reason}); {_EXAMPLE}") from None


def _parse_calls(text: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    # The text may end with a comment.
    source = f"(schedule{text}\n)" if text.startswith(".") else f"({text}\n)"
    node: ast.expr = ast.parse(source, mode="eval").body
    calls: list[ast.Call] = []
    while isinstance(node, ast.Call) and not _is_start(node):
        calls.append(node)
        node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    if not calls or not (isinstance(node, ast.Name) or _is_start(node)):
        raise InvalidInput(f"step: {_shorten(text)} is no call of a step; {_EXAMPLE}")
    return [_parse_call(call) for call in reversed(calls)]


def _is_start(node: ast.expr) -> bool:
    """Whether a node is `ekc.Schedule(op)`, with which the saved Python begins."""
    match node:
        case ast.Call(func=ast.Name("Schedule") | ast.Attribute(ast.Name("ekc"), "Schedule")):
            return True
    return False


def _parse_call(call: ast.Call) -> tuple[str, list[Any], dict[str, Any]]:
    kind = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if kind not in STEP_CLASSES:
        near = difflib.get_close_matches(kind, STEP_CLASSES, n=1, cutoff=0.0)[0]
        raise InvalidInput(
            f"step: no {kind!r}; steps are {', '.join(sorted(STEP_CLASSES))}; nearest is {near!r}"
        )
    named = {k.arg: _parse_literal(kind, k.value) for k in call.keywords if k.arg is not None}
    if len(named) < len(call.keywords):
        raise InvalidInput(f"{kind}: ** is not taken; name each argument")
    return kind, [_parse_literal(kind, argument) for argument in call.args], named


def _parse_literal(kind: str, node: ast.expr) -> Any:
    """A number, a text, None, or a tuple of these."""
    if isinstance(node, ast.Constant) and (node.value is None or type(node.value) in (int, str)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _parse_literal(kind, node.operand)
        if type(value) is int:
            return -value
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_parse_literal(kind, part) for part in node.elts)
    raise InvalidInput(
        f"{kind}: {_shorten(ast.unparse(node))} is no literal; "
        "use whole numbers, texts, None, and tuples of them"
    )


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else line[:57] + "...")
