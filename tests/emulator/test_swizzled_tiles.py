"""Swizzled tiles in the PTX machine: right, clean, and with the wavefronts that the analysis foretells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ekc.ir.operators as o
from ekc.errors import ScheduleError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.limits import Limits
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from tests.emulator.generated import run
from tests.emulator.predicted import executed, predicted
from tests.ir.test_schedules import assert_same

COUNTED = (
    "shared_load_requests", "shared_load_wavefronts", "shared_store_requests", "shared_store_wavefronts",
)  # fmt: skip


ROWS = [(64, "float16"), (32, "float32"), (32, "float16"), (128, "float16")]


def turned(dtype: str, tile: tuple[int, int], lanes: int, order: tuple[int, int], **layout: Any) -> Schedule:
    """Y = X transposed: a tile written along its rows by vectors, read down its columns by scalars."""
    rows, columns = tile
    op = o.compute(
        "turned",
        axes={"i": 2 * columns, "j": 2 * rows},
        inputs={"X": (2 * rows, 2 * columns)},
        body=lambda X, i, j: X[j, i],
        output="Y",
        dtype=dtype,
    )
    return (
        Schedule(op)
        .split("i", (columns,))
        .split("j", (rows // lanes, lanes))
        .reorder("i.0", "j.0", "j.1", "i.1", "j.2")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("j.2", "thread.x")
        .cache_read("X", "shared", order=order, **layout)
    )


def rows_by_chunks(swizzle: int, row: int = 64, dtype: str = "float16") -> Schedule:
    """What ldmatrix asks for: eight rows of a tile, 16 bytes of each, by neighbouring lanes."""
    vector = 8 if dtype == "float16" else 4
    return (
        Schedule(o.matvec(64, row, dtype=dtype))
        .split("i", (32,))
        .split("k", (vector,))
        .reorder("i.0", "i.1", "k.0", "k.1")
        .bind("i.0", "block.x")
        .bind("i.1", "thread.x")
        .cache_write("y")
        .cache_read("A", "shared", vector=vector, swizzle=swizzle)
        .cache_read("A.shared", "register", at="k.0", vector=vector)
    )


@st.composite
def swizzles(draw: st.DrawFn) -> Schedule:
    dtype = draw(st.sampled_from(["float32", "float16"]))
    # Whole warps, which start at multiples of what a row holds.
    tile, lanes = draw(st.sampled_from([((32, 32), 32), ((64, 16), 32), ((64, 32), 64), ((32, 8), 32)]))
    vector = draw(st.sampled_from([1, 2, 4] if dtype == "float32" else [1, 2, 4, 8]))
    order = draw(st.sampled_from([(0, 1), (1, 0)]))
    pad = draw(st.sampled_from([0, 0, 8, 32]))
    swizzle = draw(st.sampled_from([1, 2, 4, 8, 8]))
    return turned(dtype, tile, lanes, order, vector=vector, pad=pad, swizzle=swizzle)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(swizzles())
def test_wavefronts_are_those_that_the_machine_counts(schedule: Schedule) -> None:
    try:
        enforce_rules(schedule.program, Limits())
    except ScheduleError:
        assume(False)
    assert_same(schedule)
    assert Schedule.from_json(schedule.to_json()) == schedule
    ran = run(schedule)
    ran.check()
    found, foretold = executed(ran), predicted(schedule)
    for name in COUNTED:
        assert found[name] == pytest.approx(foretold[name], rel=1e-9), f"{name}\n{schedule.to_python()}"


@pytest.mark.parametrize(
    ("row", "dtype"), [(64, "float16"), (32, "float32"), (32, "float16"), (128, "float16")]
)
def test_eight_rows_by_chunks_have_no_conflict(row: int, dtype: str) -> None:
    conflicts = {}
    for swizzle in (1, 8):
        schedule = rows_by_chunks(swizzle, row, dtype)
        ran = run(schedule)
        ran.check()
        found, foretold = executed(ran), predicted(schedule)
        assert found["shared_load_wavefronts"] == pytest.approx(foretold["shared_load_wavefronts"])
        conflicts[swizzle] = found["shared_load_wavefronts"] / found["shared_load_requests"]
    assert conflicts[1] > 2 * conflicts[8]


def test_rows_that_are_no_power_of_two_are_foretold_nearly() -> None:
    """A warp that copies then ends within a row; its starts are taken as independent of that."""
    for swizzle in (2, 8):
        schedule = turned("float32", (64, 24), 8, (0, 1), vector=2, swizzle=swizzle)
        found, foretold = executed(run(schedule)), predicted(schedule)
        assert found["shared_store_wavefronts"] == pytest.approx(foretold["shared_store_wavefronts"], rel=0.1)
        assert found["shared_load_wavefronts"] == pytest.approx(foretold["shared_load_wavefronts"])


def test_no_vector_leaves_its_chunk_and_no_element_its_line() -> None:
    from ekc.ir.hardware.memory import SWIZZLE_CHUNKS, apply_swizzle

    for itemsize in (1, 2, 4):
        elements = np.arange(2048 // itemsize)
        for chunks in SWIZZLE_CHUNKS:
            placed = apply_swizzle(elements, chunks, itemsize)
            assert np.array_equal(placed * itemsize // 128, elements * itemsize // 128)
            assert np.array_equal(placed % (16 // itemsize), elements % (16 // itemsize))
            assert len(np.unique(placed)) == len(elements)


def test_a_population_counts_like_each_of_its_members() -> None:
    chunks = np.array([1, 2, 4, 8, 1, 8])
    many = analyse_program(rows_by_chunks(chunks).program, Limits(), len(chunks))  # type: ignore[arg-type]
    for row, number in enumerate(chunks.tolist()):
        alone = analyse_program(rows_by_chunks(number).program, Limits())
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
def test_a_swizzle_that_cannot_be_is_refused_in_words(layout: dict[str, int], rule: str, words: str) -> None:
    with pytest.raises(ScheduleError, match=f"{rule}: .*{words}"):
        enforce_rules(turned("float32", (8, 10), 8, (0, 1), **layout).program, Limits())


def test_registers_have_no_banks() -> None:
    with pytest.raises(ScheduleError, match=r"x\.register: 8 chunks to swizzle, must be 1;"):
        rows_by_chunks(1).compute_at("A.register", None).cache_read("x", "register", swizzle=8)
