"""The place of a schedule among others: a sample of the space of the search, neighbours in a recording."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np

from ekc.devices.recording import RecordedDevice
from ekc.explorer.figures import open_device
from ekc.explorer.steps import Estimates, price_quantities
from ekc.ir.schedule.schedule import Schedule
from ekc.search.space.space import Space
from ekc.tables import count_nouns

SAMPLE_SIZE = 400
"""Schedules drawn from the space, before those that break a rule are dropped."""


def run_sample_job(empty_json: str, target: str, seed: int = 0) -> Estimates:
    """Estimated figures of legal schedules drawn from the space that the search of ekc breeds in."""
    device = open_device(target)
    space = Space(Schedule.from_json(empty_json).op, device.limits)
    random = np.random.default_rng(seed)
    drawn, _ = space.repair(random, space.sample(random, SAMPLE_SIZE))
    return price_quantities(space.compute_quantities(drawn), device)


def compute_share_below(value: float, sample: np.ndarray) -> float:
    """Share of the sample that is better (less) than a value, from 0 to 1."""
    return float(np.mean(sample < value)) if len(sample) else float("nan")


@dataclass(frozen=True)
class RecordedNeighbour:
    """A recorded schedule, and how it differs from the present one."""

    schedule: Schedule
    structure: str
    """Name of the structure that it came from."""
    changes: tuple[str, ...]
    """Steps left out (with a minus) and added (with a plus)."""
    latency_s: float | None
    energy_j: float | None
    failure: str

    @property
    def summary(self) -> str:
        """How many steps differ: `2 steps out, 3 in`."""
        out = sum(change.startswith("-") for change in self.changes)
        return f"{count_nouns(out, 'step')} out, {len(self.changes) - out} in"


def list_recorded_neighbours(schedule: Schedule, device: RecordedDevice) -> tuple[RecordedNeighbour, ...]:
    """All recorded schedules of the operator but the present one, those with fewest changed steps first."""
    found = []
    for row in device.recording.find_rows(schedule.op):
        if row.digest != schedule.digest:
            timing = row.find_timing() if row.timings else None
            metering = row.find_metering() if row.meterings else None
            found.append(
                RecordedNeighbour(
                    row.schedule,
                    row.structure,
                    _list_changes(schedule, row.schedule),
                    timing.latency_s if timing else None,
                    metering.energy_j if metering else None,
                    row.failure,
                )
            )
    return tuple(sorted(found, key=lambda one: len(one.changes)))


def _list_changes(before: Schedule, after: Schedule) -> tuple[str, ...]:
    old, new = ([s.to_python().removeprefix(".") for s in one.steps] for one in (before, after))
    changes = []
    for tag, i, j, k, n in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            changes += [f"- {text}" for text in old[i:j]] + [f"+ {text}" for text in new[k:n]]
    return tuple(changes)
