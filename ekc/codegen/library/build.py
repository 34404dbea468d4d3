"""Build a library from schedules: compile each under the names of the library and of its function."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ekc.codegen.generate import compile_schedule
from ekc.codegen.library.function_plan import NamedOperator, plan_functions
from ekc.codegen.library.identity import MAX_NAME, check_bundle_name
from ekc.codegen.library.kernels import (
    Bundle,
    BundleFunction,
    BundleKernel,
    BundleShape,
    KernelFigures,
    TargetBoard,
)
from ekc.errors import InvalidInput
from ekc.ir.hardware.target import Limits
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule


@dataclass(frozen=True)
class KernelChoice:
    """A schedule that was chosen for a library, before it is compiled."""

    schedule: Schedule
    figures: KernelFigures = KernelFigures()
    role: str = "both"
    """One of `ROLES`."""


def build_kernel(
    library: str, function: str, choice: KernelChoice, board: TargetBoard, limits: Limits
) -> BundleKernel:
    """Compile a schedule for a board. Its C names begin with those of library and function. Raises the errors
    of compiling."""
    schedule = choice.schedule
    name = "_".join([library, function, schedule.digest, board.arch])
    compiled = compile_schedule(schedule, board.arch, limits, name)
    return BundleKernel(function, schedule.op, schedule, compiled, board, choice.figures, choice.role)


def build_library(
    name: str,
    operators: Sequence[NamedOperator],
    choices: Mapping[str, Sequence[KernelChoice]],
    board: TargetBoard,
    limits: Limits,
    version: str = "0.1.0",
) -> Bundle:
    """Build the library of one board.

    choices: those of each operator by its digest, fastest first.

    Raises `InvalidInput` for names, and the errors of compiling.
    """
    check_bundle_name(name)
    kernels: dict[str, tuple[BundleKernel, ...]] = {}
    functions = []
    for plan in plan_functions(operators):
        for op in plan.operators:
            if op.digest not in kernels:
                own = choices[op.digest]
                kernels[op.digest] = tuple(build_kernel(name, plan.name, c, board, limits) for c in own)
        shapes = tuple(BundleShape(op, kernels[op.digest]) for op in plan.operators)
        functions.append(BundleFunction(plan.name, plan.signature, shapes))
    return Bundle(name, version, (board,), tuple(functions))


def make_library_name(text: str) -> str:
    """Make a legal name of a library: `Act-D` -> `act_d`, `2layers.toml` -> `library_2layers_toml`."""
    name = re.sub("[^a-z0-9]+", "_", text.lower()).strip("_") or "library"
    if name[0].isdigit():
        name = f"library_{name}"
    name = name[:MAX_NAME].rstrip("_")
    try:
        return check_bundle_name(name)
    except InvalidInput:
        return check_bundle_name(f"{name[: MAX_NAME - 8]}_library")


def name_library(name: str | None, op: Operator) -> str:
    """Name of the library of one operator: the given one, checked, or one made of the operator's."""
    return make_library_name(op.name) if name is None else check_bundle_name(name)
