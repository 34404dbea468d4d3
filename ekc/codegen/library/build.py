"""Build a library from schedules: compile each under the names of library and function, and write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ekc.codegen.generate import compile_schedule
from ekc.codegen.library.function_plan import NamedOperator, plan_functions
from ekc.codegen.library.kernels import (
    Bundle,
    BundleFunction,
    BundleKernel,
    BundleShape,
    KernelFigures,
    TargetBoard,
)
from ekc.codegen.library.legal_names import DEFAULT_VERSION, check_bundle_name, name_library
from ekc.codegen.library.write import write_bundle
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.schedule import Schedule


@dataclass(frozen=True)
class KernelChoice:
    """A schedule that was chosen for a library, before it is compiled."""

    schedule: Schedule
    figures: KernelFigures
    role: str = "both"
    """One of `ROLES`."""


def build_kernel(
    library: str, function: str, choice: KernelChoice, board: TargetBoard, limits: LaunchLimits | None
) -> BundleKernel:
    """Compile a schedule for a board. Its C names begin with those of library and function. `limits` default
    to those of the architecture. Raises the errors of compiling."""
    schedule = choice.schedule
    # Names of libraries have no capitals, so symbols of two libraries differ.
    name = "_".join([library, "K", function, schedule.digest, board.arch])
    compiled = compile_schedule(schedule, board.arch, limits, name)
    return BundleKernel(function, schedule.op, schedule, compiled, board, choice.figures, choice.role)


def build_library(
    name: str,
    operators: Sequence[NamedOperator],
    choices: Mapping[str, Sequence[KernelChoice]],
    board: TargetBoard,
    limits: LaunchLimits | None = None,
) -> Bundle:
    """Build the library of one board.

    operators: all that functions are named for; those without a choice are left out.
    choices: those of each operator by its digest, fastest first.

    Raises `InvalidInput` for names, and the errors of compiling.
    """
    check_bundle_name(name)
    kernels: dict[str, tuple[BundleKernel, ...]] = {}
    functions = []
    for plan in plan_functions(operators):
        present = [op for op in plan.operators if op.digest in choices]
        for op in present:
            if op.digest not in kernels:
                own = choices[op.digest]
                kernels[op.digest] = tuple(build_kernel(name, plan.name, c, board, limits) for c in own)
        if present:
            shapes = tuple(BundleShape(op, kernels[op.digest]) for op in present)
            functions.append(BundleFunction(plan.name, plan.signature, shapes, plan.layers))
    return Bundle(name, DEFAULT_VERSION, (board,), tuple(functions))


def export(
    choices: Sequence[KernelChoice],
    board: TargetBoard,
    folder: str | Path,
    *,
    limits: LaunchLimits | None = None,
    name: str | None = None,
    cubin: bool = False,
) -> tuple[Path, ...]:
    """Write a library of one operator into a folder; returns the paths, sources of kernels first.

    choices: the schedules, at least one, fastest first; the library selects among them at run time.
    limits: those of the board; by default those of its architecture.
    name: name of the library; by default one made of the operator's.
    cubin: embed machine code; see `write_bundle`.

    Raises `InvalidInput` for the name and the folder, and the errors of compiling.
    """
    op = choices[0].schedule.op
    library = build_library(name_library(name, op), [NamedOperator(op)], {op.digest: choices}, board, limits)
    return write_bundle(library, folder, cubin=cubin)
