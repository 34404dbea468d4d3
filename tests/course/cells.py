"""Cells of lessons and of solutions, and what `check` says to their answers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from ekc.course.answers import Feedback
from ekc.course.lessons import Lesson

_CELL = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def list_cells(lesson: Lesson) -> list[str]:
    """The Python cells of a lesson, in order."""
    return _CELL.findall(lesson.text)


def collect_checks(cells: Iterable[str]) -> list[Feedback]:
    """Run cells in one namespace; the values of their last lines that `check` returned."""
    namespace: dict[str, Any] = {}
    exec("import ekc\nfrom ekc.course import *\nfrom ekc.course import check, load_exercises", namespace)
    found = []
    for cell in cells:
        tree = ast.parse(cell)
        last = tree.body[-1]
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, "cell", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
            found += [value] if isinstance(value, Feedback) else []
    return found
