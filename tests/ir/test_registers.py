"""The register estimate against the registers that ptxas allocates."""

from __future__ import annotations

import pytest

from ekc.codegen.generate import compile_schedule
from ekc.errors import ScheduleError
from ekc.ir import operators as o
from ekc.ir.analysis import occupancy
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule.schedule import Schedule
from tests.ir.tilings import TILES, bind_loops


def tiled(stages: int, copy: str, k: int = 8, vector: int = 1) -> Schedule:
    """64 threads, 16 sums each; tiles of A and B of k x 32 elements."""
    s = Schedule(o.matmul(256, 256, 256)).split("i", (8, 4)).split("j", (8, 4)).split("k", (k,))
    s = s.reorder("i.0", "j.0", "k.0", "i.1", "j.1", "k.1", "i.2", "j.2")
    s = bind_loops(s, TILES).cache_write("C")
    s = s.cache_read("A", "shared", at="k.0", vector=vector)
    s = s.cache_read("B", "shared", at="k.0", vector=vector).unroll("k.1", factor=2)
    return s.pipeline("k.0", stages=stages, copy=copy) if stages > 1 else s


def rounds(schedule: Schedule) -> int:
    return int(occupancy.count_copy_rounds(derive_launches(schedule.program)[0]))


def estimate(schedule: Schedule) -> int:
    return int(occupancy.estimate_registers(derive_launches(schedule.program)[0]))


def test_rounds_of_pipelined_copies_need_registers() -> None:
    """8 x 32 elements by 64 threads are 4 rounds of each tile; through registers the elements wait there."""
    assert rounds(tiled(1, "")) == 0
    assert rounds(tiled(2, "async")) == rounds(tiled(4, "async")) == rounds(tiled(2, "register")) == 4 + 4
    assert rounds(tiled(2, "async", vector=4)) == 1 + 1
    assert estimate(tiled(2, "async")) == estimate(tiled(1, "")) + 2 * 8
    assert estimate(tiled(2, "register")) == estimate(tiled(2, "async")) + 8


@pytest.mark.parametrize(("copy", "k"), [("async", 120), ("register", 96)])
def test_copy_of_many_rounds_is_refused_and_would_spill(
    copy: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of 16 sums with more than a hundred rounds. Wider copies are legal and do not spill."""
    limits = LaunchLimits(shared_bytes_per_block=160 * 1024)
    narrow, wide = tiled(2, copy, k), tiled(2, copy, k, vector=4)
    with pytest.raises(ScheduleError, match=r"registers: \d+, at most 231; .*wider copies"):
        compile_schedule(narrow, "sm_80", limits)
    assert compile_schedule(wide, "sm_80", limits).resources[0].stack_bytes == 0
    monkeypatch.setattr(occupancy, "REGISTERS_PER_ROUND", 0)
    allocated = compile_schedule(narrow, "sm_80", limits).resources[0]
    assert allocated.registers > 240
    assert allocated.stack_bytes > 64
