"""A tuning run on a recording by ekc: only recorded schedules are tried, and none is measured.

A genome is the number of a row. Its neighbours are the rows of most similar features, so that breeding makes
small and large steps, as in the design space.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Metering, Timing
from ekc.devices.recording import RecordedDevice, RecordedRow
from ekc.errors import DeviceError, RecordError
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.features import InputFunction, ModelInputs, build_features
from ekc.search.data.defaults import REPLAY
from ekc.search.data.population import Population
from ekc.search.database.database import RecordStore
from ekc.search.database.measured_set import analyse_schedules
from ekc.search.loop.measure import MeasurementFailure, Measurer

MeasurementT = TypeVar("MeasurementT", Timing, Metering)


class RecordedScheduleSpace:
    """The rows of a recording as genomes: a `ScheduleSpace`."""

    origin = ""
    """See `ScheduleSpace`."""

    def __init__(self, op: Operator, rows: Sequence[RecordedRow], limits: LaunchLimits) -> None:
        self.op, self.rows = op, rows
        self._quantities = analyse_schedules([row.schedule for row in rows], limits)
        self._neighbours = _find_neighbours(build_features(self._quantities))

    def sample(self, random: np.random.Generator, count: int) -> Population:
        """Sample rows uniformly."""
        return _make_population(random.integers(0, len(self.rows), count))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Take either parent, as there is no row between two rows."""
        from_father = random.random(len(mothers)) < 0.5
        return _make_population(np.where(from_father, fathers.genes[:, 0], mothers.genes[:, 0]))

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        """Move to another row: one of the nearest, or any."""
        columns = random.integers(0, self._neighbours.shape[1], len(parents))
        near = self._neighbours[parents.genes[:, 0], columns]
        far = random.integers(0, len(self.rows), len(parents))
        return _make_population(np.where(random.random(len(parents)) < REPLAY.far_move_share, far, near))

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """Return the population: every row was compiled and so is legal."""
        return population, Counter()

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        """Compute the number of each row, from 1."""
        return np.asarray(population.genes[:, 0] + 1)

    def build_schedule(self, population: Population, row: int) -> Schedule:
        """Return the recorded schedule."""
        return self._get_row(population, row).schedule

    def get_structure_name(self, population: Population, row: int) -> str:
        """Return the recorded name."""
        return self._get_row(population, row).structure

    def extract_inputs(self, population: Population, make_inputs: InputFunction) -> ModelInputs:
        """Compute the inputs of the models, by the analysis of this version of ekc."""
        rows = population.genes[:, 0]
        chosen = {name: values[rows] for name, values in self._quantities.items()}
        return make_inputs(chosen)

    def _get_row(self, population: Population, row: int) -> RecordedRow:
        return self.rows[int(population.genes[row, 0])]


def _make_population(rows: NDArray[np.int64]) -> Population:
    return Population(np.zeros(len(rows), dtype=np.int64), rows.reshape(-1, 1))


def _find_neighbours(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Nearest other rows of each row, nearest first: [n, at most `neighbour_count`]; a lone row: itself."""
    std = rows.std(axis=0)
    scaled = (rows / np.where(std > 0, std, 1.0)).astype(np.float64)
    count = max(1, min(REPLAY.neighbour_count, len(rows) - 1))
    found = []
    for i, one in enumerate(scaled):
        distances = ((scaled - one) ** 2).sum(axis=1)
        distances[i] = np.inf
        found.append(np.argsort(distances, kind="stable")[:count])
    return np.stack(found)


def make_recorded_schedule_space(
    op: Operator, device: RecordedDevice, objective: str
) -> RecordedScheduleSpace:
    """Make the space of the rows that have the figures of the objective, and of the failures; without the
    baseline. Raises `RecordError` if there is no such row."""
    rows, baseline = device.recording.find_rows(op), make_naive_schedule(op).digest
    complete = [r for r in rows if (r.meterings or objective == "latency" if r.timings else r.failure)]
    usable = [r for r in complete if r.digest != baseline]
    if not any(r.timings for r in usable):
        raise RecordError(
            f"{device.recording.path} holds {len(rows)} rows of {op.name}, none of them metered; "
            f"only --objective latency can be replayed"
        )
    return RecordedScheduleSpace(op, usable, device.limits)


class RecordedMeasurer(Measurer):
    """Reads figures of a recording. Only finalists without a recorded verdict are compiled."""

    is_replay: ClassVar[bool] = True

    def __init__(self, device: RecordedDevice) -> None:
        super().__init__(device, RecordStore(None))
        self._rows_by_digest = device.recording.by_digest

    def find_first_timing(self, schedule: Schedule) -> Timing | MeasurementFailure | None:
        """Find the recorded first timing, so that nothing is compiled ahead."""
        return self._look_up(schedule, lambda row: row.find_timing())

    def _find_or_time(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], repeat: int
    ) -> Timing | MeasurementFailure:
        return self._look_up(schedule, lambda row: row.find_timing(repeat))

    def _find_or_meter(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], window_s: float, repeat: int
    ) -> Metering | MeasurementFailure:
        return self._look_up(schedule, lambda row: row.find_metering(repeat))

    def find_verdict(self, schedule: Schedule) -> str | None:
        """Find the recorded verdict, which is of the kernel that was measured."""
        row = self._rows_by_digest.get(schedule.digest)
        return (row.checked if row else "") or super().find_verdict(schedule)

    def _look_up(
        self, schedule: Schedule, read: Callable[[RecordedRow], MeasurementT]
    ) -> MeasurementT | MeasurementFailure:
        row = self._rows_by_digest.get(schedule.digest)
        if row is None:
            return MeasurementFailure(f"device: schedule {schedule.digest} was not recorded")
        try:
            return read(row)
        except DeviceError as problem:
            return MeasurementFailure(str(problem))
