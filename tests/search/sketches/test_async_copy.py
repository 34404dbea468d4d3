"""Structures with asynchronous copies: for which operators they exist, and that they are legal."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc import devices
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import StageNode, walk_nodes
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule import Bind, CacheRead, CacheWrite, Hole, Pipeline, Reorder, Split
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.constraints import SortedGenomes, StructureEvaluator
from ekc.search.space.space import Space
from tests.search.helpers import sample_legal

A100, TURING = devices.open("a100").limits, devices.open("rtx2080ti").limits
FLYING: dict[str, tuple[Operator, int]] = {
    "float32, stored and transposed": (o.matmul(128, 96, 64), 2),
    "float16, stored order only": (o.matmul(128, 96, 64, dtype="float16"), 1),
    "float16, rows of an odd length": (o.matmul(128, 97, 64, dtype="float16"), 0),
    "float16, rows that start anywhere": (o.conv2d(1, 8, 14, 14, out_channels=16, dtype="float16"), 0),
    "one tensor that is reused": (o.matvec(512, 384), 1),
    "nothing reused": (o.compute("soft", axes={"i": 9}, inputs={"x": (9,)}, body=lambda x, i: x[i] + 1), 0),
}


def flying(op: Operator) -> list[int]:
    names = [s.name for s in derive_structures(op, A100)]
    return [i for i, name in enumerate(names) if name.endswith("flying") and "tensor" not in name]


@pytest.mark.parametrize("name", FLYING)
def test_async_structures_exist_where_copies_fit(name: str) -> None:
    op, count = FLYING[name]
    assert len(flying(op)) == count
    names = [s.name for s in derive_structures(op, TURING)]
    others = [s.name for s in derive_structures(op, A100) if "tensor" not in s.name]
    assert names == [name for name in others if not name.endswith("flying")]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_repaired_async_genomes_copy_whole_words(dtype: str) -> None:
    op = o.matmul(128, 96, 64, dtype=dtype)
    space = Space(op, A100)
    repaired = sample_legal(space, 600, seed=3, among=flying(op))
    widths = set()
    for row in range(12):
        program = space.build_schedule(repaired, row).program
        for node in walk_nodes(derive_launches(program)[0].body):
            if isinstance(node, StageNode) and node.is_async:
                widths.add(int(node.staging.vector) * node.buffer.dtype.bytes)
    assert widths <= {4, 8, 16}
    assert len(widths) > 1


HOLES = {"tile": (2, 4, 8), "reduce": (4, 8, 16), "vector": (1, 2, 4), "pad": (0, 4, 8)}
HOLES |= {"swizzle": (1, 2, 4, 8), "move": (1, 2, 4), "depth": (2, 3, 6)}
STEPS = (
    Split("i", (Hole("tile"), 4)),
    Split("j", (8, 4)),
    Split("k", (Hole("reduce"),)),
    Reorder(("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")),
    Bind("i.0", "block.x"),
    Bind("j.0", "block.x"),
    Bind("i.1", "thread.x"),
    Bind("j.1", "thread.x"),
    CacheWrite("C"),
    CacheRead("A", "shared", "k.0", Hole("vector"), (), Hole("pad"), Hole("swizzle")),
    CacheRead("B", "shared", "k.0", swizzle=Hole("swizzle")),
    CacheRead("A.shared", "register", "k.1", Hole("move")),
    Pipeline("k.0", Hole("depth"), "async"),
)


def test_swizzle_and_depth_are_inputs_of_the_trace() -> None:
    """Replayed rules and quantities equal those of single Programs."""
    rows, random = 80, np.random.default_rng(0)
    columns = {hole: random.choice(values, rows).astype(np.int64) for hole, values in HOLES.items()}
    walks = StructureEvaluator(o.matmul(64, 64, 64), [Structure("by hand", STEPS, ())], A100, columns)
    figures = {
        name: values for name, _, values in walks.compute_quantities(SortedGenomes([0, rows], columns))
    }
    broken = walks.find_violations(SortedGenomes([0, rows], columns))
    for row in range(rows):
        program = walks.build_program(0, {hole: int(column[row]) for hole, column in columns.items()})
        alone = analyse_program(program, A100)
        many = {name: np.broadcast_to(values, rows)[row] for name, values in figures.items()}
        assert many == {name: values[0] for name, values in alone.items()}
        refused = {c.rule for c in iterate_checks(program, A100) if c.explain() is not None}
        assert refused == {b.rule for b in broken if row in b.rows}
    assert 10 <= len(np.unique(np.concatenate([b.rows for b in broken]))) <= rows - 10
