from dataclasses import fields, replace

import numpy as np
import pytest

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.simulated import power, specs
from ekc.devices.simulated.launch_counts import LAUNCH_PROFILES, get_launch_profiles, profile_kernel
from ekc.devices.simulated.operating_point import POWER_CAP, SteadyState, compute_steady_state, compute_work
from ekc.devices.simulated.specs import A100, H100, H200, GpuSpec
from tests.devices import samples


def settled(kernel: CompiledKernel, clock_mhz: float, spec: GpuSpec = A100) -> SteadyState:
    """Without the seeded residuals."""
    todo = compute_work(spec, kernel, get_launch_profiles(kernel))
    energies = [power.compute_dynamic_energy(spec, found) for found, _ in todo.launches]
    return compute_steady_state(
        spec, replace(todo, time_factors=(1.0,), dynamic_energy=energies[0]), clock_mhz
    )


def board_watts(state: SteadyState, spec: GpuSpec = A100) -> float:
    """Watts of a warm board."""
    watts = 0.0
    for _ in range(20):
        celsius = spec.power.ambient_c + spec.power.kelvin_per_w * watts
        watts = float(state.active_power_w + power.compute_idle_power(spec, state.clock_mhz, celsius))
    return watts


@pytest.mark.parametrize(
    # The best tile of KernelTuner's a100_gemm_clocks recording (CLBlast, 4096^3).
    ("clock_mhz", "watts"),
    [(330, 63.0), (690, 94.0), (1050, 120.7), (1230, 176.4)],
)
def test_good_product_draws_what_was_recorded(clock_mhz: float, watts: float) -> None:
    """Without the conflicts of register banks that an eighth of the products of the sample have."""
    kernel = samples.sgemm(4096)
    (ran,) = profile_kernel(kernel)
    free = replace(ran, machine=replace(ran.machine, bank_conflicts=0.0))
    kernel = replace(kernel, facts={LAUNCH_PROFILES: (free,)})
    assert board_watts(settled(kernel, clock_mhz)) == pytest.approx(watts, rel=0.1)


def test_work_beyond_the_cap_runs_at_the_clock_that_draws_the_cap() -> None:
    spec = replace(A100, power=replace(A100.power, tdp_w=200.0))
    asked = settled(samples.sgemm(4096), 1410, spec)
    hot = spec.power.ambient_c + spec.power.kelvin_per_w * spec.power.tdp_w
    assert asked.throttle == (POWER_CAP,)
    assert 1230 < asked.clock_mhz < 1410
    assert asked.active_power_w + power.compute_idle_power(spec, asked.clock_mhz, hot) == pytest.approx(
        200.0, rel=0.001
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
    # The memory keeps its clock and voltage, and draws more than half of the power.
    assert 0.1 < saved < 0.45


def test_h200_streams_within_its_recorded_range() -> None:
    state = settled(samples.copy(1 << 26, "sm_90"), 1590, H200)
    assert 350 < board_watts(state, H200) < 670


def test_heat_costs_power() -> None:
    per_kelvin = power.compute_idle_power(A100, 1275, 61.0) - power.compute_idle_power(A100, 1275, 60.0)
    assert 0.2 < per_kelvin < 0.8


ALL = [specs.find_spec(name) for name in specs.list_names()]


@pytest.mark.parametrize("spec", ALL, ids=specs.list_names())
class TestEverySpec:
    def test_voltage_is_flat_up_to_the_knee_and_rises_beyond(self, spec: GpuSpec) -> None:
        volts = spec.voltage.at_clock(np.array(spec.list_clocks_mhz(), float))
        below = np.array(spec.list_clocks_mhz()) <= spec.voltage.knee_mhz
        assert np.all(volts[below] == 1.0)
        assert np.all(np.diff(volts[~below]) > 0)
        assert 1.1 < volts[-1] < 1.5

    def test_idle_power_rises_with_clock_and_temperature(self, spec: GpuSpec) -> None:
        clocks = np.array(spec.list_clocks_mhz(), float)
        watts = power.compute_idle_power(spec, clocks, np.array([[35.0], [45.0], [70.0]]))
        assert np.all(np.diff(watts, axis=0) > 0)
        assert np.all(np.diff(watts, axis=1) > 0)

    def test_every_energy_lies_within_its_bounds(self, spec: GpuSpec) -> None:
        for kind, one in power.UNIT_ENERGIES.items():
            least, most = one.bounds
            assert least <= one.pj <= most, kind
            assert one.source
        ratio = spec.power.memory_pj_per_byte / spec.power.memory_published_pj_per_byte
        assert 1 / power.BOUND_FACTOR <= ratio <= power.BOUND_FACTOR
        assert spec.sources["memory_published_pj_per_byte"]


@pytest.mark.parametrize(
    # Recorded on an A100-PCIE-40GB: EnergAIzer, arXiv 2604.20105.
    ("clock_mhz", "millivolt", "watts"),
    [
        *((210, 693.75, 44.47), (1005, 693.75, 48.24), (1110, 725.0, 50.62), (1200, 768.75, 54.28)),
        *((1275, 800.0, 56.76), (1350, 843.75, 61.51), (1410, 893.75, 67.34)),
    ],
)
def test_voltage_and_idle_power_of_a100_meet_the_recording(
    clock_mhz: float, millivolt: float, watts: float
) -> None:
    assert A100.voltage.at_clock(clock_mhz) == pytest.approx(millivolt / 693.75, rel=0.02)
    idle = power.compute_idle_power(A100, clock_mhz, power.REFERENCE_TEMPERATURE_C)
    assert idle == pytest.approx(watts, rel=0.10)


@pytest.mark.parametrize(
    # Recorded on an H100 SXM, the same source; no voltage is recorded.
    ("clock_mhz", "watts"),
    [
        (360, 72.76),
        (1005, 74.29),
        (1200, 77.93),
        (1500, 97.12),
        (1695, 109.7),
        (1845, 118.89),
        (1980, 120.14),
    ],
)
def test_idle_power_of_h100_meets_the_recording(clock_mhz: float, watts: float) -> None:
    idle = power.compute_idle_power(H100, clock_mhz, power.REFERENCE_TEMPERATURE_C)
    assert idle == pytest.approx(watts, rel=0.10)


def test_more_of_any_event_takes_more_energy() -> None:
    """Each kind of event has a count that its energy follows, and no other count lowers it."""
    kernel = samples.sgemm(1024)
    (counted, _), *_ = compute_work(A100, kernel, profile_kernel(kernel)).launches
    moved, plain = counted.traffic, power.compute_dynamic_energy(A100, counted)
    raised = []
    for name in (x.name for x in fields(counted) if x.type == "float" and x.name != "active_lanes"):
        more = replace(counted, **{name: getattr(counted, name) + 1e6})
        raised.append((name, power.compute_dynamic_energy(A100, more).core_j - plain.core_j))
    for name in ("requests", "sectors", "l2_bytes", "drifting_dram_bytes"):
        more = replace(counted, traffic=replace(moved, **{name: getattr(moved, name) + 1e6}))
        found = power.compute_dynamic_energy(A100, more)
        raised.append((name, found.core_j + found.memory_j - plain.core_j - plain.memory_j))
    assert all(joules >= 0 for _, joules in raised)
    assert sum(joules > 0 for _, joules in raised) >= len(power.UNIT_ENERGIES)


def test_memory_energy_does_not_follow_the_core_voltage() -> None:
    energy = power.DynamicEnergy(core_j=2.0, memory_j=3.0)
    assert energy.at_voltage(1.0) == 5.0
    assert energy.at_voltage(1.2) == pytest.approx(2.0 * 1.44 + 3.0)

    def test_factors_of_a_gpu_keep_energies_within_their_bounds(self, spec: GpuSpec) -> None:
        assert set(spec.power.energy_factors) <= set(power.UNIT_ENERGIES)
        for kind, factor in spec.power.energy_factors.items():
            least, most = power.UNIT_ENERGIES[kind].bounds
            assert least <= factor * power.UNIT_ENERGIES[kind].pj <= most, kind
