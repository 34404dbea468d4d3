from dataclasses import replace

import pytest

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.simulated import power
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import POWER_CAP, SteadyState, compute_work, find_steady_state
from ekc.devices.simulated.specs import A100, H200, GpuSpec
from tests.devices import samples

WARM_C = 50.0


def settled(kernel: CompiledKernel, clock_mhz: float, spec: GpuSpec = A100) -> SteadyState:
    """Without the seeded residuals."""
    todo = compute_work(spec, kernel, profile_kernel(kernel))
    energies = [power.compute_dynamic_energy(spec, found) for found, _ in todo.launches]
    return find_steady_state(spec, replace(todo, time_factors=(1.0,), dynamic_energy=energies[0]), clock_mhz)


def board_watts(state: SteadyState, spec: GpuSpec = A100) -> float:
    return state.active_power_w + power.compute_idle_power(spec, state.clock_mhz, WARM_C)


@pytest.mark.parametrize(
    # The best tile of KernelTuner's a100_gemm_clocks recording (CLBlast, 4096^3).
    ("clock_mhz", "watts"),
    [(330, 63.0), (690, 94.0), (1050, 120.7), (1230, 176.4)],
)
def test_good_product_draws_what_was_recorded(clock_mhz: float, watts: float) -> None:
    assert board_watts(settled(samples.sgemm(4096), clock_mhz)) == pytest.approx(watts, rel=0.1)


def test_top_clock_reaches_the_power_cap() -> None:
    asked = settled(samples.sgemm(4096), 1410)
    hot = A100.power.ambient_c + A100.power.kelvin_per_w * A100.power.tdp_w
    assert asked.throttle == (POWER_CAP,)
    assert 1275 < asked.clock_mhz < 1410
    assert asked.active_power_w + power.compute_idle_power(A100, asked.clock_mhz, hot) == pytest.approx(
        250.0, rel=0.001
    )


def test_lower_cap_costs_clock_and_time() -> None:
    poor = replace(A100, power=replace(A100.power, tdp_w=150.0))
    free, capped = settled(samples.sgemm(4096), 1275), settled(samples.sgemm(4096), 1275, poor)
    assert not free.throttle
    assert capped.clock_mhz < free.clock_mhz
    assert capped.latency_s > free.latency_s
    assert board_watts(capped, poor) <= 150.0


def test_memory_bound_work_saves_energy_at_the_knee() -> None:
    slow, fast = (settled(samples.copy(1 << 26), clock) for clock in (1005, 1410))
    saved = 1 - board_watts(slow) * slow.latency_s / (board_watts(fast) * fast.latency_s)
    assert 0.2 < saved < 0.45


def test_h200_streams_within_its_recorded_range() -> None:
    state = settled(samples.copy(1 << 26, "sm_90"), 1590, H200)
    assert 350 < board_watts(state, H200) < 670


def test_heat_costs_power() -> None:
    per_kelvin = power.compute_idle_power(A100, 1275, 61.0) - power.compute_idle_power(A100, 1275, 60.0)
    assert 0.2 < per_kelvin < 0.8
