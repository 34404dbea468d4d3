"""The naive schedule, the baseline of every run: one thread per output element, no shared memory.

It is the first kernel of the well-known SGEMM ladder (1.3 % of cuBLAS on an A6000): neighbouring threads take
neighbouring rows, so that no access is coalesced. The second kernel of that ladder only swaps the two thread
axes; the tuner has to find that step.
"""

from __future__ import annotations

from ekc.ir.compute import Compute
from ekc.ir.lowering.fusion import group_fusable_computes
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule

BLOCK_SIDE = 16
"""Threads of a block along each of the two last axes; a single axis gets `BLOCK_SIDE * BLOCK_SIDE`. Part of
the definition of the baseline, not a tunable number."""


def make_naive_schedule(op: Operator) -> Schedule:
    """The naive schedule of an operator: blocks of 256 threads, one output element each, sums in a register,
    epilogues applied to that register."""
    schedule = Schedule(op)
    for compute, *epilogues in group_fusable_computes(op):
        schedule = _bind_thread_per_element(schedule, compute, epilogues)
    return schedule


def _bind_thread_per_element(schedule: Schedule, compute: Compute, epilogues: list[Compute]) -> Schedule:
    wide = [a.name for a in compute.spatial_axes if a.extent > 1][-2:]
    threads = []
    for axis in wide:
        schedule = schedule.split(axis, (BLOCK_SIDE if len(wide) == 2 else BLOCK_SIDE * BLOCK_SIDE,))
        threads.append(f"{axis}.1")
    blocks = [f"{a.name}.0" if a.name in wide else a.name for a in compute.spatial_axes]
    schedule = schedule.reorder(*blocks, *threads, *(a.name for a in compute.reduction_axes))
    for loop in blocks:
        schedule = schedule.bind(loop, "block.x")
    for loop, level in zip(threads, ("thread.x", "thread.y"), strict=False):
        schedule = schedule.bind(loop, level)
    if compute.reduction_axes or epilogues:
        schedule = schedule.cache_write(compute.output.name, "register")
    for done in (compute, *epilogues)[: len(epilogues)]:
        schedule = schedule.compute_inline(done.output.name)
    return schedule
