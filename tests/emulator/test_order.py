"""Lanes that part meet again where their paths do, wherever the text puts the arms."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.ptx.cfg import order_blocks

ARM_BEHIND = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a)
{
.reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [a];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
setp.lt.u32 %p, %r1, 7;
mov.u32 %r2, 1;
@%p bra $ARM;
$MEET:
st.global.u32 [%rd3], %r2;
ret;
$ARM:
mov.u32 %r2, 2;
bra.uni $MEET;
}
"""


def test_an_arm_behind_the_place_where_both_meet_comes_first() -> None:
    a = np.zeros(64, np.uint32)
    report = emulator.launch(ARM_BEHIND, "k", grid=(1,), block=(64,), args=[a])
    assert a.tolist() == [2] * 7 + [1] * 57
    # Both warps store once; run in the order of the text, the first would store twice.
    assert report.counters.global_requests == 2
    assert report.counters.divergent_branches == 1


@pytest.mark.parametrize(
    ("edges", "order"),
    [
        ([(1,), (2,), ()], [0, 1, 2]),
        ([(2, 1), (), (1,)], [0, 2, 1]),
        # A loop whose body stands behind what follows it.
        ([(1,), (3, 2), (), (1,)], [0, 1, 3, 2]),
        # A loop in a loop, both left in the middle.
        ([(1,), (2, 5), (3, 4), (2,), (1,), ()], [0, 1, 2, 3, 4, 5]),
        # Two ways into a loop, and a place that nothing leads to.
        ([(1, 2), (2,), (1, 3), (), (3,)], [0, 2, 1, 3, 4]),
        ([(0, 1), ()], [0, 1]),
    ],
)
def test_orders(edges: list[tuple[int, ...]], order: list[int]) -> None:
    assert order_blocks(edges) == order


def test_what_leads_on_comes_first_but_for_the_way_back() -> None:
    """In any graph without loops every edge leads forward; with loops the nodes are all there, once."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 12))
        forward = [tuple(int(t) for t in rng.integers(i + 1, n, 2)) if i + 1 < n else () for i in range(n)]
        names = np.r_[0, 1 + rng.permutation(n - 1)]
        edges: list[tuple[int, ...]] = [()] * n
        for i, targets in enumerate(forward):
            edges[names[i]] = tuple(int(names[t]) for t in targets)
        place = {node: i for i, node in enumerate(order_blocks(edges))}
        reached = {0}
        for node in sorted(place, key=place.__getitem__):
            if node in reached:
                reached.update(edges[node])
                assert all(place[node] < place[t] for t in edges[node])
        loops = [(*e, int(rng.integers(0, n))) for e in edges]
        assert sorted(order_blocks(loops)) == list(range(n))
