"""Choices of clock and kernels against all choices of small models, and their bound."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ekc.search.clocks.choose import WeightedFigures, choose_fastest, choose_plan, solve_all_clocks
from ekc.search.clocks.clock_search import ClockKernel, ClockLayer


def sample_figures(seed: int, layers: int, kernels: int, clocks: int) -> WeightedFigures:
    random = np.random.default_rng(seed)
    shape = (kernels, clocks)
    latency = tuple(random.uniform(1, 2, shape) * random.uniform(0.1, 10) for _ in range(layers))
    return WeightedFigures(latency, tuple(random.uniform(1, 2, shape) * t.mean() for t in latency))


def make_layer(roles: Sequence[str]) -> ClockLayer:
    return ClockLayer("layer", "o", {"": 1}, tuple(ClockKernel("k", role, ()) for role in roles))


def list_all_energies(figures: WeightedFigures, limit_s: float) -> list[float]:
    """Energies of all choices within the limit."""
    found = []
    for clock in range(figures.latency_s[0].shape[-1]):
        for kernels in product(*(range(len(t)) for t in figures.latency_s)):
            seconds, joules = (
                sum(x[k, clock] for x, k in zip(each, kernels, strict=True))
                for each in (figures.latency_s, figures.energy_j)
            )
            if seconds <= limit_s:
                found.append(float(joules))
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.floats(0.0, 0.5))
def test_choice_is_within_its_bound_of_the_best(
    seed: int, layers: int, kernels: int, clocks: int, slowdown: float
) -> None:
    figures = sample_figures(seed, layers, kernels, clocks)
    fastest = choose_fastest(figures, 0, [make_layer(["front"] * kernels)] * layers)
    limit = (1 + slowdown) * fastest.latency_s
    choice = choose_plan(figures, limit)
    assert choice is not None, "the fastest kernels at the first clock are within the limit"
    best = min(list_all_energies(figures, limit * (1 + 1e-12)))
    assert choice.latency_s <= limit * (1 + 1e-9)
    assert choice.bound_j <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= choice.energy_j
    assert choice.energy_j * (1 - choice.gap) <= best * (1 + 1e-9)
    if layers == 1:
        np.testing.assert_allclose(choice.energy_j, best, rtol=1e-9)


def test_gap_is_small_for_many_layers() -> None:
    figures = sample_figures(3, 40, 5, 4)
    fastest = choose_fastest(figures, 0, [make_layer(["front"] * 5)] * 40)
    choice = choose_plan(figures, 1.05 * fastest.latency_s)
    assert choice is not None
    assert 0 <= choice.gap < 0.01


def test_nothing_is_chosen_beyond_the_limit() -> None:
    assert choose_plan(sample_figures(0, 2, 3, 2), 1e-3) is None


def test_draws_are_solved_as_one_by_one() -> None:
    figures = sample_figures(1, 3, 4, 5)
    random = np.random.default_rng(0)
    draws = tuple(e * random.uniform(0.9, 1.1, (6, *e.shape)) for e in figures.energy_j)
    limit = 1.1 * choose_fastest(figures, 0, [make_layer(["front"] * 4)] * 3).latency_s
    together = solve_all_clocks(WeightedFigures(figures.latency_s, draws), limit)
    for n in range(6):
        alone = solve_all_clocks(WeightedFigures(figures.latency_s, tuple(e[n] for e in draws)), limit)
        np.testing.assert_allclose(together.energy_j[n], alone.energy_j)


def test_kernel_named_fastest_is_the_reference() -> None:
    """The search compared its kernels again at the default clock, with more timings."""
    figures = sample_figures(0, 1, 3, 2)
    slowest = int(np.argmax(figures.latency_s[0][:, 1]))
    roles = ["front"] * 3
    roles[slowest] = "fastest and best"
    assert choose_fastest(figures, 1, [make_layer(roles)]).kernels == (slowest,)
