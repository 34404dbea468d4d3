"""Export of one kernel: a C++ library with one function, which `ekc bundle` writes for many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ekc.codegen.library.build import KernelChoice, build_library, name_library
from ekc.codegen.library.function_plan import NamedOperator
from ekc.codegen.library.kernels import TargetBoard
from ekc.codegen.library.write import write_bundle
from ekc.ir.hardware.target import Limits


def export(
    choices: Sequence[KernelChoice],
    board: TargetBoard,
    limits: Limits,
    folder: str | Path,
    *,
    name: str | None = None,
    cubin: bool = False,
) -> tuple[Path, ...]:
    """Write a library of one operator into a folder; returns the paths, sources of kernels first.

    choices: the schedules, at least one, fastest first; the library selects among them at run time.
    name: name of the library; by default one made of the operator's.
    cubin: embed machine code; see `write_bundle`.

    Raises `InvalidInput` for the name and the folder, and the errors of compiling.
    """
    op = choices[0].schedule.op
    library = build_library(name_library(name, op), [NamedOperator(op)], {op.digest: choices}, board, limits)
    return write_bundle(library, folder, cubin=cubin)
