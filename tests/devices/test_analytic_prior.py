"""The analytic prior: latency and power from counted work and the peaks of a device."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.devices import analytic_prior
from tests.search.helpers import PEAKS, legal, space


def test_standby_power_falls_with_idle_multiprocessors() -> None:
    figures = space("matmul").compute_quantities(legal("matmul", 3)) | {"balance": np.array([1.0, 0.5, 0.1])}
    standby_w = analytic_prior.predict_prior(figures, PEAKS).standby_w
    np.testing.assert_allclose(standby_w, [100.0, 85.0, 73.0])


def test_prior_power_counts_data_movement_and_arithmetic() -> None:
    figures = space("matmul").compute_quantities(legal("matmul", 200))
    assert (figures["balance"] < 1).any()
    prior = analytic_prior.predict_prior(figures, PEAKS)
    working_j = (prior.power_w - prior.standby_w) * prior.latency_s
    np.testing.assert_allclose(working_j, analytic_prior._predict_work_energy_j(figures))
    for name in ("total_operations", "total_global_load_sectors", "l2_bytes", "dram_bytes"):
        still = {**figures, name: figures[name] * 1.5}
        gained = analytic_prior._predict_work_energy_j(still) - analytic_prior._predict_work_energy_j(figures)
        assert (gained[figures[name] > 0] > 0).all()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("l2_bytes", "l2"),
        ("total_shared_load_wavefronts", "l1"),
        ("dram_bytes", "dram"),
        ("total_operations", "arithmetic"),
    ],
)
def test_prior_energy_of_each_memory_level(name: str, part: str) -> None:
    figures = space("matmul").compute_quantities(legal("matmul", 50))
    before = analytic_prior._predict_resource_times_s(figures, PEAKS)
    after = analytic_prior._predict_resource_times_s({**figures, name: 1e3 + 100 * figures[name]}, PEAKS)
    assert (after[part] > before[part]).all()
    for other in set(before) - {part}:
        np.testing.assert_array_equal(after[other], before[other])


def test_prior_latency_counts_l1_wavefronts() -> None:
    figures = space("matmul").compute_quantities(legal("matmul", 50))
    none = {name: 0 * values for name, values in figures.items() if name.startswith("total_")}
    new = 1000 + 0 * figures["balance"]

    def seconds(sectors: float) -> NDArray[np.float64]:
        moved = {"total_global_load_requests": new, "total_global_load_sectors": sectors * new}
        return analytic_prior._predict_resource_times_s({**figures, **none, **moved}, PEAKS)["l1"]

    np.testing.assert_allclose(seconds(1.0), seconds(4.0))
    np.testing.assert_allclose(seconds(16.0), 4 * seconds(4.0))
