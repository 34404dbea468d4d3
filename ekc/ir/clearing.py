"""The launch before an atomic one: it begins the output that blocks then add to."""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.linear import make_variable
from ekc.ir.operator import Axis, Compute, TensorSpec
from ekc.ir.program import Loop, Nest

ZERO_FILL_THREADS, ZERO_FILL_VECTOR = 256, 4
"""Of a block, and the elements that each clears at once, where that comes out even. Ours."""


def make_zero_fill_nest(nest: Nest) -> Nest:
    """Every element of a nest's output at 0, in the order of memory, whatever its dimensions are.

    `C[64, 64]` becomes `C[at] = 0` for `at` in 4096: blocks of 256 threads, 4 elements each.
    """
    spec = nest.output
    vector = ZERO_FILL_VECTOR if spec.elements % ZERO_FILL_VECTOR == 0 else 1
    flat = TensorSpec(spec.name, (spec.elements,), spec.dtype)
    compute = Compute(flat, (Axis("at", spec.elements),), ex.Const(0), "sum", nest.compute.acc_dtype)
    blocks = -(-spec.elements // (ZERO_FILL_THREADS * vector))
    loops = (
        Loop("at.0", "at", blocks, False, "block.x"),
        Loop("at.1", "at", ZERO_FILL_THREADS, False, "thread.x"),
        Loop("at.2", "at", vector, False, "vector"),
    )
    place = (
        make_variable("at.0").scale(ZERO_FILL_THREADS * vector)
        + make_variable("at.1").scale(vector)
        + make_variable("at.2")
    )
    return Nest(compute, loops, {"at": place}, has_accumulator=True, store_vector=vector)
