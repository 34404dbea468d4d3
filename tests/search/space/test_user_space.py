"""Spaces that a user writes: read like those of the rules, searched like them, refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc
import ekc.ir.operators as o
from ekc import devices
from ekc.errors import EkcError, InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule import (
    Bind,
    CacheRead,
    CacheWrite,
    Divide,
    Hole,
    Pipeline,
    Reorder,
    Split,
    Step,
    Unroll,
)
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space
from ekc.search.space.space_structure import describe_structure
from ekc.search.space.user_structures import make_user_space
from tests.search.helpers import LIMITS, THREADS, make_options, rows, tune, winner

OP = o.matmul(64, 64, 64)
READ = {
    "matmul": OP,
    "float16": o.matmul(128, 128, 128, dtype="float16"),
    "epilogue": OP.epilogue(lambda c, bias: ekc.relu(c + bias), bias=(64,)),
    "split k": o.matmul(16, 16, 16384),
    "softmax": o.softmax((8, 256)),
    "packed": o.conv2d(1, 32, 14, 14, out_channels=64, kernel=3, padding=1, dtype="float16"),
    "groups": o.conv2d(1, 32, 8, 8, out_channels=32, kernel=3, padding=1, groups=2),
}


def write_tiled(**changed: Any) -> list[Step]:
    """The structure "A:shared+register B:shared+register" of the rules, by hand."""
    hole = {
        "rows": ekc.hole("rows", ekc.list_tiles(64, (8, 256, 16))),
        "columns": ekc.hole("columns", ekc.list_tiles(64, (8, 256, 16))),
        "depth": (ekc.hole("depth", [t[0] for t in ekc.list_tiles(64, (64,))]),),
        "store": ekc.hole("store", [1, 2, 4]),
        "stages": ekc.hole("stages", [1, 2]),
        **{f"copy {x}": ekc.hole(f"copy {x}", [1, 2, 4]) for x in "AB"},
        **{f"pad {x}": ekc.hole(f"pad {x}", [0, 1, 2, 4, 8]) for x in "AB"},
        **{f"read {x}": ekc.hole(f"read {x}", [4, 2, 1]) for x in "AB"},
        "unroll": ekc.hole("unroll", [1, 2, 4, 8, 16]),
    } | changed
    loops = ("i.0", "j.0", "i.2", "j.2", "k.0", "k.1", "i.1", "j.1", "i.3", "j.3")
    return [
        Split("i", hole["rows"]),
        Split("j", hole["columns"]),
        Split("k", hole["depth"]),
        Reorder(loops),
        *(Bind(loop, "block.x") for loop in loops[:2]),
        *(Bind(loop, "thread.x") for loop in loops[2:4]),
        *(Bind(loop, "vthread") for loop in loops[6:8]),
        CacheWrite("C", vector=hole["store"]),
        *(CacheRead(x, "shared", "k.0", hole[f"copy {x}"], (), hole[f"pad {x}"]) for x in "AB"),
        *(CacheRead(f"{x}.shared", "register", "k.1", hole[f"read {x}"]) for x in "AB"),
        Pipeline("k.0", hole["stages"]),
        Unroll("k.1", hole["unroll"]),
    ]


def find_own(op: Operator, name: str) -> Space:
    """A space of one structure of the rules."""
    return Space(op, LIMITS, tuple(s for s in Space(op, LIMITS).structures if s.name == name))


@pytest.mark.parametrize("name", READ)
def test_structures_of_the_rules_are_read_back(name: str) -> None:
    own = Space(READ[name], LIMITS)
    written = [describe_structure(s) for s in own.structures]
    read = make_user_space(READ[name], LIMITS, written)
    assert [s.name for s in read.structures] == [s.name for s in own.structures]
    assert [s.rules for s in read.structures] == [s.rules for s in own.structures]
    for mine, found in zip(own.decisions, read.decisions, strict=True):
        assert (mine.name, mine.holes, mine.starts_at_max) == (found.name, found.holes, found.starts_at_max)
        np.testing.assert_array_equal(mine.table, found.table)


@pytest.mark.parametrize("name", READ)
def test_a_schedule_is_found_by_its_steps(name: str) -> None:
    space, random = Space(READ[name], LIMITS), np.random.default_rng(1)
    drawn, _ = space.repair(random, space.sample(random, 60))
    for row in range(len(drawn)):
        schedule = space.build_schedule(drawn, row)
        found = space.locate(schedule)
        assert found is not None
        assert space.build_schedule(found, 0) == schedule
    assert space.locate(ekc.Schedule(READ[name])) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(sorted(READ)))
def test_reading_holes_is_the_inverse_of_filling_them(seed: int, name: str) -> None:
    random, space = np.random.default_rng(seed), Space(READ[name], LIMITS)
    structure = space.structures[int(random.integers(len(space.structures)))]
    for step in structure.steps:
        values = {hole.name: int(random.integers(1, 64)) for _, hole in step.list_holes()}
        assert step.read_holes(step.fill_holes(values)) == values


@pytest.mark.parametrize("name", READ)
def test_neighbours_are_legal_and_one_decision_away(name: str) -> None:
    space, random = Space(READ[name], LIMITS), np.random.default_rng(2)
    drawn, _ = space.repair(random, space.sample(random, 20))
    for row in range(5):
        near = space.list_neighbours(drawn, row)
        assert ((near.genes != drawn.genes[row]).sum(axis=1) == 1).all()
        legal = space.find_legal(near)
        for other in range(0, len(near), 5):
            program = space.evaluator.build_program(
                int(near.structure[other]), space.get_hole_values(near, other)
            )
            assert legal[other] == all(c.explain() is None for c in iterate_checks(program, LIMITS))
            back = space.list_neighbours(near, other)
            assert (back.genes == drawn.genes[row]).all(axis=1).any()


def test_hand_written_structure_is_searched_like_that_of_the_rules() -> None:
    """The same seed gives the same schedules, so the names of holes and the order of values do not matter."""
    device = devices.open("a100")
    with RecordStore(None) as store:
        space = find_own(OP, "A:shared+register B:shared+register")
        of_rules = TuningRun(space, Measurer(device, store), THREADS, make_options(12)).run(())
    by_hand = tune(OP, trials=12, space=write_tiled())
    assert winner(by_hand) == winner(of_rules)
    assert [t.schedule for t in by_hand.trials] == [t.schedule for t in of_rules.trials]
    assert {t.structure for t in by_hand.trials} == {"own"}


def test_summary_and_json_say_that_the_space_was_the_users() -> None:
    result = tune(OP, trials=4, space=[write_tiled(), write_tiled()[:-1]])
    assert "space      the user's: 2 structures with 12 holes" in result.summary()
    assert result.to_json()["user_space"] == "the user's: 2 structures with 12 holes"
    assert {t.structure for t in result.trials} <= {"own 1", "own 2"}
    plain = tune(OP, trials=4)
    assert "\nspace " not in plain.summary()
    assert plain.to_json()["user_space"] == ""


def test_stopped_run_resumes_from_its_records(tmp_path: Path) -> None:
    file, space = tmp_path / "records.sqlite", write_tiled()

    stopped = tune(OP, trials=9, space=space, records=file, callback=lambda event: event.tried >= 3)
    assert stopped.stopped
    resumed = tune(OP, trials=9, space=space, records=file)
    assert winner(resumed) == winner(tune(OP, trials=9, space=space))
    stored = rows(file)
    again = tune(OP, trials=9, space=space, records=file)
    assert (rows(file), winner(again)) == (stored, winner(resumed))
    assert ekc.best(OP, file, "a100").schedule == resumed.best.schedule
    assert ekc.Schedule.from_json(resumed.best.schedule.to_json()) == resumed.best.schedule


def test_holes_of_one_name_get_one_value() -> None:
    width = ekc.hole("width", [1, 2, 4])
    space = make_user_space(OP, LIMITS, write_tiled(**{"copy A": width, "copy B": width}))
    schedule = space.build_schedule(
        space.repair(np.random.default_rng(0), space.sample(np.random.default_rng(0), 9))[0], 0
    )
    copies = [s.vector for s in schedule.steps if isinstance(s, CacheRead) and s.scope == "shared"]
    assert copies[0] == copies[1]


def test_space_without_neighbours_is_mutated() -> None:
    space = make_user_space(OP, LIMITS, [Split("k", ekc.hole("k", [(2, 16), (3, 5)])), Unroll("k.1", 2)])
    random = np.random.default_rng(0)
    drawn = space.sample(random, 20)
    assert set(space.mutate(random, drawn).genes.ravel()) <= {0, 1}
    assert not len(space.list_neighbours(drawn, 0))


VALUES = st.lists(st.integers(1, 40), min_size=1, max_size=5)
TRIPLES = st.lists(st.tuples(*[st.integers(1, 40)] * 3), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None)
@given(TRIPLES, TRIPLES, VALUES, st.lists(st.integers(0, 9), min_size=1), VALUES, VALUES)
def test_any_values_make_a_space_of_legal_schedules_or_are_refused(
    rows: Any, columns: Any, depth: Any, pad: Any, stages: Any, unroll: Any
) -> None:
    steps = write_tiled(
        rows=ekc.hole("rows", rows),
        columns=ekc.hole("columns", columns),
        depth=(ekc.hole("depth", depth),),
        stages=ekc.hole("stages", stages),
        unroll=ekc.hole("unroll", unroll),
        **{"pad A": ekc.hole("pad A", pad)},
    )
    try:
        space = make_user_space(OP, LIMITS, steps)
    except InvalidInput as problem:
        refusal = str(problem)
    else:
        refusal = ""
        random = np.random.default_rng(0)
        drawn, _ = space.repair(random, space.sample(random, 200))
        for row in range(0, len(drawn), 10):
            program = space.build_schedule(drawn, row).program
            assert all(c.explain() is None for c in iterate_checks(program, LIMITS))
    assert refusal == "" or (refusal.startswith("space: own") and "\n" not in refusal)


SPLIT = Split("i", (ekc.hole("size", [8, 16]),))
REFUSED: dict[str, tuple[Any, str]] = {
    "no list": (3, "space: 3 is no list of steps; write space=[Split(...), ...] with ekc.hole"),
    "nothing": ([], "space: [] is no list of steps"),
    "a schedule": (ekc.Schedule(OP), "is no list of steps"),
    "no step": ([SPLIT, "bind"], "space: own, step 2: 'bind' is no step; ekc.ir.schedule has their classes"),
    "no steps in a structure": ([[SPLIT], 3], "space: own 2: 3 is no list of steps"),
    "no hole": ([Split("i", (8,))], "space: no step has a hole; write one with ekc.hole, or use start="),
    "no values": (
        [Split("i", (Hole("size"),))],
        'space: own, step 1 .split("i", (<size>,)): hole \'size\' has no values; write ekc.hole("size", [1,',
    ),
    "two lists": (
        [SPLIT, Split("j", (ekc.hole("size", [8]),))],
        "step 2 .split(\"j\", (<size>,)): hole 'size' has other values in own; give one of the two another",
    ),
    "two lists in two structures": (
        [[SPLIT], [Split("j", (ekc.hole("size", [8]),))]],
        "space: own 2, step 1 .split(\"j\", (<size>,)): hole 'size' has other values in own 1;",
    ),
    "hole for a name": (
        [Divide("i", ekc.hole("by", [2]))],
        'step 1 .divide("i", <by>): divide: by=<by> cannot be a hole; write a structure for each value',
    ),
    "unknown loop": (
        [SPLIT, Bind("i.2", "thread.x")],
        'step 2 .bind("i.2", "thread.x"): bind: no loop \'i.2\'; loops are i.0, i.1, j, k; nearest is',
    ),
    "no filling is legal": (
        [SPLIT, Split("i.1", (ekc.hole("rest", [7, 5]),))],
        'step 2 .split("i.1", (<rest>,)): split i.1: 5 as product of factors, must be a divisor of 8; use 4',
    ),
    "a value that a step refuses": (
        write_tiled(stages=ekc.hole("stages", [1, 2, 3])),
        'step 16 .pipeline("k.0", stages=<stages>): pipeline k.0: 3 stages, must be 1 or 2; use 2',
    ),
    "zero": (
        [Split("i", (ekc.hole("size", [0, 8]),))],
        "step 1 .split(\"i\", (<size>,)): hole 'size' has the value 0, at least 1 as a factor; use 1",
    ),
    "unused number": (
        [Split("i", ekc.hole("sizes", [(4, 8), (8, 4)])[:1])],
        "space: hole 'sizes': number 2 of 2 is in no step; leave it out of the values",
    ),
    "no legal schedule": (
        [SPLIT, Split("k", (4,)), CacheRead("A", "shared", "k.0", pad=ekc.hole("pad", [90_000]))],
        "space: own has no legal schedule: 512 fillings, repaired as far as their values allow, break shared "
        "memory (512); the smallest values: shared memory: ",
    ),
    "twice": (
        [describe_structure(Space(OP, LIMITS).structures[0])] * 2,
        'space: two structures are "A:shared\'+register B:shared+register"; leave one of them out',
    ),
    "too large": (
        [Split(x, ekc.hole(x, [(2**20, 2**20)])) for x in "ijk"],
        "multiply to 1329227995784915872903807060280344576, at most 4611686018427387904; leave",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    space, words = REFUSED[case]
    with pytest.raises(InvalidInput) as refusal:
        make_user_space(OP, LIMITS, space)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(EkcError, match="space: "):
        tune(OP, space=space)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x", []), "hole 'x': number of values: 0, at least 1"),
        (("x", 3), "hole 'x': 3 is no list of values; write hole('x', [1, 2, 4])"),
        (("x", [1, (2, 3)]), "hole 'x': (2, 3) beside 1; give values of one length"),
        (("x", [(1,), (2, 3)]), "hole 'x': (2, 3) beside (1,); give values of one length"),
        (("x", [2.5]), "hole 'x': a value: 2.5 is not a whole number; use 2"),
        (("x", [2**30]), "hole 'x': a value: 1073741824, at most 1048576"),
        (("x", range(9999)), "hole 'x': number of values: 9999, at most 4096"),
        ((3, [1]), "hole: 3 is not a text; write a name such as 'tile.i'"),
    ],
)
def test_refused_holes(arguments: tuple[Any, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match="hole") as refusal:
        ekc.hole(*arguments)
    assert words in str(refusal.value)
