"""The path of a learner: the moves taken, with undo and redo, saved as Python and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ekc.errors import InvalidInput
from ekc.ir.schedule import Step
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
