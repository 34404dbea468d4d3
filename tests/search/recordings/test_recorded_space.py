"""The search over tables: what the space promises, what a replay finds, what a bad table is told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ekc.errors import InvalidInput
from ekc.search.data.defaults import SEQUENTIAL_ROUNDS
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.generations import SearchLoop, compute_round_size
from ekc.search.replay.replay import ReplayTask, replay_search
from ekc.search.replay.table_space import MeasurementTable, TableSpace, compute_table_features, make_table

BLOCKS, TILES, UNROLLS = (16, 32, 64, 128, 256), (1, 2, 4, 8), (1, 2, 3, 4, 5, 6, 7, 8)


def made(failing: bool = False) -> MeasurementTable:
    """A kernel of our own making: legal are tiles that fit, least at block 64, tile 4, unroll 6, staged."""
    rows = [
        (b, t, u, s)
        for b, t, u, s in itertools.product(BLOCKS, TILES, UNROLLS, (0, 1))
        if b * t <= 1024 and (s or u != 5)
    ]
    settings = np.array(rows, dtype=np.float64)
    block, tile, unroll, staged = settings.T
    figures = (
        1 + np.abs(np.log2(block / 64)) + np.abs(np.log2(tile / 4)) + 0.1 * np.abs(unroll - 6) + (1 - staged)
    )
    if failing:
        figures[block == 256] = np.nan
    return MeasurementTable(("block", "tile", "unroll", "staged"), settings, figures, np.full(len(rows), 2.0))


TABLE = made()
SPACE = TableSpace(TABLE)


def strangers(count: int, seed: int = 0) -> Population:
    """Genomes of any values, most of them rows, some not."""
    random = np.random.default_rng(seed)
    return Population(
        np.zeros(count, dtype=np.int64),
        random.integers(0, SPACE.value_counts, (count, len(SPACE.value_counts))),
    )


def test_every_row_is_a_genome_with_a_key_of_its_own() -> None:
    everything = Population(np.zeros(len(SPACE.genes), dtype=np.int64), SPACE.genes)
    np.testing.assert_array_equal(SPACE.find_rows(SPACE.genes), np.arange(len(TABLE.figures)))
    assert len(np.unique(SPACE.compute_keys(everything))) == len(TABLE.figures)
    assert SPACE.compute_keys(everything).max() < SPACE.value_counts.prod()


def test_repair_leaves_rows_alone_and_makes_rows_of_all_others() -> None:
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


def test_a_mutation_moves_one_column_or_two_and_reaches_every_value() -> None:
    start = SPACE.sample(np.random.default_rng(0), 1)[np.zeros(3000, dtype=np.int64)]
    after = SPACE.mutate(np.random.default_rng(1), start)
    assert (SPACE.find_rows(after.genes) >= 0).all()
    moved = (after.genes != start.genes).sum(axis=1)
    assert set(moved.tolist()) == {0, 1, 2}
    assert (moved == 1).sum() > (moved == 2).sum() > 0
    for column, size in enumerate(SPACE.value_counts):
        assert len(np.unique(after.genes[:, column])) >= size - 1


def test_a_child_takes_each_gene_of_a_parent() -> None:
    random = np.random.default_rng(0)
    mothers, fathers = SPACE.sample(random, 200), SPACE.sample(random, 200)
    children = SPACE.cross(random, mothers, fathers).genes
    assert ((children == mothers.genes) | (children == fathers.genes)).all()
    assert (children != mothers.genes).any()
    assert (children != fathers.genes).any()


def test_features_are_settings_products_and_quotients_on_a_log_scale() -> None:
    found = compute_table_features(np.array([[32.0, 4.0, 0.0], [64.0, 1.0, 1.0], [128.0, 2.0, 0.0]]))
    np.testing.assert_allclose(found[0], [5, 2, 0, 7, 3])
    np.testing.assert_allclose(found[1], [6, 0, 1, 6, 6])
    assert compute_table_features(np.array([[-1.0], [0.0], [3.0]])).ravel().tolist() == [-1, 0, 3]


def test_sizes_that_are_not_powers_of_two_say_which_divides_them() -> None:
    found = compute_table_features(np.array([[48.0, 3.0, 7.0], [64.0, 5.0, 0.0], [96.0, 6.0, 2.0]]))
    np.testing.assert_array_equal(found[:, -2:], [[4, 0], [6, 0], [5, 1]])
    # Where all are powers of two, or some are not above 0 or whole, there is nothing to add.
    assert found.shape[1] == 3 + 2 * 3 + 2
    assert compute_table_features(np.array([[0.5], [3.0], [6.0]])).shape[1] == 1


def test_a_replay_learns_from_every_trial_after_the_first_round() -> None:
    sizes: list[int] = []

    class Watched(ReplayTask):
        def measure(self, candidates: Sequence[int], round_number: int) -> list[float]:
            sizes.append(len(candidates))
            return super().measure(candidates, round_number)

    breeder = Breeder(SPACE, np.random.default_rng(0), 512)
    SearchLoop(breeder, Watched(TABLE, SPACE), 40, settings=SEQUENTIAL_ROUNDS).run()
    assert sizes == [5] + 35 * [1]
    assert [compute_round_size(2, 25, trials, SEQUENTIAL_ROUNDS) for trials in (100, 200, 250)] == [1, 2, 3]


def test_among_bad_rows_nothing_is_told_apart() -> None:
    task = ReplayTask(TABLE, SPACE)
    rows = np.argsort(TABLE.figures)[[0, 20, 40, 60, 80, 100, 120, 140, 160, 180]].tolist()
    task.measure(rows, 1)
    worse = MeasurementTable(TABLE.decision_names, TABLE.settings, TABLE.figures.copy(), TABLE.trial_costs_s)
    worse.figures[rows[-1]] *= 100
    other = ReplayTask(worse, SPACE)
    other.measure(rows, 1)
    np.testing.assert_array_equal(task._scores, other._scores)


def test_a_replay_finds_the_optimum_sooner_than_random_draws() -> None:
    trials, runs = 40, 10
    ours = [TABLE.figures[replay_search(TABLE, SPACE, trials, seed)].min() for seed in range(runs)]
    order = [np.random.default_rng(seed).permutation(len(TABLE.figures))[:trials] for seed in range(runs)]
    drawn = [TABLE.figures[rows].min() for rows in order]
    assert np.median(ours) == TABLE.best_figure
    assert np.mean(ours) < np.mean(drawn) - 0.1


def test_a_replay_tries_rows_once_and_the_same_for_the_same_seed() -> None:
    first, again, other = (replay_search(TABLE, SPACE, 30, seed) for seed in (3, 3, 4))
    assert first == again != other
    assert len(set(first)) == len(first) == 30


def test_a_replay_of_more_trials_than_rows_tries_every_row() -> None:
    small = MeasurementTable(
        TABLE.decision_names, TABLE.settings[:20], TABLE.figures[:20], TABLE.trial_costs_s[:20]
    )
    assert sorted(replay_search(small, TableSpace(small), 50, 0)) == list(range(20))


def test_failed_rows_count_and_are_learned_from() -> None:
    failing = made(failing=True)
    space = TableSpace(failing)
    shares = []
    for seed in range(6):
        rows = replay_search(failing, space, 40, seed)
        assert len(rows) == 40
        assert np.nanmin(failing.figures[rows]) < 1.5 * failing.best_figure
        shares.append(np.isnan(failing.figures[rows]).mean())
    assert 0 < np.mean(shares) < np.isnan(failing.figures).mean()


def test_where_everything_failed_the_search_goes_on() -> None:
    hopeless = MeasurementTable(
        TABLE.decision_names, TABLE.settings, np.full(len(TABLE.figures), np.nan), TABLE.trial_costs_s
    )
    assert len(replay_search(hopeless, TableSpace(hopeless), 24, 0)) == 24


COLUMNS = {
    "block": ["16", "32", "64"],
    "one": ["1", "1", "1"],
    "ms": ["1.5", "", "1e30"],
    "build": ["500", "250", "x"],
}


def test_a_table_out_of_text() -> None:
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
def test_a_bad_table_is_one_clear_line(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as problem:
        make_table(columns, ("block",), "ms")
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_table_with_too_many_combinations_is_refused() -> None:
    wide = np.tile(np.arange(64.0)[:, None], (1, 12))
    with pytest.raises(InvalidInput, match="12 columns have more than"):
        TableSpace(MeasurementTable(tuple("abcdefghijkl"), wide, np.ones(64), np.zeros(64)))
