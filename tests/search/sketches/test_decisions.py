"""`NeighbourTable`: small moves between the values of a decision."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.search.data.defaults import TILING
from ekc.search.sketches.decisions import (
    NeighbourTable,
    TileLevel,
    compute_neighbours,
    make_choice,
    make_level,
    make_tiling,
)

DECISION = make_tiling(
    "tile.i", 96, (make_level("vthread", 96, 4), make_level("thread", 96, 32), make_level("tile", 96, 8))
)


def _lists(table: np.ndarray) -> list[list[int]]:
    rows, count = compute_neighbours(table)
    return [part.tolist() for part in np.split(rows, np.cumsum(count)[:-1])]


def _one_move(before: np.ndarray, after: np.ndarray, table: np.ndarray) -> bool:
    """The definition of a move, written directly."""
    changed = np.flatnonzero(before != after)
    if len(changed) == 1:
        values = sorted(set(table[:, changed[0]].tolist()))
        return abs(values.index(before[changed[0]]) - values.index(after[changed[0]])) == 1
    if len(changed) == 2:
        handed = [
            max(before[c], after[c]) // min(before[c], after[c])
            if max(before[c], after[c]) % min(before[c], after[c]) == 0
            else 0
            for c in changed
        ]
        up = [after[c] > before[c] for c in changed]
        return handed[0] == handed[1] and handed[0] in TILING.movable_factors and up[0] != up[1]
    return False


@pytest.mark.parametrize(
    "decision", [DECISION, make_choice("vector", (1, 2, 4)), make_tiling("t", 7, (make_level("tile", 7, 7),))]
)
def test_neighbours_are_all_rows_one_move_away(decision: object) -> None:
    table = decision.table  # type: ignore[attr-defined]
    expected = [
        [j for j in range(len(table)) if _one_move(table[i], table[j], table)] for i in range(len(table))
    ]
    assert _lists(table) == expected


def test_choice_moves_to_the_next_value() -> None:
    assert _lists(make_choice("vector", (1, 2, 4)).table) == [[1], [0, 2], [1]]


def test_factor_moves_between_levels() -> None:
    table = DECISION.table
    row = np.flatnonzero((table == (1, 16, 4)).all(axis=1))[0]
    reached = {tuple(table[i].tolist()) for i in _lists(table)[row]}
    assert {(2, 8, 4), (1, 8, 8), (2, 16, 2), (1, 16, 3), (1, 12, 4)} <= reached


def test_single_value_has_no_neighbour() -> None:
    moves = NeighbourTable([make_choice("one", (4,)), make_choice("two", (1, 2))])
    random = np.random.default_rng(0)
    decision, value = np.array([0, 1, 1] * 20), np.array([0, 0, 1] * 20)
    np.testing.assert_array_equal(moves.sample_neighbour(random, decision, value), [0, 1, 0] * 20)


def test_every_neighbour_is_sampled() -> None:
    decision = make_tiling("tile", 64, (TileLevel("thread", (1, 2, 4, 8)), TileLevel("tile", (1, 2, 4))))
    moves, lists = NeighbourTable([make_choice("x", (1, 2)), decision]), _lists(decision.table)
    random = np.random.default_rng(1)
    for row, expected in enumerate(lists):
        drawn = moves.sample_neighbour(random, np.full(400, 1), np.full(400, row))
        assert sorted(set(drawn.tolist())) == expected
