"""Axes that what is read divides: cut there first, and the space of what is left is that of any operator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekc
from ekc.ir.limits import Limits
from ekc.ir.operator import Compute, Operator
from ekc.ir.steps import Divide, Pack, Split, Tensorize
from ekc.search.divided import divided, dividing
from ekc.search.space import Space
from ekc.search.structures import structures
from tests.emulator.generated import run

HALF = {"out_channels": 32, "padding": 1, "groups": 2, "dtype": "float16"}
CASES: dict[str, tuple[Operator, tuple[Divide, ...]]] = {
    "groups": (ekc.conv2d(1, 8, 9, 9, out_channels=12, kernel=3, groups=4), (Divide("o", 3),)),
    "groups, last": (ekc.conv2d(1, 64, 5, 6, layout="NHWC", **HALF), (Divide("o", 16),)),
    "phases": (
        ekc.conv_transpose2d(1, 8, 7, 7, out_channels=8, kernel=4, stride=2, padding=1),
        (Divide("p", 2), Divide("q", 2)),
    ),
    "phases and groups": (
        ekc.conv_transpose1d(1, 8, 7, out_channels=8, kernel=3, stride=3, groups=2),
        (Divide("o", 4), Divide("q", 3)),
    ),
    "quotients of quotients": (
        ekc.conv_transpose1d(1, 4, 7, out_channels=6, kernel=3, stride=4, padding=1, dilation=2),
        (Divide("q", 4),),
    ),
    "heads that share keys": (
        ekc.compute(
            "scores",
            axes={"h": 8, "q": 16, "s": 32},
            reduce={"d": 64},
            inputs={"Q": (8, 16, 64), "K": (2, 32, 64)},
            body=lambda Q, K, h, q, s, d: Q[h, q, d] * K[h // 4, s, d],
            dtype="float16",
        ),
        (Divide("h", 4),),
    ),
    "each channel a group": (ekc.conv2d(1, 8, 9, 9, out_channels=8, kernel=3, groups=8), ()),
    "one group": (ekc.conv2d(1, 8, 9, 9, out_channels=8, kernel=3), ()),
    "product": (ekc.matmul(16, 16, 16), ()),
    "a quotient that never moves": (
        ekc.compute("one", axes={"i": 4}, inputs={"x": (4,)}, body=lambda x, i: x[i + i // 8]),
        (),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_cut_follows_from_the_expression(name: str) -> None:
    op, expected = CASES[name]
    (compute,) = op.computes
    assert dividing(compute) == expected
    assert (divided(op, compute) is compute) == (not expected)
    for s in structures(op, Limits()):
        assert tuple(x for x in s.steps if isinstance(x, Divide)) == expected


def test_the_rules_see_two_axes() -> None:
    op, _ = CASES["groups, last"]
    seen: Compute = divided(op, op.computes[0])
    assert [a.name for a in seen.axes] == ["n", "p", "q", "o.0", "o.1", "r", "s", "c"]
    assert str(seen.body) == ("X[n, p + r + -1, q + s + -1, o.0 * 32 + c] * W[o.0 * 16 + o.1, r, s, c]")


def tensor_cores(op: Operator) -> list[str]:
    return [s.name for s in structures(op, Limits()) if any(isinstance(x, Tensorize) for x in s.steps)]


def test_groups_run_on_tensor_cores_and_fly() -> None:
    assert tensor_cores(ekc.conv2d(1, 64, 5, 6, layout="NHWC", **HALF)) == [
        *("tensor view flying", "tensor view", "tensor flying", "tensor")
    ]
    # Fewer channels in a group than an instruction has columns.
    assert tensor_cores(ekc.conv2d(1, 64, 5, 6, layout="NHWC", **HALF | {"groups": 8})) == []


def test_groups_of_channels_first_are_packed() -> None:
    found = structures(ekc.conv2d(1, 64, 5, 6, **HALF), Limits())
    packs = {tuple(x for x in s.steps if isinstance(x, Pack)) for s in found}
    assert packs == {(), (Pack("X", (0, 2, 3, 1)), Pack("W", (0, 2, 3, 1)))}


@pytest.mark.parametrize("name", ["groups", "groups, last", "phases", "phases and groups"])
def test_tiles_stay_within_a_group_and_leave_no_rest(name: str) -> None:
    op, steps = CASES[name]
    space, random = Space(op, Limits()), np.random.default_rng(0)
    legal, _ = space.repair(random, space.draw(random, 400))
    assert len(legal) >= 0.98 * 400
    for s in space.structures:
        cuts = {x.loop: x for x in s.steps if isinstance(x, Split)}
        for step in steps:
            for d in s.decisions:
                if f"{step.axis}.1" in cuts and {h.name for h in cuts[f"{step.axis}.1"].factors} == set(
                    d.holes
                ):
                    assert not (step.by % d.table.prod(axis=1)).any()


OPERATORS: dict[str, Callable[[], Operator]] = {
    "groups": lambda: ekc.conv2d(1, 12, 5, 5, out_channels=24, kernel=3, padding=1, groups=3),
    "groups fp16": lambda: ekc.conv2d(1, 64, 5, 6, layout="NHWC", **HALF),
    "groups bytes": lambda: ekc.conv1d(
        1, 64, 9, out_channels=32, groups=2, layout="NWC", dtype="int8", out_dtype="int32"
    ),
    "phases": lambda: ekc.conv_transpose2d(1, 8, 5, 6, out_channels=12, kernel=3, stride=2, padding=1),
    "phases fp16": lambda: ekc.conv_transpose2d(
        1, 16, 5, 6, out_channels=24, kernel=3, stride=2, padding=1, dtype="float16"
    ).epilogue(lambda y, bias: ekc.relu(y + bias), bias=(24, 1, 1)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_drawn_members_are_right(name: str) -> None:
    space, random = Space(OPERATORS[name](), Limits()), np.random.default_rng(1)
    legal, _ = space.repair(random, space.draw(random, 400))
    found, first = np.unique(legal.structure, return_index=True)
    assert len(found) == len(space.structures)
    for row in first[:: -(-len(first) // 6)]:
        run(space.schedule(legal, int(row))).check()
