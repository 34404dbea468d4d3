"""Vector widths: sampled at their maximum, lowered by repair and mutation; selection by latency."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc.ir.operators as o
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import MeasurementConditions, Timing
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.statistics import Interval
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.features import build_features
from ekc.search.data.candidate import Candidate
from ekc.search.data.population import Population
from ekc.search.data.selection import OBJECTIVES, SelectionRule, sort_by_latency
from ekc.search.space.space import Space
from tests.search.helpers import LIMITS, drawn, legal, rules_broken, space

WHEN = MeasurementConditions("a100", True, "made up", "", "", 0.0, 0.0, (), "made up", "0")


def _eager(name: str) -> np.ndarray:
    return np.array([d.starts_at_max for d in space(name).decisions])


def _could_be_wider(name: str, population: Population) -> np.ndarray:
    """[genome, decision]: decisions that start at their maximum and that a greater value would leave
    legal."""
    could = np.zeros(population.genes.shape, dtype=bool)
    for column in np.flatnonzero(_eager(name)):
        for more in range(1, int(space(name).decision_sizes[column])):
            raised = population.genes.copy()
            raised[:, column] += more
            there = space(name).uses_decision[population.structure, column] & (
                raised[:, column] < space(name).decision_sizes[column]
            )
            raised[~there, column] = 0
            broken = np.zeros(len(population), dtype=bool)
            for found in rules_broken(name, Population(population.structure, raised)):
                broken[found.rows] = True
            could[:, column] |= there & ~broken
    return could


@pytest.mark.parametrize("name", ["matmul", "fp16", "matvec"])
def test_widths_are_sampled_at_their_maximum(name: str) -> None:
    kinds = {d.name.split(".")[0] for d in space(name).decisions if d.starts_at_max}
    assert kinds
    assert kinds <= {"vector", "move", "flight"}
    raw = drawn(name, 200)
    used = space(name).uses_decision[raw.structure] & _eager(name)
    assert (raw.genes == space(name).decision_sizes - 1)[used].all()
    assert not (raw.genes == space(name).decision_sizes - 1)[
        ~used & space(name).uses_decision[raw.structure]
    ].all()


@pytest.mark.parametrize("name", ["matmul", "fp16", "matvec"])
def test_repair_narrows_few_widths_more_than_needed(name: str) -> None:
    """Repair lowers either a pad or a width, at random."""
    assert _could_be_wider(name, legal(name, 300)).any(axis=1).mean() < 0.25


def test_mutation_reaches_narrow_widths() -> None:
    """Mutation makes narrow widths, which some layouts need against bank conflicts."""
    parents, random = legal("matmul", 300), np.random.default_rng(0)
    children, _ = space("matmul").repair(random, space("matmul").mutate(random, parents))
    assert 0.05 < _could_be_wider("matmul", children).any(axis=1).mean() < 0.6


def test_new_tile_resets_widths_to_maximum() -> None:
    parents, random = legal("matmul", 300), np.random.default_rng(0)
    children = space("matmul").mutate(random, parents, structure_rate=0)
    tiles = np.array([bool(d.kinds) for d in space("matmul").decisions])
    moved = children.genes != parents.genes
    cut = moved[:, tiles].any(axis=1)
    used = space("matmul").uses_decision[children.structure] & _eager("matmul")
    widest = (children.genes == space("matmul").decision_sizes - 1) | ~used
    assert 20 < cut.sum() < 280
    # A width that is narrow beside a new tile comes from a second mutation.
    assert widest[cut].all(axis=1).mean() > 0.8
    assert widest[~cut].all(axis=1).mean() < 0.6


@pytest.mark.parametrize("unroll", [1, 8])
@pytest.mark.parametrize("staged", [False, True])
def test_global_loads_have_the_scheduled_width(unroll: int, staged: bool) -> None:
    """The compiler joins no loads: it only knows that elements are aligned."""
    s = Schedule(o.matmul(64, 64, 32)).split("i", (8, 4)).split("j", (8, 4)).split("k", (8,))
    s = s.reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2").cache_write("C", "register")
    s = s.bind("i.0", "block.x").bind("j.0", "block.x").bind("i.1", "thread.x").bind("j.1", "thread.x")
    if staged:
        s = s.cache_read("A", "register", at="k.1").cache_read("B", "register", at="k.1", vector=4)
    s = s.unroll("k.1", unroll)
    kernel = compile_schedule(s, "sm_80", LIMITS)
    widths = Counter(re.findall(r"ld\.global\S*", kernel.ptx))
    assert {"v4" in width for width in widths} == ({False, True} if staged else {False})
    (ran,) = profile_kernel(kernel)
    loads = [a.requests for a in ran.accesses if (a.space, a.kind) == ("global", "load")]
    counted = sum(loads) * kernel.launches[0].grid[0]
    assert analyse_program(s.program, LIMITS)["total_global_load_requests"][0] == pytest.approx(counted)


def _timed(vector: int, seconds: float, half: float) -> Candidate:
    """A timed matrix product that reads B with this vector width."""
    s = Schedule(o.matmul(64, 64, 32)).split("j", (4,)).reorder("i", "j.0", "k", "j.1")
    s = s.bind("i", "block.x").bind("j.0", "thread.x").cache_write("C", "register")
    s = s.cache_read("B", "register", at="k", vector=vector)
    row = build_features(analyse_program(s.program, LIMITS))[0]
    c = Candidate(s, "made up", row, seconds, 100.0, 40.0, 1)
    c.timings = [Timing(seconds, Interval(seconds - half, seconds + half), 20, WHEN)]
    return c


def test_fastest_is_of_the_least_latency() -> None:
    slow, fast, middle = _timed(1, 1.0003e-4, 2e-7), _timed(4, 1.0000e-4, 2e-7), _timed(2, 1.0001e-4, 2e-7)
    assert [id(c) for c in sort_by_latency([slow, fast, middle])] == [id(fast), id(middle), id(slow)]
    best, fastest = SelectionRule("latency").select_winners([slow, fast, middle])
    assert best is fastest is fast


def test_failed_candidates_are_not_sorted() -> None:
    broken, narrow, wide = _timed(4, 0.9e-4, 1e-6), _timed(1, 1.0e-4, 1e-9), _timed(4, 1.1e-4, 1e-9)
    broken.status, never = "wrong", _timed(2, 1.0, 0.0)
    never.timings, never.status = [], "compile: made up"
    assert [id(c) for c in sort_by_latency([never, wide, narrow, broken])] == [id(narrow), id(wide)]
    assert sort_by_latency([]) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((1, 2, 4)), st.floats(1.0, 1.05), st.floats(0, 0.02)), min_size=2),
       st.sampled_from(OBJECTIVES))  # fmt: skip
def test_selection_from_file_equals_selection_in_a_run(
    drawn: list[tuple[int, float, float]], objective: str
) -> None:
    """Candidates of a run and their stored trials are selected by one rule."""
    run = [_timed(width, 1e-4 * seconds, 1e-4 * half) for width, seconds, half in drawn]
    for c, (_, seconds, half) in zip(run, drawn, strict=True):
        c.predicted_power_w = 100.0 * (seconds + half)
    of_run, on_file = (
        SelectionRule(objective, 0.02).select_winners(stored) for stored in (run, [c.to_trial() for c in run])
    )
    assert [(x.schedule, x.latency_s) for x in of_run] == [(x.schedule, x.latency_s) for x in on_file]


@pytest.mark.parametrize(
    ("op", "per_lane"),
    [
        (o.matvec(64, 256), {4, 8}),
        (o.matvec(64, 256, dtype="float16"), {8}),
        # The vectors of a warp do not divide the axis, or rows are no whole vectors: any number of elements.
        (o.matvec(64, 192), {1, 2, 3, 4, 6, 8}),
        (o.matvec(64, 225), {1, 2, 3, 4, 5, 6, 8}),
    ],
)
def test_lanes_have_whole_vectors_where_they_fit(op: Operator, per_lane: set[int]) -> None:
    found = [d for d in Space(op, LIMITS).decisions if d.name == "tile.lanes.k"]
    assert {row[1] for row in found[0].table.tolist()} <= per_lane
    assert min(row[1] for row in found[0].table.tolist()) == min(per_lane)
    assert {row[0] for row in found[0].table.tolist()} == {32}


def test_lanes_read_through_registers() -> None:
    """Only loads through registers are vectors."""
    names = [s.name for s in space("matvec").structures if "lanes" in s.name]
    assert names
    assert all(name.endswith("lanes registers") for name in names)


def test_disturbed_timing_makes_no_schedule_the_fastest() -> None:
    """Two kernels with few issue slots and disturbed timings: intervals reach the fastest, means do not."""
    fast, noisy, noisier = _timed(1, 0.8e-4, 1e-8), _timed(4, 1.0e-4, 2.5e-5), _timed(2, 1.1e-4, 4e-5)
    assert [id(c) for c in sort_by_latency([noisier, noisy, fast])] == [id(fast), id(noisy), id(noisier)]
