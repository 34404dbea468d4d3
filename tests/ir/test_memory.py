"""Layouts of shared memory: panels and swizzle."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import ekc.ir.operators as o
from ekc.ir.hardware.memory import (
    SWIZZLE_PATTERN_BYTES,
    apply_panel_layout,
    apply_swizzle,
    compute_panel_distance,
    count_panel_elements,
)
from ekc.ir.lowering.lower import derive_launches
from tests.ir.warpgroup_examples import GroupCut, group_matmul

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 40), st.sampled_from((1, 2, 4)))
"""(panels, rows, bytes of an element)."""


@given(SHAPES)
def test_panel_layout_is_a_permutation_of_lines(shape: tuple[int, int, int]) -> None:
    panels, rows, itemsize = shape
    panel = count_panel_elements(itemsize)
    width = panels * panel
    place = apply_panel_layout(np.arange(rows * width), width, rows, panel).reshape(rows, panels, panel)
    assert np.array_equal(np.sort(place.ravel()), np.arange(rows * width))
    for row in range(rows):
        for number in range(panels):
            first = (number * rows + row) * panel
            assert np.array_equal(place[row, number], first + np.arange(panel))


@given(SHAPES, st.integers(1, 400), st.data())
def test_panel_distance_is_the_same_everywhere(
    shape: tuple[int, int, int], step: int, data: st.DataObject
) -> None:
    """Steps of whole rows, and of whole lines within a row, have a constant distance; others have None."""
    panels, rows, itemsize = shape
    panel = count_panel_elements(itemsize)
    width = panels * panel
    step *= data.draw(st.sampled_from((1, panel, width)))
    found = compute_panel_distance(step, width, rows, panel)
    if found is None:
        assert step % panel
        return
    element = np.arange(rows * width)
    same_row = element // width == (element + step) // width
    element_pairs = element[(element + step < rows * width) & (True if step % width == 0 else same_row)]
    first, second = (apply_panel_layout(x, width, rows, panel) for x in (element_pairs, element_pairs + step))
    assert np.array_equal(second - first, np.full(len(element_pairs), found))


def test_tiles_are_aligned_to_swizzle_patterns() -> None:
    """The hardware swizzles addresses, not places in a tile, so tiles are whole patterns of 1024 bytes."""
    (kernel,) = derive_launches(
        group_matmul(o.matmul(200, 320, 72, dtype="float16"), GroupCut(3, strips=24)).program
    )
    tiles = [b for b in kernel.buffers if b.scope == "shared"]
    assert [b.alignment_bytes for b in tiles] == [SWIZZLE_PATTERN_BYTES] * 2
    assert all(int(b.aligned_bytes) % SWIZZLE_PATTERN_BYTES == 0 for b in tiles)
    assert all(int(b.elements) * b.dtype.bytes % SWIZZLE_PATTERN_BYTES == 0 for b in tiles)


def test_swizzle_is_the_128_byte_mode_of_the_hardware() -> None:
    """Row r of a panel has its chunk c at c xor r % 8: the 128-byte mode."""
    row, chunk = np.divmod(np.arange(64 * 8), 8)
    element = row * 64 + chunk * 8
    assert np.array_equal(apply_swizzle(element, 8, 2) * 2, row * 128 + (chunk ^ row % 8) * 16)
