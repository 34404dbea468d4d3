"""Atomic steps: blocks that split a reduction add to its result."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
import ekc.ir.operators as o
from ekc.ir.comparison.compare import sample_blocks
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree
from tests.ir.interpret import interpret_program


def split_over_blocks(op: Operator, output: str, axis: str, terms: int) -> Schedule:
    """A schedule whose blocks each sum `terms` terms of an axis; the loop over blocks is outermost."""
    s = Schedule(op).cache_write(output).atomic(output).split(axis, (terms,))
    compute = next(c for c in op.computes if c.output.name == output)
    others = (a.name for a in compute.axes if a.name != axis)
    return s.reorder(f"{axis}.0", *others, f"{axis}.1").bind(f"{axis}.0", "block.x")


def test_docstring_example_is_printed() -> None:
    s = Schedule(o.matvec(8, 64)).split("k", (16,)).reorder("k.0", "i", "k.1").cache_write("y")
    s = s.atomic("y").bind("k.0", "block.y").bind("i", "block.x")
    assert str(s).splitlines() == [
        "launch 1 of 2: y[at] = 0",
        "block.x at.0 in 1                  1 block",
        "  thread.x at.1 in 256             256 threads",
        "    for at.2 in 4                  vector, written out",
        "      y.acc[at.2] = 0",
        "    write y.acc -> y               float4, only inside y",
        "",
        "launch 2 of 2: y[i] = sum[k < 64] A[i, k] * x[k]",
        "block.y k.0 in 4, block.x i in 8   32 blocks",
        "  one thread",
        "    register y.acc[1] = 0",
        "    for k.1 in 16",
        "      y.acc[0] += A[i, k.0*16 + k.1] * x[k.0*16 + k.1]",
        "    add y.acc -> y                 atomic",
    ]


def test_atomic_keeps_the_operator_and_adds_a_zero_fill() -> None:
    op = o.matmul(8, 12, 64)
    schedule = Schedule(op).atomic("C")
    assert schedule.program.op is op
    assert [k.is_zero_fill for k in derive_launches(schedule.program)] == [True, False]
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert '"step": "atomic", "tensor": "C"' in schedule.to_json()


@pytest.mark.parametrize("elements", [1, 3, 4, 1023, 1024, 1028, 4099])
def test_zero_fill_covers_every_element_once(elements: int) -> None:
    program = Schedule(o.einsum("ai,i->a", (elements, 2), (2,))).atomic("C").program
    clear = derive_launches(program)[0]
    at = clear.nest.axis_forms["at"]
    grid = np.ix_(*(np.arange(int(x.extent)) for x in clear.nest.loops))
    places = sum(
        (step * grid[i] for i, x in enumerate(clear.nest.loops) for a, step in at.terms if a == x.name),
        np.zeros((), int),
    )
    reached, counts = np.unique(places, return_counts=True)
    assert set(counts) == {1}
    assert set(range(elements)) <= set(reached.tolist())
    assert all(np.all(c.ok) for c in iterate_checks(program, LaunchLimits()) if "vector" in c.rule)


SUMS = {
    "one axis": lambda: split_over_blocks(o.matmul(6, 10, 32), "C", "k", 8),
    "a tail": lambda: split_over_blocks(o.matmul(6, 10, 33), "C", "k", 8),
    "one of three": lambda: split_over_blocks(
        o.conv2d(1, 8, 6, 6, out_channels=4, kernel=3, padding=1), "Y", "r", 1
    ),
    "one number": lambda: split_over_blocks(o.einsum("a,a->", (96,), (96,)), "C", "a", 7),
    "fused": lambda: (
        Schedule(o.conv2d(1, 4, 5, 5, out_channels=3, kernel=3))
        .cache_write("Y")
        .atomic("Y")
        .fuse("r", "s")
        .split("r_s", (2,))
        .reorder("r_s.0", "n")
        .bind("r_s.0", "block.x")
    ),
    "between launches": lambda: split_over_blocks(
        o.matmul(6, 10, 32).epilogue(lambda c, bias: ekc.gelu(c + bias), bias=(10,)), "C", "k", 4
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_atomic_sums_match_reference(name: str) -> None:
    check_tree(SUMS[name]())


def test_atomic_sums_of_integers_are_exact() -> None:
    op = o.matmul(7, 5, 48, dtype="int8")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, t.shape, np.int8) for t in op.inputs)
    found = interpret_program(split_over_blocks(op, "C", "k", 5).program, (a, b))
    assert np.array_equal(found.output, op.reference(a, b))


def test_sampled_blocks_have_complete_sums() -> None:
    schedule = split_over_blocks(o.matmul(64, 4, 32), "C", "k", 8).bind("i", "block.x").bind("j", "block.y")
    main = derive_launches(schedule.program)[1]
    blocks = sample_blocks(main, 5, seed=0)
    assert len(blocks) == 5 * 4
    places = []
    for loop in main.block_loops:
        places.append((loop.is_reduction, blocks % int(loop.extent)))
        blocks = blocks // int(loop.extent)
    tiles = np.stack([digit for reduction, digit in places if not reduction], axis=1)
    _, counts = np.unique(tiles, axis=0, return_counts=True)
    assert counts.tolist() == [4] * 5
