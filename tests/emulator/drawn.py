"""Kernels that ekc can emit, drawn: what the tuner breeds, and whatever steps come."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.errors import ScheduleError
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from ekc.search.space.space import Space
from tests.ir.drawn_operators import FIRST, Choose, draw_operator
from tests.ir.strategies import draw_atomic, draw_in_parts, draw_schedule


def _band() -> Operator:
    return o.compute(
        "band",
        axes={"i": 20, "j": 33},
        reduce={"b": 5},
        inputs={"A": (20, 5), "B": (20, 33)},
        body=lambda A, B, i, j, b: A[i, b] * B[i + b - 2, j],
    )


def _soft() -> Operator:
    return o.compute(
        "soft", axes={"i": 25, "j": 24}, inputs={"x": (25, 24)}, body=lambda x, i, j: ex.relu(x[i, j]) + 1
    )


def _two_computes(dtype: str) -> Operator:
    return o.matmul(16, 24, 12, dtype=dtype).then(
        "D",
        axes={"p": 16, "q": 24},
        inputs={"bias": (24,)},
        body=lambda C, bias, p, q: ex.relu(C[p, q] + bias[q]),
    )


def _gated() -> Operator:
    """Two epilogues behind a convolution: a bias per channel and an activation, then a residual."""
    first = o.conv2d(1, 4, 9, 9, out_channels=8, kernel=3, stride=2, padding=1).epilogue(
        lambda y, bias: ex.gelu(y + bias), bias=(8, 1, 1)
    )
    return first.epilogue(lambda y, before: y + before, before=(1, 8, 5, 5))


def _furthest() -> Operator:
    return o.compute(
        "furthest", axes={"i": 19}, reduce={"k": 40}, inputs={"x": (19, 40)}, body=lambda x, i, k: x[i, k],
        combine="max",
    )  # fmt: skip


BRED: dict[str, Operator] = {
    "matmul": o.matmul(48, 40, 24),
    "matmul 64": o.matmul(64, 64, 32),
    "primes": o.matmul(31, 29, 23),
    "fp16": o.matmul(32, 24, 40, dtype="float16"),
    "fp16 primes": o.matmul(19, 23, 17, dtype="float16"),
    "transposed": o.matmul(24, 33, 20, transpose_a=True, transpose_b=True),
    "batch": o.batch_matmul(3, 17, 16, 12),
    "matvec": o.matvec(64, 96),
    "matvec odd": o.matvec(37, 61),
    "matvec fp16": o.matvec(40, 64, dtype="float16"),
    "conv": o.conv2d(1, 8, 8, 8, out_channels=8, kernel=3, padding=1),
    "conv stride": o.conv2d(1, 4, 9, 9, out_channels=8, kernel=3, stride=2, padding=1),
    "conv groups": o.conv2d(2, 8, 7, 7, out_channels=8, kernel=3, padding=1, groups=4),
    "conv groups fp16": o.conv2d(
        1, 32, 4, 5, out_channels=16, kernel=3, padding=1, groups=2, layout="NHWC", dtype="float16"
    ),
    "conv transposed fp16": o.conv_transpose2d(
        1, 16, 4, 5, out_channels=8, kernel=3, stride=2, padding=1, dtype="float16"
    ),
    "conv depthwise": o.conv2d(1, 16, 7, 7, out_channels=16, kernel=3, padding=1, groups=16),
    "conv fp16": o.conv2d(1, 4, 6, 10, out_channels=4, kernel=(3, 1), padding=(1, 0), dtype="float16"),
    "einsum": o.einsum("abc,cd->dba", (3, 7, 16), (16, 12)),
    "band": _band(),
    "soft": _soft(),
    "furthest": _furthest(),
    "two computes": _two_computes("float32"),
    "two computes fp16": _two_computes("float16"),
    "gelu and residual": _gated(),
    "silu fp16": o.matvec(40, 64, dtype="float16").epilogue(lambda y, gate: ex.silu(y) * gate, gate=(40,)),
}
"""Operators whose spaces the tuner would search; small, so that whole grids run."""
MORE: dict[str, Operator] = {
    "tf32": o.matmul(32, 24, 40, dtype="tf32"),
    "bf16": o.matmul(48, 40, 24, dtype="bfloat16"),
    "bf16 out fp32": o.matmul(19, 23, 17, dtype="bfloat16", out_dtype="float32"),
    "matvec bf16": o.matvec(40, 64, dtype="bfloat16"),
    "conv bf16": o.conv2d(1, 4, 6, 10, out_channels=4, kernel=3, padding=1, dtype="bfloat16"),
    "int8": o.matmul(64, 64, 32, dtype="int8"),
    "int8 primes": o.matmul(31, 29, 23, dtype="int8", out_dtype="float32"),
    "int8 transposed": o.matmul(48, 32, 64, dtype="int8", transpose_b=True, out_dtype="int8"),
    "matvec int8": o.matvec(64, 128, dtype="int8"),
    "conv int8": o.conv2d(1, 16, 7, 7, out_channels=8, kernel=3, padding=1, dtype="int8"),
    "columns": o.einsum("km,k->m", (96, 64), (96,)),
    "columns odd": o.reduce((61, 37), 0, "max"),
    "columns fp16": o.einsum("km,k->m", (64, 40), (64,), dtype="float16"),
    "columns between": o.reduce((3, 40, 24), 1, "mean"),
}
"""The same of other element types and orders; kept apart, so that `bred_ones` stay what their distances
were measured on."""
_POPULATION = 64


@cache
def space(name: str) -> Space:
    return Space((BRED | MORE)[name], Limits())


def bred(name: str, seed: int) -> Schedule:
    """A schedule at the search's full depth: drawn, mended, one of those that are legal."""
    here, rng = space(name), np.random.default_rng(seed)
    legal = here.repair(rng, here.sample(rng, _POPULATION))[0]
    return here.build_schedule(legal, int(rng.integers(len(legal))))


def stepped(choose: Choose, kinds: Sequence[Callable[[Choose], Operator]] = ()) -> Schedule:
    """Any small operator (or one of some kinds), with those of the drawn steps that leave it legal."""
    return _legal(draw_schedule(choose, draw_operator(choose, kinds)))


def in_parts(choose: Choose) -> Schedule | None:
    """The same behind a sum in parts; None where the operator drawn has none to cut."""
    wanted = draw_in_parts(choose, draw_operator(choose))
    return wanted and _legal(wanted)


def atomic(choose: Choose) -> Schedule | None:
    """The same with a sum that blocks share; None where the operator drawn has none that they may."""
    wanted = draw_atomic(choose, draw_operator(choose))
    return wanted and _legal(wanted)


def _legal(wanted: Schedule) -> Schedule:
    schedule = _start(Schedule(wanted.op).apply_steps(*(s for s in wanted.steps if s.kind == "rfactor")))
    for step in wanted.steps:
        try:
            longer = schedule.apply_steps(step)
            enforce_rules(longer.program, Limits())
        except ScheduleError:
            continue
        schedule = longer
    return schedule


def _start(schedule: Schedule) -> Schedule:
    """The shortest legal schedule: a float16 sum needs an accumulator of its own."""
    for nest in schedule.program.nests:
        compute = nest.compute
        if compute.reduction_axes and compute.output.dtype is not compute.acc_dtype:
            schedule = schedule.cache_write(compute.output.name)
    return schedule


def bred_ones(count: int) -> list[Schedule]:
    """The same bred schedules every time."""
    names = sorted(BRED)
    return [bred(names[i % len(names)], i) for i in range(count)]


def stepped_ones(count: int) -> list[Schedule]:
    """The same stepped schedules every time."""
    return [stepped(random.Random(i).choice, FIRST) for i in range(count)]
