"""Shared tiles: declared while they fit, cut from what the launch asks for where they do not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import ekc
from ekc import devices
from ekc.codegen.emit.shared_memory import POOL_NAME, count_dynamic_shared_bytes
from ekc.codegen.export import export
from ekc.codegen.generate import compile_schedule
from ekc.errors import ScheduleError
from ekc.ir.hardware.limits import STATIC_SHARED_BYTES, Limits
from ekc.ir.hardware.target import find_capabilities
from ekc.ir.interpreter.compare import make_random_input_arrays
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.execute import execute
from tests.ir.async_examples import async_matmul

STAGES = 6


def deep(depth: int) -> Schedule:
    return async_matmul(32, 64, 2 * depth, stages=STAGES, depth=depth)


def size(depth: int) -> int:
    """Bytes of all stages of its tiles: 16 padded rows of the one, `depth` rows of the other."""
    return STAGES * 4 * (16 * (depth + 4) + depth * 32)


@pytest.mark.parametrize("depth", [40, 44])
def test_it_computes_the_product_on_either_side_of_what_may_be_declared(depth: int) -> None:
    schedule = deep(depth)
    compiled = compile_schedule(schedule)
    asked, tiles = compiled.launches[0].shared_bytes, int(derive_launches(schedule.program)[0].shared_bytes)
    assert tiles == size(depth)
    assert asked == (tiles if tiles > STATIC_SHARED_BYTES else 0)
    assert compiled.resources[0].shared_bytes == tiles - asked
    assert (POOL_NAME in compiled.cuda_source) == (asked > 0) == (depth == 44)
    inputs = make_random_input_arrays(schedule.op)
    run = execute(schedule.op, compiled, inputs)[0]
    assert not run.report.findings
    assert run.is_written.all()
    assert abs(run.output - schedule.op.reference(*inputs)).max() < 1e-4


def test_tiles_of_the_pool_do_not_overlap_and_end_where_it_ends() -> None:
    kernel = derive_launches(deep(44).program)[0]
    rooms = [int(b.aligned_bytes) for b in kernel.buffers if b.scope == "shared"]
    begins = [0, *itertools.accumulate(rooms)][:-1]
    text = compile_schedule(deep(44)).cuda_source
    assert all(f"({POOL_NAME}_16 + {at})" in text for at in begins)
    assert sum(rooms) == count_dynamic_shared_bytes(kernel)
    assert all(room % 16 == 0 for room in rooms)


def test_a_target_says_how_much_there_is() -> None:
    assert [find_capabilities(arch).shared_bytes // 1024 for arch in ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_61")] == [
        64, 163, 99, 227, 48,
    ]  # fmt: skip
    for name in ("a100", "rtx2080ti", "rtx3090", "rtx4090", "h200"):
        device = devices.open(name)
        assert device.limits.shared_bytes_per_block == find_capabilities(device.arch).shared_bytes


def test_what_a_target_does_not_have_is_refused() -> None:
    schedule = deep(88)
    assert compile_schedule(schedule, "sm_80").launches[0].shared_bytes == size(88)
    with pytest.raises(ScheduleError, match=r"shared memory.* 102912 bytes, .*101376"):
        compile_schedule(schedule, "sm_86")
    with pytest.raises(ScheduleError, match=r"49152"):
        compile_schedule(schedule, "sm_80", Limits())


def test_a_bundle_asks_the_runtime_for_it(tmp_path: Path) -> None:
    schedule = deep(44)
    export(compile_schedule(schedule), schedule, tmp_path)
    text = (tmp_path / "matmul.cu").read_text()
    assert f"cudaFuncAttributeMaxDynamicSharedMemorySize, {size(44)})" in text
    small = deep(8)
    export(compile_schedule(small), small, tmp_path)
    assert "cudaFuncSetAttribute" not in (tmp_path / "matmul.cu").read_text()


def test_a_simulated_device_holds_fewer_blocks_of_it() -> None:
    """Two blocks of 73.5 KiB fit one SM of 164."""
    from ekc.devices.simulated.occupancy import compute_occupancy
    from ekc.devices.simulated.specs import A100

    compiled = ekc.compile(deep(64))
    launch, resources = compiled.launches[0], compiled.resources[0]
    threads = launch.block[0] * launch.block[1]
    resident = compute_occupancy(
        A100.capability, threads, resources.registers, launch.shared_bytes + resources.shared_bytes
    )
    assert (resident.blocks, resident.limited_by) == (2, "shared memory")
    assert devices.open("a100").time(compiled.compiled).latency_s > 0
