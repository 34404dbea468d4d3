"""Naive kernels of the operators of a library: its check program compares the kernels of the table with them.

They belong to the check program and are no part of the library. Each is compiled for the lowest capability
of the library, as PTX, which the driver compiles for the GPU that it runs on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.codegen.library.kernels import Bundle, lay_out_workspace
from ekc.codegen.render import clean_comment, format_text_words
from ekc.ir.comparison.compare import DATA_SEED
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.compute import Axis
from ekc.ir.hardware.target import parse_arch_number
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.memory_access import find_stored_tensors
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import AxisIndices, count_factors
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule

_SAMPLE_ELEMENTS = 4096
"""Elements of a result that the tolerance is computed at, about."""
_MAX_TERMS = 1 << 24
"""Terms of a reduction for which the tolerance is computed, at most: 2^24 take seconds and 150 MB."""
_COMPARED_KERNELS = 2
"""Kernels in a comparison, each of which may differ from the exact result by the tolerance."""
_STORED_TYPES = {"tf32": "float32"}
"""Types in memory of those that only arithmetic has."""


@dataclass(frozen=True)
class NaiveTolerance:
    """Largest difference of two right results of an operator, at results of a known size."""

    difference: float
    scale: float
    """Largest magnitude of the results that the difference is for. It grows in proportion to those."""


@dataclass(frozen=True)
class NaiveKernel:
    """The compiled naive kernel of an operator, and how well others must agree with it."""

    op: Operator
    schedule: Schedule
    compiled: CompiledKernel
    tolerance: NaiveTolerance


def choose_naive_arch(archs: tuple[str, ...]) -> str:
    """Choose an architecture whose PTX runs wherever code for one of these does.

    ("sm_80", "sm_90a") gives "sm_80", ("sm_90a",) gives "sm_90".
    """
    return f"sm_{min(map(parse_arch_number, archs))}"


def compile_naive_kernels(bundle: Bundle) -> tuple[NaiveKernel, ...]:
    """Compile the naive kernel of each operator of a bundle once, in the order of the table."""
    arch = choose_naive_arch(bundle.archs)
    operators = {kernel.op.digest: kernel.op for kernel in bundle.kernels}
    return tuple(_compile_naive(bundle.name, op, arch) for op in operators.values())


def _compile_naive(bundle: str, op: Operator, arch: str) -> NaiveKernel:
    schedule = make_naive_schedule(op)
    compiled = compile_schedule(schedule, arch, name=f"{bundle}_N_{op.digest[:12]}")
    return NaiveKernel(op, schedule, compiled, estimate_tolerance(schedule))


def estimate_tolerance(schedule: Schedule) -> NaiveTolerance:
    """Estimate how far two right kernels of an operator may differ, from the tolerance of the check of ekc.

    The tolerance is computed at about `_SAMPLE_ELEMENTS` elements of the result of the naive schedule, on
    random inputs. It is 0 where arithmetic is exact, as with integers. It is infinite where a reduction has
    more than `_MAX_TERMS` terms: such results are not compared.
    """
    op, tree = schedule.program.op, derive_launches(schedule.program)[-1]
    compute = next(c for c in op.computes if c.output.name == tree.nest.output.name)
    if max(math.prod(axis.extent for axis in c.reduction_axes) for c in op.computes) > _MAX_TERMS:
        return NaiveTolerance(math.inf, 0.0)
    expected = ReferenceEvaluator.from_seed(schedule.op, DATA_SEED).for_operator(op)
    unstored = set(op.tensors) - find_stored_tensors(tree.nest)
    found = expected.evaluate_at(compute, _sample_indices(compute.spatial_axes), unstored)
    choice = float(np.max(found.choice_tolerances, initial=0.0))
    finite = found.values[np.isfinite(found.values)]
    scale = float(np.max(np.abs(finite), initial=0.0))
    return NaiveTolerance(_COMPARED_KERNELS * (found.tolerance + choice), scale)


def _format_number(value: float) -> str:
    return repr(value) if math.isfinite(value) else "std::numeric_limits<double>::infinity()"


def _sample_indices(axes: tuple[Axis, ...]) -> AxisIndices:
    """Some indices along each axis, the first and last among them."""
    random, left = np.random.default_rng(DATA_SEED), _SAMPLE_ELEMENTS
    chosen: AxisIndices = {}
    for axis in sorted(axes, key=lambda axis: axis.extent):
        # Short axes come first, so that long ones take what they leave.
        count = max(2, int(left ** (1 / (len(axes) - len(chosen)))))
        if count < axis.extent:
            inner = random.integers(1, axis.extent - 1, count - 2)
            indices = np.unique(np.concatenate([[0, axis.extent - 1], inner]))
        else:
            indices = np.arange(axis.extent)
        chosen[axis.name] = indices
        left = max(1, left // len(indices))
    return {axis.name: chosen[axis.name] for axis in axes}


def build_check_values(bundle: Bundle) -> dict[str, Any]:
    """Values of the templates of the check program, beside those of the library."""
    naive = compile_naive_kernels(bundle)
    numbers = {kernel.op.digest: number for number, kernel in enumerate(naive)}
    return {
        "naive_arch": choose_naive_arch(bundle.archs),
        "naive_kernels": [_describe_naive(kernel) for kernel in naive],
        "operator_of_kernel": [numbers[kernel.op.digest] for kernel in bundle.kernels],
    }


def _describe_naive(kernel: NaiveKernel) -> dict[str, Any]:
    """A row of the check program's table of operators."""
    op, compiled = kernel.schedule.program.op, kernel.compiled
    tensors = [*kernel.op.inputs, *kernel.op.outputs]
    given = [t.name for t in tensors]
    _, offsets, total = lay_out_workspace(op, compiled)
    numbers = {name: number for number, name in enumerate([*given, *offsets])}
    return {
        "title": clean_comment(str(kernel.op).splitlines()[0]),
        "tensors": [
            {"text": str(t), "type": _STORED_TYPES.get(t.dtype.name, t.dtype.name), "elements": t.elements}
            for t in tensors
        ],
        "ptx_words": format_text_words(compiled.ptx),
        "offsets": list(offsets.values()),
        "workspace_bytes": total,
        "factor_count": count_factors(kernel.op),
        "tolerance": _format_number(kernel.tolerance.difference),
        "scale": repr(kernel.tolerance.scale),
        "launches": [
            {
                "name": launch.name,
                "grid": launch.grid,
                "block": launch.block,
                "shared_bytes": launch.shared_bytes,
                "arguments": [numbers[a] for a in launch.arguments],
            }
            for launch in compiled.launches
        ],
    }
