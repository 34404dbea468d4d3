"""Objectives, and the winners that they select."""

from __future__ import annotations

import pytest

from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.selection import SelectionRule, compute_objective
from ekc.search.data.trial import Trial
from tests.search.helpers import MV


@pytest.mark.parametrize(("objective", "figure"), [("latency", 2.0), ("energy", 3.0), ("edp", 6.0)])
def test_objective_is_seconds_joules_or_product(objective: str, figure: float) -> None:
    assert compute_objective(objective, 2.0, 3.0) == figure


@pytest.mark.parametrize(
    ("objective", "best"), [("latency", "fastest"), ("edp", "between"), ("energy", "frugal")]
)
def test_objectives_select_different_winners(objective: str, best: str) -> None:
    figures = {"fastest": (1.00, 1.2), "between": (1.02, 1.0), "frugal": (1.04, 0.99), "slow": (1.06, 0.1)}
    trials = [
        Trial(make_naive_schedule(MV), name, "ok", latency_s=s, energy_j=j)
        for name, (s, j) in figures.items()
    ]
    assert [t.structure for t in SelectionRule(objective, 0.05).select_winners(trials)] == [best, "fastest"]
