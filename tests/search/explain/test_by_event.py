"""The account of an energy difference adds up, and each cause is what its name says."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ekc
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated import power, specs
from ekc.devices.simulated.device import SimulatedDevice, break_down_energy
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import KernelWork, compute_steady_state, compute_work
from ekc.devices.simulated.specs import GpuSpec
from ekc.errors import InvalidInput
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.explain.by_event import explain

MM = ekc.matmul(128, 128, 128)


def staged(op: ekc.Operator = MM) -> ekc.Schedule:
    """16 x 16 blocks, both inputs through shared memory."""
    return (
        ekc.Schedule(op)
        .split("i", (16,))
        .split("j", (16,))
        .split("k", (16,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C")
        .cache_read("A", "shared", at="k.0")
        .cache_read("B", "shared", at="k.0")
    )


def compute(schedule: ekc.Schedule, name: str = "a100") -> tuple[GpuSpec, KernelWork]:
    """(specification of a simulated device, work of the compiled schedule on it)."""
    device, spec = devices.open(name), specs.find_spec(name)
    assert spec is not None
    kernel = compile_schedule(schedule, device.arch, device.limits)
    return spec, compute_work(spec, kernel, profile_kernel(kernel))


@pytest.mark.parametrize("name", ["a100", "rtx4090"])
@pytest.mark.parametrize("schedule", [make_naive_schedule(MM), staged()], ids=["naive", "staged"])
def test_causes_add_up_to_power_times_latency(name: str, schedule: ekc.Schedule) -> None:
    (spec, work), clock_mhz = compute(schedule, name), devices.open(name).clocks().current_mhz
    account = break_down_energy(spec, work, clock_mhz)
    assert account.energy_j == pytest.approx(account.power_w * account.latency_s, rel=1e-9)
    assert account.latency_s == compute_steady_state(spec, work, clock_mhz).latency_s
    assert all(cause.joules >= 0 for cause in account.causes if cause.name != "unexplained by events")


def test_sum_of_causes_equals_long_metering() -> None:
    device = SimulatedDevice(specs.A100)
    kernel = compile_schedule(staged(), device.arch, device.limits)
    metered = device.meter(kernel, seconds=120.0).power_w
    assert device.break_down_energy(kernel).power_w == pytest.approx(metered, rel=0.01)


def test_capped_kernel_has_power_of_cap() -> None:
    spec, work = compute(staged(ekc.matmul(1024, 1024, 1024)))
    clock_mhz = devices.open("a100").clocks().current_mhz
    free = break_down_energy(spec, work, clock_mhz)
    cap = 0.9 * free.power_w
    capped = break_down_energy(replace(spec, power=replace(spec.power, tdp_w=cap)), work, clock_mhz)
    assert capped.power_w == pytest.approx(cap, rel=1e-3)
    assert capped.clock_mhz < free.clock_mhz == clock_mhz


def test_dynamic_energy_is_sum_of_parts() -> None:
    spec, work = compute(staged())
    (counted, _), *_ = work.launches
    parts = {part.kind: part.joules for part in power.compute_event_energies(spec, counted)}
    fma_j = (
        32 * counted.fma32 * power.UNIT_ENERGIES["multiply-add"].pj * spec.power.process_energy_scale * 1e-12
    )
    dram_j = counted.traffic.drifting_dram_bytes * spec.power.memory_pj_per_byte * 1e-12
    assert (parts["multiply-add"], parts["DRAM data"]) == pytest.approx((fma_j, dram_j))
    energy = power.compute_dynamic_energy(spec, counted)
    assert energy.core_j + energy.memory_j == pytest.approx(sum(parts.values()), rel=1e-12)


def test_difference_is_sum_of_lines() -> None:
    device = devices.open("a100")
    account = explain(make_naive_schedule(MM), staged(), device)
    assert sum(line.difference_j for line in account.lines) == pytest.approx(account.difference_j, rel=1e-9)
    lines = {line.cause: line for line in account.lines}
    # Only one of the two uses shared memory; both do the same multiplications.
    assert lines["shared request"].count_a == 0 < lines["shared request"].count_b
    assert lines["shared request"].difference_j > 0
    # "lane instr.": one for each lane of a warp.
    assert lines["multiply-add"].unit == power.LANES
    assert lines["multiply-add"].count_a == lines["multiply-add"].count_b == 128**3
    sizes = [abs(line.difference_j) for line in account.lines]
    assert sizes == sorted(sizes, reverse=True)
    back = explain(staged(), make_naive_schedule(MM), device)
    assert back.difference_j == pytest.approx(-account.difference_j)


def test_events_explain_all_without_residual() -> None:
    accounts = [
        explain(make_naive_schedule(MM), staged(), devices.open(name))
        for name in ("a100@no-residual", "a100")
    ]
    (plain,), (drawn,) = ([line for line in account.lines if not line.unit] for account in accounts)
    assert plain.cause == drawn.cause == "unexplained by events"
    assert plain.energy_a_j == plain.energy_b_j == 0, "not the rounding of two sums"
    assert drawn.energy_a_j != pytest.approx(0, abs=1e-9)


def test_equal_schedules_have_no_difference() -> None:
    account = explain(staged(), staged(), devices.open("a100"))
    assert account.difference_j == 0
    assert all(line.difference_j == 0 for line in account.lines)


def test_explain_refuses_two_operators() -> None:
    with pytest.raises(InvalidInput, match="two of one operator compare"):
        explain(make_naive_schedule(MM), make_naive_schedule(ekc.matmul(64, 64, 64)), devices.open("a100"))
