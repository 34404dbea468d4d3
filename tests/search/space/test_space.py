"""The space: populations have the analysis and the rules of single schedules, and breeding stays in the
space."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.errors import ScheduleError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.lowering.fusion import group_fusable_computes
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import Bind, ComputeAt
from ekc.search.space.space import Population, Space
from tests import shared_traces
from tests.search.helpers import (
    EACH,
    ISSUE,
    LIMITS,
    OPERATORS,
    check_quantities,
    drawn,
    find_refusals,
    legal,
    rules_broken,
    sample_legal,
    space,
)

ROWS = 100
"""Schedules of each operator that are compared with single Programs: 1,500 in all."""


def _different(name: str, population: Population) -> list[str]:
    """Quantities of a population that differ from those of the single schedule."""
    figures, wrong = space(name).compute_quantities(population), []
    for row in range(len(population)):
        alone = analyse_program(space(name).build_schedule(population, row).program, LIMITS)
        assert set(alone) == set(figures)
        wrong += [
            f"{name} row {row}: {quantity} is {figures[quantity][row]!r} among many, {value[0]!r} alone"
            for quantity, value in alone.items()
            if figures[quantity][row] != value[0]
        ]
    return wrong


@pytest.mark.parametrize("name", EACH)
def test_population_analysis_equals_single_programs(name: str) -> None:
    population = legal(name, ROWS)
    assert len(population) >= 0.95 * ROWS
    assert _different(name, population) == []


def test_population_analysis_covers_many_structures() -> None:
    populations = {name: legal(name, ROWS) for name in OPERATORS}
    assert sum(len(p) for p in populations.values()) >= 1000
    structures = {(name, int(s)) for name, p in populations.items() for s in np.unique(p.structure)}
    kinds = {space(name).structures[s].name for name, s in structures}
    assert len(kinds) >= 20, kinds
    assert len(np.unique(populations["matmul"].structure)) >= 8


def _launches(op: Operator) -> dict[str, int]:
    """Number of launches of each structure."""
    walks = Space(op, LIMITS)
    population = walks.sample(np.random.default_rng(0), 200)
    return {
        walks.structures[number].name: len(walks.build_schedule(population, row).program.nests)
        for number, row in zip(*np.unique(population.structure, return_index=True), strict=True)
    }


@pytest.mark.parametrize(
    "op",
    [
        o.softmax((3, 40, 128)),
        o.layer_norm((7, 101), dtype="float16"),
        o.rms_norm((64,)),
        OPERATORS["softmax"].then("Z", axes={"u": 48, "v": 200}, body=lambda X, Y, u, v: X[u, v] - Y[u, v]),
    ],
    ids=["softmax", "layer_norm", "one row", "what is more than rows"],
)
def test_rows_are_reduced_by_lanes_in_one_launch(op: Operator) -> None:
    found = _launches(op)
    assert max(found.values()) == len(group_fusable_computes(op))
    one = {name for name, count in found.items() if count == 1}
    expected = {"Y/one launch", "Y/one launch X:shared"} if op.outputs[0].name == "Y" else set()
    assert one == expected
    steps = Space(op, LIMITS).structures[0].steps
    lanes = {s.loop.split(".")[0] for s in steps if isinstance(s, Bind) and s.level == "thread.x"}
    assert {c.reduction_axes[-1].name for c in op.computes if c.reduction_axes} <= lanes


def test_columns_are_summed_by_adjacent_lanes() -> None:
    def lanes(op: Operator) -> list[list[str]]:
        adjacent = [s for s in Space(op, LIMITS).structures if "column lanes" in s.name]
        return [[x.loop for x in s.steps if isinstance(x, Bind) and x.level == "thread.x"] for s in adjacent]

    assert lanes(o.einsum("km,k->m", (96, 64), (96,))) == [["m.1", "k.1", "m.2"]]
    assert lanes(o.reduce((5, 40, 24), 1)) == [["i0.1", "i2.1", "k1.1", "i2.2"]]
    assert lanes(o.matvec(64, 96)) == lanes(o.matmul(64, 64, 64)) == lanes(o.reduce((64, 3), 0)) == []


def test_matmul_is_not_fused_as_a_row_reduction() -> None:
    """A matrix product is no row reduction, so no structure fuses it into the next compute."""
    found = Space(OPERATORS["two computes"], LIMITS).structures
    assert not any(isinstance(step, ComputeAt) for s in found for step in s.steps)


def test_analysis_comparison_finds_a_wrong_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison finds an error of one part in a million in one member."""
    right = Space.compute_quantities

    def off(self: Space, population: Population) -> dict[str, np.ndarray]:
        figures = right(self, population)
        figures["total_guards"] = figures["total_guards"] + 1e-6 * (np.arange(len(population)) == 3)
        return figures

    monkeypatch.setattr(Space, "compute_quantities", off)
    assert len(_different("primes", legal("primes", 20))) == 1


@pytest.mark.parametrize("name", EACH)
def test_violations_of_a_population_equal_single_refusals(name: str) -> None:
    population, found = drawn(name, ROWS // 2, seed=5) + legal(name, ROWS // 2, seed=5), Counter[str]()
    broken = list(rules_broken(name, population))
    for row in range(len(population)):
        masked = {b.rule for b in broken if row in b.rows}
        refusals = find_refusals(space(name), population, row)
        assert {r.rule for r in refusals} == masked
        for r in refusals:
            assert all((r.rule, r.need, r.limit, r.nearest)), r
        found["illegal" if masked else "legal"] += 1
    assert found["illegal"] >= 5 or name in ("matvec", "diverging reads"), found
    assert found["legal"] >= 40, found


@pytest.mark.parametrize("name", ["matmul", "conv stride 2", "fp16"])
def test_legal_genome_builds_and_illegal_one_is_refused(name: str) -> None:
    population = drawn(name, 30, seed=2) + legal(name, 30, seed=2)
    refused = 0
    for row in range(len(population)):
        reasons = find_refusals(space(name), population, row)
        if not reasons:
            enforce_rules(space(name).build_schedule(population, row).program, LIMITS)
            continue
        refused += 1
        with pytest.raises(ScheduleError) as problem:
            enforce_rules(space(name).build_schedule(population, row).program, LIMITS)
        assert problem.value.refusal.rule in {r.rule for r in reasons}
    assert 5 <= refused <= 30


@pytest.mark.parametrize("name", ISSUE)
def test_repair_makes_95_percent_legal(name: str) -> None:
    random = np.random.default_rng(7)
    raw = space(name).sample(random, 2000)
    repaired, dropped = space(name).repair(random, raw)
    assert len(repaired) >= 0.95 * len(raw), dropped
    assert len(repaired) + sum(dropped.values()) == len(raw)
    for row in range(0, len(repaired), 100):
        assert find_refusals(space(name), repaired, row) == []
    assert set(np.unique(repaired.structure)) == set(range(len(space(name).structures)))


def test_unrepaired_genomes_are_counted_by_rule() -> None:
    tight, random = (
        Space(OPERATORS["matmul"], replace(LIMITS, registers_per_thread=24)),
        np.random.default_rng(0),
    )
    repaired, dropped = tight.repair(random, tight.sample(random, 50))
    assert (len(repaired), dropped) == (0, {"registers": 50})


@pytest.mark.parametrize("name", ["matmul", "conv stride 2", "matvec", "two computes"])
def test_children_use_genes_of_their_structure(name: str) -> None:
    random = np.random.default_rng(3)
    parents = legal(name, 300, seed=1), legal(name, 300, seed=2)
    a, b = (population[: min(map(len, parents))] for population in parents)
    crossed = space(name).cross(random, a, b)
    for child in (
        crossed,
        space(name).mutate(random, a),
        space(name).mutate(random, crossed, structure_rate=1),
    ):
        assert not child.genes[~space(name).uses_decision[child.structure]].any(), (
            "decisions of other structures"
        )
        assert (child.genes >= 0).all()
        assert (child.genes < space(name).decision_sizes).all()
    np.testing.assert_array_equal(crossed.structure, a.structure)
    mother, father = crossed.genes == a.genes, crossed.genes == b.genes
    assert (mother | father).all()
    mixed = (~mother).any(axis=1) & (~father).any(axis=1)
    assert mixed.mean() > 0.5


@pytest.mark.parametrize("name", ["matmul", "conv depthwise", "two computes"])
def test_mutants_differ_from_parents(name: str) -> None:
    parents = legal(name, 500)
    mutants = space(name).mutate(np.random.default_rng(4), parents, structure_rate=0)
    differs = mutants.genes != parents.genes
    eager = np.array([d.starts_at_max for d in space(name).decisions])
    # A mutation may sample the same value again, above all in a table of two rows.
    assert differs.any(axis=1).mean() > 0.7
    assert differs[:, ~eager].sum(axis=1).max() == 2
    # Genes that differ beyond two start at their maximum and are reset to it.
    beyond = differs & eager & (mutants.genes != space(name).decision_sizes - 1)
    assert beyond.sum(axis=1).max() <= 2
    np.testing.assert_array_equal(mutants.structure, parents.structure)
    moved = space(name).mutate(np.random.default_rng(4), parents, structure_rate=1)
    assert (moved.structure != parents.structure).mean() > 0.5


def test_samples_depend_on_the_seed_alone() -> None:
    keys = [space("matmul").compute_keys(legal("matmul", 200, seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(keys[0], keys[1])
    # Genomes of structures with few decisions may be equal by chance.
    assert np.isin(keys[2], keys[0]).mean() < 0.1


PACKED = o.conv2d(1, 32, 14, 14, out_channels=64, kernel=3, padding=1, dtype="float16")
WIDE = OPERATORS | ISSUE | {"packed": PACKED, "split k": o.matmul(64, 64, 16384)}


@pytest.mark.parametrize("name", WIDE)
def test_decisions_of_one_name_have_one_table(name: str) -> None:
    """Otherwise crossover would use an index of one table in another."""
    made = space(name) if name in OPERATORS | ISSUE else Space(WIDE[name], LIMITS)
    first: dict[str, np.ndarray] = {}
    for structure in made.structures:
        holes = [hole for d in structure.decisions for hole in d.holes]
        assert len(holes) == len(set(holes))
        assert set(holes) == {hole.name for step in structure.steps for _, hole in step.list_holes()}
        for d in structure.decisions:
            np.testing.assert_array_equal(d.table, first.setdefault(d.name, d.table))
            assert len(np.unique(d.table, axis=0)) == d.size
    assert [d.name for d in made.decisions] == list(first)


def test_keys_are_equal_for_equal_genomes_alone() -> None:
    population = legal("conv stride 2", 2000)
    keys = space("conv stride 2").compute_keys(population)
    genomes = np.column_stack([population.structure, population.genes])
    assert len(np.unique(keys)) == len(np.unique(genomes, axis=0))
    np.testing.assert_array_equal(keys[:50], space("conv stride 2").compute_keys(population[:50]))


def test_schedule_has_the_values_of_its_genes() -> None:
    population = legal("matmul", 40)
    for row in range(len(population)):
        values = space("matmul").get_hole_values(population, row)
        steps = {
            s.loop: s for s in space("matmul").build_schedule(population, row).steps if s.kind == "split"
        }
        for axis in ("i", "j", "k"):
            prefix = f"tile.{axis}." if f"tile.{axis}.1" in values else None
            if prefix:
                assert steps[axis].factors == tuple(v for h, v in values.items() if h.startswith(prefix))


def test_operator_of_one_element_is_analysed() -> None:
    """All its access patterns are scalars."""
    one = Space(o.matmul(1, 1, 1), LIMITS)
    check_quantities(one, sample_legal(one, 200)[::10])


def test_interrupted_recording_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_traces, "TRACES", {})
    made = Space(OPERATORS["matmul"], LIMITS)
    population = legal("matmul", 20)
    with monkeypatch.context() as patch:

        def stopped(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr("ekc.search.space.constraints.quantities", stopped)
        with pytest.raises(KeyboardInterrupt):
            made.compute_quantities(population)
    found, expected = made.compute_quantities(population), space("matmul").compute_quantities(population)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
