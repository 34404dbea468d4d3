"""Schedules to measure: some of every quality, or the few that look best before anything was measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ekc.devices.analytic_prior import predict_prior
from ekc.devices.device import Peaks, PriorFunction
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.schedule import Tensorize
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder
from ekc.search.space.space import Space

Named = tuple[Schedule, str]
"""A schedule and its structure in words."""


class Sampler:
    """Draws schedules of one operator; the same for the same seed."""

    def __init__(
        self, op: Operator, limits: LaunchLimits, predict_prior: PriorFunction, seed: int, size: int
    ) -> None:
        self._op, self._predict_prior = op, predict_prior
        self._space = Space(op, limits)
        self._breeder = Breeder(self._space, np.random.default_rng(seed), size)

    def sample_random(self, count: int) -> list[Named]:
        """The naive schedule and legal ones drawn at random: first one of each instruction of tensor cores
        that some are on, and one of none."""
        legal = self._breeder.sample(self._breeder.population_size)
        on = [self._find_instruction(int(structure)) for structure in legal.structure]
        first = [on.index(instruction) for instruction in sorted(set(on), reverse=True)]
        rows = [*first, *(row for row in range(len(legal)) if row not in first)]
        schedules = [
            (make_naive_schedule(self._op), "naive"),
            *(self._build_named(legal, row) for row in rows),
        ]
        return list(_drop_repeats(schedules))[:count]

    def _find_instruction(self, structure: int) -> str:
        steps = self._space.structures[structure].steps
        return next((step.instruction for step in steps if isinstance(step, Tensorize)), "")

    def sample_stratified(self, count: int) -> list[Named]:
        """The naive schedule; then half of the rest out of equal slices of random ones in order of their
        expected latency, and half likewise out of bred ones, which are good. Shuffled, so that any beginning
        of the list is a stratified sample too."""
        random, rest = self._breeder.random, count - 1
        drawn = self._breeder.sample(self._breeder.population_size)
        bred, _ = self._breeder.evolve(None, self._predict_latency)
        schedules = [*self._sample_slices(drawn, rest // 2), *self._sample_slices(bred, rest - rest // 2)]
        order = [schedules[i] for i in random.permutation(len(schedules))]
        return [(make_naive_schedule(self._op), "naive"), *_drop_repeats(order)][:count]

    def choose_best(self, count: int) -> list[Named]:
        """The schedules that the prior expects to be fastest, structures in turn."""
        bred, scores = self._breeder.evolve(None, self._predict_latency)
        order = np.argsort(scores, kind="stable")
        turn: dict[int, int] = {}
        ranked = []
        for row in order.tolist():
            structure = int(bred.structure[row])
            turn[structure] = turn.get(structure, 0) + 1
            ranked.append((turn[structure], row))
        rows = [row for _, row in sorted(ranked, key=lambda pair: (pair[0] // 2, scores[pair[1]]))]
        return list(_drop_repeats(self._build_named(bred, row) for row in rows[: 4 * count]))[:count]

    def _predict_latency(self, population: Population) -> NDArray[np.float64]:
        if not len(population):
            return np.zeros(0)
        return self._predict_prior(self._space.compute_quantities(population)).latency_s

    def _sample_slices(self, population: Population, count: int) -> list[Named]:
        if not count or not len(population):
            return []
        order = np.argsort(self._predict_latency(population), kind="stable")
        parts = np.array_split(order, min(count, len(order)))
        return [self._build_named(population, int(self._breeder.random.choice(part))) for part in parts]

    def _build_named(self, population: Population, row: int) -> Named:
        return self._space.build_schedule(population, row), self._space.get_structure_name(population, row)


def sample_schedules(
    op: Operator, limits: LaunchLimits, peaks: Peaks, seed: int, size: int, count: int
) -> list[Schedule]:
    """Sample schedules by a `Sampler` with the analytic prior; for a process of its own."""
    sampler = Sampler(op, limits, partial(predict_prior, peaks=peaks), seed, size)
    return [schedule for schedule, _ in sampler.sample_random(count)]


def _drop_repeats(schedules: Iterator[Named] | list[Named]) -> Iterator[Named]:
    seen: set[str] = set()
    for schedule, name in schedules:
        if schedule.digest not in seen:
            seen.add(schedule.digest)
            yield schedule, name
