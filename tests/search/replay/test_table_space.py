"""The search space of a table, and tables made of text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ekc.errors import InvalidInput
from ekc.search.data.population import Population
from ekc.search.replay.table_space import MeasurementTable, TableSpace, compute_table_features, make_table
from tests.search.helpers import make_known_table

TABLE = make_known_table()
SPACE = TableSpace(TABLE)


def strangers(count: int, seed: int = 0) -> Population:
    """Genomes of any values, most of them rows, some not."""
    random = np.random.default_rng(seed)
    return Population(
        np.zeros(count, dtype=np.int64),
        random.integers(0, SPACE.value_counts, (count, len(SPACE.value_counts))),
    )


def test_rows_are_genomes_with_distinct_keys() -> None:
    everything = Population(np.zeros(len(SPACE.genes), dtype=np.int64), SPACE.genes)
    np.testing.assert_array_equal(SPACE.find_rows(SPACE.genes), np.arange(len(TABLE.figures)))
    assert len(np.unique(SPACE.compute_keys(everything))) == len(TABLE.figures)
    assert SPACE.compute_keys(everything).max() < SPACE.value_counts.prod()


def test_repair_keeps_rows_and_replaces_other_genomes() -> None:
    before = strangers(500)
    legal = SPACE.find_rows(before.genes) >= 0
    assert 0 < (~legal).sum() < 500
    after, dropped = SPACE.repair(np.random.default_rng(1), before)
    assert (SPACE.find_rows(after.genes) >= 0).all()
    assert not dropped
    np.testing.assert_array_equal(after.genes[legal], before.genes[legal])
    agree = (after.genes[~legal] == before.genes[~legal]).mean()
    anywhere = SPACE.sample(np.random.default_rng(2), int((~legal).sum())).genes
    assert agree > 0.5 > (anywhere == before.genes[~legal]).mean()


def test_mutation_changes_one_or_two_columns_and_reaches_every_value() -> None:
    start = SPACE.sample(np.random.default_rng(0), 1)[np.zeros(3000, dtype=np.int64)]
    after = SPACE.mutate(np.random.default_rng(1), start)
    assert (SPACE.find_rows(after.genes) >= 0).all()
    moved = (after.genes != start.genes).sum(axis=1)
    assert set(moved.tolist()) == {0, 1, 2}
    assert (moved == 1).sum() > (moved == 2).sum() > 0
    for column, size in enumerate(SPACE.value_counts):
        assert len(np.unique(after.genes[:, column])) >= size - 1


def test_child_has_genes_of_parents() -> None:
    random = np.random.default_rng(0)
    mothers, fathers = SPACE.sample(random, 200), SPACE.sample(random, 200)
    children = SPACE.cross(random, mothers, fathers).genes
    assert ((children == mothers.genes) | (children == fathers.genes)).all()
    assert (children != mothers.genes).any()
    assert (children != fathers.genes).any()


def test_features_are_settings_products_and_quotients_in_log_scale() -> None:
    found = compute_table_features(np.array([[32.0, 4.0, 0.0], [64.0, 1.0, 1.0], [128.0, 2.0, 0.0]]))
    np.testing.assert_allclose(found[0], [5, 2, 0, 7, 3])
    np.testing.assert_allclose(found[1], [6, 0, 1, 6, 6])
    assert compute_table_features(np.array([[-1.0], [0.0], [3.0]])).ravel().tolist() == [-1, 0, 3]


def test_features_of_other_sizes_have_largest_power_of_two() -> None:
    found = compute_table_features(np.array([[48.0, 3.0, 7.0], [64.0, 5.0, 0.0], [96.0, 6.0, 2.0]]))
    np.testing.assert_array_equal(found[:, -2:], [[4, 0], [6, 0], [5, 1]])
    # Where all are powers of two, or some are not above 0 or whole, there is nothing to add.
    assert found.shape[1] == 3 + 2 * 3 + 2
    assert compute_table_features(np.array([[0.5], [3.0], [6.0]])).shape[1] == 1


COLUMNS = {
    "block": ["16", "32", "64"],
    "one": ["1", "1", "1"],
    "ms": ["1.5", "", "1e30"],
    "build": ["500", "250", "x"],
}


def test_table_is_made_of_text() -> None:
    read = make_table(COLUMNS, ("block", "one"), "ms", ("ms", "build"))
    assert read.decision_names == ("block",)
    assert read.settings.tolist() == [[16], [32], [64]]
    np.testing.assert_array_equal(read.figures, [1.5, np.nan, np.nan])
    np.testing.assert_allclose(read.trial_costs_s, [0.5015, 0.25, 0.0])
    assert read.best_figure == 1.5


BAD: list[tuple[dict[str, list[str]], str]] = [
    ({"block": ["16", "32", "64"]}, "no column 'ms'"),
    ({"ms": ["1", "2", "3"]}, "no column 'block'"),
    (COLUMNS | {"block": ["16", "wide", "64"]}, "'block' holds a setting that is no number"),
    (COLUMNS | {"block": ["16", "16", "64"]}, "two rows have the same block"),
    (COLUMNS | {"ms": ["", "failed", "0"]}, "'ms' has no figure above 0"),
]


@pytest.mark.parametrize(("columns", "words"), BAD, ids=[w for _, w in BAD])
def test_bad_table_is_refused_in_one_line(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as problem:
        make_table(columns, ("block",), "ms")
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_table_with_too_many_combinations_is_refused() -> None:
    wide = np.tile(np.arange(64.0)[:, None], (1, 12))
    with pytest.raises(InvalidInput, match="12 columns have more than"):
        TableSpace(MeasurementTable(tuple("abcdefghijkl"), wide, np.ones(64), np.zeros(64)))
