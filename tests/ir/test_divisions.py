"""`divide`: simplified quotients, staged tiles, and results."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.errors import ScheduleError
from ekc.ir.divisions import compute_quotient_period
from ekc.ir.operator import Operator
from ekc.ir.printer import format_program
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree

GROUPED = o.conv2d(1, 8, 5, 6, out_channels=12, padding=1, groups=4)
TRANSPOSED = o.conv_transpose1d(1, 4, 7, out_channels=4, kernel=3, stride=2, padding=1)


def read(schedule: Schedule) -> str:
    """The statement of the innermost loop."""
    return next(x.strip() for x in reversed(format_program(schedule.program).splitlines()) if "+=" in x)


def test_divide_separates_groups() -> None:
    assert "X[n, o // 3 * 2 + c" in str(GROUPED)
    text = read(Schedule(GROUPED).divide("o", 3))
    assert "Y[n, o.0*3 + o.1, p, q] += X[n, o.0*2 + c, p + r - 1, q + s - 1]" in text
    assert "* W[o.0*3 + o.1, c, r, s]" in text
    # A multiple has several groups.
    assert "X[n, o.0*4 + (o.1 // 3)*2 + c" in read(Schedule(GROUPED).divide("o", 6))


def test_divide_separates_phases() -> None:
    text = read(Schedule(TRANSPOSED).divide("q", 2))
    assert "X[n, c, q.0 + ((q.1 + 1) // 2) - s]" in text
    assert "W[c, o, ((q.1 + 1) % 2) + s*2]" in text


def test_divide_simplifies_nested_quotients() -> None:
    op = o.compute(
        "im2col",
        axes={"i": 6},
        reduce={"k": 24},
        inputs={"x": (2, 4, 3), "w": (6, 24)},
        body=lambda x, w, i, k: x[k // 12, k % 12 // 3, k % 3] * w[i, k],
    )
    assert compute_quotient_period(op.computes[0], "k") == 12
    divided = Schedule(op).divide("k", 12)
    assert "x[k.0, (k.1 // 3), (k.1 % 3)]" in read(divided)
    check_tree(divided)
    check_tree(divided.split("k.1", (4,)).split("i", (4,)).cache_write("C"))


@pytest.mark.parametrize(
    ("index", "turns"),
    [
        (lambda i: i, 1),
        (lambda i: i // 4, 4),
        (lambda i: (i - 3) % 6, 6),
        (lambda i: (i - 3) // 6, 6),
        (lambda i: (i + 9) // 4, 4),
        (lambda i: i // 4 + i % 6, 12),
        (lambda i: i // 4 // 3, 12),
        (lambda i: i // 4 % 3, 12),
        (lambda i: i % 12 // 3, 12),
        (lambda i: 2 * i // 6, 3),
        (lambda i: (i + 3 * (i // 2)) // 5, 2),
        (lambda i: (i + 1) // 2 * 2 % 8, 8),
    ],
)
def test_quotient_period(index: Callable[[ex.Expr], ex.Expr], turns: int) -> None:
    op = o.compute("q", axes={"i": 97}, inputs={"x": (97,)}, body=lambda x, i: x[index(i)])
    assert compute_quotient_period(op.computes[0], "i") == turns
    at = [int(ex.evaluate(index(ex.Var("i")), {"i": i}, lambda load: 0)) for i in range(97)]
    assert len({at[i + turns] - at[i] for i in range(97 - turns)}) == 1, "one turn is not as another"
    if turns > 1:
        check_tree(Schedule(op).divide("i", turns))


@pytest.mark.parametrize(
    ("op", "axis", "tensor"), [(GROUPED, "o", "X"), (TRANSPOSED, "q", "W")], ids=["o", "q"]
)
def test_divided_tile_can_be_staged(op: Operator, axis: str, tensor: str) -> None:
    by = compute_quotient_period(op.computes[0], axis)
    with pytest.raises(ScheduleError, match="fused index"):
        str(_tile(Schedule(op).split(axis, (by,)), axis, tensor))
    check_tree(_tile(Schedule(op).divide(axis, by), axis, tensor))


def _tile(schedule: Schedule, axis: str, tensor: str) -> Schedule:
    """The schedule with all loops inside the outer piece of the axis, where the tensor is staged."""
    others = [x.name for x in schedule.program.nests[0].loops if x.name != f"{axis}.0"]
    return (
        schedule.reorder(f"{axis}.0", *others)
        .bind(f"{axis}.1", "thread.x")
        .cache_read(tensor, "shared", at=f"{axis}.0")
    )


@pytest.mark.parametrize("scope", ["shared", "register"])
@pytest.mark.parametrize(
    ("body", "by"),
    [
        (lambda x, y, n, i: x[i // 16 * 20 + i % 16] * y[n], 16),
        (lambda x, y, n, i: x[i // 4 + i] * y[n], 4),
        (lambda x, y, n, i: x[i // 4 + i % 4] * y[n], 4),
        (lambda x, y, n, i: x[i // 4 * 4 + i % 4] * y[n], 4),
    ],
)
def test_divided_pieces_with_gaps_match_reference(body: Callable[..., ex.Expr], by: int, scope: str) -> None:
    op = o.compute("padded", axes={"n": 3, "i": 32}, inputs={"x": (60,), "y": (3,)}, body=body)
    check_tree(Schedule(op).divide("i", by).cache_read("x", scope, at="n"))
    cut = Schedule(op).divide("i", by).split("i.1", (2,)).split("i.0", (2,))
    check_tree(cut.cache_read("x", scope, at="n"))
    check_tree(cut.cache_read("x", scope, at="i.0.0"))


def test_split_keeps_quotient() -> None:
    assert "o.0*3 + o.1) // 3" in read(Schedule(GROUPED).split("o", (3,)))
