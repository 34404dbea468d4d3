"""The path of a learner: the moves taken, with undo and redo, saved as Python and as JSON, and typed steps.

The text of the free text field, `split("i", (2, 16, 4)).bind("i.0", "block.y")`, is parsed, never executed:
calls of the steps of a schedule, with literal arguments.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir.schedule import STEP_CLASSES, Step
from ekc.ir.schedule.schedule import Schedule


@dataclass(frozen=True)
class Move:
    """Steps that were taken together, or a jump to another schedule of the operator."""

    text: str
    steps: tuple[Step, ...]
    is_jump: bool = False
    """Whether `steps` are all steps of the schedule after it."""

    def apply(self, schedule: Schedule) -> Schedule:
        """The schedule after the move. Raises `ScheduleError`."""
        return (Schedule(schedule.op) if self.is_jump else schedule).apply_steps(*self.steps)


def make_move(*steps: Step) -> Move:
    """The move of some steps, its text their Python."""
    return Move("".join(step.to_python() for step in steps).removeprefix("."), steps)


@dataclass(frozen=True)
class SchedulePath:
    """The moves from the operator's plain loops to the present schedule. Every method returns a new path."""

    schedules: tuple[Schedule, ...]
    """The plain loops, and the schedule after each move."""
    moves: tuple[Move, ...] = ()
    undone: tuple[Move, ...] = ()
    """Moves taken back, the next to redo last. They stay when other moves are taken."""

    @classmethod
    def from_schedule(cls, schedule: Schedule) -> SchedulePath:
        """The path with a move for each step of a schedule."""
        path = cls((Schedule(schedule.op),))
        for step in schedule.steps:
            path = path.take(make_move(step))
        return path

    @property
    def schedule(self) -> Schedule:
        """The present schedule."""
        return self.schedules[-1]

    def take(self, move: Move) -> SchedulePath:
        """The path with one more move. Raises `ScheduleError`."""
        made = move.apply(self.schedule)
        return replace(self, schedules=(*self.schedules, made), moves=(*self.moves, move))

    def go_back(self, count: int) -> SchedulePath:
        """The path of the first `count` moves; the others can be redone."""
        if not 0 <= count <= len(self.moves):
            raise InvalidInput(f"undo: the path has {len(self.moves)} moves")
        undone = (*self.undone, *reversed(self.moves[count:]))
        return SchedulePath(self.schedules[: count + 1], self.moves[:count], undone)

    def undo(self) -> SchedulePath:
        """The path without its last move, which can be redone."""
        return self.go_back(len(self.moves) - 1)

    def redo(self) -> SchedulePath:
        """The path with the last undone move taken again. Raises `ScheduleError` where other moves that were
        taken since make it illegal."""
        if not self.undone:
            raise InvalidInput("redo: nothing was undone")
        return replace(self.take(self.undone[-1]), undone=self.undone[:-1])

    def drop_undone(self) -> SchedulePath:
        """The path without the next move to redo."""
        return replace(self, undone=self.undone[:-1])

    def remove(self, number: int) -> SchedulePath:
        """The path without one of its moves, the later ones taken again. Raises `ScheduleError` where one of
        these is not legal without it."""
        path = SchedulePath(self.schedules[: number + 1], self.moves[:number], self.undone)
        for move in self.moves[number + 1 :]:
            path = path.take(move)
        return path

    def to_python(self, notes: tuple[str, ...] = ()) -> str:
        """A Python file that makes the present schedule; a note follows the last step of each move."""
        steps = self.schedule.steps
        after = {len(s.steps): note for s, note in zip(self.schedules[1:], notes, strict=False)}
        comments = [f"  # {after[n]}" if after.get(n) else "" for n in range(1, len(steps) + 1)]
        lines = [f"    {s.to_python()}{comment}" for s, comment in zip(steps, comments, strict=True)]
        empty = self.schedules[0].to_json()
        return "\n".join(
            [
                '"""A schedule made with `ekc explore`."""',
                "",
                "import ekc",
                "",
                f"op = ekc.Schedule.from_json({empty!r}).op",
                "",
                "schedule = (",
                "    ekc.Schedule(op)",
                *lines,
                ")",
                f"assert schedule.digest == {self.schedule.digest!r}",
                "",
            ]
        )

    def to_json(self, figures: Sequence[Mapping[str, object]] = ()) -> str:
        """The path as JSON text: the present schedule, which `--schedule FILE` of every command reads, and
        the moves with the figures after each."""
        moves = []
        for number, (move, made) in enumerate(zip(self.moves, self.schedules[1:], strict=True)):
            own = figures[number] if number < len(figures) else {}
            steps = [step.to_json() for step in move.steps]
            moves.append({"text": move.text, "steps": steps, "digest": made.digest, **own})
        return json.dumps({"schedule": json.loads(self.schedule.to_json()), "moves": moves}, indent=1)


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
