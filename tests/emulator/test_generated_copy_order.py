"""Generated copies of tiles whose rows have several lines, strip by strip: results and predicted traffic."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import ekc.ir.operators as o
from ekc.codegen.generate import generate
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import StageNode, choose_strip_width, walk_nodes
from ekc.ir.schedule.schedule import Schedule
from tests.emulator.generated import run
from tests.emulator.predicted import check_traffic
from tests.ir.async_examples import async_matmul
from tests.ir.tensor_examples import Cut, tensor_matmul
from tests.ir.view_examples import tensor_conv2d

COPIES = ("shared_store_requests", "shared_store_wavefronts", "barriers", "global_store_sectors")


def list_strips(schedule: Schedule) -> list[tuple[int, int]]:
    """(elements of a row, of a strip of it) of every copy by a block."""
    (kernel,) = derive_launches(schedule.program)
    copies = [n for n in walk_nodes(kernel.body) if isinstance(n, StageNode) and n.buffer.scope == "shared"]
    return [
        (int(n.buffer.region.segments[-1].extent), int(choose_strip_width(n, kernel.thread_count)))
        for n in copies
    ]


def half_conv2d(channels: int, depth: int, **cut: object) -> Schedule:
    """Channels last, one warp, tiles as deep as said in instructions of 16."""
    op = o.conv2d(1, channels, 6, 5, out_channels=24, padding=1, layout="NHWC", dtype="float16")
    return tensor_conv2d(op, replace(Cut((1, 1), (1, 2), depth), **cut))  # type: ignore[arg-type]


def async_matvec(m: int, k: int, depth: int) -> Schedule:
    """One warp of 32 rows; the tile of the vector has one dimension."""
    s = Schedule(o.matvec(m, k)).split("i", (32,)).split("k", (depth,)).reorder("i.0", "k.0", "i.1", "k.1")
    s = s.bind("i.0", "block.x").bind("i.1", "thread.x").cache_write("y")
    s = s.cache_read("A", "shared", at="k.0", vector=4, pad=4).cache_read("x", "shared", at="k.0")
    return s.pipeline("k.0", copy="async")


@pytest.mark.parametrize(
    ("schedule", "wide"),
    [
        pytest.param(half_conv2d(256, 8, stages=3, pad=8), [(128, 64)] * 2, marks=pytest.mark.exhaustive),
        (half_conv2d(256, 8, stages=2, swizzle=8), [(128, 64), (128, 128)]),
        (half_conv2d(256, 16, stages=2, pad=8), [(256, 64)] * 2),
        # The last channels are outside, in some strips and not in others.
        (half_conv2d(176, 8, stages=2, pad=8), [(128, 64)] * 2),
        # Copies of 4 bytes: elements of 2 bytes need no other alignment.
        pytest.param(
            half_conv2d(256, 8, stages=2, vector=2, pad=2), [(128, 64)] * 2, marks=pytest.mark.exhaustive
        ),
        # Rows of B end within a strip of every tile: whether a piece is inside is computed in every round.
        (
            tensor_matmul(o.matmul(16, 112, 32, dtype="float16"), Cut((1, 1), (1, 16), 1, pad=8)),
            [(16, 16), (128, 64)],
        ),
        # Rows that begin in the middle of a sector.
        pytest.param(half_conv2d(168, 8, stages=2, pad=8), [(128, 128)] * 2, marks=pytest.mark.exhaustive),
        # Three warps copy a line of 48 rows in whole rounds, but not of 16.
        (half_conv2d(128, 8, warps=(3, 1), pad=8), [(128, 64), (128, 128)]),
        # Stored the other way round.
        (
            tensor_matmul(
                o.matmul(16, 24, 64, dtype="tf32"), Cut((1, 1), (1, 2), 8, vector=1, pad=1, order=(1, 0))
            ),
            [(64, 32), (16, 16)],
        ),
        # Chunks change places, and no view gains by it.
        (
            tensor_matmul(o.matmul(16, 128, 64, dtype="float16"), Cut((1, 1), (1, 16), 2, swizzle=8)),
            [(32, 32), (128, 128)],
        ),
        # A tile that is one row, by a single warp.
        (async_matvec(64, 256, 128), [(128, 32), (128, 128)]),
        # A row is a line.
        (half_conv2d(128, 4, stages=2, pad=8), [(64, 64)] * 2),
        # Copied through registers.
        (half_conv2d(256, 8, stages=2, copy="register", pad=8), [(128, 128)] * 2),
        (
            tensor_matmul(o.matmul(48, 40, 256, dtype="float16"), Cut((2, 1), (1, 2), 8, pad=8)),
            [(128, 64), (16, 16)],
        ),
        pytest.param(
            async_matmul(33, 40, 136, stages=2, depth=64, vector=2),
            [(64, 32), (32, 32)],
            marks=pytest.mark.exhaustive,
        ),
        (async_matmul(33, 40, 136, stages=3, depth=64, vector=1), [(64, 32), (32, 32)]),
    ],
    ids=lambda x: None if isinstance(x, Schedule) else str(x[0]),
)
def test_copies_in_strips_are_right_with_predicted_traffic(
    schedule: Schedule, wide: list[tuple[int, int]]
) -> None:
    assert list_strips(schedule) == wide
    ran = run(schedule)
    check_traffic(ran, COPIES)
    # Traffic of guarded copies is predicted nearly: the lanes of a warp beyond an edge are a mean.
    check_traffic(ran, ("global_load_requests", "global_load_sectors"), rel=0.06)


def test_pieces_of_a_row_share_addresses_and_bounds() -> None:
    """With 128 channels a thread copies two pieces of each row; addresses are computed in half the rounds."""
    source = generate(half_conv2d(256, 8, stages=3, pad=8), LaunchLimits()).source
    (rounds,) = {int(n) for n in re.findall(r"round < (\d+); \+\+round\) \{\n.*copy_async", source)}
    arrays = dict(re.findall(r"(\w+)\[(\d+)\];\n", source))
    assert {name for name in arrays if name.startswith("X_shared")} == {
        "X_shared_offset_base", "X_shared_outside", "X_shared_offset", "X_shared_inside",
    }  # fmt: skip
    assert {int(n) for name, n in arrays.items() if name.startswith("X_shared")} == {rounds // 2}
