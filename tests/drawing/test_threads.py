"""Owners of elements in the picture, beside those of the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from ekc.ir.drawing.ownership import compute_block_tile, make_tile_grid, merge_cells
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.schedule.schedule import Schedule
from tests.drawing.samples import SCHEDULES
from tests.drawn.checks import make_inputs
from tests.drawn.schedules import draw_any, draw_by
from tests.ir import interpret
from tests.ir.tensor_examples import draw_tensor


@contextmanager
def threads_write_their_numbers(kernel: LaunchTree, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The interpreter, with the number of the thread in place of each value that a launch stores."""
    plain, writing = interpret.convert_values, [0]

    def convert(values: Any, *types: Any) -> Any:
        if not writing[0]:
            return plain(values, *types)
        threads = np.arange(writing[0]).reshape(1, -1, *[1] * (values.ndim - 2))
        return plain(np.zeros(values.shape) + threads, *types)

    def mark(method: Any) -> Any:
        def run(self: Any, node: Any, *rest: Any) -> None:
            stores = self.kernel is kernel and node.target.buffer is None
            writing[0] = self.thread_count if stores else 0
            method(self, node, *rest)
            writing[0] = 0

        return run

    with monkeypatch.context() as patch:
        patch.setattr(interpret, "convert_values", convert)
        for name in ("_run_write", "_update_target"):
            kind = interpret._BlockInterpreter
            patch.setattr(kind, name, mark(getattr(kind, name)))
        yield


def check_owners(schedule: Schedule, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Each element of a block's tile has one owner, the thread by which the interpreter writes it."""
    kernel = derive_launches(schedule.program)[-1]
    block %= int(kernel.block_count)
    tile = compute_block_tile(kernel, block)
    assert tile.shortened == ()
    assert len(np.unique(tile.index, axis=0)) == len(tile.index), "an element with two owners"
    with threads_write_their_numbers(kernel, monkeypatch):
        ran = interpret.interpret_program(schedule.program, make_inputs(schedule.op), np.array([block]))
    where = tuple(tile.index.T)
    mask = np.zeros(kernel.nest.output.shape, bool)
    mask[where] = True
    np.testing.assert_array_equal(mask, ran.written_mask)
    nest = kernel.nest
    if nest.has_accumulator or not nest.compute.reduction_axes:
        found = ran.output.reshape(kernel.nest.output.shape)[where]
        np.testing.assert_array_equal(found.astype(np.float64), tile.thread)


@settings(max_examples=60)
@given(draw_by(draw_any))
def test_owners_are_those_of_the_interpreter(schedule: Schedule) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for block in (0, 1):
            check_owners(schedule, patch, block)


@settings(max_examples=10)
@given(draw_by(draw_tensor))
def test_owners_of_a_tensor_core_product_are_those_of_the_interpreter(schedule: Schedule) -> None:
    with pytest.MonkeyPatch.context() as patch:
        check_owners(schedule, patch, 0)


def test_owners_of_a_register_tile() -> None:
    """Thread 17 of 16 x 16 has 4 x 4 elements four times, at the steps of its virtual threads."""
    tile = compute_block_tile(derive_launches(SCHEDULES["tiles"]().program)[-1])
    mine = tile.index[tile.thread == 17]
    sides = {0, 64}
    expected = {(a + 4 + i, b + 4 + j) for a in sides for b in sides for i in range(4) for j in range(4)}
    assert {tuple(row) for row in mine.tolist()} == expected


def test_lanes_that_share_a_sum_have_one_owner() -> None:
    kernel = derive_launches(SCHEDULES["argmax"]().program)[1]
    tile = compute_block_tile(kernel)
    assert tile.thread.tolist() == [0, 8, 16, 24]
    assert make_tile_grid(tile).owner.tolist() == [[0, 8, 16, 24]]


def test_tile_of_a_serial_schedule_is_cut_and_says_so() -> None:
    from ekc.ir import operators

    schedule = Schedule(operators.matmul(4096, 4096, 16))
    tile = compute_block_tile(derive_launches(schedule.program)[-1])
    assert set(tile.shortened) == {"i", "j"}
    assert len(tile.index) <= 1 << 18
    assert "Only the first iterations of" in schedule.draw("threads")
    assert "its corner, 16 x 16 of 512 x 512" in schedule.draw("threads")


def test_rectangles_of_equal_cells_cover_the_grid_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        grid = rng.integers(-1, 3, (rng.integers(1, 9), rng.integers(1, 9)))
        covered = np.full(grid.shape, -1)
        for value, row, column, rows, columns in merge_cells(grid):
            box = covered[row : row + rows, column : column + columns]
            assert (box == -1).all()
            box[...] = value
        np.testing.assert_array_equal(covered, grid)
