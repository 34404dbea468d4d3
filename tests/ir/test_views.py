"""Tiles that cut a joint loop: what they hold, what they cost, what is refused, and that they are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.errors import ScheduleError
from ekc.ir.affine import AffineForm, QuasiAffine, compute_carry_period, compute_displacement, evaluate_form
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.memory_access import count_block_elements, find_global_reads
from ekc.ir.lowering.nodes import StageNode, walk_nodes
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree
from tests.ir.mma_starts import fused
from tests.ir.tensor_examples import Cut
from tests.ir.view_examples import PIXELS, fused_pixels, half_conv2d, plain_conv2d, tensor_conv2d


def test_tile_has_one_coordinate_for_the_joint_loop() -> None:
    (kernel,) = derive_launches(half_conv2d().program)
    tile = next(b for b in kernel.buffers if b.name == "X.shared")
    assert [(s.is_joint, s.extent) for s in tile.region.segments] == [(True, 64), (False, 32)]
    assert tile.storage_extents == (64, 40)


def test_tile_elements_are_those_their_iterations_read() -> None:
    schedule = half_conv2d()
    (kernel,) = derive_launches(schedule.program)
    stage = next(
        n for n in walk_nodes(kernel.body) if isinstance(n, StageNode) and n.buffer.name == "X.shared"
    )
    for block, r, s, element in [(0, 0, 0, 0), (1, 2, 1, 5), (3, 1, 2, 63), (6, 2, 2, 8)]:
        env = {f"{PIXELS}.0": block, "r": r, "s": s, "c.0": 0, "#0": element, "#1": 3}
        pixel = block * 64 + element
        image, y, x = pixel // 196, pixel // 14 % 14, pixel % 14
        found = [evaluate_form(form, env) for form in stage.source.index]
        assert found == [image, y + r - 1, x + s - 1, 3]


def test_view_survives_json() -> None:
    schedule = half_conv2d()
    assert Schedule.from_json(schedule.to_json()).digest == schedule.digest
    assert str(Schedule.from_json(schedule.to_json())) == str(schedule)


def test_printed_stage_shows_its_iterations() -> None:
    (line,) = [x for x in str(half_conv2d()).splitlines() if "stage X[" in x]
    assert "s + (n_p_q % 14) - 1, c.0*32 : 32], n_p_q = n_p_q.0*64 : 64 -> shared[64, 32+8]" in line


@pytest.mark.parametrize("at", ["r", "s", f"{PIXELS}.2"])
def test_register_copy_may_sit_inside_all_pieces_of_the_joint_loop(at: str) -> None:
    """Nothing of the joint loop moves there, so the copy is no tile of the view; what it copies from is."""
    op = o.conv2d(2, 4, 5, 7, out_channels=4, padding=1, layout="NHWC")
    i = [f"{PIXELS}.{n}" for n in range(3)]
    schedule = (
        fused_pixels(op).split(PIXELS, (8, 3)).reorder(i[0], i[1], "c", i[2], "r", "s", "o")
        .bind(i[0], "block.x").bind(i[1], "thread.x").cache_write("Y", "register")
        .cache_read("X", "shared", at="c").cache_read("X.shared", "register", at=at)
    )  # fmt: skip
    (line,) = [x for x in str(schedule).splitlines() if "stage X.shared[" in x]
    assert "//" not in line
    check_tree(schedule)


def test_joint_loops_of_the_same_axes_stay_two() -> None:
    """Outer pieces joined, and inner ones: both cut by one tile."""
    op = o.einsum("kab,kc->abc", (8, 8, 12), (8, 4))
    schedule = (
        Schedule(op).split("a", (2,)).split("b", (3,)).reorder("a.0", "b.0", "a.1", "b.1")
        .fuse("a.0", "b.0").fuse("a.1", "b.1").split("a.0_b.0", (4,)).split("a.1_b.1", (2,))
        .reorder("a.0_b.0.0", "a.1_b.1.0", "c", "a.0_b.0.1", "a.1_b.1.1", "k").bind("a.0_b.0.0", "block.x")
        .cache_read("A", "shared", at="c").cache_read("A.shared", "register", at="a.0_b.0.1")
    )  # fmt: skip
    check_tree(schedule)
    assert "], a_b = a.0_b.0.0*4 : 4, a_b_ = a.1_b.1.0*2 : 2 -> shared[8, 8]" in str(schedule)


@pytest.mark.parametrize("pixels", [(), (8,)])
def test_register_copy_may_cut_a_joint_loop_that_its_tile_holds_whole(pixels: tuple[int, ...]) -> None:
    """Taps, with pixels that the tile cuts itself and without."""
    op = o.conv2d(1, 4, 6, 6, out_channels=4, padding=1, layout="NHWC")
    block, *inner = [f"p_q.{n}" for n in range(2)] if pixels else ["p_q"]
    schedule = Schedule(op).fuse("p", "q").fuse("r", "s").split("r_s", (3,))
    schedule = (
        (schedule.split("p_q", pixels) if pixels else schedule)
        .reorder("n", block, "c", "r_s.0", *inner, "r_s.1", "o").bind("n", "block.y")
        .bind(block, "block.x").cache_write("Y")
        .cache_read("X", "shared", at="c").cache_read("X.shared", "register", at="r_s.0")
        .cache_read("W", "shared", at="c").cache_read("W.shared", "register", at="r_s.0")
    )  # fmt: skip
    (line,) = [x for x in str(schedule).splitlines() if "stage W.shared[" in x]
    assert "W.shared[0 : 4, (r_s // 3), (r_s % 3)], r_s = r_s.0*3 : 3 -> register[4, 3]" in line
    check_tree(schedule)


def _touched(schedule: Schedule) -> float:
    """Different elements of X that a block reads, counted one by one; the mean over blocks."""
    (kernel,) = derive_launches(schedule.program)
    free = [
        x for x in kernel.nest.loops if not x.is_block and x.name.split(".")[0] in (PIXELS, "r", "s", "c")
    ]
    grid = np.meshgrid(*(np.arange(int(x.extent)) for x in free), indexing="ij")
    counts = []
    first = next(x for x in kernel.nest.loops if x.name == f"{PIXELS}.0")
    for block in range(int(first.extent)):
        env = dict(zip((x.name for x in free), grid, strict=True)) | {first.name: block}
        index = [np.ravel(evaluate_form(form, env)) for form in find_global_reads(kernel.nest)["X"][0]]
        counts.append(len(np.unique(np.stack(index), axis=1).T))
    return float(np.mean(counts))


@pytest.mark.parametrize("tile", [1, 2, 4])
@pytest.mark.parametrize(
    "window", [{"kernel": 1}, {"padding": 1}, {"padding": 1, "stride": 2}, {"padding": 2, "dilation": 2}]
)
def test_elements_behind_a_tile_are_estimated_closely(window: dict[str, int], tile: int) -> None:
    """Windows overlap: the tile of a 3x3 convolution has far more elements than the tensor behind it."""
    op = o.conv2d(2, 4, 14, 14, out_channels=8, layout="NHWC", **({"kernel": 3} | window))
    schedule = plain_conv2d(op, threads=16, tile=tile)
    (kernel,) = derive_launches(schedule.program)
    found, right = (
        float(count_block_elements(find_global_reads(kernel.nest)["X"], kernel.nest)),
        _touched(schedule),
    )
    # A run of about a row is taken to have its whole halo where it starts and ends in the middle.
    assert found == pytest.approx(right, rel=0.25 if tile == 1 else 0.1)


def test_elements_behind_a_tile_without_a_window_are_the_tile() -> None:
    op = o.conv2d(2, 4, 14, 14, out_channels=8, kernel=1, layout="NHWC")
    (kernel,) = derive_launches(plain_conv2d(op).program)
    assert count_block_elements(find_global_reads(kernel.nest)["X"], kernel.nest) == 32 * 4


def test_population_counts_like_each_of_its_members() -> None:
    op = o.conv2d(2, 32, 9, 7, out_channels=32, padding=1, layout="NHWC", dtype="float16")
    cuts = [(1, 1), (2, 1), (1, 2), (2, 2)]
    many = tensor_conv2d(op, Cut(pad=8))
    steps = [
        type(s)(s.loop, (np.array([c[0] for c in cuts]), np.array([c[1] for c in cuts]), *s.factors[2:]))
        if s.kind == "split" and s.loop == PIXELS
        else s
        for s in many.steps
    ]
    program = Schedule(op).program
    for step in steps:
        program = step.apply(program)
    together = analyse_program(program, LaunchLimits(), len(cuts))
    for number, (warps, tiles) in enumerate(cuts):
        alone = tensor_conv2d(op, Cut((warps, 2), (tiles, 4), pad=8)).program
        for name, figure in analyse_program(alone, LaunchLimits()).items():
            assert together[name][number] == pytest.approx(figure[0], rel=1e-9), name


@pytest.mark.parametrize("divisors", [(7,), (7, 3), (21, 7)])
def test_carry_period_is_the_first_change_of_step(divisors: tuple[int, ...]) -> None:
    atom = QuasiAffine("%", AffineForm((("p", 1),)), divisors[0], "x")
    for divisor in divisors[1:]:
        atom = QuasiAffine("//", AffineForm(((atom, 1),)), divisor, f"{atom.tag}/{divisor}")
    form, first = AffineForm(((atom, 1),)), compute_carry_period(atom, "p")
    values = [compute_displacement(form, "p", n) for n in range(divisors[0] + 1)]
    steps = np.diff(values)
    assert first == 1 + next(n for n in range(1, len(steps) + 1) if n == len(steps) or steps[n] != steps[0])


def test_columns_of_two_axes_match_reference() -> None:
    schedule = fused()
    check_legal(schedule)


def check_legal(schedule: Schedule) -> None:
    enforce_rules(schedule.program, LaunchLimits())
    check_tree(schedule)


def refused(op: Operator, steps: Any) -> str:
    with pytest.raises(ScheduleError) as caught:
        enforce_rules(steps(Schedule(op)).program, LaunchLimits())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_quotient_of_a_body_is_not_cut() -> None:
    op = o.compute(
        "twice", axes={"i": 8, "j": 4}, reduce={"k": 4}, inputs={"A": (4, 4), "B": (4, 4)},
        body=lambda A, B, i, j, k: A[i // 2, k] * B[k, j],
    )  # fmt: skip
    message = refused(
        op, lambda s: s.split("i", (4,)).reorder("i.0", "j", "k", "i.1").cache_read("A", "shared", at="k")
    )
    assert "split the axes before fusing them" in message


@pytest.mark.parametrize(("outer", "inner"), [("a_b.1", "a_b.2"), ("a_b.2", "a_b.3")])
def test_pieces_of_a_joint_loop_joined_again_are_not_cut(outer: str, inner: str) -> None:
    """The iteration is then no sum of loops, each with a place of its own in a tile."""
    op = o.einsum("kab,kc->abc", (4, 8, 12), (4, 4))
    message = refused(
        op,
        lambda s: (
            s.fuse("a", "b").split("a_b", (3, 2, 2)).reorder("a_b.0", "a_b.1", "a_b.2", "a_b.3", "c", "k")
            .fuse(outer, inner).bind("a_b.0", "block.x").cache_read("A", "shared")
        ),
    )  # fmt: skip
    assert "pieces that are joined again" in message


def test_tensor_computed_on_the_spot_is_no_tile_of_a_view() -> None:
    op = o.compute(
        "first", axes={"u": 2, "v": 8, "w": 8}, inputs={"X": (2, 8, 8)}, output="T",
        body=lambda X, u, v, w: X[u, v, w] + 1,
    ).then(
        "C", axes={"i": 2, "j": 8, "m": 4}, reduce={"k": 8}, inputs={"B": (8, 4)},
        body=lambda T, B, i, j, m, k: T[i, j, k] * B[k, m],
    )  # fmt: skip
    made = (
        Schedule(op).fuse("i", "j").split("i_j", (4,)).reorder("i_j.0", "m", "k", "i_j.1")
        .bind("i_j.0", "block.x").cache_write("C").compute_at("T", "k")
    )  # fmt: skip
    check_tree(made)


def test_pixels_move_one_by_one_where_the_image_has_an_edge() -> None:
    op = o.conv2d(2, 8, 5, 8, out_channels=8, padding=1)
    staged = plain_conv2d(op, staged=False).cache_read("X", "shared", at="c.0", vector=4)
    message = refused(op, lambda s: staged)
    assert "vector width of X.shared" in message
    assert message.endswith("; use 1")


def stage_pairs(schedule: Schedule, vector: int = 4) -> Schedule:
    """A in shared memory, by tiles of a joint loop of a and b."""
    s = schedule.fuse("a", "b").split("a_b", (4, 4)).reorder("a_b.0", "a_b.1", "c", "k", "a_b.2")
    s = s.bind("a_b.0", "block.x").bind("a_b.1", "thread.x")
    return s.cache_read("A", "shared", at="c", vector=vector)


def test_whole_rows_of_a_joint_loop_move_together() -> None:
    """Neighbours of the joint loop are such in memory up to the end of a row."""

    op = o.einsum("kab,kc->abc", (8, 6, 8), (8, 4))
    whole = stage_pairs(Schedule(op))
    check_legal(whole)
    for row, width in ((7, 1), (6, 2)):
        odd = refused(o.einsum("kab,kc->abc", (8, 6, row), (8, 4)), stage_pairs)
        assert f"must divide runs of {row} neighbours; use {width}" in odd


def test_neighbours_in_memory_are_none_along_the_slower_digit() -> None:
    """A tensor whose last dimension is not the axis fused last: the loop jumps from row to row."""

    op = o.einsum("kba,kc->abc", (8, 8, 8), (8, 4))
    assert "vector width of A.shared" in refused(op, stage_pairs)
    alone = stage_pairs(Schedule(op), 1)
    check_legal(alone)


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ((8, 8), lambda a, b: (a, (b + 1) % 8)),
        ((8, 4), lambda a, b: (a, (b - 1) % 4)),
        ((4, 8), lambda a, b: (0, (a + b) % 8)),
    ],
)
def test_rolled_row_is_not_read_by_vectors(
    rows: tuple[int, int], place: Callable[[Any, Any], tuple[Any, Any]], vector: int
) -> None:
    """The element behind b = 2 of x[(b + 1) % 4] is the first of the row again."""
    op = o.compute(
        "rolled", axes={"a": rows[0], "b": rows[1], "c": 4}, reduce={"k": 4},
        inputs={"A": (4, *rows), "B": (4, 4)}, body=lambda A, B, a, b, c, k: A[(k, *place(a, b))] * B[k, c],
    )  # fmt: skip

    if vector > 1:
        assert "vector width of A.shared" in refused(op, stage_pairs)
        return
    schedule = stage_pairs(Schedule(op), vector)
    check_legal(schedule)


def test_neighbours_in_a_tile_of_a_view_move_together() -> None:
    """In memory a row of the image ends; in the tile the pixels lie side by side, whatever the image."""
    op = o.conv2d(1, 4, 6, 7, out_channels=8, kernel=1)
    i = [f"{PIXELS}.{n}" for n in range(3)]
    schedule = (
        fused_pixels(op).split(PIXELS, (4, 4)).reorder(i[0], "o", i[1], "c", "r", "s", i[2])
        .bind(i[0], "block.x").bind("o", "block.x").bind(i[1], "thread.x").cache_write("Y")
        .cache_read("X", "shared").cache_read("X.shared", "register", at="s", vector=4)
    )  # fmt: skip
    enforce_rules(schedule.program, LaunchLimits())
    assert "register[4]   1 x float4" in str(schedule)
    check_tree(schedule)
