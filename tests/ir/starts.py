"""Small legal operators and schedules, each one step away from a mistake of `mistakes.txt` or
`bad_input.txt`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.epilogue import parse_epilogue
from ekc.ir.operator import Operator
from ekc.ir.schedule import Step
from ekc.ir.schedule.schedule import Schedule


def change_steps(
    schedule: Schedule, change: Callable[[Step], Step | None], op: Operator | None = None
) -> Schedule:
    """A schedule, of another operator if one is given; `change` maps each step to another, or to None to
    leave it out."""
    steps = [change(s) for s in schedule.steps]
    return Schedule(op or schedule.op).apply_steps(*(s for s in steps if s is not None))


def product() -> Schedule:
    """C[i, j] = sum of A[i, k] * B[k, j], without steps."""
    return Schedule(o.matmul(32, 32, 32))


def staged() -> Schedule:
    """A in shared memory along k.0, in registers along k.1."""
    s = product().split("k", (8,)).reorder("k.0", "k.1", "i", "j")
    return s.cache_read("A", "shared", at="k.0").cache_read("A.shared", "register", at="k.1")


def chain() -> Schedule:
    """T = 2 X, then C = T @ B."""
    first = o.compute(
        "t", axes={"p": 8, "q": 8}, inputs={"X": (8, 8)}, body=lambda X, p, q: X[p, q] * 2, output="T"
    )
    body = lambda T, B, i, j, k: T[i, k] * B[k, j]  # noqa: E731
    return Schedule(first.then("C", axes={"i": 8, "j": 8}, reduce={"k": 8}, inputs={"B": (8, 8)}, body=body))


def read_twice() -> Schedule:
    """T is read by U, and by C beside U."""
    first = o.compute("t", axes={"p": 8}, inputs={"X": (8,)}, body=lambda X, p: X[p] * 2, output="T")
    second = first.then("U", axes={"u": 8}, body=lambda T, u: T[u] + 1)
    return Schedule(second.then("C", axes={"i": 8}, body=lambda T, U, i: T[i] + U[i]))


def vectored() -> Schedule:
    """j.1 in vectors of 4."""
    return product().split("j", (4,)).reorder("i", "k", "j.0", "j.1").vectorize("j.1")


def summed_first() -> Schedule:
    """A product, then relu of it."""
    return Schedule(o.matmul(8, 8, 8).then("D", axes={"p": 8, "q": 8}, body=lambda C, p, q: C[p, q] * 2))


def behind(body: Callable[..., ex.Expr], reduce: dict[str, int] | None = None) -> Schedule:
    """A product with an accumulator, and a reader of it."""
    op = o.matmul(8, 8, 8).then("D", axes={"p": 8, "q": 8}, reduce=reduce, body=body)
    return Schedule(op).cache_write("C")


def forked() -> Schedule:
    """A product that two computes read, each at its own element."""
    op = o.matmul(8, 8, 8).epilogue(lambda c: ex.relu(c))
    body = lambda C, C_out, p, q: C[p, q] + C_out[p, q]  # noqa: E731
    return Schedule(op.then("E", axes={"p": 8, "q": 8}, body=body)).cache_write("C")


def shifted(body: Callable[..., ex.Expr]) -> Schedule:
    """T of X, read one row above: row -1 is 0."""
    first = o.compute("t", axes={"p": 8, "q": 8}, inputs={"X": (8, 9)}, body=body, output="T")
    return Schedule(first.then("C", axes={"i": 8, "j": 8}, body=lambda T, i, j: T[i - 1, j]))


def grouped() -> Schedule:
    """Two groups of four channels: o // 4."""
    return Schedule(o.conv2d(1, 8, 5, 6, out_channels=8, groups=2))


NAMED_AS_JOINT = o.compute(
    "named",
    axes={"a": 4, "b": 3, "a_b": 4},
    inputs={"A": (4, 3), "B": (4,)},
    body=lambda A, B, a, b, a_b: A[a, b] * B[a_b],
)
"""An operator whose third axis is named as its first two are when they are fused."""


def one(**change: Any) -> Operator:
    """A small operator by `compute`, with one argument changed."""
    base: dict[str, Any] = {"axes": {"i": 4}, "inputs": {"x": (4,)}, "body": lambda x, i: x[i]}
    return o.compute("mine", **(base | change))


def make_int8(body: Callable[..., ex.Expr]) -> Operator:
    """A body over int8."""
    return one(body=body, dtype="int8")


def square(body: Callable[..., Any], dtype: str = "float32") -> Operator:
    """A body over each element of A."""
    return o.compute("square", axes={"i": 4, "j": 6}, inputs={"A": (4, 6)}, body=body, dtype=dtype)


def counting(dtype: str, body: Callable[..., Any]) -> Operator:
    """How many elements of each row a comparison holds for, in int32."""
    axes, inputs = {"i": 5}, {"A": (5, 40), "t": (5,)}
    types = {"dtype": dtype, "acc_dtype": "int32", "out_dtype": "int32"}
    return o.compute("count", axes=axes, reduce={"k": 40}, inputs=inputs, body=body, **types)


MATMUL = o.matmul(4, 6, 5)


def read_epilogue(text: str) -> Operator:
    """A product with an epilogue given as text, which may read a bias."""
    return o.matmul(8, 4, 16).epilogue(parse_epilogue(text, {"bias": (4,)}), bias=(4,))


LOAD: list[Any] = ["load", "A", ["var", "i"], ["var", "k"]]


def read_schedule(steps: list[Any], body: Any = LOAD) -> Schedule:
    """A small product with these steps and this body, read from JSON text."""
    data = json.loads(Schedule(o.matmul(4, 4, 4)).to_json()) | {"steps": steps}
    data["operator"]["computes"][0]["body"] = body
    return Schedule.from_json(json.dumps(data))


def make_deep_body(levels: int) -> Any:
    """Nested sums in JSON."""
    body: Any = LOAD
    for _ in range(levels):
        body = ["+", body, 1]
    return body
