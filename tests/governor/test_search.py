"""The search by itself, on known laws: it keeps the budget, comes near the best, and visits few points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekc.errors import InvalidInput
from ekc.governor import objective
from ekc.governor.curve import Prior, fitted
from ekc.governor.knob import CAP, SM, knob_of
from ekc.governor.landscape import Beliefs
from ekc.governor.ledger import Ledger
from ekc.governor.policy import Policy
from ekc.governor.protocols import Gears, Settings
from ekc.governor.reading import Pace, Reading
from ekc.governor.search import MOST_POINTS, Search

GEARS = np.arange(600.0, 1996.0, 15.0)
TOP = GEARS[-1]


class Law:
    """Time and power of a job over the SM clock, as a roofline and a voltage curve have them."""

    def __init__(self, core: float, sharpness: float, dynamic_w: float) -> None:
        self.core, self.sharpness, self.dynamic_w = core, sharpness, dynamic_w

    def seconds(self, clock):
        return (self.core * (TOP / clock) ** self.sharpness + 1 - self.core) ** (1 / self.sharpness)

    def watts(self, clock):
        volts = 1 + 0.8 * np.maximum(0, clock - 1300) / 1000
        return 70 + self.dynamic_w * (volts / (1 + 0.8 * 0.695)) ** 2 / self.seconds(clock)

    def reading(self, clock, rng, noise=0.002, at_s=0.0):
        pace = 1 / self.seconds(clock) * (1 + noise * rng.standard_normal())
        limit = Settings() if clock == TOP else Settings(sm_mhz=int(clock))
        watts = float(self.watts(clock)) * (1 + 0.002 * rng.standard_normal())
        return Reading(limit, at_s, 10.0, watts, Pace(pace, noise), 100.0, 50.0, float(clock))


LAWS = st.builds(Law, st.floats(0.05, 1.0), st.sampled_from([1.0, 2.0, 4.0, 8.0]), st.floats(60.0, 400.0))


def searched(law: Law, policy: Policy, seed: int = 0):
    rng = np.random.default_rng(seed)
    ledger = Ledger([law.reading(TOP, rng)])
    search = Search(policy, SM, GEARS, Beliefs(SM.time, SM.power))
    while (place := search.next(ledger)) is not None:
        ledger.others.append(law.reading(GEARS[place], rng))
    return search, ledger


@settings(max_examples=60, deadline=None)
@given(LAWS, st.integers(0, 10**6))
def test_the_budget_is_kept_and_most_of_the_saving_had(law: Law, seed: int) -> None:
    search, ledger = searched(law, Policy(), seed)
    assert len(ledger.others) <= MOST_POINTS
    clock = search.chosen(ledger) or TOP
    slowdown = law.seconds(clock) - 1
    assert slowdown <= 0.05 + 0.01
    energy = law.seconds(GEARS) * law.watts(GEARS)
    allowed = law.seconds(GEARS) - 1 <= 0.05
    best = 1 - energy[allowed].min() / energy[-1]
    mine = 1 - law.seconds(clock) * law.watts(clock) / energy[-1]
    assert mine >= 0.75 * best - 0.005


@pytest.mark.parametrize(("name", "exponent"), [("edp", 1), ("ed2p", 2)])
def test_products_of_energy_and_time_need_no_budget(name: str, exponent: int) -> None:
    law = Law(0.2, 4.0, 300.0)
    search, ledger = searched(law, Policy(objective=name))
    scores = law.watts(GEARS) * law.seconds(GEARS) ** (1 + exponent)
    clock = search.chosen(ledger) or TOP
    mine = law.watts(clock) * law.seconds(clock) ** (1 + exponent)
    assert mine <= scores[-1]
    assert mine <= 1.05 * scores.min()


def test_speed_within_an_energy_budget() -> None:
    law = Law(0.9, 1.0, 350.0)
    search, ledger = searched(law, Policy(objective="speed", min_saving=0.1))
    clock = search.chosen(ledger)
    assert clock is not None
    saving = 1 - law.seconds(clock) * law.watts(clock) / law.watts(TOP)
    assert saving >= 0.085
    energy = law.seconds(GEARS) * law.watts(GEARS) / law.watts(TOP)
    fastest = GEARS[energy <= 0.9].max()
    assert clock >= 0.94 * fastest


def test_a_job_that_tells_no_progress_is_slowed_no_more_than_the_clock_could() -> None:
    rng = np.random.default_rng(0)
    law = Law(0.3, 2.0, 300.0)
    untold = [law.reading(c, rng) for c in (TOP, 1800.0)]
    untold = [Reading(**{**r.__dict__, "pace": Pace()}) for r in untold]
    ledger = Ledger([untold[0]], [untold[1]])
    clock = Search(Policy(), SM, GEARS, Beliefs(SM.time, SM.power)).chosen(ledger)
    assert clock is not None
    assert TOP / clock - 1 <= 0.05


def test_a_stray_reading_does_not_decide() -> None:
    law = Law(1.0, 1.0, 300.0)
    search, ledger = searched(law, Policy())
    before = search.chosen(ledger)
    assert before is not None
    stray = law.reading(before, np.random.default_rng(1))
    for _ in range(3):
        ledger.others.append(law.reading(before, np.random.default_rng(2)))
    ledger.others.append(Reading(**{**stray.__dict__, "pace": Pace(2 * stray.pace.beats, 0.002)}))
    after = search.chosen(ledger)
    assert after is not None
    assert abs(after / before - 1) < 0.03


def test_budgets_by_objective() -> None:
    slow, saved = np.array([0.0, 0.04, 0.2]), np.array([0.0, 0.1, 0.3])
    assert objective.best(Policy(), slow, saved) == 1
    assert objective.best(Policy(objective="edp"), slow, saved) == 2
    assert objective.best(Policy(objective="speed", min_saving=0.05), slow, saved) == 1
    assert objective.best(Policy(objective="speed", min_saving=0.5), slow, saved) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"objective": "money"}, "objective 'money': it must be one of energy, edp, ed2p, speed"),
        ({"max_slowdown": -0.1}, "max_slowdown -0.1: from 0 to 1"),
        ({"min_saving": 1.0}, "min_saving 1: from 0 to below 1"),
        ({"remaining_s": -1.0}, "remaining_s -1: finite seconds, 0 or more; leave it out if unknown"),
        ({"remaining_s": float("inf")}, "remaining_s inf: finite seconds, 0 or more"),
    ],
)
def test_policies_that_mean_nothing_are_refused(wrong, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        Policy(**wrong)


def test_clocks_before_caps() -> None:
    assert knob_of(Gears(sm_mhz=(1000, 1100), power_w=(100.0,))) is SM
    assert knob_of(Gears(power_w=(100.0, 200.0))) is CAP
    assert CAP.settings(150.0) == Settings(power_w=150.0)


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 0.5), min_size=2, max_size=8, unique=True), st.floats(0.0, 1.0))
def test_points_without_error_are_met_and_more_points_are_surer(x, slope) -> None:
    prior = Prior((0.5, 0.0), (1.0, 1.0))
    at = np.array(x)
    curve = fitted(at, slope * at, np.full(len(x), 1e-4), prior)
    assert np.allclose(curve.at(at), slope * at, atol=2e-3)
    fewer = fitted(at[:1], slope * at[:1], np.full(1, 1e-4), prior)
    assert np.all(curve.sigma(at) <= fewer.sigma(at) + 1e-12)
