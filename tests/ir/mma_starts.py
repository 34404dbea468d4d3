"""Schedules on mma with one step changed, each a mistake of `mistakes.txt`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import ekc.ir.operators as o
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import Bind, CacheRead, ComputeAt, Pipeline, Split, Step, Tensorize, step_from_json
from ekc.ir.schedule.schedule import Schedule
from tests.ir.starts import change_steps
from tests.ir.tensor_examples import half_matmul

HALF = o.matmul(64, 64, 64, dtype="float16")


def changed(change: Callable[[Step], Step | None], op: Operator = HALF) -> Schedule:
    """`half_matmul` over an operator, with changed steps."""
    return change_steps(half_matmul(64, 64, 64), change, op)


def split(axis: str, *factors: int) -> Schedule:
    """`half_matmul` with another split of one axis."""
    return changed(lambda s: replace(s, factors=factors) if isinstance(s, Split) and s.loop == axis else s)


def bound(loops: dict[str, str]) -> Schedule:
    """`half_matmul` with loops bound to other levels."""
    return changed(lambda s: replace(s, level=loops.get(s.loop, s.level)) if isinstance(s, Bind) else s)


def without(kind: type[Step], what: str) -> Schedule:
    """`half_matmul` with one step left out."""
    return changed(lambda s: None if isinstance(s, kind) and what in s.to_python() else s)


def enforced(s: Schedule) -> Schedule:
    """The schedule after the rules on its kernels are enforced: some refusals come only there."""
    enforce_rules(s.program, LaunchLimits())
    return s


def asked(loop: str, instruction: str) -> Schedule:
    """`half_matmul` with another tensorize step."""
    return changed(lambda s: Tensorize(loop, instruction) if isinstance(s, Tensorize) else s)


def fragment(**layout: int) -> Schedule:
    """`half_matmul` with a layout given to a fragment."""
    return changed(
        lambda s: replace(s, **layout) if isinstance(s, CacheRead) and s.source == "B.shared" else s
    )


def summed_on_the_spot() -> Schedule:
    """`half_matmul` whose left factor is a sum that compute_at computes in shared memory."""
    own = o.compute(
        "chain", axes={"a": 64, "b": 64}, reduce={"r": 16}, inputs={"X": (64, 16), "Y": (16, 64)}, output="A",
        body=lambda X, Y, a, b, r: X[a, r] * Y[r, b], dtype="float16",
    ).then(
        "C", axes={"i": 64, "j": 64}, reduce={"k": 64}, inputs={"B": (64, 64)},
        body=lambda A, B, i, j, k: A[i, k] * B[k, j],
    )  # fmt: skip
    return changed(
        lambda s: (
            None
            if isinstance(s, Pipeline)
            else ComputeAt("A", "k.0")
            if isinstance(s, CacheRead) and s.source == "A"
            else s
        ),
        own,
    )


def fused(across: bool = False) -> Schedule:
    """A product with columns of two fused axes; with `across`, lanes and registers exchange their pieces."""
    op = o.einsum("ik,kjl->ijl", (64, 64), (64, 8, 8), dtype="float16")
    text = half_matmul(64, 64, 64).to_json().replace('"j', '"j_l')
    if across:
        text = text.replace('"j_l.3"', '"lanes"').replace('"j_l.4"', '"j_l.3"').replace('"lanes"', '"j_l.4"')
        text = text.replace("4, 2]", "2, 4]")
    steps = [step_from_json(s) for s in json.loads(text)["steps"]]
    return Schedule(op).fuse("j", "l").apply_steps(*steps)
