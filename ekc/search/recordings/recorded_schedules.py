"""A tuning run on a recording of ekc's own: only what was recorded is tried, and nothing is measured.

A genome is the number of a row. Its neighbours are the rows whose analysis is most like its own, so that
breeding still moves by small and by large steps; the models rank the whole table all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import Metering, Peaks, Timing
from ekc.devices.recording import Recorded, RecordedDevice
from ekc.errors import DeviceError, RecordError
from ekc.ir.analysis.analysis import analyse
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.schedule import Schedule
from ekc.search.measuring import Bench, Failure
from ekc.search.models.analysed import Analysed, analysed
from ekc.search.models.features import features
from ekc.search.population import Population
from ekc.search.records.store import RecordStore
from ekc.search.space.naive import naive

Figure = TypeVar("Figure", Timing, Metering)
NEAREST = 8
FAR_MOVES = 0.5
"""Share of moves to any row instead of one of the nearest."""


class RecordedSchedules:
    """The rows of a recording that may win, as genomes."""

    def __init__(self, op: Operator, rows: Sequence[Recorded], limits: Limits) -> None:
        self.op, self.rows = op, rows
        columns = [analyse(row.schedule.program, limits) for row in rows]
        self._figures = {name: np.concatenate([c[name] for c in columns]) for name in columns[0]}
        self._near = _nearest(features(self._figures))

    def draw(self, random: np.random.Generator, count: int) -> Population:
        """Uniform over the rows."""
        return _of(random.integers(0, len(self.rows), count))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Either parent: rows have nothing between them."""
        taken = random.random(len(mothers)) < 0.5
        return _of(np.where(taken, fathers.genes[:, 0], mothers.genes[:, 0]))

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        """Another row: one of the nearest, or any."""
        near = self._near[parents.genes[:, 0], random.integers(0, self._near.shape[1], len(parents))]
        far = random.integers(0, len(self.rows), len(parents))
        return _of(np.where(random.random(len(parents)) < FAR_MOVES, far, near))

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """Every row is as it was measured; nothing is to be mended."""
        return population, Counter()

    def keys(self, population: Population) -> NDArray[np.int64]:
        """The number of the row, from 1."""
        return np.asarray(population.genes[:, 0] + 1)

    def schedule(self, population: Population, row: int) -> Schedule:
        """The recorded schedule."""
        return self._row(population, row).schedule

    def structure_name(self, population: Population, row: int) -> str:
        """As it was recorded."""
        return self._row(population, row).structure

    def seen(self, population: Population, peaks: Peaks) -> Analysed:
        """What the models see of the rows, by the analysis of this ekc."""
        return analysed({n: values[population.genes[:, 0]] for n, values in self._figures.items()}, peaks)

    def _row(self, population: Population, row: int) -> Recorded:
        return self.rows[int(population.genes[row, 0])]


def _of(rows: NDArray[np.int64]) -> Population:
    return Population(np.zeros(len(rows), dtype=np.int64), rows.reshape(-1, 1))


def _nearest(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """[n, at most `NEAREST`] of the other rows, nearest first; a lone row is its own neighbour."""
    spread = rows.std(axis=0)
    scaled = (rows / np.where(spread > 0, spread, 1.0)).astype(np.float64)
    found = []
    for i, one in enumerate(scaled):
        far = ((scaled - one) ** 2).sum(axis=1)
        far[i] = np.inf
        found.append(np.argsort(far, kind="stable")[: max(1, min(NEAREST, len(rows) - 1))])
    return np.stack(found)


def recorded_schedules(op: Operator, device: RecordedDevice, objective: str) -> RecordedSchedules:
    """What a run may try: rows with a latency, and with an energy where the objective asks for one; failures
    too, and the baseline left out. Raises `RecordError` where there is none."""
    rows, baseline = device.recording.of(op), naive(op).digest
    asked = [r for r in rows if (r.meterings or objective == "latency" if r.timings else r.failure)]
    usable = [r for r in asked if r.digest != baseline]
    if not any(r.timings for r in usable):
        raise RecordError(
            f"{device.recording.path} holds {len(rows)} rows of {op.name}, none of them metered; "
            f"only --objective latency can be replayed"
        )
    return RecordedSchedules(op, usable, device.limits)


class RecordedBench(Bench):
    """Looks the figures up; compiles nothing but the finalists that no gate has judged."""

    replays: ClassVar[bool] = True

    def __init__(self, device: RecordedDevice) -> None:
        super().__init__(device, RecordStore(None))
        self._known = device.recording.by_digest

    def known(self, schedule: Schedule) -> Timing | Failure | None:
        """What was recorded: nothing needs to be compiled."""
        return self._look(schedule, lambda row: row.timing())

    def _time(self, schedule: Schedule, kernel: Callable[[], CompiledKernel], draw: int) -> Timing | Failure:
        return self._look(schedule, lambda row: row.timing(draw))

    def _meter(
        self, schedule: Schedule, kernel: Callable[[], CompiledKernel], seconds: float, draw: int
    ) -> Metering | Failure:
        return self._look(schedule, lambda row: row.metering(draw))

    def checked(self, schedule: Schedule) -> str | None:
        """The verdict of then: it is of the kernel that the figures are of."""
        row = self._known.get(schedule.digest)
        return (row.checked if row else "") or super().checked(schedule)

    def _look(self, schedule: Schedule, what: Callable[[Recorded], Figure]) -> Figure | Failure:
        row = self._known.get(schedule.digest)
        if row is None:
            return Failure(f"device: schedule {schedule.digest} was not recorded")
        try:
            return what(row)
        except DeviceError as problem:
            return Failure(str(problem))
