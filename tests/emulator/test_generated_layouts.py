"""Generated kernels with swizzled tiles: bank conflicts, predicted wavefronts, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.errors import ScheduleError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.features import transpose_tile
from tests.emulator.generated import run
from tests.emulator.predicted import check_traffic, count_traffic


def rows_by_chunks(swizzle: int, row: int = 64, dtype: str = "float16") -> Schedule:
    """Reads as of ldmatrix: eight rows of a tile, 16 bytes of each, by neighbouring lanes."""
    vector = 8 if dtype == "float16" else 4
    s = Schedule(o.matvec(64, row, dtype=dtype)).split("i", (32,)).split("k", (vector,))
    s = s.reorder("i.0", "i.1", "k.0", "k.1").bind("i.0", "block.x").bind("i.1", "thread.x").cache_write("y")
    s = s.cache_read("A", "shared", vector=vector, swizzle=swizzle)
    return s.cache_read("A.shared", "register", at="k.0", vector=vector)


@pytest.mark.parametrize(
    ("row", "dtype"), [(64, "float16"), (32, "float32"), (32, "float16"), (128, "float16")]
)
def test_swizzled_rows_by_chunks_have_no_bank_conflict(row: int, dtype: str) -> None:
    conflicts = {}
    for swizzle in (1, 8):
        schedule = rows_by_chunks(swizzle, row, dtype)
        ran = run(schedule)
        check_traffic(ran, ["shared_load_wavefronts"], rel=1e-6)
        found = count_traffic(ran)
        conflicts[swizzle] = found["shared_load_wavefronts"] / found["shared_load_requests"]
    assert conflicts[1] > 2 * conflicts[8]


def test_wavefronts_of_other_row_lengths_are_predicted_nearly() -> None:
    """A warp that copies then ends within a row; its starts are taken as independent of that."""
    for swizzle in (2, 8):
        schedule = transpose_tile("float32", (64, 24), 8, (0, 1), vector=2, swizzle=swizzle)
        ran = run(schedule)
        check_traffic(ran, ["shared_store_wavefronts"], rel=0.1)
        check_traffic(ran, ["shared_load_wavefronts"], rel=1e-6)


def test_swizzle_keeps_vectors_in_chunks_and_elements_in_lines() -> None:
    from ekc.ir.hardware.memory import SWIZZLE_CHUNKS, apply_swizzle

    for itemsize in (1, 2, 4):
        elements = np.arange(2048 // itemsize)
        for chunks in SWIZZLE_CHUNKS:
            placed = apply_swizzle(elements, chunks, itemsize)
            assert np.array_equal(placed * itemsize // 128, elements * itemsize // 128)
            assert np.array_equal(placed % (16 // itemsize), elements % (16 // itemsize))
            assert len(np.unique(placed)) == len(elements)


def test_population_counts_like_each_of_its_members() -> None:
    chunks = np.array([1, 2, 4, 8, 1, 8])
    many = analyse_program(rows_by_chunks(chunks).program, LaunchLimits(), len(chunks))  # type: ignore[arg-type]
    for row, number in enumerate(chunks.tolist()):
        alone = analyse_program(rows_by_chunks(number).program, LaunchLimits())
        assert {name: values[row] for name, values in many.items()} == {k: v[0] for k, v in alone.items()}


@pytest.mark.parametrize(
    ("layout", "rule", "words"),
    [
        ({"swizzle": 3}, "cache_read X.shared", "3 chunks to swizzle.*1, 2, 4 or 8.*8"),
        ({"swizzle": 16}, "cache_read X.shared", "16 chunks"),
        ({"swizzle": 8}, "swizzle of X.shared", "320 bytes.*multiple of 128.*change the pad"),
        ({"swizzle": 2, "pad": 1}, "swizzle of X.shared", "352 bytes"),
    ],
)
def test_impossible_swizzle_is_refused(layout: dict[str, int], rule: str, words: str) -> None:
    with pytest.raises(ScheduleError, match=f"{rule}: .*{words}"):
        enforce_rules(transpose_tile("float32", (8, 10), 8, (0, 1), **layout).program, LaunchLimits())


def test_swizzle_of_registers_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"x\.register: 8 chunks to swizzle, must be 1;"):
        rows_by_chunks(1).compute_at("A.register", None).cache_read("x", "register", swizzle=8)
