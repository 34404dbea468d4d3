"""Intervals of simulated savings: they cover savings on devices with another residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import ModelledDevice
from ekc.devices.simulated import operating_point, power
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import (
    KernelWork,
    compute_settled_temperature,
    compute_steady_state,
    compute_work,
)
from ekc.devices.simulated.specs import A100, GpuSpec
from tests.devices import samples

REDRAWN = 100


def compute_energies(specs: Sequence[GpuSpec], kernel: CompiledKernel) -> NDArray[np.float64]:
    """Joules of a call on each warm board, by its models and its seeded residual."""
    profiles = profile_kernel(kernel)
    return np.array([compute_energy(one, compute_work(one, kernel, profiles)) for one in specs])


def compute_energy(spec: GpuSpec, work: KernelWork) -> float:
    state = compute_steady_state(spec, work, float(spec.fixed_mhz))
    idle_w = power.compute_idle_power(spec, state.clock_mhz, compute_settled_temperature(spec, state))
    return float((idle_w + state.active_power_w) * state.latency_s)


@pytest.mark.parametrize(
    ("kernel", "other"),
    [
        (samples.sgemm(1024), samples.sgemm(1024, conflicts=True)),
        (samples.sgemm(1024), samples.naive(1024)),
        (samples.matvec(8192), samples.copy(1 << 22)),
    ],
    ids=["like", "unlike", "memory"],
)
def test_interval_covers_savings_under_other_residuals(kernel: CompiledKernel, other: CompiledKernel) -> None:
    interval = SimulatedDevice(A100).estimate_saving_interval(kernel, other)
    redrawn = [replace(A100, name=f"a100 with residual {n}") for n in range(REDRAWN)]
    savings = 1 - compute_energies(redrawn, kernel) / compute_energies(redrawn, other)
    covered = np.count_nonzero((interval.low <= savings) & (savings <= interval.high))
    assert covered >= 0.9 * REDRAWN


def test_savings_between_like_kernels_are_surer() -> None:
    device, kernel = SimulatedDevice(A100), samples.sgemm(1024)
    like = device.estimate_saving_interval(kernel, samples.sgemm(1024, conflicts=True))
    unlike = device.estimate_saving_interval(kernel, samples.naive(1024))
    assert unlike.high > like.high
    assert device.estimate_saving_interval(kernel, kernel).low == pytest.approx(0.0, abs=0.03)


def test_interval_is_the_same_each_time() -> None:
    kernels = samples.sgemm(1024), samples.naive(1024)
    first, again = (SimulatedDevice(A100).estimate_saving_interval(*kernels) for _ in range(2))
    assert (first.low, first.high) == (again.low, again.high)


def test_capped_draws_stay_under_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    board = replace(A100, power=replace(A100.power, tdp_w=180.0))
    kernel, seen = samples.sgemm(1024), []
    find = operating_point.compute_steady_state
    monkeypatch.setattr(
        operating_point, "compute_steady_state", lambda *given: seen.append(find(*given)) or seen[-1]
    )
    SimulatedDevice(board, 1410).estimate_saving_interval(kernel, samples.copy(1 << 22))
    hot = board.power.ambient_c + board.power.kelvin_per_w * board.power.tdp_w
    for state in seen:
        idle = power.compute_idle_power(board, state.clock_mhz, hot)
        assert np.all(idle + state.active_power_w <= board.power.tdp_w * (1 + 1e-6))
    assert np.ptp(seen[0].clock_mhz) > 0, "each draw has its own clock"


def test_every_kind_of_event_has_a_group() -> None:
    kinds = [kind for group in power.ENERGY_GROUPS.values() for kind in group.kinds]
    assert sorted(kinds) == sorted([*power.UNIT_ENERGIES, power.DRAM])


def test_simulated_device_is_a_model() -> None:
    assert isinstance(SimulatedDevice(A100), ModelledDevice)
