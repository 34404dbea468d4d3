"""A contest of search strategies on some thousand schedules of one product, by estimates without compiling.

A strategy decides, trial by trial, what to try next: a schedule at random, a neighbour of one that was tried,
or a mix of two. Neighbours are the schedules whose sizes are most alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.argument_checks import format_value
from ekc.course.ladder import SIZE, open_device
from ekc.errors import InvalidInput
from ekc.ir.operators import matmul
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.population import Population
from ekc.search.space.space import Space
from ekc.tables import format_table

Strategy = Callable[[list[float]], Any]
"""Estimated microseconds of the trials so far -> None, the index of a trial, or a pair of indices."""
STRUCTURE = "A:shared'+register B:shared+register"
"""Structure of all schedules: that of the rungs "vector loads" and "pipelined", with other numbers."""
DRAWS, NEIGHBOURS, SMALL_WEIGHT, MAX_TRIALS = 6000, 4, 0.25, 256


@dataclass(frozen=True, eq=False)
class SchedulePool:
    """Legal schedules of one structure, sampled at random, with their estimates."""

    space: Space
    genomes: Population
    us: NDArray[np.float64]
    """[n] Estimated microseconds."""
    places: NDArray[np.float32]
    """[n, d] Logarithms of the numbers of each schedule; tile sizes and stages weigh more than the rest."""

    def build_schedule(self, row: int) -> Schedule:
        """The schedule of a row."""
        return self.space.build_schedule(self.genomes, row)


@cache
def open_pool() -> SchedulePool:
    """Sample the schedules, and estimate them."""
    device, op = open_device(), matmul(SIZE, SIZE, SIZE)
    structures = Space(op, device.limits).structures
    space = Space(op, device.limits, tuple(s for s in structures if s.name == STRUCTURE))
    random = np.random.default_rng(0)
    genomes, _ = space.repair(random, space.sample(random, DRAWS))
    _, first = np.unique(space.compute_keys(genomes), return_index=True)
    genomes = genomes[np.sort(first)]
    values = [space.get_hole_values(genomes, row) for row in range(len(genomes))]
    names = sorted(values[0])
    weights = [1.0 if name.startswith(("tile", "stages")) else SMALL_WEIGHT for name in names]
    numbers = np.array([[row[name] for name in names] for row in values], dtype=np.float64)
    us = device.prior(space.compute_quantities(genomes)).latency_s * 1e6
    return SchedulePool(space, genomes, us, (np.log2(1 + numbers) * weights).astype(np.float32))


@dataclass(frozen=True, eq=False)
class Contest:
    """Outcome of a contest: for each strategy, the estimated microseconds of each trial of each run."""

    us: Mapping[str, NDArray[np.float64]]
    """Name of a strategy -> [runs, trials]."""
    best: Mapping[str, Schedule]
    """Name of a strategy -> the schedule with the least estimate of its first run."""

    def median_best(self, name: str, trials: int | None = None) -> float:
        """Median over the runs of the least estimate within the first trials, in microseconds."""
        return float(np.median(self.us[name][:, :trials].min(axis=1)))

    def __repr__(self) -> str:
        runs, trials = next(iter(self.us.values())).shape
        steps = [n for n in (4, 8, 16, 32, 64, 128, 256) if n < trials] + [trials]
        rows = [(str(n), *(f"{self.median_best(name, n):.1f}" for name in self.us)) for n in steps]
        title = f"Least estimated time [us] after so many trials: median of {runs} runs, simulated a100\n"
        return format_table(("trials", *self.us), rows, title)


def contest(trials: int = 32, runs: int = 101, first_run: int = 0, **strategies: Strategy) -> Contest:
    """Run strategies, each with as many trials and with the same random numbers.

    The numbers of a run follow from its place: runs `first_run` to `first_run + runs - 1` are taken.

    >>> contest(random=lambda tried: None, climb=lambda tried: tried.index(min(tried)) if tried else None)

    Raises `InvalidInput` where a strategy returns anything but None, an index or a pair of indices.
    """
    if not strategies:
        raise InvalidInput("contest: no strategy; give one by name, such as random=lambda tried: None")
    if not 1 <= trials <= MAX_TRIALS or runs < 1 or first_run < 0:
        raise InvalidInput(
            f"contest: {trials} trials in {runs} runs from run {first_run} on; "
            f"take 1 to {MAX_TRIALS} trials, one run or more, and a first run from 0 on"
        )
    pool = open_pool()
    rows = {
        name: np.array(
            [_run(pool, name, strategy, trials, seed) for seed in range(first_run, first_run + runs)]
        )
        for name, strategy in strategies.items()
    }
    us = {name: pool.us[tried] for name, tried in rows.items()}
    best = {name: pool.build_schedule(int(tried[0][us[name][0].argmin()])) for name, tried in rows.items()}
    return Contest(us, best)


def compute_random_best(trials: int = 32) -> float:
    """Median of the least estimate of random search, over any number of runs, in microseconds."""
    # A trial is above this quantile with probability p, and all of them with p ** trials = 1/2.
    return float(np.quantile(open_pool().us, 1 - 0.5 ** (1 / trials)))


def _run(pool: SchedulePool, name: str, strategy: Strategy, trials: int, seed: int) -> list[int]:
    """Rows of the schedules that a strategy tries in one run, in order."""
    random = np.random.default_rng(seed)
    tried: list[int] = []
    for _ in range(trials):
        indices = _ask(name, strategy, pool.us[tried].tolist())
        if not indices:
            row = int(random.integers(len(pool.us)))
            while row in tried:
                row = int(random.integers(len(pool.us)))
        else:
            near = _mix(pool, random, [tried[n] for n in indices], NEIGHBOURS + len(tried))
            row = int(random.choice([n for n in near if n not in tried][:NEIGHBOURS]))
        tried.append(row)
    return tried


def _mix(pool: SchedulePool, random: np.random.Generator, parents: list[int], count: int) -> list[int]:
    """The schedules most like a mix of the parents, which takes each number from one of them."""
    if len(set(parents)) == 1:
        return _find_nearest(parents[0])[:count]
    places = pool.places[parents]
    chosen = random.integers(2, size=places.shape[1])
    return _sort_by_distance(pool, places[chosen, range(places.shape[1])], count)


@lru_cache(maxsize=4096)
def _find_nearest(row: int) -> list[int]:
    """The schedules most like another, itself included: enough of them for any contest."""
    pool = open_pool()
    return _sort_by_distance(pool, pool.places[row], NEIGHBOURS + MAX_TRIALS)


def _sort_by_distance(pool: SchedulePool, place: NDArray[np.float32], count: int) -> list[int]:
    distances = np.abs(pool.places - place).sum(axis=1)
    near = np.argpartition(distances, count)[:count]
    return [int(n) for n in near[np.argsort(distances[near], kind="stable")]]


def _ask(name: str, strategy: Strategy, us: list[float]) -> tuple[int, ...]:
    """Indices of the trials that the next one is made of: none, one or two."""
    choice = strategy(us)
    indices = () if choice is None else choice if isinstance(choice, tuple | list) else (choice,)
    if len(indices) > 2 or not all(isinstance(n, int | np.integer) for n in indices):
        raise InvalidInput(
            f"contest: {name} returned {format_value(choice)}; "
            "return None, the index of a trial, or a pair of indices"
        )
    for n in indices:
        if not 0 <= n < len(us):
            raise InvalidInput(
                f"contest: {name} returned index {n} with {len(us)} trials so far; "
                "return None where there are none"
            )
    return tuple(int(n) for n in indices)


def count_draws(share: float, confidence: float) -> int:
    """Random draws after which one of the best `share` was drawn with this probability."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - share))
