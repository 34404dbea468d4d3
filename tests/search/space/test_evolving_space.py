"""Structures that evolve: edits are repaired, keep the rules, compute the operator, and are kept as text."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ekc
import ekc.ir.operators as o
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.program import make_initial_program
from ekc.ir.schedule import Bind, CacheRead, CacheWrite, Hole, Pipeline, Reorder, RFactor, Split, Unroll
from ekc.search.data.population import Population
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.decisions import Decision
from ekc.search.space.constraints import EMPTY_BLOCKS, REFUSED_NUMBERS
from ekc.search.space.evolving_space import EvolvingSpace
from ekc.search.space.space import Space
from ekc.search.space.space_structure import SpaceStructure, describe_structure
from ekc.search.space.step_edits import StepEditor
from ekc.search.space.step_repair import repair_steps
from ekc.search.space.user_structures import make_user_space
from tests.emulator.generated import run
from tests.search.helpers import A100, LIMITS, tune, winner

OPERATORS = {
    "matmul": o.matmul(32, 48, 64),
    "long sum": o.matmul(16, 16, 4096),
    "matvec": o.matvec(64, 128),
    "softmax": o.softmax((8, 96)),
    "conv": o.conv2d(1, 4, 9, 9, out_channels=8, kernel=3, padding=1),
    "float16": o.matmul(64, 64, 64, dtype="float16"),
    "epilogue": o.matmul(32, 48, 64).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(48,)),
}


@cache
def list_structures(name: str) -> tuple:
    return Space(OPERATORS[name], LIMITS).structures


def score(space: Space, population: Population) -> np.ndarray:
    """Log of the expected energy."""
    prior = A100.prior(space.compute_quantities(population))
    return np.log(prior.latency_s * prior.power_w)


def evolve(op: Operator, seed: int, rounds: int) -> tuple[EvolvingSpace, Population]:
    """A space after some rounds, and the genomes of the edited structures that it kept."""
    space, random = EvolvingSpace(op, LIMITS), np.random.default_rng(seed)
    population, _ = space.repair(random, space.sample(random, 60))
    kept = population[:0]
    for _ in range(rounds):
        population = population[np.argsort(score(space, population), kind="stable")]
        edited, _ = space.repair(random, space.edit_structures(random, population))
        new = space.keep_structures(edited, score(space, edited) if len(edited) else np.zeros(0), np.inf)
        kept, population = kept + new, new + population
    return space, kept


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(OPERATORS)), st.integers(0, 10**6))
def test_repaired_edits_apply(name: str, seed: int) -> None:
    """Repaired steps apply one by one, and make the Program that repair made."""
    op, random = OPERATORS[name], np.random.default_rng(seed)
    structures = list_structures(name)
    own, father = (structures[int(random.integers(len(structures)))] for _ in range(2))
    values = {
        h: int(d.table[0, i]) for s in (father, own) for d in s.decisions for i, h in enumerate(d.holes)
    }
    edit = StepEditor(op, random).draw(own.steps, values, father.steps, "new")
    if edit is None:
        return
    values |= {hole: int(column[0]) for hole, column in edit.numbers.items()}
    repaired = repair_steps(op, edit.steps, values, LIMITS, edit.needed)
    if repaired is None:
        return
    values |= {h: int(d.table[0, i]) for d in repaired.decisions for i, h in enumerate(d.holes)}
    program = make_initial_program(op)
    for step in repaired.steps:
        program = step.fill_holes(values).apply(program)
    assert str(program) == str(repaired.program)


def test_most_drawn_edits_can_be_repaired() -> None:
    """The property above holds of real edits of every kind, not of edits that were all refused."""
    op, random = OPERATORS["matmul"], np.random.default_rng(0)
    structures, repaired = list_structures("matmul"), []
    for number in range(60):
        own, father = (structures[int(random.integers(len(structures)))] for _ in range(2))
        values = {
            h: int(d.table[0, i]) for s in (father, own) for d in s.decisions for i, h in enumerate(d.holes)
        }
        edit = StepEditor(op, random).draw(own.steps, values, father.steps, f"edit {number}")
        if edit is not None:
            values |= {hole: int(column[0]) for hole, column in edit.numbers.items()}
            if repair_steps(op, edit.steps, values, LIMITS, edit.needed) is not None:
                repaired.append(edit.text.split()[0])
    assert len(repaired) > 30
    assert set(repaired) == {"insert", "delete", "exchange", "move", "cross"}


@pytest.mark.parametrize("name", OPERATORS)
def test_schedules_of_edited_structures_compute_the_operator(name: str) -> None:
    space, kept = evolve(OPERATORS[name], 3, 3)
    assert len(kept)
    assert set(kept.structure.tolist()).isdisjoint(range(space.rule_count))
    last = [int(np.flatnonzero(kept.structure == place)[0]) for place in np.unique(kept.structure)]
    schedules = [space.build_schedule(kept, row) for row in last[-3:]]
    for schedule in schedules:
        run(schedule, limits=LIMITS).check()
        at = space.locate(schedule)
        assert at is not None
        assert space.build_schedule(at, 0) == schedule


def test_figures_of_an_edited_structure_are_those_of_its_schedules() -> None:
    """Recorded and walked, alone and beside structures of the rules."""
    space, kept = evolve(OPERATORS["matmul"], 1, 4)
    random = np.random.default_rng(0)
    rules, _ = space.repair(random, space.sample(random, 20))
    mixed = (kept + rules)[random.permutation(len(kept) + len(rules))]
    assert space.find_legal(mixed).all()
    together = score(space, mixed)
    for row in range(0, len(mixed), 7):
        assert score(space, mixed[[row]])[0] == pytest.approx(together[row], rel=1e-12)
        schedule = space.build_schedule(mixed, row)
        at = space.locate(schedule)
        assert at is not None
        assert space.build_schedule(at, 0) == schedule


def test_places_are_given_again_but_not_those_of_schedules() -> None:
    space, random = EvolvingSpace(OPERATORS["matmul"], LIMITS), np.random.default_rng(5)
    population, _ = space.repair(random, space.sample(random, 60))
    first = space.edit_structures(random, population)
    legal, _ = space.repair(random, first)
    built = space.build_schedule(legal, 0)
    place, keys = int(legal.structure[0]), space.compute_keys(legal)
    space.keep_structures(legal, np.ones(len(legal)), 0.0)
    second = space.edit_structures(random, population)
    assert place not in second.structure
    assert set(second.structure.tolist()) & set(first.structure.tolist())
    assert set(space.compute_keys(second).tolist()).isdisjoint(keys.tolist())
    edited = space.find_edited(built)
    assert edited is not None
    assert edited is space.structures[place]


def test_a_bad_edit_is_left_out_with_what_needs_it() -> None:
    op, split = OPERATORS["matmul"], Split("k", (8,))
    base = [split, Split("i", (8,)), Split("j", (8,)), Bind("i.0", "block.x"), Bind("j.0", "block.y")]
    base += [Bind("i.1", "thread.y"), Bind("j.1", "thread.x")]
    staged = [*base, CacheWrite("C"), CacheRead("A", "shared", at="k.0"), Unroll("k.1", 4)]
    without = repair_steps(op, [s for s in staged if s is not split], {}, LIMITS)
    assert without is not None
    assert [s for s in without.steps if isinstance(s, CacheRead)] == [CacheRead("A", "shared", at="k")]
    # A needed step that refuses makes the edit none.
    bad = Pipeline("i.0", stages=2)
    assert repair_steps(op, [*staged, bad], {}, LIMITS, [bad]) is None
    kept = repair_steps(op, [*staged, bad], {}, LIMITS)
    assert kept is not None
    assert bad not in kept.steps
    # The sum of the parts is another launch: repair schedules it.
    parts = RFactor("k", 4)
    two = repair_steps(op, [parts, *staged[3:]], {}, LIMITS, [parts])
    assert two is not None
    assert len(two.program.nests) == 2
    assert not any(nest.is_unscheduled for nest in two.program.nests)


def test_numbers_that_the_lowering_refuses_are_repaired() -> None:
    """A fused tile of which some numbers leave gaps: a violation of a rule, not the end of the search."""
    steps = [
        Split("i", (ekc.hole("i", [4, 8]),)),
        Split("j", (ekc.hole("j", [1, 2, 4]),)),
        Reorder(("i.0", "j.0", "k", "i.1", "j.1")),
        Bind("i.0", "block.x"),
        Bind("j.0", "thread.x"),
        ekc.ir.schedule.Fuse("i.1", "j.1"),
        Split("i.1_j.1", (ekc.hole("part", [1, 2, 3, 6]),)),
        CacheWrite("C"),
    ]
    space = make_user_space(o.matmul(32, 32, 8), LIMITS, steps)
    random = np.random.default_rng(0)
    drawn = space.sample(random, 50)
    broken = {found.rule for found in space.find_violations(drawn)}
    legal, dropped = space.repair(random, drawn)
    assert REFUSED_NUMBERS in broken
    assert len(legal) + sum(dropped.values()) == 50
    assert np.isfinite(score(space, legal)).all()


def test_blocks_of_an_edited_structure_do_something() -> None:
    """A split of the outer piece of `i` has up to 8 blocks where `i` has 32 / 16 tiles."""
    steps = [Split("i", (Hole("tile"),)), Split("i.0", (Hole("blocks"),))]
    steps += [Bind("i.0.0", "block.x"), Bind("i.0.1", "block.x"), Bind("i.1", "thread.x")]
    tables = {"tile": [[4], [16]], "blocks": [[1], [2], [8]]}
    decisions = tuple(Decision(n, (n,), np.array(rows), ("thread",)) for n, rows in tables.items())
    edited = Structure("split twice", tuple(steps), decisions, edits=("insert split i.0",))
    space = Space(o.matmul(32, 32, 8), LIMITS, (edited,))
    whole = Population(np.zeros(6, int), np.array([[a, b] for a in (0, 1) for b in (0, 1, 2)]))
    (found,) = space.find_violations(whole)
    assert (found.rule, found.rows.tolist()) == (EMPTY_BLOCKS, [5])
    legal, _ = space.repair(np.random.default_rng(0), whole)
    assert len(legal) == 6
    by_user = Space(o.matmul(32, 32, 8), LIMITS, (replace(edited, edits=()),))
    assert by_user.find_legal(whole).all()


def test_search_finds_a_structure_says_so_and_it_is_searched_again(tmp_path: Path) -> None:
    """A long sum, from one structure that does not cut it."""
    op = o.matmul(16, 16, 4096)
    plain = ekc.space(op, target="a100").structures[0]
    options = {"trials": 12, "evolve": True, "objective": "latency", "space": [plain]}
    found = tune(op, **options)
    assert winner(tune(op, **options)) == winner(found)
    assert f"found by   the search: {plain.name}, " in found.summary()
    assert found.to_json()["found"] == found.found
    assert found.found_structure is not None
    file = tmp_path / "structure.json"
    file.write_text(found.found_structure.to_json())
    read = SpaceStructure.from_json(file.read_text())
    assert (read.steps, read.holes) == (found.found_structure.steps, found.found_structure.holes)
    space = ekc.space(op, target="a100", space=[plain, read])
    assert space.find_structure(found.best.schedule) == read.name
    again = tune(op, trials=8, space=[read])
    assert {t.structure for t in again.trials} == {read.name}


def test_without_evolution_nothing_is_found() -> None:
    result = tune(trials=4)
    assert (result.found, result.found_structure) == ("", None)
    assert "found by" not in result.summary()


@pytest.mark.parametrize("name", OPERATORS)
def test_structures_are_read_back_from_text(name: str) -> None:
    for structure in map(describe_structure, list_structures(name)):
        read = SpaceStructure.from_json(structure.to_json())
        assert (read.name, read.rules, read.steps, read.holes) == (
            structure.name,
            structure.rules,
            structure.steps,
            structure.holes,
        )


REFUSED = {
    "evolve: 'yes' is neither True nor False": lambda: tune(evolve="yes"),
    "structure: not JSON": lambda: SpaceStructure.from_json("{"),
    "structure: format 7, this version of ekc reads 1": lambda: SpaceStructure.from_json('{"format": 7}'),
    "structure: not what SpaceStructure.to_json gives": lambda: SpaceStructure.from_json('{"format": 1}'),
    "hole 'a': a value": lambda: SpaceStructure.from_json(
        '{"format": 1, "name": "x", "rules": [], "steps": [], "holes": {}, "values": {"a": [["b"]]}}'
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        REFUSED[words]()
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
