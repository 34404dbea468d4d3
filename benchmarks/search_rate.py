"""Candidates a second that the search breeds, repairs, featurises and scores with both models.

    python benchmarks/search_rate.py [--json FILE] [--seed N] [--seconds S]

Over all structures of matmul 1024^3 on the simulated a100; trees and CUDA text are built for none.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np

import ekc
from ekc import devices
from ekc.search import prior
from ekc.search.breeding import Breeder
from ekc.search.features import features
from ekc.search.model import ResidualModel
from ekc.search.space import Population, Space

BAR = 20_000.0
"""Candidates a second on 2 cores that the project asks for."""
TRAINED_ON = 64


class Stopwatch:
    """Wraps a space and models, and adds up where the time goes."""

    def __init__(self, op: ekc.Operator, seed: int) -> None:
        self.device = devices.open("a100")
        self.space = Space(op, self.device.limits)
        self.spent = {"repair": 0.0, "analysis": 0.0, "features": 0.0, "models": 0.0}
        self.latency, self.power = ResidualModel(seed), ResidualModel(seed)
        self.random = np.random.default_rng(seed)

    def train(self) -> None:
        """Teach both models made-up figures: the speed of scoring does not depend on their truth."""
        drawn, _ = self.space.repair(self.random, self.space.draw(self.random, TRAINED_ON))
        figures = self.space.figures(drawn)
        rows, peaks = features(figures), self.device.peaks
        for model, expected in (
            (self.latency, prior.latency(figures, peaks)),
            (self.power, prior.power(figures, peaks)),
        ):
            for row, value in zip(rows, expected.tolist(), strict=True):
                noisy = value * float(np.exp(self.random.normal(0, 0.3)))
                model.add(row, value, noisy, noisy)
            model.fit()

    def score(self, population: Population) -> np.ndarray:
        """What the tuner does for every genome."""
        began = time.perf_counter()
        figures = self.space.figures(population)
        analysed = time.perf_counter()
        rows = features(figures)
        ready = time.perf_counter()
        peaks = self.device.peaks
        latency = self.latency.predict(rows, prior.latency(figures, peaks))
        score = latency * np.sqrt(self.power.predict(rows, prior.power(figures, peaks)))
        done = time.perf_counter()
        self.spent["analysis"] += analysed - began
        self.spent["features"] += ready - analysed
        self.spent["models"] += done - ready
        return score


def measure(seconds: float, seed: int, population: int) -> dict[str, object]:
    """Breed for about `seconds` and count."""
    watch = Stopwatch(ekc.matmul(1024, 1024, 1024), seed)
    watch.train()
    breeder = Breeder(watch.space, watch.random, size=population)
    parents, _ = breeder.evolve(None, watch.score)
    watch.spent = dict.fromkeys(watch.spent, 0.0)
    breeder.bred, began, structures = 0, time.perf_counter(), set()
    while time.perf_counter() - began < seconds:
        parents, _ = breeder.evolve(parents, watch.score)
        structures |= set(np.unique(parents.structure).tolist())
    took = time.perf_counter() - began
    parts = {k: v / took for k, v in watch.spent.items() if k != "repair"}
    parts["breeding and repair"] = 1.0 - sum(parts.values())
    return {
        "candidates_per_s": breeder.bred / took,
        "scored": breeder.bred,
        "seconds": took,
        "structures_in_space": len(watch.space.structures),
        "share_of_time": parts,
        "bar": BAR,
        "pass": breeder.bred / took >= BAR,
    }


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--population", type=int, default=16384)
    arguments = parser.parse_args()
    result = measure(arguments.seconds, arguments.seed, arguments.population)
    print(
        f"ekc {ekc.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} cores"
    )
    print(f"matmul 1024^3, {result['structures_in_space']} structures, populations of {arguments.population}")
    print(
        f"{result['candidates_per_s']:>12,.0f} candidates/s   bar {BAR:,.0f}   {'pass' if result['pass'] else 'FAIL'}"
    )
    for part, share in result["share_of_time"].items():  # type: ignore[attr-defined]
        print(f"{share:>12.0%} {part}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    sys.exit(0)


if __name__ == "__main__":
    main()
