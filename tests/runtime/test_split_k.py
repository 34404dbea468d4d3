"""Split-K sums as compiled kernels: correct, with a named workspace, and counted completely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated import specs
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import compute_work
from ekc.errors import ScheduleError
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.verify import WRONG_RESULT, verify_on_device
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.multi_level_tiling import derive_structures
from tests.codegen.helpers import export_sample
from tests.drawn.checks import check_verdict, judge
from tests.runtime.faults import spoiled, squared
from tests.scripted.cuda.node import ScriptedNode

A100 = specs.find_spec("a100")


PARTED = {
    "fp16": ekc.matmul(16, 24, 2400, dtype="float16"),
    "fp32": ekc.matmul(20, 12, 2187),
    "matvec": ekc.matvec(9, 4096),
    "int8": ekc.matmul(16, 16, 2304, dtype="int8", transpose_b=True),
    "conv": ekc.conv2d(1, 256, 5, 5, out_channels=16, kernel=3, padding=1, dtype="bfloat16"),
    "bias": ekc.matmul(16, 16, 2048).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(16,)),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.exhaustive] * (x in ("int8", "conv", "matvec"))) for x in PARTED],
)
def test_structures_of_the_search_match_the_reference(name: str) -> None:
    """The first and the last split-K structure, with the first legal numbers drawn."""
    op = PARTED[name]
    parted = [s for s in derive_structures(op, LaunchLimits()) if " parts of " in s.name]
    for structure in (parted[0], parted[-1]):
        check_verdict(drawn(op, structure))


def drawn(op: ekc.Operator, structure: Structure) -> Schedule:
    """A legal schedule of a structure; about half of its numbers are the least that they can be."""
    random = np.random.default_rng(0)
    for _ in range(200):
        values = {
            hole: number
            for d in structure.decisions
            for hole, number in zip(
                d.holes, d.get_values(int(random.integers(2) * random.integers(d.size))), strict=True
            )
        }
        try:
            schedule = Schedule(op).apply_steps(*(s.fill_holes(values) for s in structure.steps))
            enforce_rules(schedule.program, LaunchLimits())
        except ScheduleError:
            continue
        return schedule
    raise AssertionError(f"nothing legal in 200 draws of {structure.name}")


def matvec_in_parts(parts: int) -> Schedule:
    """A row per warp, with parts of rows in different blocks."""
    rows = Schedule(ekc.matvec(64, 65536)).rfactor("k", parts).split("k", (32,))
    rows = rows.reorder("k_part", "i", "k.1", "k.0").bind("k_part", "block.y").bind("i", "block.x")
    return rows.bind("k.1", "thread.x").cache_write("y_parts").bind("i_", "thread.x").cache_write("y")


def test_c_interface_asks_for_the_workspace(tmp_path: Path) -> None:
    schedule = matvec_in_parts(16)
    kernel = compile_schedule(schedule)
    assert kernel.workspace_bytes == 16 * 64 * 4
    text = export_sample(schedule, tmp_path).read_text()
    assert "void* between_0 = static_cast<char*>(workspace) + 0; // y_parts[" in text
    assert ", 4096, 0, " in (tmp_path / "src/tables.h").read_text()
    assert "&tensor_0, &tensor_1, &between_0 }" in text
    assert "&between_0, &tensor_2 }" in text
    assert (kernel.flops, kernel.min_bytes) == (schedule.op.flops, schedule.op.min_bytes)


def test_both_launches_and_the_workspace_are_counted() -> None:
    assert A100 is not None
    kernel = compile_schedule(matvec_in_parts(16))
    (first, _), (second, _) = compute_work(A100, kernel, profile_kernel(kernel)).launches
    workspace = kernel.workspace_bytes
    assert first.blocks == 16 * 64
    assert first.traffic.l2_bytes >= 64 * 65536 * 4 + workspace
    assert workspace + 64 * 4 <= second.traffic.l2_bytes <= 2 * workspace


def test_few_rows_fill_the_device_by_split_k_only() -> None:
    device = ekc.devices.open("a100")
    whole = Schedule(ekc.matvec(64, 65536)).split("k", (32,)).reorder("i", "k.1", "k.0")
    whole = whole.bind("i", "block.x").bind("k.1", "thread.x").cache_write("y")
    times = [
        device.time(compile_schedule(s)).latency_s for s in (whole, matvec_in_parts(4), matvec_in_parts(64))
    ]
    assert times[2] < times[1] < times[0] / 3


def greatest_part(ptx: str) -> str:
    """A mistake: the second launch takes the largest of the parts instead of their sum."""
    first, entry, second = ptx.partition(".entry ekc_matvec_1(")
    assert "add.f32" in second
    return first + entry + second.replace("add.f32", "max.f32", 1)


@pytest.mark.parametrize("fault", [pytest.param(squared, marks=pytest.mark.slow), greatest_part])
def test_fault_in_either_launch_is_found(fault: Callable[[str], str]) -> None:
    schedule = matvec_in_parts(16)
    wrong = spoiled(compile_schedule(schedule), fault)
    verdict = judge(schedule, wrong)
    assert verdict.fault == WRONG_RESULT
    assert [x.agreement.ok for x in verdict.launches] == [fault is greatest_part, False]


def test_check_on_a_gpu_goes_launch_by_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The scripted driver looks a module up in the compile cache, and a user's holds thousands.
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))
    schedule = matvec_in_parts(16)
    device = ScriptedNode().open()
    expected = ReferenceEvaluator.from_seed(schedule.op, 0)
    verdict = verify_on_device(device, schedule, compile_schedule(schedule), expected)
    assert not verdict.fault
    assert [x.total_blocks for x in verdict.launches] == [16 * 64, 1]
    assert [x.complete for x in verdict.launches] == [True, True]
    device.close()
