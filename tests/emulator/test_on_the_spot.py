"""Graphs whose computes before the last reduce rows, as one launch: drawn tiles, through tree and machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.codegen.cache import compile_cached
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from tests.emulator.generated import run
from tests.emulator.predicted import executed, predicted
from tests.ir.test_schedules import assert_same

Sizes = tuple[int, int, str]
EXACT = ("barriers", "shuffles", "shared_store_requests")
"""The schedule alone decides these."""


def _spread(sizes: Sizes) -> Operator:
    """Rows of a matrix of planes by how far they reach: two reductions over two axes each."""
    m, n, dtype = sizes
    op = o.compute(
        "spread",
        axes={"i": m},
        reduce={"a": 3, "b": n},
        inputs={"X": (3, m, n)},
        body=lambda X, i, a, b: X[a, i, b],
        combine="min",
        output="low",
        dtype=dtype,
        out_dtype="float32",
    )
    op = op.then(
        "high",
        axes={"j": m},
        reduce={"c": 3, "d": n},
        body=lambda X, low, j, c, d: X[c, j, d] - low[j],
        combine="max",
        out_dtype="float32",
    )
    return op.then(
        "Y", axes={"p": m, "q": n}, body=lambda X, low, high, p, q: (X[1, p, q] - low[p]) * high[p]
    )


def _shifted(sizes: Sizes) -> Operator:
    """Each row less the sum of the row above; nothing lies above the first."""
    m, n, dtype = sizes
    op = o.compute(
        "shifted",
        axes={"i": m},
        reduce={"k": n},
        inputs={"X": (m, n)},
        body=lambda X, i, k: ex.exp(X[i, k]),
        output="sums",
        dtype=dtype,
    )
    return op.then("Y", axes={"p": m, "q": n}, body=lambda X, sums, p, q: X[p, q] - sums[p - 1] + sums[p])


def _product(sizes: Sizes) -> Operator:
    """A matrix product whose sums are left to warps: poor, but right."""
    m, n, dtype = sizes
    op = o.matmul(m, n, 40, dtype=dtype)
    return op.then("Y", axes={"p": m, "q": n}, body=lambda C, p, q: ex.relu(C[p, q]))


GRAPHS: dict[str, Callable[[Sizes], Operator]] = {
    "softmax": lambda s: o.softmax(s[:2], dtype=s[2]),
    "layer_norm": lambda s: o.layer_norm(s[:2], dtype=s[2]),
    "rms_norm": lambda s: o.rms_norm(s[:2], dtype=s[2]),
    "spread": _spread,
    "shifted": _shifted,
    "product": _product,
}


@st.composite
def fused(draw: st.DrawFn, name: str) -> Schedule:
    """One launch; rows and columns of any tile, X through shared memory or not, any share of the warps."""
    vector = draw(st.sampled_from((1, 2, 4)))
    columns = vector * draw(st.integers(1, 130 // vector))
    op = GRAPHS[name]((draw(st.integers(1, 9)), columns, draw(st.sampled_from(("float32", "float16")))))
    rows, across = draw(st.sampled_from(((1, 32), (1, 64), (2, 32), (4, 32), (4, 8), (3, 32))))
    p, q = (a.name for a in op.computes[-1].spatial_axes)
    s = Schedule(op).split(p, (rows,)).split(q, (across, vector))
    s = s.reorder(f"{p}.0", f"{p}.1", f"{q}.1", f"{q}.0", f"{q}.2").bind(f"{p}.0", "block.x")
    s = s.bind(f"{p}.1", "thread.x").bind(f"{q}.1", "thread.x")
    copied = "X" in op.tensors and draw(st.booleans())
    if copied:
        s = s.cache_read("X", "shared", vector=vector, pad=draw(st.sampled_from((0, 4))), reader="Y")
    warps = rows * across // 32
    share = draw(st.sampled_from([w for w in (1, 2, 3, 4) if warps % w == 0]))
    at = draw(st.sampled_from((None, None, f"{q}.0")))
    for compute in reversed(op.computes[:-1]):
        s = s.compute_at(compute.output.name, at, share)
    if copied and draw(st.booleans()):
        s = s.cache_read("X.shared", "register", at=f"{q}.0", vector=vector)
    return s.vectorize(f"{q}.2") if vector > 1 else s


def _settings(count: int) -> Any:
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", GRAPHS)
@_settings(30)
@given(st.data())
def test_a_drawn_tile_computes_what_the_operator_says(name: str, data: st.DataObject) -> None:
    schedule = data.draw(fused(name))
    assert len(schedule.program.nests) == 1
    enforce_rules(schedule.program, Limits())
    assert_same(schedule)
    assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize("name", GRAPHS)
@_settings(8)
@given(st.data())
def test_and_so_does_its_kernel_which_does_what_the_analysis_foretells(
    name: str, data: st.DataObject
) -> None:
    schedule = data.draw(fused(name))
    ran = run(schedule, ptx=lambda source, arch: compile_cached(source, arch).ptx)
    ran.check()
    foretold, counted = predicted(schedule), executed(ran)
    assert {n: foretold[n] for n in EXACT} == {n: counted[n] for n in EXACT}
