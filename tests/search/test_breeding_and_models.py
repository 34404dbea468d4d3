"""Breeding on a toy space, and the models on figures whose truth is known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.search.cost_model.features import FEATURE_NAMES, build_features
from ekc.search.cost_model.xgboost_model import ResidualModel, spearman
from ekc.search.data.defaults import BOOSTED_TREES, SURROGATE
from ekc.search.loop.breeding import Breeder
from ekc.search.space.space import Population
from tests.search.spaces import OPERATORS, legal, space

WIDTH, VALUES = 8, 64
IDEAL = np.array([5, 60, 31, 0, 63, 17, 44, 8])


class Toy:
    """Eight independent genes, one structure, everything legal but a first gene of 13."""

    def sample(self, random: np.random.Generator, count: int) -> Population:
        return Population(np.zeros(count, dtype=np.int64), random.integers(0, VALUES, (count, WIDTH)))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        taken = random.random(mothers.genes.shape) < 0.5
        return Population(mothers.structure, np.where(taken, fathers.genes, mothers.genes))

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        genes = parents.genes.copy()
        rows, column = np.arange(len(genes)), random.integers(0, WIDTH, len(genes))
        step = random.integers(-3, 4, len(genes))
        genes[rows, column] = np.clip(genes[rows, column] + step, 0, VALUES - 1)
        return Population(parents.structure, genes)

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        unlucky = population.genes[:, 0] == 13
        return population[~unlucky], Counter(thirteen=int(unlucky.sum()))

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        return population.genes @ VALUES ** np.arange(WIDTH, dtype=np.int64)


def distance(population: Population) -> NDArray[np.float64]:
    """A separable function: 0 at the ideal."""
    return np.abs(population.genes - IDEAL).sum(axis=1).astype(np.float64)


def test_breeding_finds_the_optimum_where_random_draws_do_not() -> None:
    breeder = Breeder(Toy(), np.random.default_rng(0), population_size=128)
    parents: Population | None = None
    for _ in range(40):
        parents, scores = breeder.evolve(parents, distance)
        if scores[0] == 0:
            break
    assert scores[0] == 0
    np.testing.assert_array_equal(parents.genes[0], IDEAL)
    random = Toy().sample(np.random.default_rng(0), breeder.bred_count)
    assert distance(random).min() > 30


def test_a_breeder_keeps_the_best_sorts_them_and_counts_what_was_dropped() -> None:
    breeder = Breeder(Toy(), np.random.default_rng(1), population_size=64)
    parents, first = breeder.evolve(None, distance)
    again, second = breeder.evolve(parents, distance)
    assert (np.diff(second) >= 0).all()
    assert second[0] <= first[0]
    np.testing.assert_array_equal(second, distance(again))
    assert len(np.unique(Toy().compute_keys(again))) == len(again) <= 64
    assert breeder.refusals["thirteen"] > 0
    assert (again.genes[:, 0] != 13).all()


def test_a_breeder_scores_each_new_genome_once() -> None:
    """What was dropped may be bred again; what is kept, and a twin of the same generation, is not."""
    kept: dict[int, float] = {}
    scored: list[int] = []

    def score(population: Population) -> NDArray[np.float64]:
        nonlocal kept
        scores, keys = distance(population), Toy().compute_keys(population).tolist()
        assert len(set(keys)) == len(keys)
        assert not set(keys) & set(kept)
        scored.extend(keys)
        known = kept | dict(zip(keys, scores.tolist(), strict=True))
        kept = dict(sorted(known.items(), key=_by_score)[:64])
        return scores

    breeder = Breeder(Toy(), np.random.default_rng(2), population_size=64)
    last, _ = breeder.evolve(None, score)
    assert breeder.bred_count == len(scored) > 64
    assert Toy().compute_keys(last).tolist() == list(kept)


def _by_score(entry: tuple[int, float]) -> float:
    return entry[1]


def test_the_same_seed_breeds_the_same_and_another_does_not() -> None:
    runs = [
        Breeder(Toy(), np.random.default_rng(s), population_size=64).evolve(None, distance)[0]
        for s in (3, 3, 4)
    ]
    np.testing.assert_array_equal(runs[0].genes, runs[1].genes)
    assert not np.array_equal(runs[0].genes, runs[2].genes)


def _residual(seed: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Features, a prior, and values = prior x something the features explain, with 2 % noise."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, 6)).astype(np.float32)
    prior = np.exp(random.normal(0, 1, count))
    truth = np.where(rows[:, 0] > 0, 0.7, -0.4) + 0.3 * np.clip(rows[:, 1], -1, 1)
    return rows, prior, prior * np.exp(truth + random.normal(0, 0.02, count))


def _trained(
    values: NDArray[np.float64], rows: NDArray[np.float32], prior: NDArray[np.float64]
) -> ResidualModel:
    model = ResidualModel(seed=0)
    for row, p, v in zip(rows, prior.tolist(), values.tolist(), strict=True):
        model.add_row(row, p, v, v)
    model.fit()
    return model


def _error(predicted: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    return float(np.median(np.abs(np.log(predicted / values))))


def test_the_model_learns_what_the_prior_gets_wrong() -> None:
    rows, prior, values = _residual(0, 200)
    model = _trained(values, rows, prior)
    fresh, its_prior, truth = _residual(1, 200)
    learned = model.predict(fresh, its_prior)
    scaled = its_prior * float(np.exp(np.median(np.log(values / prior))))
    assert _error(learned, truth) < 0.4 * _error(scaled, truth)
    np.testing.assert_array_equal(learned, _trained(values, rows, prior).predict(fresh, its_prior))


def test_with_few_rows_the_scaled_prior_rules() -> None:
    rows, prior, values = _residual(0, SURROGATE.min_rows - 1)
    model = _trained(values, rows, prior)
    assert model.row_count == SURROGATE.min_rows - 1
    np.testing.assert_allclose(model.predict(rows, prior) / prior, np.median(values / prior), rtol=1e-6)
    np.testing.assert_array_equal(ResidualModel(0).predict(rows, prior), prior)


def test_better_rows_weigh_more() -> None:
    """Rows with equal features and contrary residuals: the better ones win, by their weight and no more."""
    rows = np.zeros((20, 3), dtype=np.float32)
    prior = np.ones(20)
    values = np.where(np.arange(20) < 10, 1.0, 10.0)
    weighted_mean = 10 ** (BOOSTED_TREES.min_weight / (1 + BOOSTED_TREES.min_weight))
    predicted = _trained(values, rows, prior).predict(rows[:1], prior[:1])[0]
    np.testing.assert_allclose(predicted, weighted_mean, rtol=0.1)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        # d = 0, -1, 1, 0: 1 - 6 * 2 / (4 * 15)
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(4.5 * 5)),
        # ranks 1.5, 1.5, 3 against 1, 2.5, 2.5: 0.75 / 1.5
        ([1, 1, 2], [1, 2, 2], 0.5),
        ([1, 2], [1, 2], None),
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_spearman_by_hand(a: list[float], b: list[float], expected: float | None) -> None:
    found = spearman(np.array(a, dtype=float), np.array(b, dtype=float))
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("name", OPERATORS)
def test_features_are_finite_for_any_drawn_genome(name: str) -> None:
    for population in (legal(name, 300), space(name).sample(np.random.default_rng(9), 300)):
        table = build_features(space(name).compute_quantities(population))
        assert table.shape == (len(population), len(FEATURE_NAMES))
        assert table.dtype == np.float32
        assert np.isfinite(table).all(), [
            n for i, n in enumerate(FEATURE_NAMES) if not np.isfinite(table[:, i]).all()
        ]
    assert (table.std(axis=0) > 0).sum() >= 15


def test_where_nothing_is_legal_there_is_no_next_generation() -> None:
    class Barren(Toy):
        def repair(
            self, random: np.random.Generator, population: Population
        ) -> tuple[Population, Counter[str]]:
            return population[:0], Counter(barren=len(population))

    breeder = Breeder(Barren(), np.random.default_rng(0), population_size=64)
    assert [len(part) for part in breeder.evolve(None, distance)] == [0, 0]
    assert breeder.refusals == {"barren": 64}
