"""The order of basic blocks: diverged lanes meet again where their paths join, wherever the text puts the
arms."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.ptx.cfg import order_blocks, split_blocks
from ekc.ptx.parser import parse_module

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


def test_arm_behind_the_join_runs_before_it() -> None:
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
        # A loop whose body comes after its successor in the text.
        ([(1,), (3, 2), (), (1,)], [0, 1, 3, 2]),
        # A loop in a loop, both left in the middle.
        ([(1,), (2, 5), (3, 4), (2,), (1,), ()], [0, 1, 2, 3, 4, 5]),
        # Two ways into a loop, and a place that nothing leads to.
        ([(1, 2), (2,), (1, 3), (), (3,)], [0, 2, 1, 3, 4]),
        ([(0, 1), ()], [0, 1]),
    ],
)
def test_blocks_are_ordered_before_their_successors(edges: list[tuple[int, ...]], order: list[int]) -> None:
    assert order_blocks(edges) == order


def test_order_of_random_graphs_is_topological() -> None:
    """Without loops every edge leads forward; with loops every node occurs once."""
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


def test_branch_on_a_negated_predicate_takes_the_other_side() -> None:
    a = np.zeros(64, np.uint32)
    text = ARM_BEHIND.replace("@%p bra $ARM", "@!%p bra $ARM")
    assert not emulator.launch(text, "k", grid=(1,), block=(64,), args=[a]).findings
    assert a.tolist() == [1] * 7 + [2] * 57


def test_blocks_carry_their_labels_and_lines() -> None:
    blocks = split_blocks(parse_module(ARM_BEHIND).kernels["k"])
    assert [(block.label, block.line) for block in blocks] == [("", 7), ("$MEET", 14), ("$ARM", 17)]
    assert [block.exit.targets for block in blocks] == [(2, 1), (), (1,)]
