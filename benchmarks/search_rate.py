"""Candidates a second that the search breeds, repairs, featurises and scores with both models.

    python benchmarks/search_rate.py [--json FILE] [--seed N] [--seconds S] [--population N]

Over all structures of matmul 1024^3 on the simulated a100; trees and CUDA text are built for none. A
candidate counts once, when it is new: parents that live on are not scored again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

import ekc
from ekc import devices
from ekc.search import prior
from ekc.search.breeding import POPULATION, Breeder
from ekc.search.features import features
from ekc.search.model import ResidualModel
from ekc.search.space import Population, Space

BAR = 20_000.0
"""Candidates a second on 2 cores that the project asks for."""
STRUCTURES_BAR = 8
"""Over how many structures, each with a hundredth of the candidates or more."""
TRAINED_ON = 64
FRESH = 8
"""Rounds of breeding before a new run begins from random genomes; the tuner has 8."""


class Stopwatch:
    """Wraps a space and models, adds up where the time goes and which structures were scored."""

    def __init__(self, op: ekc.Operator, seed: int) -> None:
        self.device = devices.open("a100")
        self.space = Space(op, self.device.limits)
        self.reset()
        self.latency, self.power = ResidualModel(seed), ResidualModel(seed)
        self.random = np.random.default_rng(seed)

    def reset(self) -> None:
        """Forget what was counted."""
        self.spent = {"analysis": 0.0, "features": 0.0, "models": 0.0}
        self.scored = np.zeros(len(self.space.structures), dtype=np.int64)

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
        self.scored += np.bincount(population.structure, minlength=len(self.scored))
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


def measure(seconds: float, seed: int, population: int) -> dict[str, Any]:
    """Breed for about `seconds` and count, as the tuner does: every round some generations from the last."""
    watch = Stopwatch(ekc.matmul(1024, 1024, 1024), seed)
    watch.train()
    breeder = Breeder(watch.space, watch.random, size=population)
    breeder.evolve(None, watch.score)
    watch.reset()
    breeder.bred, began, rounds = 0, time.perf_counter(), 0
    parents: Population | None = None
    while not rounds or time.perf_counter() - began < seconds:
        parents, _ = breeder.evolve(None if rounds % FRESH == 0 else parents, watch.score)
        rounds += 1
    took = time.perf_counter() - began
    shares = {part: spent / took for part, spent in watch.spent.items()}
    shares["breeding and repair"] = 1.0 - sum(shares.values())
    structures = int((watch.scored >= 0.01 * breeder.bred).sum())
    return {
        "device": watch.device.label,
        "candidates_per_s": breeder.bred / took,
        "scored": breeder.bred,
        "seconds": took,
        "structures_in_space": len(watch.space.structures),
        "structures_scored": structures,
        "scored_by_structure": dict(
            zip((s.name for s in watch.space.structures), watch.scored.tolist(), strict=True)
        ),
        "share_of_time": shares,
        "bar": {"candidates_per_s": BAR, "structures_scored": STRUCTURES_BAR},
        "pass": breeder.bred / took >= BAR and structures >= STRUCTURES_BAR,
    }


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--population", type=int, default=POPULATION)
    arguments = parser.parse_args()
    result = measure(arguments.seconds, arguments.seed, arguments.population)
    print(
        f"ekc {ekc.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{os.cpu_count()} cores"
    )
    print(
        f"matmul 1024^3 for {result['device']}, seed {arguments.seed}, populations of {arguments.population}"
    )
    verdict = "pass" if result["pass"] else "FAIL"
    print(f"{result['candidates_per_s']:>12,.0f} candidates/s   bar {BAR:,.0f}   {verdict}")
    print(
        f"{result['structures_scored']:>12} of {result['structures_in_space']} structures, "
        f"each with 1 % of the {result['scored']:,} candidates or more   bar {STRUCTURES_BAR}"
    )
    for part, share in result["share_of_time"].items():
        print(f"{share:>12.0%} {part}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
