"""Divided axes: where they are split, and the structures of the result."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ekc
from ekc.ir.compute import Compute
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.schedule import Bind, Divide, Pack, Split, Tensorize
from ekc.search.sketches.divided_axes import divide_compute, make_divide_steps
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.space import Space
from tests.search.helpers import check_results, sample_legal

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
    "a quotient that just never moves": (
        ekc.compute("one", axes={"i": 8}, inputs={"x": (8,)}, body=lambda x, i: x[i + i // 8]),
        (),
    ),
    "a quotient that never moves": (
        ekc.compute("one", axes={"i": 4}, inputs={"x": (4,)}, body=lambda x, i: x[i + i // 8]),
        (),
    ),
}

# Phases that a quotient still separates are not tiled. Those of "phases and groups" have one term each.
STILL_DIVIDED = {"phases": {"p.1", "q.1"}, "quotients of quotients": {"q.1"}}


@pytest.mark.parametrize("name", CASES)
def test_divide_steps_follow_from_the_expression(name: str) -> None:
    op, expected = CASES[name]
    (compute,) = op.computes
    assert make_divide_steps(compute) == expected
    assert (divide_compute(op, compute) is compute) == (not expected)
    steps = {
        s.name: tuple(x for x in s.steps if isinstance(x, Divide))
        for s in derive_structures(op, LaunchLimits())
    }
    assert {name for name, found in steps.items() if found} == {n for n in steps if n.endswith(" divided")}
    assert set(filter(None, steps.values())) == ({expected} if expected else set())


def test_divided_compute_has_two_axes() -> None:
    op, _ = CASES["groups, last"]
    sample: Compute = divide_compute(op, op.computes[0])
    assert [a.name for a in sample.axes] == ["n", "p", "q", "o.0", "o.1", "r", "s", "c"]
    assert str(sample.body) == ("X[n, p + r + -1, q + s + -1, o.0 * 32 + c] * W[o.0 * 16 + o.1, r, s, c]")


def test_groups_have_tensor_core_and_async_structures() -> None:
    def tensor_cores(op: Operator) -> list[str]:
        structures = derive_structures(op, LaunchLimits())
        return [s.name for s in structures if any(isinstance(x, Tensorize) for x in s.steps)]

    assert tensor_cores(ekc.conv2d(1, 64, 5, 6, layout="NHWC", **HALF)) == [
        f"{name} divided" for name in ("tensor view flying", "tensor view", "tensor flying", "tensor")
    ]
    # Fewer channels in a group than an instruction has columns.
    assert tensor_cores(ekc.conv2d(1, 64, 5, 6, layout="NHWC", **HALF | {"groups": 8})) == []


def test_groups_stored_channels_first_are_packed() -> None:
    found = derive_structures(ekc.conv2d(1, 64, 5, 6, **HALF), LaunchLimits())
    packs = {tuple(x for x in s.steps if isinstance(x, Pack)) for s in found}
    assert packs == {(), (Pack("X", (0, 2, 3, 1)), Pack("W", (0, 2, 3, 1)))}


@pytest.mark.parametrize("name", ["groups", "groups, last", "phases", "phases and groups"])
def test_tiles_divide_groups_exactly(name: str) -> None:
    op, steps = CASES[name]
    space = Space(op, LaunchLimits())
    assert len(sample_legal(space, 400)) >= 0.98 * 400
    inside = {f"{step.axis}.1": step.by for step in steps}
    cut = set[str]()
    for s in space.structures:
        tables = {d.holes: d.table for d in s.decisions}
        for x in s.steps:
            if isinstance(x, Split) and x.loop in inside:
                table = tables[tuple(hole.name for hole in x.factors)]
                assert not (inside[x.loop] % table.prod(axis=1)).any()
                cut.add(x.loop)
    assert cut == set(inside) - STILL_DIVIDED.get(name, set())


def test_blockwise_scales_have_divided_and_undivided_structures() -> None:
    op = ekc.compute(
        "scaled",
        axes={"i": 32, "j": 64},
        reduce={"k": 128},
        inputs={"x": (32, 128), "w": (64, 128), "s": (64, 4)},
        body=lambda x, w, s, i, j, k: x[i, k] * (w[j, k] * s[j, k // 32]),
    )
    names = {s.name for s in derive_structures(op, LaunchLimits())}
    for place in ("global", "shared"):
        assert f"x:shared+register w:shared+register s:{place}+register divided" in names
    assert "lanes" in names
    assert len(names) > 30


def test_short_groups_share_a_block() -> None:
    def blocks(terms: int) -> set[str]:
        op = ekc.conv2d(1, 4 * terms, 6, 6, out_channels=32, padding=1, groups=4)
        tiled = next(s for s in derive_structures(op, LaunchLimits()) if s.name.endswith("register divided"))
        return {x.loop for x in tiled.steps if isinstance(x, Bind) and x.level == "block.x"}

    assert {"o.0.0"} <= blocks(8)
    assert not {"o.1", "o.1.0"} & blocks(8)
    assert {"o.0", "o.1.0"} <= blocks(9)


def test_axes_still_divided_are_not_tiled() -> None:
    op, _ = CASES["phases"]
    tiled = next(
        s
        for s in derive_structures(op, LaunchLimits())
        if s.name.startswith("X:shared+register W:shared+register")
    )
    assert not [x for x in tiled.steps if isinstance(x, Split) and x.loop in ("p.1", "q.1")]
    levels = {x.loop: x.level for x in tiled.steps if isinstance(x, Bind)}
    assert levels["p.1"] == "block.x"
    assert "q.1" not in levels, "side by side in memory, so in one thread"


STRANGE: dict[str, Operator] = {
    "more than a tile is deep": ekc.compute(
        "narrow",
        axes={"i": 24, "j": 12},
        reduce={"k": 24},
        inputs={"a": (8, 8), "b": (24, 8)},
        body=lambda a, b, i, j, k: a[j, k] * b[i, j // 4],
        dtype="int8",
        out_dtype="int32",
    ),
    "the depth is last already": ekc.compute(
        "digits",
        axes={"i": 64, "j": 64},
        reduce={"u": 4, "k": 16},
        inputs={"x": (64, 64), "w": (4, 16, 64)},
        body=lambda x, w, i, j, u, k: x[i, u * 16 + k] * w[u, k, j],
        dtype="float16",
    ),
    "one axis twice": ekc.compute(
        "twice",
        axes={"i": 48},
        reduce={"k": 8},
        inputs={"a": (4, 20), "b": (40,), "c": (8, 8, 40)},
        body=lambda a, b, c, i, k: a[i % 8, i % 8] * b[i] * c[(i + 1) // 3, k % 4, k // 8 + i],
    ),
    "with gaps": ekc.compute(
        "gaps",
        axes={"m": 16, "p": 32},
        reduce={"k": 8},
        inputs={"A": (16, 18, 8), "B": (8, 60)},
        body=lambda A, B, m, p, k: A[m, (p + 1) // 2, k] * B[k, p // 2 * 3 + p % 2],
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_unusual_indices_have_a_space(name: str) -> None:
    space = Space(STRANGE[name], LaunchLimits())
    check_results(space, sample_legal(space, 300), most=3)


OPERATORS: dict[str, Callable[[], Operator]] = {
    "groups": lambda: ekc.conv2d(1, 12, 5, 5, out_channels=24, kernel=3, padding=1, groups=3),
    "groups fp16": lambda: ekc.conv2d(1, 32, 3, 4, layout="NHWC", **HALF),
    "groups bytes": lambda: ekc.conv1d(
        1, 64, 9, out_channels=32, groups=2, layout="NWC", dtype="int8", out_dtype="int32"
    ),
    "phases": lambda: ekc.conv_transpose2d(1, 8, 5, 6, out_channels=12, kernel=3, stride=2, padding=1),
    "phases fp16": lambda: ekc.conv_transpose2d(
        1, 16, 5, 6, out_channels=24, kernel=3, stride=2, padding=1, dtype="float16"
    ).epilogue(lambda y, bias: ekc.relu(y + bias), bias=(24, 1, 1)),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "phases fp16")) for name in OPERATORS],
)
def test_sampled_schedules_match_reference(name: str) -> None:
    space = Space(OPERATORS[name](), LaunchLimits())
    legal = sample_legal(space, 400, seed=1)
    assert set(legal.structure) == set(range(len(space.structures)))
    check_results(space, legal, most=6)
