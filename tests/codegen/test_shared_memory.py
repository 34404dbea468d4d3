"""Shared tiles: declared where they fit, else cut from dynamic shared memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import ekc
from ekc import devices
from ekc.codegen.emit.names import POOL_NAME, count_dynamic_shared_bytes
from ekc.codegen.generate import compile_schedule
from ekc.errors import ScheduleError
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.hardware.target import STATIC_SHARED_BYTES, LaunchLimits, find_capabilities
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.execute import execute
from tests.codegen.helpers import export_sample
from tests.ir.async_examples import async_matmul

STAGES = 6


def deep(depth: int) -> Schedule:
    return async_matmul(32, 64, 2 * depth, stages=STAGES, depth=depth)


def size(depth: int) -> int:
    """Bytes of all stages of its tiles: 16 padded rows of the one, `depth` rows of the other."""
    return STAGES * 4 * (16 * (depth + 4) + depth * 32)


@pytest.mark.parametrize("depth", [40, 44])
def test_declared_and_dynamic_tiles_compute_the_product(depth: int) -> None:
    schedule = deep(depth)
    compiled = compile_schedule(schedule)
    dynamic, tiles = compiled.launches[0].shared_bytes, int(derive_launches(schedule.program)[0].shared_bytes)
    assert tiles == size(depth)
    assert dynamic == (tiles if tiles > STATIC_SHARED_BYTES else 0)
    assert compiled.resources[0].shared_bytes == tiles - dynamic
    assert (POOL_NAME in compiled.cuda_source) == (dynamic > 0) == (depth == 44)
    inputs = make_random_input_arrays(schedule.op)
    run = execute(schedule.op, compiled, inputs)[0]
    assert not run.report.findings
    assert run.is_written.all()
    assert abs(run.output - schedule.op.reference(*inputs)).max() < 1e-4


def test_tiles_fill_the_pool_without_overlap() -> None:
    kernel = derive_launches(deep(44).program)[0]
    sizes = [int(b.aligned_bytes) for b in kernel.buffers if b.scope == "shared"]
    begins = [0, *itertools.accumulate(sizes)][:-1]
    text = compile_schedule(deep(44)).cuda_source
    assert all(f"({POOL_NAME}_16 + {at})" in text for at in begins)
    assert sum(sizes) == count_dynamic_shared_bytes(kernel)
    assert all(size_bytes % 16 == 0 for size_bytes in sizes)


def test_shared_bytes_of_targets() -> None:
    kib = {"sm_75": 64, "sm_80": 163, "sm_89": 99, "sm_90a": 227, "sm_61": 48}
    assert {arch: find_capabilities(arch).shared_bytes // 1024 for arch in kib} == kib
    for name in ("a100", "rtx2080ti", "rtx3090", "rtx4090", "h200"):
        device = devices.open(name)
        assert device.limits.shared_bytes_per_block == find_capabilities(device.arch).shared_bytes


def test_more_shared_memory_than_the_target_has_is_refused() -> None:
    schedule = deep(88)
    assert compile_schedule(schedule, "sm_80").launches[0].shared_bytes == size(88)
    with pytest.raises(ScheduleError, match=r"shared memory.* 102912 bytes, .*101376"):
        compile_schedule(schedule, "sm_86")
    with pytest.raises(ScheduleError, match=r"49152"):
        compile_schedule(schedule, "sm_80", LaunchLimits())


def test_bundle_requests_dynamic_shared_memory(tmp_path: Path) -> None:
    schedule = deep(44)
    text = export_sample(schedule, tmp_path).read_text()
    assert f"cudaFuncAttributeMaxDynamicSharedMemorySize, {size(44)})" in text
    small = deep(8)
    assert "cudaFuncSetAttribute" not in export_sample(small, tmp_path).read_text()


def test_dynamic_shared_memory_limits_resident_blocks() -> None:
    """Two blocks of 73.5 KiB fit one SM of 164."""
    from ekc.devices.simulated.launch_counts import compute_launch_occupancy
    from ekc.devices.simulated.specs import A100

    compiled = ekc.compile(deep(64))
    resident = compute_launch_occupancy(A100.capability, compiled.launches[0], compiled.resources[0])
    assert (resident.blocks, resident.limited_by) == (2, "shared memory")
    assert devices.open("a100").time(compiled.compiled).latency_s > 0
