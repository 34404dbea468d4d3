"""Tensor cores of simulated devices: counts of operations, and their latency."""

from __future__ import annotations

import pytest

import ekc
import ekc.ir.operators as o
from benchmarks.simulator.foreign_rows import compile_foreign_kernel
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated.launch_counts import KernelStart, get_launch_profiles, profile_kernel
from ekc.devices.simulated.operating_point import compute_work
from ekc.devices.simulated.specs import A100, H100, RTX3090, GpuSpec
from ekc.emulator.paged_memory import BlankArray
from ekc.errors import DeviceError, ScheduleError
from ekc.ir.schedule.schedule import Schedule
from tests.ir.tensor_examples import INSTRUCTIONS, ROW, Cut, half_matmul, tensor_matmul
from tests.ir.warpgroup_examples import GroupCut, group_matmul, half_group_matmul

FACTORS = {"float16": "float16", "bfloat16": "float16", "tf32": "tf32", "int8": "int8"}


def product(dtype: str, m: int = 128, n: int = 128, k: int = 256) -> Schedule:
    op = o.matmul(m, n, k, dtype=dtype, transpose_b=True)
    return tensor_matmul(op, Cut((2, 2), (2, 4), 2, 2, pad=ROW[dtype]))


def compiled(schedule: Schedule) -> CompiledKernel:
    return compile_schedule(schedule, "sm_80")


@pytest.mark.parametrize("dtype", INSTRUCTIONS)
def test_operations_are_counted_by_type(dtype: str) -> None:
    counts = profile_kernel(compiled(product(dtype)))[0].counts
    # 4 blocks of 4 warps; an instruction is counted once a warp.
    assert counts.tensor == 128 * 128 * 256 / (16 * 8 * INSTRUCTIONS[dtype][1]) / 16
    assert counts.tensor_flops == {FACTORS[dtype]: 2 * 128 * 128 * 256 / 16}
    assert counts.group_flops == {}
    assert counts.fma32 == 0


def test_ldmatrix_accesses_shared_memory() -> None:
    ran = profile_kernel(compiled(half_matmul()))[0]
    loads = [a for a in ran.accesses if a.space == "shared" and a.kind == "load"]
    # 2 iterations of 2 steps in each of 4 warps: 2 loads of A and 2 of B, four matrices each.
    assert sum(a.requests for a in loads) == 2 * 2 * 4 * 4
    assert all(a.bytes_per_lane == 16 and a.wavefronts == 4 for a in loads)


def test_latency_respects_the_rate_of_the_tensor_cores() -> None:
    """Far above the rate of float32, never above that of mma.sync; narrower types are faster."""
    large = {d: compiled(product(d, 2048, 2048, 2048)) for d in ("float16", "tf32", "int8")}
    device = ekc.devices.open("a100")
    flops = 2 * 2048.0**3
    rates = {d: flops / device.time(kernel).latency_s for d, kernel in large.items()}
    assert rates["tf32"] < rates["float16"] < rates["int8"]
    assert rates["float16"] > 3 * device.peaks.fp32_flops
    for dtype, rate in rates.items():
        assert rate < 1.02 * A100.throughput.mma_share * device.peaks.flops_by_type[dtype]
    assert H100.throughput.mma_share < A100.throughput.mma_share


def test_products_of_a_warpgroup_are_counted_a_quarter_for_each_warp() -> None:
    """256^3 in 4 blocks of 8 warps: operations, what they read of shared memory, and the waits for them."""
    kernel = compile_schedule(half_group_matmul(), "sm_90a")
    counts = profile_kernel(kernel)[0].counts
    assert counts.tensor == counts.group_products == 4 * 4
    assert counts.group_flops == {"float16": 2 * 256**3 / (4 * 8)}
    assert counts.tensor_flops == {}
    assert counts.bytes_group == 16 * 2 * (64 + 128) * 16 / 4
    assert counts.group_waits == 4


def test_wgmma_on_hopper_exceeds_mma_rates_and_not_the_peak() -> None:
    device, flops = ekc.devices.open("h200@no-residual"), 2 * 4096.0**3
    grouped = group_matmul(o.matmul(4096, 4096, 4096, dtype="float16"), GroupCut(2, strips=32, stages=4))
    found = device.time(compile_schedule(grouped, "sm_90a", device.limits))
    rate, peak = flops / found.latency_s, device.peaks.flops_by_type["float16"]
    alone = tensor_matmul(o.matmul(4096, 4096, 4096, dtype="float16"), Cut((2, 2), (4, 8), 1, 4, pad=8))
    slower = flops / device.time(compile_schedule(alone, "sm_90a", device.limits)).latency_s
    assert slower < 0.62 * peak
    assert 1.3 * slower < rate < 0.95 * peak


def test_wgmma_is_refused_by_earlier_targets() -> None:
    schedule = tensor_matmul(o.matmul(64, 64, 64, dtype="float16"), Cut(stages=1, pad=8))
    with pytest.raises(ScheduleError, match=r"tensorize mma\.m16n8k16: targets before sm_80 do not have"):
        ekc.compile(schedule, arch="sm_75")
    assert not ekc.devices.open("rtx2080ti").limits.tensor_cores


FLOAT8 = """
extern "C" __global__ void k(const unsigned* x, float* y) {
  unsigned a[4], b[2];
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; ++i) a[i] = x[threadIdx.x * 4 + i];
  for (int i = 0; i < 2; ++i) b[i] = x[threadIdx.x * 2 + i];
#pragma unroll 1
  for (int i = 0; i < 4096; ++i)
    asm volatile("mma.sync.aligned.m16n8k32.row.col.SUM.e4m3.e4m3.SUM {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = d[i];
}
"""
HALF_SUMS = """
extern "C" __global__ void k(const unsigned* x, unsigned* y) {
  unsigned a[4], b[2], d[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; ++i) a[i] = x[threadIdx.x * 4 + i];
  for (int i = 0; i < 2; ++i) b[i] = x[threadIdx.x * 2 + i];
#pragma unroll 1
  for (int i = 0; i < 8192; ++i)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.SUM.f16.f16.SUM LIST" : OUT
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = d[i];
}
"""
IN_HALF = {
    "SUM": "f16", "LIST": "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};", "OUT": '"+r"(d[0]), "+r"(d[1])',
}  # fmt: skip
IN_FLOAT = {
    "SUM": "f32", "LIST": "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};",
    "OUT": '"+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])',
}  # fmt: skip


def start_foreign(source: str, arch: str) -> CompiledKernel:
    arrays = {"x": BlankArray(4096), "y": BlankArray(4096)}
    return compile_foreign_kernel(source, arch, [KernelStart("k", (4096, 1, 1), (128, 1, 1), arrays)])


def work_seconds(source: str, device: str, arch: str) -> float:
    return ekc.devices.open(f"{device}@no-residual").time(start_foreign(source, arch)).latency_s


def test_sums_in_float16_are_twice_as_fast_on_geforce_only() -> None:
    sources = []
    for words in (IN_HALF, IN_FLOAT):
        text = HALF_SUMS
        for word, value in words.items():
            text = text.replace(word, value)
        sources.append(text)
    ratios = {
        device: work_seconds(sources[1], device, arch) / work_seconds(sources[0], device, arch)
        for device, arch in (("rtx4090", "sm_89"), ("rtx3090", "sm_86"), ("a100-sxm", "sm_80"))
    }
    assert ratios["rtx4090"] == pytest.approx(2.0, rel=0.1)
    assert ratios["rtx3090"] == pytest.approx(2.0, rel=0.1)
    assert ratios["a100-sxm"] == pytest.approx(1.0, rel=0.05)


def test_float8_runs_on_ada_is_widened_on_hopper_and_refused_elsewhere() -> None:
    source = FLOAT8.replace("SUM", "f32")
    counts = get_launch_profiles(start_foreign(source, "sm_89"))[0].counts
    assert counts.tensor_flops == {"float8": 2.0 * 16 * 8 * 32 * 4096}
    assert counts.float8_registers == 6 * 4096
    flops = 4096 * 4 * counts.tensor_flops["float8"]
    rate = flops / work_seconds(source, "rtx4090", "sm_89")
    assert 0.8 < rate / ekc.devices.open("rtx4090").peaks.flops_by_type["float8"] < 1.0
    hopper = flops / work_seconds(source, "h100", "sm_90a")
    # Each product of float8 is two of float16, twelve conversions and four additions.
    assert hopper < 0.5 * H100.throughput.mma_share * ekc.devices.open("h100").peaks.flops_by_type["float16"]
    with pytest.raises(DeviceError, match="float8 have no rate on rtx3090: its tensor cores have float16"):
        count_float8_events(RTX3090, start_foreign(source, "sm_89"))


def count_float8_events(spec: GpuSpec, kernel: CompiledKernel) -> None:
    """As a device would: its own arch check comes first, as sm_86 has no such instruction."""
    compute_work(spec, kernel, get_launch_profiles(kernel))
