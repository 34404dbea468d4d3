"""The search on a table: the rows that a replay tries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekc.search.data.defaults import SEQUENTIAL_ROUNDS
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.rounds import SearchLoop, compute_round_size
from ekc.search.replay.replay import ReplayTask, replay_search
from ekc.search.replay.table_space import MeasurementTable, TableSpace
from tests.search.helpers import make_known_table

TABLE = make_known_table()
SPACE = TableSpace(TABLE)


def test_replay_learns_from_every_trial_after_first_round() -> None:
    sizes: list[int] = []

    class Watched(ReplayTask):
        def measure(self, candidates: Sequence[int], round_number: int) -> list[float]:
            sizes.append(len(candidates))
            return super().measure(candidates, round_number)

    breeder = Breeder(SPACE, np.random.default_rng(0), 512)
    SearchLoop(breeder, Watched(TABLE, SPACE), SEQUENTIAL_ROUNDS).run(40)
    assert sizes == [5] + 35 * [1]
    assert [compute_round_size(2, 25, trials, SEQUENTIAL_ROUNDS) for trials in (100, 200, 250)] == [1, 2, 3]


def test_replay_learns_bad_rows_as_equal() -> None:
    task = ReplayTask(TABLE, SPACE)
    rows = np.argsort(TABLE.figures)[[0, 20, 40, 60, 80, 100, 120, 140, 160, 180]].tolist()
    task.measure(rows, 1)
    worse = MeasurementTable(TABLE.decision_names, TABLE.settings, TABLE.figures.copy(), TABLE.trial_costs_s)
    worse.figures[rows[-1]] *= 100
    other = ReplayTask(worse, SPACE)
    other.measure(rows, 1)
    np.testing.assert_array_equal(task.acquisition._scores, other.acquisition._scores)


def test_replay_finds_optimum_sooner_than_random_search() -> None:
    trials, runs = 40, 10
    ours = [TABLE.figures[replay_search(TABLE, SPACE, trials, seed)].min() for seed in range(runs)]
    order = [np.random.default_rng(seed).permutation(len(TABLE.figures))[:trials] for seed in range(runs)]
    drawn = [TABLE.figures[rows].min() for rows in order]
    assert np.median(ours) == TABLE.best_figure
    assert np.mean(ours) < np.mean(drawn) - 0.1


def test_replay_tries_rows_once_and_is_reproducible() -> None:
    first, again, other = (replay_search(TABLE, SPACE, 30, seed) for seed in (3, 3, 4))
    assert first == again != other
    assert len(set(first)) == len(first) == 30


def test_replay_with_more_trials_than_rows_tries_every_row() -> None:
    small = MeasurementTable(
        TABLE.decision_names, TABLE.settings[:20], TABLE.figures[:20], TABLE.trial_costs_s[:20]
    )
    assert sorted(replay_search(small, TableSpace(small), 50, 0)) == list(range(20))


def test_replay_counts_failed_rows_and_learns_from_them() -> None:
    failing = make_known_table(failing=True)
    space = TableSpace(failing)
    shares = []
    for seed in range(6):
        rows = replay_search(failing, space, 40, seed)
        assert len(rows) == 40
        assert np.nanmin(failing.figures[rows]) < 1.5 * failing.best_figure
        shares.append(np.isnan(failing.figures[rows]).mean())
    assert 0 < np.mean(shares) < np.isnan(failing.figures).mean()


def test_replay_continues_if_every_row_failed() -> None:
    hopeless = MeasurementTable(
        TABLE.decision_names, TABLE.settings, np.full(len(TABLE.figures), np.nan), TABLE.trial_costs_s
    )
    assert len(replay_search(hopeless, TableSpace(hopeless), 24, 0)) == 24
