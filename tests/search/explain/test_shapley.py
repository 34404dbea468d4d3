"""Credit for a difference: it adds up, goes to what differs, and turns round with the question."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ekc.search.explain.by_feature import compute_shapley_values

Array = NDArray[np.float64]
NAMES = ("a", "b", "c", "d", "e")
sides = st.fixed_dictionaries({name: st.floats(-3, 3) for name in NAMES})
groupings = st.permutations(NAMES).flatmap(
    lambda order: st.integers(1, 4).map(lambda cut: [order[:cut], order[cut:]])
)


def crooked(columns: Mapping[str, Array]) -> Array:
    """Products, bends and steps of all inputs: no sum of functions of single inputs."""
    a, b, c, d, e = (columns[name] for name in NAMES)
    return np.stack([a * b + np.maximum(c, d) * e, np.sin(a + c) + (b > d)], axis=1)


def at(side: Mapping[str, float]) -> Array:
    return crooked({name: np.array([value]) for name, value in side.items()})[0]


@given(sides, sides, groupings)
def test_shapley_values_add_up_and_change_sign(
    a: dict[str, float], b: dict[str, float], groups: list[list[str]]
) -> None:
    found, back = compute_shapley_values(crooked, a, b, groups), compute_shapley_values(crooked, b, a, groups)
    np.testing.assert_allclose(sum(found.values()), at(b) - at(a), atol=1e-9)
    for name in NAMES:
        np.testing.assert_allclose(found[name], -back[name], atol=1e-9)
        if a[name] == b[name]:
            assert not found[name].any()


@given(sides, sides, groupings)
def test_shapley_values_of_a_sum_are_exact(
    a: dict[str, float], b: dict[str, float], groups: list[list[str]]
) -> None:
    found = compute_shapley_values(lambda x: np.stack([sum(x[n] ** 2 for n in NAMES)], axis=1), a, b, groups)  # type: ignore[list-item]
    for name in NAMES:
        assert found[name][0] == pytest.approx(b[name] ** 2 - a[name] ** 2, abs=1e-9)


def test_shapley_values_of_a_product_are_equal_and_groups_change_together() -> None:
    def product(x: Mapping[str, Array]) -> Array:
        return (x["a"] * x["b"])[:, None]

    zero, one = {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}
    assert {
        n: v[0] for n, v in compute_shapley_values(product, zero, one, [["a"], ["b"]]).items()
    } == pytest.approx({"a": 0.5, "b": 0.5}, abs=1e-12)

    def gated(x: Mapping[str, Array]) -> Array:
        return ((x["a"] + x["b"] == 2) * x["c"])[:, None]

    # c works only once a and b have both changed: as one group with it or without, c has half of it.
    start, end = zero | {"c": 0.0}, one | {"c": 1.0}
    together = compute_shapley_values(gated, start, end, [["a", "b"], ["c"]])
    assert together["c"][0] == pytest.approx(0.5, abs=1e-12)
    assert together["a"][0] + together["b"][0] == pytest.approx(0.5, abs=1e-12)


def test_shapley_values_of_equal_inputs_are_zero() -> None:
    same = dict.fromkeys(NAMES, 1.0)
    assert all(not value.any() for value in compute_shapley_values(crooked, same, same, [NAMES]).values())
