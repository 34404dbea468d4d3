"""The model of kernels over clocks against a law of its own form: errors, draws, the power cap."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.search.clocks.clock_model import ClockModel, ClockReading
from tests.search.clocks.law import CLOCKS, LawKernel

KERNELS = LawKernel(0.05, 0.95, 80.0, 5.0), LawKernel(0.5, 0.5, 40.0, 60.0)
"""One computes, the other waits for memory half of its time."""


def compute_law(kernel: int, mhz: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(seconds, watts, idle watts) of a kernel."""
    return KERNELS[kernel].compute(mhz)


def read_law(kernel: int, mhz: float, is_metered: bool = True) -> ClockReading:
    seconds, watts, idle = (float(x) for x in compute_law(kernel, mhz))
    if not is_metered:
        return ClockReading(kernel, mhz, seconds, 0.001)
    return ClockReading(kernel, mhz, seconds, 0.001, watts, 0.01, idle)


def read_both(metered: dict[int, tuple[int, ...]]) -> list[ClockReading]:
    timed = [read_law(k, mhz, False) for k in (0, 1) for mhz in (300, 705, 1410)]
    return timed + [read_law(k, mhz) for k, clocks in metered.items() for mhz in clocks]


def compute_errors(model: ClockModel) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors of latency and energy: [kernel, clock]."""
    found = model.predict()
    true = [compute_law(k, np.array(CLOCKS, float)) for k in (0, 1)]
    seconds, joules = np.array([t for t, _, _ in true]), np.array([t * w for t, w, _ in true])
    return np.exp(found.log_latency) / seconds - 1, np.exp(found.log_energy) / joules - 1


def test_three_meterings_of_each_predict_all_clocks() -> None:
    latency, energy = compute_errors(
        ClockModel(read_both({0: (600, 1005, 1410), 1: (600, 1005, 1410)}), CLOCKS)
    )
    assert np.abs(latency).max() < 0.002
    assert np.abs(energy).max() < 0.03


def test_meterings_of_one_kernel_tell_of_the_other() -> None:
    alone = compute_errors(ClockModel(read_both({0: (1275,), 1: (1275,)}), CLOCKS))[1][1]
    shared = compute_errors(ClockModel(read_both({0: (600, 1005, 1275, 1410), 1: (1275,)}), CLOCKS))[1][1]
    assert np.abs(shared).mean() < np.abs(alone).mean()


def test_errors_are_small_where_it_was_metered() -> None:
    found = ClockModel(read_both({0: (1275,), 1: (1275,)}), CLOCKS).predict()
    near, far = CLOCKS.index(1275), CLOCKS.index(600)
    assert found.energy_error[0, near] < 0.015
    assert found.energy_error[0, far] > 2 * found.energy_error[0, near]


def test_draws_scatter_as_the_errors_say() -> None:
    model = ClockModel(read_both({0: (1275,), 1: (1275, 600)}), CLOCKS)
    draws, found = model.draw_log_energies(4000, np.random.default_rng(0)), model.predict()
    np.testing.assert_allclose(draws.std(axis=0), found.power_error, rtol=0.1)
    np.testing.assert_allclose(draws.mean(axis=0), found.log_energy, atol=0.006)


def test_kernel_over_the_cap_runs_at_the_clock_that_keeps_it() -> None:
    readings = read_both({0: (600, 1005, 1410), 1: (600, 1005, 1410)})
    watts = float(compute_law(0, 1200)[1])
    free, capped = (ClockModel(readings[:-4], CLOCKS, cap).predict() for cap in (None, watts))
    at, last = CLOCKS.index(1200), CLOCKS.index(1410)
    assert capped.log_latency[0, last] == pytest.approx(free.log_latency[0, at], abs=0.03)
    assert free.log_latency[0, last] < free.log_latency[0, at]


def test_reading_under_the_cap_holds_for_higher_clocks() -> None:
    capped = ClockReading(0, 1305.0, float(compute_law(0, 1305)[0]), 0.001, 250.0, 0.01, 50.0, is_capped=True)
    found = ClockModel([*read_both({0: (600, 1005), 1: (1005,)}), capped], CLOCKS).predict()
    here, last = CLOCKS.index(1305), CLOCKS.index(1410)
    assert found.log_energy[0, here] == found.log_energy[0, last]
    assert found.log_energy[1, here] != found.log_energy[1, last]


def test_kernel_without_a_timing_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel 0 was never timed"):
        ClockModel([read_law(1, 900)], CLOCKS)
