"""How long the PTX machine will take for a whole call, said before it starts where that is long."""

from __future__ import annotations

import math
import warnings

from ekc.codegen.compiled import CompiledKernel
from ekc.emulator.launch import BATCH_LANES

_SINGLE_OPERATION_S = 1e-4
"""For an operation of one thread with nobody beside it: NumPy's calls, whatever they hold."""
_LANE_OPERATION_S = 3e-9
"""For an operation of one lane of many. Both are of one machine (2 cores of a shared EPYC) and round."""
_WARNING_THRESHOLD_S = 60.0


def estimate_emulation_s(compiled: CompiledKernel) -> float:
    """Seconds, to an order of magnitude, by the operator's arithmetic and the lanes that do it together."""
    operations = compiled.flops / len(compiled.launches)
    return sum(
        operations
        * (
            _SINGLE_OPERATION_S / min(BATCH_LANES, math.prod(one.grid) * math.prod(one.block))
            + _LANE_OPERATION_S
        )
        for one in compiled.launches
    )


def warn_if_slow(compiled: CompiledKernel) -> None:
    """One line for whoever would think that the call hangs."""
    seconds = estimate_emulation_s(compiled)
    if seconds < _WARNING_THRESHOLD_S:
        return
    threads = max(math.prod(one.grid) * math.prod(one.block) for one in compiled.launches)
    fix = (
        "bind loops to blocks and threads, or take smaller shapes"
        if threads < BATCH_LANES
        else "take smaller shapes, or `ekc run`, which runs some of the blocks"
    )
    warnings.warn(
        f"{compiled.name}: the CPU executes every thread of this kernel ({threads} together) in "
        f"{_format_duration(seconds)} or so; {fix}",
        stacklevel=4,
    )


def _format_duration(seconds: float) -> str:
    """A round figure in the unit that a person would use."""
    for limit, unit, word in ((5400, 60, "minutes"), (172800, 3600, "hours")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {word}"
    return f"{seconds / 86400:.0f} days"
