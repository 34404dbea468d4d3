"""A Schedule: an operator and the steps taken so far, each checked as it is added."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ekc.argument_checks import check_text, format_value
from ekc.display import format_html_text, format_line, shorten
from ekc.errors import InvalidInput
from ekc.file_limits import parse_json
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.printer import format_program
from ekc.ir.program import Program, make_initial_program
from ekc.ir.schedule import (
    Atomic,
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Divide,
    Fuse,
    Pack,
    Pipeline,
    Reorder,
    RFactor,
    Split,
    Step,
    Tensorize,
    Unroll,
    Vectorize,
    step_from_json,
)
from ekc.tables import count_nouns

if TYPE_CHECKING:
    from ekc.ir.drawing.svg import SvgText

SCHEDULE_FORMAT = 1


@dataclass(frozen=True)
class Schedule:
    """An immutable list of steps on an operator. Every method returns a new Schedule.

    >>> s = ekc.Schedule(ekc.matmul(64, 64, 64)).split("i", (16,)).bind("i.0", "block.x")

    A step that is not legal raises `ScheduleError`, which names the rule, its limit and the nearest legal
    choice. Rules on the kernel or the target (bytes of a vector, registers, shared memory, threads) are
    checked when the schedule is compiled.
    """

    op: Operator
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.op, Operator):
            raise InvalidInput(
                f"schedule: {format_value(self.op)} is no operator; try ekc.matmul(64, 64, 64)"
            )
        if not isinstance(self.steps, tuple):
            raise InvalidInput(
                f"schedule: {format_value(self.steps)} is no tuple of steps; try .split(...) and the like"
            )

    @cached_property
    def program(self) -> Program:
        """The Program that the steps make from the operator."""
        return _apply_checked(make_initial_program(self.op), self.steps)

    def apply_steps(self, *steps: Step) -> Schedule:
        """The Schedule with checked steps appended."""
        program = _apply_checked(self.program, steps)
        new = replace(self, steps=(*self.steps, *steps))
        new.__dict__["program"] = program
        return new

    def split(self, loop: str, factors: tuple[int, ...]) -> Schedule:
        """Cut a loop; inner extents from outer to inner. See `ekc.ir.schedule.Split`."""
        return self.apply_steps(Split(loop, _list_to_tuple(factors)))

    def divide(self, axis: str, by: int) -> Schedule:
        """Cut an axis where what is read divides it. See `ekc.ir.schedule.Divide`."""
        return self.apply_steps(Divide(axis, by))

    def rfactor(self, axis: str, parts: int) -> Schedule:
        """Reduce parts of an axis in a launch of their own. See `ekc.ir.schedule.RFactor`."""
        return self.apply_steps(RFactor(axis, parts))

    def pack(self, tensor: str, order: tuple[int, ...]) -> Schedule:
        """Read a copy of an input in another order, made by its own launch. See `ekc.ir.schedule.Pack`."""
        return self.apply_steps(Pack(tensor, _list_to_tuple(order)))

    def atomic(self, tensor: str) -> Schedule:
        """Add a sum to memory by atomics: floats differ from run to run. See `ekc.ir.schedule.Atomic`."""
        return self.apply_steps(Atomic(tensor))

    def fuse(self, outer: str, inner: str) -> Schedule:
        """Join two neighbouring loops. See `ekc.ir.schedule.Fuse`."""
        return self.apply_steps(Fuse(outer, inner))

    def reorder(self, *loops: str) -> Schedule:
        """Put loops into this order. See `ekc.ir.schedule.Reorder`."""
        return self.apply_steps(Reorder(loops))

    def bind(self, loop: str, level: str) -> Schedule:
        """Run a loop on blocks, threads or vthreads. See `ekc.ir.schedule.Bind`.

        Warns of a vthread outside of a reduction loop, which then runs for each vthread again.
        """
        bound = self.apply_steps(Bind(loop, level))
        if level == "vthread":
            _warn_of_repeated_sum(bound.program, loop)
        return bound

    def unroll(self, loop: str, factor: int | None = None) -> Schedule:
        """Write out iterations. See `ekc.ir.schedule.Unroll`."""
        return self.apply_steps(Unroll(loop, factor))

    def vectorize(self, loop: str) -> Schedule:
        """Move the innermost loop's elements as vectors. See `ekc.ir.schedule.Vectorize`."""
        return self.apply_steps(Vectorize(loop))

    def cache_read(
        self,
        source: str,
        scope: str,
        at: str | None = None,
        vector: int = 1,
        order: tuple[int, ...] = (),
        pad: int = 0,
        swizzle: int = 1,
        reader: str = "",
        panel: int = 0,
        unroll: int = 0,
    ) -> Schedule:
        """Stage a tensor in shared memory or registers. See `ekc.ir.schedule.CacheRead`."""
        layout = (vector, _list_to_tuple(order), pad, swizzle)
        return self.apply_steps(CacheRead(source, scope, at, *layout, reader, panel, unroll))

    def cache_write(self, tensor: str, scope: str = "register", vector: int = 1) -> Schedule:
        """Keep the output in registers until it is complete. See `ekc.ir.schedule.CacheWrite`."""
        return self.apply_steps(CacheWrite(tensor, scope, vector))

    def compute_at(self, what: str, at: str | None, warps: int = 1) -> Schedule:
        """Move a staging, or compute an earlier tensor on the spot. See `ekc.ir.schedule.ComputeAt`."""
        return self.apply_steps(ComputeAt(what, at, warps))

    def compute_inline(self, tensor: str) -> Schedule:
        """Use a tensor where it is made instead of storing it. See `ekc.ir.schedule.ComputeInline`."""
        return self.apply_steps(ComputeInline(tensor))

    def pipeline(self, loop: str, stages: int = 2, copy: str = "register") -> Schedule:
        """Fetch the next shared tiles while one is used. See `ekc.ir.schedule.Pipeline`."""
        return self.apply_steps(Pipeline(loop, stages, copy))

    def tensorize(self, loop: str, instruction: str) -> Schedule:
        """Do the innermost loops as a product on tensor cores. See `ekc.ir.schedule.Tensorize`."""
        return self.apply_steps(Tensorize(loop, instruction))

    def to_json(self) -> str:
        """The operator and the steps as JSON text."""
        steps = [s.to_json() for s in self.steps]
        data = {"format": SCHEDULE_FORMAT, "operator": self.op.to_json(), "steps": steps}
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """The inverse of `to_json`; every step is checked again."""
        check_text("schedule", text, "what Schedule.to_json gives")
        try:
            data: Any = parse_json(text.removeprefix("\ufeff"))
        except ValueError as problem:
            raise InvalidInput(f"schedule: not JSON ({problem})") from None
        if not isinstance(data, dict) or not {"format", "operator", "steps"} <= set(data):
            raise InvalidInput("schedule: the JSON needs format, operator and steps")
        if data["format"] != SCHEDULE_FORMAT:
            raise InvalidInput(
                f"schedule: format {data['format']!r}, this version of ekc reads {SCHEDULE_FORMAT}"
            )
        if not isinstance(data["steps"], list):
            raise InvalidInput(f"schedule: steps is {data['steps']!r}, needed a list of steps")
        op = operator_from_json(data["operator"])
        return cls(op).apply_steps(*(step_from_json(s) for s in data["steps"]))

    def to_python(self) -> str:
        """The steps as the Python text that makes them; replaying it gives an equal Schedule."""
        return "ekc.Schedule(op)" + "".join(f"\n    {s.to_python()}" for s in self.steps)

    def draw(self, picture: str = "overview") -> SvgText:
        """The schedule as SVG text, for a file or a page. A notebook shows it as a picture.

        Pictures: "loops", "threads", "staging", "banks", "fragments", or "overview" with all that apply.
        Raises `InvalidInput` for another name, and for one that does not apply, with the reason.

        >>> Path("threads.svg").write_text(schedule.draw("threads"))
        """
        # Pictures read the analysis, which `import ekc` does not need.
        from ekc.ir.drawing.draw import draw_schedule

        return draw_schedule(self.op, self.program, self.digest, picture)

    @cached_property
    def digest(self) -> str:
        """Hash of the contents, 16 hex digits, the same on any machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return format_program(self.program)

    def __repr__(self) -> str:
        inputs = shorten(", ".join(map(str, self.op.inputs)), 40)
        steps = count_nouns(len(self.steps), "step")
        return format_line(self, f"{shorten(self.op.name)}({inputs}), {steps}, {self.digest}")

    def _repr_html_(self) -> str:
        """The steps as Python, and a picture of the loops that they make."""
        return format_html_text(self.to_python()) + self.draw("loops")


def _apply_checked(program: Program, steps: tuple[Step, ...]) -> Program:
    """The Program after the steps; each is checked before the next one uses its numbers."""
    for step in steps:
        if not isinstance(step, Step):
            raise InvalidInput(f"schedule: {format_value(step)} is no step; try .split(...) and the like")
        before, program = len(program.checks), step.apply(program)
        for check in program.checks[before:]:
            check.enforce()
    return program


def _warn_of_repeated_sum(program: Program, vthread: str) -> None:
    nest = program.find_nest(vthread, "bind")
    loop = nest.find_loop(vthread)
    sums = [x.name for x in nest.loops[nest.loops.index(loop) :] if x.is_reduction and x.is_serial]
    if sums and loop.extent > 1:
        warnings.warn(
            f"bind: vthread {vthread} is outside of reduction loop {sums[0]}, which runs {loop.extent} "
            f"times, with the copies in it; to stage once, reorder {vthread} behind {sums[-1]}",
            stacklevel=3,
        )


def _list_to_tuple(value: Any) -> Any:
    """A list as a tuple; anything else unchanged, for the step to check."""
    return tuple(value) if isinstance(value, list) else value
