"""Candidates per second that the search breeds, repairs, analyses and scores by its models.

    python -m benchmarks.search.rate [--json FILE] [--seed N] [--seconds S] [--population N ...]

Over all structures of matmul 1024^3 on the simulated a100, with the task of a tuning run. Its models have
learned made-up figures of as many schedules as a run of 128 trials measures: the speed of scoring does not
depend on their truth. No CUDA text is built for a candidate. A genome counts once,
however often it is scored: each round scores its parents again, as the models have changed, from the stored
results of their analysis. The bar is for the population of a run of 256 trials, the default.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import ekc
from benchmarks.common.script import Arguments, judge_lines, make_main
from ekc import devices
from ekc.codegen.compiled import Resources
from ekc.devices.device import MeasurementConditions, Metering, Timing
from ekc.devices.statistics import Interval
from ekc.search.cost_model.features import REGISTERS_COLUMN
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import Population
from ekc.search.database.database import RecordStore
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.measure import Measurer
from ekc.search.loop.rounds import compute_population_size
from ekc.search.loop.task import ScheduleTask
from ekc.search.space.space import Space

BAR = 100_000.0
"""Candidates a second on 2 cores that the project asks for."""
STRUCTURES_BAR = 8
"""Over how many structures, each with a hundredth of the candidates or more."""
TRAINED_ON = 128
DEFAULT = 256
"""Trials of a run by default."""
POPULATIONS = (compute_population_size(DEFAULT), 8192)
FRESH = 8
"""Rounds of breeding before a new run begins from random genomes."""
MADE_UP = MeasurementConditions("a100", True, "made up", "", "", 0.0, 0.0, (), "made up", ekc.__version__)


class Stopwatch:
    """A task whose analysis and scoring are timed, and which counts the structures it scored."""

    def __init__(self, store: RecordStore, workers: ThreadPoolExecutor, seed: int) -> None:
        op = ekc.matmul(1024, 1024, 1024)
        device, self.random = devices.open("a100"), np.random.default_rng(seed)
        self.space = Space(op, device.limits)
        wish = TuneOptions(DEFAULT, "energy", 0.05, False, seed, None)
        self.task = ScheduleTask(self.space, Measurer(device, store), workers, wish)
        self.device = device
        self._train()
        self.reset()
        self.space.extract_inputs = self._timed("analysis", self.space.extract_inputs)  # type: ignore[method-assign]

    def _train(self) -> None:
        drawn, _ = self.space.repair(self.random, self.space.sample(self.random, 2 * TRAINED_ON))
        made = [self.task.make_candidate(drawn, row, 1) for row in range(TRAINED_ON)]
        for c in filter(None, made):
            seconds = c.expected_latency_s * float(np.exp(self.random.normal(0, 0.3)))
            spread = Interval(seconds, seconds)
            c.timings = [Timing(seconds, spread, 1, MADE_UP, resources=self._resources(c))]
            self.task.candidates.append(c)
        self.task.learner.learn_latency(self.task.candidates)
        self.task.learner.learn_energy(self.task.candidates, 1, self._meter)

    def _resources(self, c: Candidate) -> tuple[Resources, ...]:
        """Resources that differ from the estimate as those of ptxas do (`cost_model/registers.py`: 0.14 to
        0.30)."""
        needed = int((2 ** float(c.features[REGISTERS_COLUMN]) - 1) * np.exp(self.random.normal(0, 0.2)))
        return (Resources(min(needed, 255), 0, 0, 0, 4 * max(needed - 255, 0)),)

    def _meter(self, c: Candidate) -> bool:
        watts = c.expected_power_w * float(np.exp(self.random.normal(0, 0.1)))
        joules, exactly = watts * c.latency_s, Interval(watts, watts)
        c.meterings = [
            Metering(watts, exactly, joules, Interval(joules, joules), joules, joules, 0.0, 1.0, 1, MADE_UP)
        ]
        return True

    def reset(self) -> None:
        """Forget what was counted."""
        self.spent = {"analysis": 0.0, "scoring": 0.0}
        self.scored: list[Population] = []

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = time.perf_counter()
            found = call(*given)
            self.spent[part] += time.perf_counter() - began
            return found

        return timed

    def score(self, population: Population) -> np.ndarray:
        """Score genomes as the tuner does."""
        self.scored.append(population)
        return np.asarray(self._timed("scoring", self.task.acquisition.score)(population))


def measure_population(watch: Stopwatch, seconds: float, population: int) -> dict[str, Any]:
    """Breed for about `seconds` and count, as the tuner does: every round some generations from the last."""
    breeder = Breeder(watch.space, watch.random, population_size=population)
    breeder.evolve(None, watch.score)
    watch.reset()
    breeder.scored_count, began, rounds = 0, time.perf_counter(), 0
    parents: Population | None = None
    while not rounds or time.perf_counter() - began < seconds:
        found, _ = breeder.evolve(None if rounds % FRESH == 0 else parents, watch.score)
        parents, rounds = found[: population // 2], rounds + 1
    took = time.perf_counter() - began
    analysis = watch.spent["analysis"] / took
    scoring = watch.spent["scoring"] / took - analysis
    by_structure = _count_distinct(watch)
    count = int(by_structure.sum())
    rate, structures = count / took, int((by_structure >= 0.01 * count).sum())
    return {
        "population": population,
        "candidates_per_s": rate,
        "scored": count,
        "scored_again": breeder.scored_count - count,
        "seconds": took,
        "structures_scored": structures,
        "scored_by_structure": dict(
            zip((s.name for s in watch.space.structures), by_structure.tolist(), strict=True)
        ),
        "share_of_time": {
            "analysis, features": analysis,
            "models, improvement": scoring,
            "breeding and repair": 1.0 - analysis - scoring,
        },
        "bar": BARS,
        "pass": rate >= BAR and structures >= STRUCTURES_BAR,
    }


def _count_distinct(watch: Stopwatch) -> np.ndarray:
    """Different genomes that were scored, by structure."""
    every = sum(watch.scored[1:], watch.scored[0])
    _, first = np.unique(watch.space.compute_keys(every), return_index=True)
    return np.bincount(every.structure[first], minlength=len(watch.space.structures))


def print_row(row: dict[str, Any], structures: int, judged: bool) -> None:
    """One population."""
    verdict = f"   bar {BAR:,.0f}   {'pass' if row['pass'] else 'FAIL'}" if judged else ""
    shares = ", ".join(f"{part} {share:.0%}" for part, share in row["share_of_time"].items())
    print(f"{row['population']:>10,} {row['candidates_per_s']:>16,.0f} candidates/s{verdict}")
    print(
        f"{'':>10} {row['structures_scored']:>16} of {structures} structures have 1 % of the "
        f"{row['scored']:,} candidates or more; {row['scored_again']:,} scored again"
    )
    print(f"{'':>10} {shares}")


def measure(arguments: Arguments) -> dict[str, Any]:
    """Measure each population size, and print the rates."""
    with RecordStore(None) as store, ThreadPoolExecutor(1) as workers:
        watch = Stopwatch(store, workers, arguments.seed)
        rows = [measure_population(watch, arguments.seconds, size) for size in arguments.population]
    print(f"matmul 1024^3 for {watch.device.label}, seed {arguments.seed}, models of {TRAINED_ON} kernels")
    judged_size = compute_population_size(DEFAULT)
    for row in rows:
        print_row(row, len(watch.space.structures), row["population"] == judged_size)
    verdict = judge_lines(row for row in rows if row["population"] == judged_size)
    return {"device": watch.device.label, "rows": rows, "pass": verdict}


BARS = {"candidates_per_s": BAR, "structures_scored": STRUCTURES_BAR}
OPTIONS = {
    "--seconds": {"type": float, "default": 10.0},
    "--population": {"type": int, "nargs": "+", "default": list(POPULATIONS)},
}
main = make_main(__doc__, measure, BARS, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
