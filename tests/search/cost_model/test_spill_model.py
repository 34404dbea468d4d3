"""The spill model: learned from ptxas, its probability, and spilled kernels left out of the latency model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ekc
from ekc import devices
from ekc.codegen.compiled import Resources
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Timing
from ekc.devices.measurement_json import measurement_to_json, timing_from_json
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.cost_model.feature_table import FEATURE_NAMES
from ekc.search.cost_model.features import REGISTERS_COLUMN, THREADS_COLUMN
from ekc.search.cost_model.learner import Learner
from ekc.search.cost_model.surrogate import SpillModel, count_needed_registers, has_spilled
from ekc.search.data.defaults import SPILLS, SURROGATE
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from tests.search.helpers import kernels

OFF = FEATURE_NAMES.index("statements")
"""Feature column with the log error of the register estimate, in these tests."""


def _rows(count: int, seed: int = 0, threads: int = 256) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    rows = np.zeros((count, len(FEATURE_NAMES)), np.float32)
    rows[:, OFF] = random.uniform(-0.5, 0.5, count)
    rows[:, REGISTERS_COLUMN] = np.log2(random.uniform(100, 250, count) + 1)
    rows[:, THREADS_COLUMN] = np.log2(threads + 1)
    return rows


def _needs(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray((np.exp2(rows[:, REGISTERS_COLUMN]) - 1) * np.exp(rows[:, OFF]), dtype=np.float64)


def _given(need: float, max_registers: int = 255) -> tuple[Resources, ...]:
    """Resources of a kernel of one launch that needs so many registers."""
    registers = min(int(need), max_registers)
    return (Resources(registers, 0, 0, 0, 4 * max(int(need) - max_registers, 0)),)


def _taught(rows: NDArray[np.float32], seed: int = 0) -> SpillModel:
    model = SpillModel(LaunchLimits())
    model.learn(rows, [_given(need) for need in _needs(rows)])
    return model


def test_feasibility_is_low_above_the_register_budget() -> None:
    model, fresh = _taught(_rows(80)), _rows(400, seed=1)
    chance, need = np.exp(model.predict_log_feasibility(fresh)), _needs(fresh)
    assert (chance[need > 320] < 0.1).all()
    assert (chance[need < 230] > 0.9).all()
    assert np.corrcoef(chance, need < 255 + SPILLS.stack_bytes / 4)[0, 1] > 0.7


def test_more_threads_reduce_the_register_budget() -> None:
    model, fresh = _taught(_rows(80)), _rows(400, seed=1, threads=416)
    # 65,536 / 416 is 157, of which whole units of 8 are 152.
    chance, need = np.exp(model.predict_log_feasibility(fresh)), _needs(fresh)
    assert (chance[need > 200] < 0.2).all()
    assert (chance[need < 130] > 0.8).all()


def test_feasibility_is_one_before_learning_and_far_from_the_limit() -> None:
    rows = _rows(SURROGATE.min_rows - 1)
    np.testing.assert_array_equal(_taught(rows).predict_log_feasibility(rows), 0.0)
    small = _rows(20)
    small[:, REGISTERS_COLUMN] = np.log2(41.0)
    np.testing.assert_array_equal(_taught(_rows(80)).predict_log_feasibility(small), 0.0)
    assert SpillModel(LaunchLimits()).predict_log_feasibility(small[:0]).shape == (0,)


def test_feasibility_is_never_zero() -> None:
    rows = _rows(80)
    rows[:, OFF] += 3.0
    chance = _taught(rows).predict_log_feasibility(rows)
    assert np.isfinite(chance).all()
    assert (chance < np.log(0.01)).all()


def test_launch_with_most_registers_counts() -> None:
    fits, over = Resources(255, 0, 0, 0, SPILLS.stack_bytes), Resources(128, 0, 8, 8, SPILLS.stack_bytes + 8)
    assert not has_spilled([fits])
    assert has_spilled([fits, over])
    assert not has_spilled([])
    assert count_needed_registers([fits, over]) == 255 + SPILLS.stack_bytes / 4
    assert count_needed_registers([over]) == 128 + (SPILLS.stack_bytes + 8) / 4


@pytest.mark.parametrize("stack", [0, SPILLS.stack_bytes, SPILLS.stack_bytes + 4, 4096])
def test_spilled_kernels_are_left_out_of_the_latency_model(stack: int) -> None:
    device = devices.open("a100")
    learner = Learner(device.peaks, device.limits, 0.05)
    rows = _rows(2 * SURROGATE.min_rows)
    made = kernels(np.ones(len(rows)), np.ones(len(rows)), rows)
    odd = (Resources(255, 0, 0, 0, stack),)
    for i, c in enumerate(made):
        c.timings = [replace(c.timings[0], resources=odd if i % 2 else _given(100.0))]
    learner.learn_latency(made)
    assert len(learner.latency_model._residuals) == len(made) // (2 if stack > SPILLS.stack_bytes else 1)
    assert len(learner.spill_model._surrogate._residuals) == len(made)


def test_kernels_without_resources_teach_latency_alone() -> None:
    """As in record files of an earlier ekc."""
    device = devices.open("a100")
    learner = Learner(device.peaks, device.limits, 0.05)
    rows = _rows(SURROGATE.min_rows)
    learner.learn_latency(kernels(np.ones(len(rows)), np.ones(len(rows)), rows))
    assert learner.latency_model.is_ready
    np.testing.assert_array_equal(learner.spill_model.predict_log_feasibility(rows), 0.0)


def test_stored_timing_has_resources(tmp_path: Path) -> None:
    device, schedule = devices.open("a100"), make_naive_schedule(ekc.matvec(64, 64))
    kernel = compile_schedule(schedule, device.arch, device.limits)
    with RecordStore(tmp_path / "r.db") as store:
        first = Measurer(device, store).time(schedule, lambda: kernel)
        again = Measurer(device, store).time(schedule, lambda: pytest.fail("the timing is stored"))
    assert isinstance(first, Timing)
    assert first.resources == kernel.resources != ()
    assert again == first
    earlier: dict[str, Any] = measurement_to_json(first)
    del earlier["resources"]
    assert timing_from_json(earlier).resources == ()


def test_feasibility_does_not_depend_on_other_genomes() -> None:
    model, fresh = _taught(_rows(80)), _rows(50, seed=2)
    all_at_once = np.exp(model.predict_log_feasibility(fresh))
    alone = np.exp([float(model.predict_log_feasibility(fresh[[i]])[0]) for i in range(len(fresh))])
    np.testing.assert_allclose(all_at_once, alone, atol=1e-4)
    assert all_at_once.min() == pytest.approx(SPILLS.min_feasibility)
