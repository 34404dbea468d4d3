"""Counts of operations in a body, in a fused epilogue, and in flops agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.analysis.analysis import quantities
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule


def operations(schedule: Schedule) -> float:
    return float(quantities(schedule.program, Limits())["total_operations"])


@pytest.mark.parametrize(
    ("body", "count"),
    [(lambda c: c * 0.5, 1), (lambda c: ex.relu(c + 1), 2), (ex.silu, 4), (ex.gelu, 5)],
)
def test_constants_behind_a_sum_are_no_operations(body: Callable[[ex.Expr], ex.Expr], count: int) -> None:
    plain = o.matmul(8, 8, 8)
    op = plain.epilogue(body)
    more = operations(Schedule(op).cache_write("C").compute_inline("C")) - operations(
        Schedule(plain).cache_write("C")
    )
    assert (more, op.flops - plain.flops) == (64 * count, 64 * count)


def test_a_part_that_is_index_and_value_counts_as_value() -> None:
    def shifted(share: bool) -> Operator:
        def body(A, i):  # type: ignore[no-untyped-def]
            x = i + 1
            return A[x] * (x if share else i + 1)

        return o.compute("shifted", axes={"i": 8}, inputs={"A": (9,)}, body=body)

    assert operations(Schedule(shifted(True))) == operations(Schedule(shifted(False))) == 16
