"""The rule of a pack: which schedules of an operator are in it. All of it runs without a GPU.

Of 1,000 schedules of an operator:

naive        1    the naive schedule
latency    200    the first trials of a search for latency on the simulated device
energy     200    the first trials of a search for energy on it; the device has no residual
near       350    of eight times as many neighbours (genomes of one mutation, of the same structure) of each
                  search's 20 fastest trials and 20 of least energy, those that the model of the data sheet
                  expects to be fastest
random     the rest: legal schedules, uniform over structures and decisions

A schedule is drawn once, and so is a CUDA text. What does not compile is left out, and the next of its
stratum takes the place; where there is none, a random one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.packs.predictions import open_models
from ekc.devices.simulated import data_sheet_prior, specs
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import WorkerThreads
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import Population
from ekc.search.database.database import RecordStore
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space

RULE = 1
"""Number of the rule. Raise it whenever it draws other schedules."""
NAIVE, LATENCY, ENERGY, NEAR, RANDOM = "naive", "latency", "energy", "near", "random"
STRATA = (NAIVE, LATENCY, ENERGY, NEAR, RANDOM)
PATH_SHARE, NEAR_SHARE = 0.2, 0.35
"""Shares of a pack: of each of the two searches, and of the neighbours."""
SPARE = 1.25
"""Neighbours and random schedules drawn for each that is wanted: some do not compile, or have the text of
another."""
BEST = 20
"""Trials whose neighbours are drawn: so many by time and so many by energy."""
NEIGHBOURS = 8
"""Neighbours that the model of the data sheet judges for each that is wanted."""
MAX_SLOWDOWN = 0.05
"""Stratum of the schedules that the search for energy tried."""


@dataclass(frozen=True)
class Drawn:
    """A schedule that the rule draws."""

    schedule: str
    """As JSON."""
    structure: str
    stratum: str
    code: str = ""
    """First digits of the SHA-256 of its machine code, where it is on file."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Schedules in their order; of a search, also the genomes of its best trials."""

    drawn: tuple[Drawn, ...]
    best: Population


class _RememberingSpace(Space):
    """A space that keeps the genome of each schedule that it builds."""

    def __init__(self, op: Operator, limits: LaunchLimits) -> None:
        super().__init__(op, limits)
        self.genomes: dict[str, Population] = {}

    def build_schedule(self, population: Population, row: int) -> Schedule:
        """See `Space`."""
        schedule = super().build_schedule(population, row)
        self.genomes[schedule.digest] = population[[row]]
        return schedule


def describe_rule(seed: int, count: int) -> str:
    """The rule in words, for the head of a pack."""
    numbers = ", ".join(f"{name} {size}" for name, size in count_strata(count).items())
    return f"rule {RULE}, seed {seed}: {numbers}"


def count_strata(count: int) -> dict[str, int]:
    """Schedules of each stratum, of `count` in all."""
    path, near = int(PATH_SHARE * count), int(NEAR_SHARE * count)
    return {NAIVE: 1, LATENCY: path, ENERGY: path, NEAR: near, RANDOM: count - 1 - 2 * path - near}


def draw_naive(op: Operator) -> Drawn:
    """The naive schedule."""
    return Drawn(make_naive_schedule(op).to_json(), NAIVE, NAIVE)


def draw_random(op: Operator, device: str, seed: int, count: int) -> Draw:
    """Legal schedules drawn at random, each once, with some to spare."""
    space = Space(op, open_models(device)[0].limits)
    breeder = Breeder(space, np.random.default_rng([seed, 2]))
    wanted, found, before = int(SPARE * count) + 1, breeder.make_empty(), -1
    while before < len(found) < wanted:
        before = len(found)
        found = _drop_duplicates(space, found + breeder.sample(2 * wanted))
    # Repair keeps the order of structures in places: the order is drawn as well.
    order = breeder.random.permutation(len(found))[:wanted]
    return Draw(tuple(_build(space, found, order, RANDOM)), breeder.make_empty())


def search(op: Operator, name: str, objective: str, seed: int, count: int) -> Draw:
    """The trials of a search on the simulated device without its finals, which try nothing new. Everything is
    compiled in this process: searches run beside each other."""
    device, _ = open_models(name)
    space = _RememberingSpace(op, device.limits)
    options = TuneOptions(max(count, 4), objective, MAX_SLOWDOWN, False, seed, None, None)
    with WorkerThreads(1) as executor:
        run = TuningRun(space, Measurer(device, RecordStore(None)), executor, options)
        run.measure_baseline()
        run.search_loop.run(options.trials)
        run.task.meter_share(run.search_loop.round_number)
    trials = run.task.candidates
    drawn = tuple(Drawn(c.schedule.to_json(), c.structure, objective) for c in trials[:count])
    known, best = [c for c in trials if c.ok], []
    for figures in ({c.digest: c.latency_s for c in known}, {c.digest: c.energy_j for c in known}):
        finite = [digest for digest, value in figures.items() if np.isfinite(value)]
        best += sorted(finite, key=figures.__getitem__)[:BEST]
    genomes = run.breeder.make_empty()
    for digest in dict.fromkeys(best):
        genomes = genomes + space.genomes[digest]
    return Draw(drawn, genomes)


def draw_near(op: Operator, device: str, parents: Population, seed: int, count: int) -> Draw:
    """Neighbours of the best trials of both searches, those first that the model of the data sheet expects to
    be fastest; none is a parent."""
    space = Space(op, open_models(device)[0].limits)
    breeder = Breeder(space, np.random.default_rng([seed, 3]))
    parents = _drop_duplicates(space, parents)
    if not len(parents):
        return Draw((), parents)
    wanted, known = int(SPARE * count) + 1, set(space.compute_keys(parents).tolist())
    found = breeder.make_empty()
    for _ in range(NEIGHBOURS):
        rows = np.resize(np.arange(len(parents)), 2 * wanted)
        children = space.mutate(breeder.random, parents[rows], structure_rate=0.0)
        legal, _ = space.repair(breeder.random, children)
        new = [key not in known for key in space.compute_keys(legal).tolist()]
        found = _drop_duplicates(space, found + legal[np.flatnonzero(new)])
        if len(found) >= NEIGHBOURS * wanted:
            break
    order = np.argsort(_expect_latency(space, device, found), kind="stable")[:wanted]
    return Draw(tuple(_build(space, found, order, NEAR)), breeder.make_empty())


def _expect_latency(space: Space, device: str, population: Population) -> NDArray[np.float64]:
    """Seconds by the model of the data sheet, at the highest clock."""
    spec = specs.SPECS[device]
    quantities = space.compute_quantities(population)
    return data_sheet_prior.predict_prior(spec, quantities, float(spec.list_clocks_mhz()[-1])).latency_s


def _build(space: Space, population: Population, rows: NDArray[np.int64], stratum: str) -> Iterator[Drawn]:
    for row in rows.tolist():
        schedule = space.build_schedule(population, row)
        yield Drawn(schedule.to_json(), space.get_structure_name(population, row), stratum)


def _drop_duplicates(space: Space, population: Population) -> Population:
    _, first = np.unique(space.compute_keys(population), return_index=True)
    return population[np.sort(first)]
