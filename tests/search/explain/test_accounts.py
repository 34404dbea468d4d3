"""The account by features against the account of the simulated device itself, which knows what it charged."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import compile_schedule
from ekc.devices.recording import RecordedDevice
from ekc.devices.simulated import specs
from ekc.devices.simulated.device import EnergyBreakdown, SimulatedDevice
from ekc.search.database.measured_set import load_measured_set
from ekc.search.explain.by_feature import EnergyAccount, explain_learned, make_account
from tests.search.explain.small_kernels import OP, Name, kernels, record

A100 = SimulatedDevice(specs.A100)
APART = math.log(2)
"""Pairs whose energies differ more are asked about: much of the rest is the device's seeded luck."""
EACH = 6
"""Every sixth such pair is tested."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedDevice:
    file = record(tmp_path_factory.mktemp("accounts") / "a100.jsonl.gz", "a100")
    return RecordedDevice.open(f"recorded:{file}")


@pytest.fixture(scope="module")
def exact() -> dict[Name, EnergyBreakdown]:
    return {name: _exact(schedule) for name, schedule in kernels().items()}


def _exact(schedule: ekc.Schedule) -> EnergyBreakdown:
    return A100.break_down_energy(compile_schedule(schedule, A100.arch, A100.limits))


def _events(found: EnergyBreakdown) -> dict[str, float]:
    """Joules of events, by the groups that can be credited; what is paid by the second is left out."""
    groups = dict.fromkeys(("global memory", "shared memory", "instructions"), 0.0)
    for cause in found.causes:
        if cause.name in ("L1 sectors", "L2 data", "DRAM data"):
            groups["global memory"] += cause.joules
        elif cause.name.startswith("shared "):
            groups["shared memory"] += cause.joules
        elif not cause.name.endswith("x time"):
            groups["instructions"] += cause.joules
    return groups


def _credits(found: EnergyAccount) -> dict[str, float]:
    """The same groups of the account by features."""
    mine = {line.cause: line.energy for line in found.lines[:-1]}
    return {
        "global memory": mine["global memory"],
        "shared memory": mine["shared memory"],
        "instructions": mine["arithmetic"] + mine["loops and guards"],
    }


def _largest(parts: dict[str, float]) -> str:
    return max(parts, key=lambda name: abs(parts[name]))


def _apart(exact: dict[Name, EnergyBreakdown]) -> list[tuple[Name, Name]]:
    return [
        (a, b)
        for a, b in itertools.combinations(exact, 2)
        if abs(math.log(exact[b].energy_j / exact[a].energy_j)) >= APART
    ]


def test_account_agrees_with_simulated_energies_in_sign_and_largest_group(
    recorded: RecordedDevice, exact: dict[Name, EnergyBreakdown]
) -> None:
    """Nine in ten of the pairs that differ much, and in no pair the sign of the whole is wrong."""
    known, schedules = load_measured_set(OP, recorded, None), kernels()
    agreed, named = [], []
    for a, b in _apart(exact)[::EACH]:
        found = make_account(schedules[a], schedules[b], known, recorded)
        expected = sum(line.energy for line in found.lines[:-1])
        assert expected * (exact[b].energy_j - exact[a].energy_j) > 0, (a, b)
        one, other, mine = _events(exact[a]), _events(exact[b]), _credits(found)
        truth = {name: other[name] - one[name] for name in one}
        top = _largest(truth)
        named.append(top)
        agreed.append(_largest(mine) == top and mine[top] * truth[top] > 0)
    assert len(agreed) >= 20
    assert np.mean(agreed) >= 0.9
    # Naming the same group always would not do.
    assert max(named.count(name) for name in named) / len(named) < 0.8


def test_account_names_the_only_change(recorded: RecordedDevice, exact: dict[Name, EnergyBreakdown]) -> None:
    """Only the order of threads differs: bank conflicts where inputs are staged, else lost coalescing."""
    known, schedules = load_measured_set(OP, recorded, None), kernels()
    pairs = [(a, b) for a, b in _apart(exact) if a[:4] == b[:4]]
    assert {a[3] for a, _ in pairs} == {False, True}
    for a, b in pairs:
        found = make_account(schedules[a], schedules[b], known, recorded)
        cause = "shared memory" if a[3] else "global memory"
        (largest, *rest) = found.lines[:-1]
        assert largest.cause == cause, (a, b)
        assert largest.energy > 0
        assert all(abs(line.energy) < largest.energy / 4 for line in rest), (a, b)
        assert not {f.name for line in rest for f in line.features} & {"threads", "blocks", "occupancy"}


def test_learned_model_errs_less_than_prior(
    recorded: RecordedDevice,
) -> None:
    first, *_, last = kernels().values()
    found = explain_learned(first, last, recorded, None)
    assert found.device.startswith("a100 (simulated), recorded")
    assert found.quality.energy.error < found.quality.energy_by_prior.error
