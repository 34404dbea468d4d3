"""Shares of iterations that pass guards, against counting every value of every loop."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.ir.affine import AffineForm
from ekc.ir.analysis.guards import compute_pass_shares, count_guard_passes
from ekc.ir.lowering.buffers import BoundsGuard


def brute(guard: BoundsGuard, extents: dict[str, int], lanes: dict[str, int]) -> tuple[float, float]:
    """(share of values inside, share of warps with one inside), one by one."""
    terms, inside, asking, warps = dict(guard.form.terms), 0, 0, 0
    names = list(terms)
    for start in itertools.product(*(range(0, extents[n], lanes[n]) for n in names)):
        some = 0
        for lane in itertools.product(*(range(lanes[n]) for n in names)):
            value = guard.form.const + sum(
                (s + k) * terms[n] for s, k, n in zip(start, lane, names, strict=True)
            )
            some += 0 <= value < guard.extent
        inside, asking, warps = inside + some, asking + (some > 0), warps + 1
    return inside / np.prod([extents[n] for n in names]), asking / warps


@pytest.mark.parametrize("seed", range(60))
def test_shares_match_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    names = ["i", "j", "k"][: rng.randint(1, 3)]
    lanes = {n: rng.choice((1, 1, 2, 3)) for n in names}
    extents = {n: lanes[n] * rng.randint(1, 4) for n in names}
    form = AffineForm(tuple((n, rng.choice((1, 2, 3, 7, -1, -2))) for n in names), rng.randint(-6, 6))
    guard = BoundsGuard(form, rng.randint(1, 30), True, True)
    found = compute_pass_shares([guard], extents, lanes)
    assert (found.lane_share, found.warp_share) == pytest.approx(brute(guard, extents, lanes))


def test_population_gives_shares_of_its_members() -> None:
    extents = np.array([3, 5, 8, 40])
    guard = BoundsGuard(AffineForm((("i", np.array([1, 2, 4, 1])), ("j", 1)), -1), 9, True, True)
    many = compute_pass_shares([guard], {"i": extents, "j": 4}, {"j": 4})
    for row, extent in enumerate(extents.tolist()):
        single = BoundsGuard(AffineForm((("i", [1, 2, 4, 1][row]), ("j", 1)), -1), 9, True, True)
        one = compute_pass_shares([single], {"i": extent, "j": 4}, {"j": 4})
        assert (many.lane_share[row], many.warp_share[row]) == (one.lane_share, one.warp_share)


@pytest.mark.parametrize(("value", "share"), [(-1, 0.0), (0, 1.0), (4, 1.0), (5, 0.0)])
def test_guard_of_a_constant_passes_all_or_nothing(value: int, share: float) -> None:
    found = compute_pass_shares([BoundsGuard(AffineForm((), value), 5, True, True)], {}, {})
    assert (found.lane_share, found.warp_share) == (share, share)


def test_shares_of_many_values_ignore_the_ends() -> None:
    rows = np.array([[1 << 17, 1, 1, 0, 1 << 16], [1 << 15, 1, 1, 0, 1 << 14]])
    assert count_guard_passes(rows)[:, 0].tolist() == [0.5, 0.5]
    assert count_guard_passes(rows)[:, 1].tolist() == [0.5 + 32 / (1 << 17), 0.5]


DIGIT = st.tuples(st.integers(1, 4), st.sampled_from((1, 2, 3)), st.sampled_from((0, 1, 1, 2, 5)))
"""(warps, lanes in a warp, values by which the step exceeds the range of the digits before)."""


@given(st.lists(st.tuples(DIGIT, DIGIT, DIGIT, st.integers(-4, 9), st.integers(0, 90)), min_size=1))
def test_patterns_counted_together_match_enumeration(
    drawn: list[tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int], int, int]],
) -> None:
    rows, expected = [], []
    for *digits, low, bound in drawn:
        row, form, extents, lanes, reach = [], [], {}, {}, 0
        for name, (warps, together, more) in zip("ijk", digits, strict=True):
            step = reach + more
            reach += (warps * together - 1) * step
            row += [warps * together, together, step]
            form.append((name, step))
            extents[name], lanes[name] = warps * together, together
        rows.append([*row, low, bound])
        expected.append(brute(BoundsGuard(AffineForm(tuple(form), low), bound, True, True), extents, lanes))
    order = np.random.default_rng(len(rows)).permutation(3)
    shuffled = np.array(rows)
    shuffled[:, :9] = shuffled[:, :9].reshape(-1, 3, 3)[:, order].reshape(-1, 9)
    np.testing.assert_allclose(count_guard_passes(shuffled), expected)
