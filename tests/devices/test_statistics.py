"""Significance of differences, from figures whose true value is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.devices.statistics import (
    Difference,
    Interval,
    MeasuredValue,
    compare_pairwise,
    estimate_mean_interval,
)
from ekc.errors import InvalidInput

NOISE = 0.003
"""Relative standard error of one window, by its interval."""


def figure(value: float, noise: float = NOISE) -> MeasuredValue:
    return MeasuredValue(value, Interval(value * (1 - 1.96 * noise), value * (1 + 1.96 * noise)))


def in_turn(
    random: np.random.Generator, ratio: float, rounds: int, drift: float = 0.0, between: float = 0.0
) -> Difference:
    """Measurements A B, B A, ... on a board that drifts, and differs from one measurement to the next."""
    level, taken = 1.0, ([], [])
    for number in range(rounds):
        for kernel in (0, 1) if number % 2 == 0 else (1, 0):
            true = level * (ratio if kernel == 0 else 1.0)
            spread = float(np.hypot(NOISE, between))
            taken[kernel].append(figure(true * (1 + spread * random.standard_normal())))
            level += drift
    return compare_pairwise(*taken)


@pytest.mark.parametrize("rounds", [2, 3, 4, 8])
@pytest.mark.parametrize(("drift", "between"), [(0.0, 0.0), (0.002, 0.0), (0.002, 0.006)])
def test_equal_kernels_are_seldom_significant(rounds: int, drift: float, between: float) -> None:
    random = np.random.default_rng(4)
    wrong = [in_turn(random, 1.0, rounds, drift, between).is_significant for _ in range(1000)]
    assert np.mean(wrong) < 0.065  # 5 %, and what 1000 draws may show of it.


@pytest.mark.parametrize("rounds", [3, 8])
def test_interval_contains_the_true_ratio(rounds: int) -> None:
    random = np.random.default_rng(5)
    found = [in_turn(random, 0.97, rounds, 0.001, 0.003) for _ in range(1000)]
    assert np.mean([one.interval.low <= 0.97 <= one.interval.high for one in found]) > 0.935


def test_difference_of_three_percent_is_significant_after_three_rounds() -> None:
    random = np.random.default_rng(6)
    found = [in_turn(random, 0.97, 3, drift=0.001) for _ in range(500)]
    assert np.mean([one.is_significant for one in found]) > 0.9


@pytest.mark.parametrize("repeats", [2, 3, 8])
@pytest.mark.parametrize("between", [0.0, 0.012])
def test_interval_of_a_mean_contains_the_true_value(repeats: int, between: float) -> None:
    random = np.random.default_rng(7)
    held = []
    for _ in range(4000):
        spread = float(np.hypot(NOISE, between))
        found = estimate_mean_interval(
            [figure(2.0 * (1 + spread * random.standard_normal())) for _ in range(repeats)]
        )
        held.append(found.low <= 2.0 <= found.high)
    assert np.mean(held) > 0.94  # 95 %, less three standard errors of 4000 draws.


def test_interval_of_a_mean_of_one_is_that_of_its_window() -> None:
    one = figure(3.0)
    found = estimate_mean_interval([one])
    assert (found.low, found.high) == pytest.approx((one.interval.low, one.interval.high))
    assert estimate_mean_interval([]) is None


def test_single_pair_is_never_significant() -> None:
    found = compare_pairwise([figure(1.0)], [figure(2.0)])
    assert found.ratio == pytest.approx(0.5)
    assert not found.is_significant


def test_ratios_that_agree_by_chance_keep_the_intervals_of_their_windows() -> None:
    found = compare_pairwise([figure(1.003)] * 3, [figure(1.0)] * 3)
    assert found.interval.high / found.interval.low > 1 + 2 * 1.9 * NOISE * np.sqrt(2 / 3)
    assert not found.is_significant


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=8),
    st.floats(1e-3, 1e3),
)
def test_exchanged_kernels_give_the_inverse_and_units_do_not_matter(
    pairs: list[tuple[float, float]], unit: float
) -> None:
    one, other = ([figure(pair[i]) for pair in pairs] for i in (0, 1))
    there, back = compare_pairwise(one, other), compare_pairwise(other, one)
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.interval.low * back.interval.high == pytest.approx(1.0)
    assert there.is_significant == back.is_significant
    scaled = compare_pairwise([figure(unit * m.value) for m in one], [figure(unit * m.value) for m in other])
    assert scaled.ratio == pytest.approx(there.ratio)
    assert scaled.interval.low == pytest.approx(there.interval.low, rel=1e-6)


def test_difference_prints_as_percent() -> None:
    assert str(Difference(0.969, Interval(0.961, 0.977), 3)) == "-3.1 % (-3.9 to -2.3)"


@pytest.mark.parametrize(("one", "other"), [([], []), ([figure(1.0)], [])])
def test_unpaired_measurements_are_refused(one: list[MeasuredValue], other: list[MeasuredValue]) -> None:
    with pytest.raises(InvalidInput, match="needs pairs"):
        compare_pairwise(one, other)
