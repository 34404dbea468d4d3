"""One mistake each on the way to tensor cores, with the words that must tell it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import ekc.ir.operators as o
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Pipeline,
    Reorder,
    Split,
    Step,
    Tensorize,
    step_from_json,
)
from ekc.ir.schedule.schedule import Schedule
from tests.ir.mistakes_in_loops import Case
from tests.ir.tensor_examples import Cut, half_matmul, tensor_matmul

HALF = o.matmul(64, 64, 64, dtype="float16")


def changed(change: Callable[[Step], Step | None], op: Operator = HALF) -> Schedule:
    """The worked example over an operator, its steps changed, or left out where the change is None."""
    steps = [change(s) for s in half_matmul(64, 64, 64).steps]
    return Schedule(op).apply_steps(*(s for s in steps if s is not None))


def split(axis: str, *factors: int) -> Schedule:
    """With another cut of one axis."""
    return changed(lambda s: replace(s, factors=factors) if isinstance(s, Split) and s.loop == axis else s)


def bound(loops: dict[str, str]) -> Schedule:
    """With other levels."""
    return changed(lambda s: replace(s, level=loops.get(s.loop, s.level)) if isinstance(s, Bind) else s)


def without(kind: type[Step], what: str) -> Schedule:
    """With one step left out."""
    return changed(lambda s: None if isinstance(s, kind) and what in s.to_python() else s)


def enforced(s: Schedule) -> Schedule:
    """The schedule, once its rules are held: some refusals come only then."""
    enforce_rules(s.program, Limits())
    return s


def asked(loop: str, instruction: str) -> Schedule:
    """With another last step."""
    return changed(lambda s: Tensorize(loop, instruction) if isinstance(s, Tensorize) else s)


def fragment(**layout: int) -> Schedule:
    """With a layout of its own for a fragment."""
    return changed(
        lambda s: replace(s, **layout) if isinstance(s, CacheRead) and s.source == "B.shared" else s
    )


def summed_on_the_spot() -> Schedule:
    """The left factor is a sum of its own, made in shared memory."""
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
    """Columns that are cut from two axes at once; `across`, with the lanes' pieces inside the registers'."""
    op = o.einsum("ik,kjl->ijl", (64, 64), (64, 8, 8), dtype="float16")
    text = half_matmul(64, 64, 64).to_json().replace('"j', '"j_l')
    if across:
        text = text.replace('"j_l.3"', '"lanes"').replace('"j_l.4"', '"j_l.3"').replace('"lanes"', '"j_l.4"')
        text = text.replace("4, 2]", "2, 4]")
    steps = [step_from_json(s) for s in json.loads(text)["steps"]]
    return Schedule(op).fuse("j", "l").apply_steps(*steps)


TENSOR_MISTAKES: dict[str, Case] = {
    "tensorize instruction": (
        lambda: asked("k.2", "mma.m16n8k61"),
        "tensorize",
        "'mma.m16n8k61'",
        "mma.m16n8k32",
        "'mma.m16n8k16'",
    ),
    "tensorize another's": (
        lambda: asked("k.2", "mma.m16n8k8"),
        "tensorize",
        "'mma.m16n8k8'",
        "k16 for float16",
        "'mma.m16n8k16'",
    ),
    "tensorize unknown loop": (
        lambda: asked("k.3", "mma.m16n8k16"),
        "tensorize",
        "'k.3'",
        "k.2",
        "'k.[0-2]'",
    ),
    "tensorize outer loop": (
        lambda: asked("k.1", "mma.m16n8k16"),
        "tensorize",
        "'k.1'",
        "innermost",
        "'k.2'",
    ),
    "tensorize float32": (
        lambda: changed(
            lambda s: replace(s, vector=4) if isinstance(s, CacheRead) and s.scope == "shared" else s,
            o.matmul(64, 64, 64),
        ),
        "tensorize",
        "float32 and float32",
        "tf32",
        'dtype="tf32"',
    ),
    "tensorize int8 in float32": (
        lambda: tensor_matmul(o.matmul(64, 64, 64, dtype="int8", acc_dtype="float32", out_dtype="float32")),
        "tensorize",
        "int8 and int8 summed in float32",
        "int8 in int32",
        "dtype",
    ),
    "tensorize a maximum": (
        lambda: changed(
            lambda s: s,
            o.compute(
                "farthest",
                axes={"i": 64, "j": 64},
                reduce={"k": 64},
                combine="max",
                output="C",
                inputs={"A": (64, 64), "B": (64, 64)},
                dtype="float16",
                body=lambda A, B, i, j, k: A[i, k] * B[k, j],
            ),
        ),
        "tensorize",
        "sum of products",
        "max",
        "leave",
    ),
    "tensorize a difference": (
        lambda: changed(
            lambda s: s,
            o.compute(
                "differences",
                axes={"i": 64, "j": 64},
                reduce={"k": 64},
                output="C",
                inputs={"A": (64, 64), "B": (64, 64)},
                dtype="float16",
                body=lambda A, B, i, j, k: A[i, k] - B[k, j],
            ),
        ),
        "tensorize",
        "sum of products",
        "A",
        "leave",
    ),
    "tensorize rows by 4": (
        lambda: split("i", 2, 4, 2, 4),
        "tensorize mma.m16n8k16",
        "4 iterations of i.4",
        "8",
        "8",
    ),
    "tensorize columns by 4": (
        lambda: split("j", 2, 2, 4, 4),
        "tensorize mma.m16n8k16",
        "4 iterations of j.4",
        "2",
        "2",
    ),
    "tensorize depth of 8": (
        lambda: split("k", 4, 8),
        "tensorize mma.m16n8k16",
        "8 iterations of k.2",
        "16",
        "16",
    ),
    "tensorize columns apart": (
        lambda: changed(
            lambda s: (
                replace(s, factors=(2, 4, 2, 4))
                if isinstance(s, Split) and s.loop == "j"
                else replace(s, loops=tuple({"j.3": "j.4", "j.4": "j.3"}.get(x, x) for x in s.loops))
                if hasattr(s, "loops")
                else replace(s, loop="j.4")
                if isinstance(s, Bind) and s.loop == "j.3"
                else s
            )
        ),
        "tensorize mma.m16n8k16",
        "1 as the step of j.4",
        "j.4 and j.3 cut from j one after the other",
        "split",
    ),
    "tensorize lanes missing": (
        lambda: bound({"i.4": "thread.y"}),
        "tensorize",
        "two spatial loops on thread.x",
        "j.3",
        "bind",
    ),
    "tensorize warps on x": (
        lambda: bound({"i.1": "thread.x"}),
        "tensorize",
        "two spatial loops on thread.x",
        "i.1, i.4, j.3",
        "bind",
    ),
    "tensorize bound depth": (
        lambda: changed(lambda s: Bind("k.2", "thread.x") if s == Bind("i.4", "thread.x") else s),
        "tensorize",
        "innermost, all serial",
        "i.3, j.4, k.2",
        "reorder",
    ),
    "tensorize lanes of columns first": (
        lambda: changed(
            lambda s: (
                replace(s, loops=tuple({"i.4": "j.3", "j.3": "i.4"}.get(x, x) for x in s.loops))
                if isinstance(s, Reorder)
                else s
            )
        ),
        "tensorize mma.m16n8k16",
        "4 iterations of j.3",
        "8",
        "8",
    ),
    "tensorize fused columns": (
        lambda: enforced(fused(across=True)),
        "tensorize mma.m16n8k16",
        "1 as the step of j_l.4",
        "one after the other",
        "split",
    ),
    "tensorize without sums": (
        lambda: without(CacheWrite, "C"),
        "tensorize",
        "C held in registers",
        "not",
        r'cache_write\("C"\)',
    ),
    "tensorize without fragments": (
        lambda: without(CacheRead, "B.shared"),
        "tensorize",
        "B in fragments",
        "not",
        '"B.shared", "fragment"',
    ),
    "tensorize around a staging": (
        lambda: changed(
            lambda s: replace(s, at="i.3") if isinstance(s, CacheRead) and s.source == "B.shared" else s
        ),
        "tensorize",
        "no staging in i.3",
        "B.fragment sits there",
        "at='j.2'",
    ),
    "fragment unshared": (
        lambda: Schedule(HALF).cache_read("A", "fragment"),
        "cache_read",
        "A.fragment filled from shared memory",
        "A is not",
        '"A.shared"',
    ),
    "fragment in vectors": (
        lambda: fragment(vector=2),
        "cache_read",
        "B.fragment without vector",
        "instruction",
        "vector of B.shared",
    ),
    "fragment padded": (
        lambda: fragment(pad=8),
        "cache_read",
        "B.fragment without pad",
        "instruction",
        "pad of B.shared",
    ),
    "tensorize, then another order": (
        lambda: enforced(changed(lambda s: s).reorder("k.2", "i.2")),
        "tensorize",
        "a reduced one innermost",
        "i.3, j.4, i.2",
        "reorder",
    ),
    "tensorize, then another cut": (
        lambda: enforced(changed(lambda s: s).split("k.2", (4,))),
        "tensorize",
        "innermost",
        "k.2.0",
        "reorder",
    ),
    "fragment without a product": (
        lambda: enforced(without(Tensorize, "k.2")),
        "tensorize",
        "reads A.fragment",
        "none",
        "tensorize",
    ),
    "tensorize a depth of one": (
        lambda: enforced(
            tensor_matmul(o.matmul(64, 64, 1, dtype="float16"), Cut(depth=1, stages=1, vector=1))
        ),
        "tensorize mma.m16n8k16",
        "guard",
        "zero-filled",
        "divide",
    ),
    "tensorize a factor summed on the spot": (
        lambda: enforced(summed_on_the_spot()),
        "tensorize mma.m16n8k16",
        "A.shared of float16",
        "float32, as it is summed",
        "A a launch of its own",
    ),
}
