"""Layouts of fragments in the picture, beside those of the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.emulator.numerics.warp import compute_fragment_indices
from ekc.emulator.numerics.wgmma import multiply_factors
from ekc.ir.drawing.fragments import compute_mma_layouts, compute_wgmma_layout
from ekc.ir.hardware.mma import MMA_INSTRUCTIONS, MmaInstruction
from ekc.ir.hardware.wgmma import WGMMA_FAMILIES


@pytest.mark.parametrize("operand", ["a", "b", "c"])
@pytest.mark.parametrize("instruction", MMA_INSTRUCTIONS, ids=lambda i: f"{i.name} {i.dtype}")
def test_mma_layout_is_that_of_the_ptx_machine(instruction: MmaInstruction, operand: str) -> None:
    types = dict(zip("dabc", instruction.ptx_types.split("."), strict=True))
    place = compute_fragment_indices(
        operand, instruction.depth, types["a"] if operand == "c" else types[operand]
    )
    lanes, registers = compute_mma_layouts(instruction)[operand]
    each = 1 if operand == "c" else instruction.elements_per_register
    for lane in range(32):
        for element, (row, column) in enumerate(zip(place.row[lane], place.column[lane], strict=True)):
            assert (lanes[row, column], registers[row, column]) == (lane, element // each)
    assert place.row.size == lanes.size
    assert (lanes >= 0).all()


@pytest.mark.parametrize("strips", [1, 3, 32])
def test_wgmma_layout_is_that_of_the_ptx_machine(strips: int) -> None:
    """A product whose element (row, column) is 1000 * row + column, as the machine spreads it."""
    lanes, registers = compute_wgmma_layout(WGMMA_FAMILIES[0], strips)
    rows, columns = lanes.shape
    a = np.stack([np.arange(rows), np.ones(rows)], axis=-1)[None]
    b = np.stack([np.full(columns, 1000), np.arange(columns)], axis=-1)[None]
    by_register = multiply_factors(a, b, is_negated=False)
    expected = 1000 * np.arange(rows)[:, None] + np.arange(columns)
    np.testing.assert_array_equal(by_register[registers, lanes], expected)
