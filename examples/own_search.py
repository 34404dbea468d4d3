"""A search strategy of your own on ekc's design space: hill climbing with random restarts.

Run:     python own_search.py [TRIALS]
Prints:  the least latency after 4, 8, 16 ... trials, of this strategy and of `ekc.tune` with the same
         trials.

`climb` sees a `SearchSpace` (sample, mutate, repair, keys) and a function that measures one genome. It
knows neither operator nor device, so it runs on any space that follows the protocol in
ekc/search/data/population.py. A genome is a row of a `Population`: a structure and one number for each of
its decisions. Latencies are those of a simulated A100.
"""

import math
import sys
from collections.abc import Callable

import numpy as np

import ekc
from ekc.devices.device import Device
from ekc.search.data.population import Population, SearchSpace
from ekc.search.space.space import Space

Measure = Callable[[Population], float]
"""Measures a population of one genome: the figure to minimise, infinity for a failure."""
NEIGHBOURS = 8
"""Changed copies of the present genome that are made at a time."""
PATIENCE = 4
"""Trials without an improvement before the climb starts again elsewhere."""


def climb(space: SearchSpace, measure: Measure, trials: int, seed: int) -> list[float]:
    """Search with so many trials. Returns the figure of each trial, in order."""
    random = np.random.default_rng(seed)
    figures: list[float] = []
    tried: set[int] = set()

    def try_first_new(population: Population) -> tuple[Population, float] | None:
        """Repair genomes, and measure the first that is legal and new."""
        legal, _ = space.repair(random, population)
        for row, key in enumerate(space.compute_keys(legal).tolist()):
            if key not in tried:
                tried.add(key)
                genome = legal[[row]]
                figures.append(measure(genome))
                return genome, figures[-1]
        return None

    while len(figures) < trials:
        start = try_first_new(space.sample(random, 64))
        if start is None:  # Nothing new was sampled: the space is all but tried.
            break
        (here, best), failures = start, 0
        while len(figures) < trials and failures < PATIENCE:
            # Repair may drop some neighbours, so several are made of one genome.
            step = try_first_new(space.mutate(random, here[[0] * NEIGHBOURS]))
            if step is not None and step[1] < best:
                (here, best), failures = step, 0
            else:
                failures += 1
    return figures


def make_measure(space: Space, device: Device) -> Measure:
    """Measure genomes of ekc's design space: build the schedule, compile it and time it."""

    def measure(genome: Population) -> float:
        try:
            kernel = ekc.compile(space.build_schedule(genome, 0), arch=device.arch)
            return device.time(kernel.compiled).latency_s
        except (ekc.CompileError, ekc.ScheduleError, ekc.DeviceError):
            return math.inf

    return measure


def main(trials: int) -> None:
    op = ekc.matmul(128, 128, 128)
    device = ekc.devices.open("a100")
    space = Space(op, device.limits)
    own = climb(space, make_measure(space, device), trials, seed=0)

    tuned = ekc.tune(op, target="a100", objective="latency", trials=trials, seed=0, progress=False)
    ours = [math.inf if t.latency_s is None else t.latency_s for t in tuned.trials]

    print(f"{op.name} 128 x 128 x 128 on {device.label}: least latency in us\n")
    print("trials   hill climbing   ekc.tune")
    counts = [4 * 2**n for n in range(10) if 4 * 2**n < trials] + [trials]
    for count in counts:
        print(f"{count:6}{1e6 * min(own[:count]):16.2f}{1e6 * min(ours[:count]):11.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
