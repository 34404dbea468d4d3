"""The search over clocks with a board of a known law: it finds the best plan, and meters few points."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from benchmarks.model.clock_plan import RestrictedSearch
from ekc.search.clocks.choose import make_plan
from ekc.search.clocks.clock_model import ClockReading
from ekc.search.clocks.clock_search import ClockBoard, ClockKernel, ClockLayer, ClockSearch
from tests.search.clocks.law import CLOCKS, LawKernel

COMPUTING = LawKernel(0.02, 0.98, 80.0, 5.0)
FRUGAL = LawKernel(0.02, 1.05, 62.0, 5.0)
SLOW = LawKernel(0.02, 1.30, 80.0, 5.0)
WAITING = LawKernel(0.85, 0.15, 20.0, 60.0)
LAYERS = ((COMPUTING, FRUGAL, SLOW), (WAITING,))
CALLS = 2, 4
DEFAULT_MHZ = 1275


@dataclass
class LawMeter:
    """Measures by the law, with 0.2 % noise of time and 1 % of power."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    timed: list[tuple[int, int, int]] = field(default_factory=list)
    metered: list[tuple[int, int, int]] = field(default_factory=list)
    failing_mhz: frozenset[int] = frozenset()
    max_meterings: int = 1000

    def read(self, layer: int, kernel: int, mhz: int, is_metered: bool) -> ClockReading:
        seconds, watts, idle = (float(x) for x in LAYERS[layer][kernel].compute(mhz))
        seconds *= 1 + 0.002 * self.random.standard_normal()
        watts *= 1 + 0.01 * self.random.standard_normal()
        if not is_metered:
            return ClockReading(0, mhz, seconds, 0.002)
        return ClockReading(0, mhz, seconds, 0.002, watts, 0.01, idle)

    def time(self, layer: int, kernel: int, mhz: int) -> ClockReading | None:
        self.timed.append((layer, kernel, mhz))
        return None if mhz in self.failing_mhz else self.read(layer, kernel, mhz, False)

    def meter(self, layer: int, kernel: int, mhz: int, repeat: int) -> ClockReading | None:
        self.metered.append((layer, kernel, mhz))
        return None if mhz in self.failing_mhz else self.read(layer, kernel, mhz, True)

    def can_continue(self) -> bool:
        return True

    def can_meter(self) -> bool:
        return len(self.metered) < self.max_meterings


def make_search(meter: LawMeter) -> ClockSearch:
    layers = []
    for n, kernels in enumerate(LAYERS):
        roles = ("fastest", "best", "front")
        kept = tuple(
            ClockKernel(f"k{n}{k}", roles[k], (meter.read(n, k, DEFAULT_MHZ, True),))
            for k in range(len(kernels))
        )
        layers.append(ClockLayer(f"layer {n}", f"o{n}", {"all": CALLS[n]}, kept))
    board = ClockBoard("law", True, CLOCKS, DEFAULT_MHZ)
    return ClockSearch(layers, board, meter, 0.05)


def find_true_best() -> tuple[int, float]:
    """Clock and share of energy saved of the best plan by the law, over all choices."""
    fastest = [kernels[0].compute(DEFAULT_MHZ) for kernels in LAYERS]
    limit = 1.05 * (CALLS[0] * fastest[0][0] + CALLS[1] * fastest[1][0])
    reference = sum(n * t * w for n, (t, w, _) in zip(CALLS, fastest, strict=True))
    plans = []
    for mhz in CLOCKS:
        for one in LAYERS[0]:
            (t0, p0, _), (t1, p1, _) = one.compute(mhz), WAITING.compute(mhz)
            if CALLS[0] * t0 + CALLS[1] * t1 <= limit:
                plans.append((float(CALLS[0] * t0 * p0 + CALLS[1] * t1 * p1), mhz))
    joules, mhz = min(plans)
    return mhz, 1 - joules / float(reference)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_best_plan_is_found_with_few_meterings(seed: int) -> None:
    meter = LawMeter(np.random.default_rng(seed))
    search = make_search(meter)
    search.run()
    plan = make_plan(search.make_fronts(), 0.05)
    mhz, saving = find_true_best()
    assert abs(plan.clock_mhz - mhz) <= 45
    assert plan.layers[0].schedule == "k01", "the frugal kernel"
    assert plan.savings.together.value == pytest.approx(saving, abs=0.03)
    assert 1 <= len(meter.metered) <= 20
    assert len({mhz for _, _, mhz in meter.timed}) <= 8


def test_planned_kernels_are_metered_at_the_planned_clock() -> None:
    search = make_search(LawMeter())
    search.run()
    plan = make_plan(search.make_fronts(), 0.05)
    numbers = {"k00": (0, 0), "k01": (0, 1), "k02": (0, 2), "k10": (1, 0)}
    for layer in plan.layers:
        assert (*numbers[layer.schedule], plan.clock_mhz) in search.meterings


def test_meterings_are_limited() -> None:
    meter = LawMeter(max_meterings=1)
    make_search(meter).run()
    assert len(meter.metered) == 1


def test_pairs_that_the_benchmark_does_not_allow_are_not_planned() -> None:
    meter, search = LawMeter(), make_search(LawMeter())
    restricted = RestrictedSearch(
        search.layers, search.board, meter, 0.05, allows=lambda layer, kernel, mhz: kernel == 0
    )
    restricted.run()
    assert {kernel for _, kernel, _ in meter.metered} <= {0}


def test_failed_clock_is_left_out() -> None:
    mhz, _ = find_true_best()
    meter = LawMeter(failing_mhz=frozenset({mhz}))
    search = make_search(meter)
    search.run()
    assert mhz not in {clock for _, _, clock in search.meterings}
    assert search.has_moved


def test_search_ends_where_every_clock_fails() -> None:
    meter = LawMeter(failing_mhz=frozenset(CLOCKS))
    search = make_search(meter)
    search.run()
    assert not search.has_moved
    assert len(meter.timed) + len(meter.metered) <= 8
