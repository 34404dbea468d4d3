"""Uses of the numbers in steps, as repair names them: they follow from the steps that have the numbers."""

from __future__ import annotations

from ekc.ir.program import Loop, Program
from ekc.ir.schedule import CacheRead, CacheWrite, Pipeline, Step


def find_kind(loop: Loop | None) -> str:
    """Kind of tile level of a loop, as rules of derivation give them; "" for one that is cut again."""
    if loop is None:
        return ""
    if loop.level == "serial":
        return "reduce" if loop.is_reduction else "tile"
    return loop.level.partition(".")[0]


def name_use(step: Step, field: str, program: Program) -> str:
    """The use of a number in a field of a step, as `constraints.py` names it."""
    if isinstance(step, CacheRead):
        kind = "move" if (step.scope, field) == ("register", "vector") else field
        return f"{kind}.{step.source.partition('.')[0]}"
    if isinstance(step, CacheWrite):
        return f"vector.{program.find_output_nest(step.tensor, step.kind).output.name}"
    if isinstance(step, Pipeline):
        return "depth" if step.copy == "async" else "stages"
    return {"factor": "unroll"}.get(field, field)
