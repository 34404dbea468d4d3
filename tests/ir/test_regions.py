"""Affine forms and regions against enumeration of every loop value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc.ir.operators as o
from ekc.errors import ScheduleError
from ekc.ir.affine import AffineForm, QuasiAffine, evaluate_form, find_range, make_variable
from ekc.ir.lowering.buffers import TensorAccess
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import ComputeNode, LoopNode, Node
from ekc.ir.lowering.regions import Region, derive_region
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree
from tests.drawn.schedules import seeded_schedule

EXTENTS = {"a": 3, "b": 4, "c": 2}
NAMES = sorted(EXTENTS)
small = st.integers(-5, 5)


@st.composite
def forms(draw: st.DrawFn, names: tuple[str, ...] = tuple(NAMES), depth: int = 1) -> AffineForm:
    """A random form, sometimes with a quotient or remainder."""
    total = AffineForm((), draw(small))
    for name in draw(st.lists(st.sampled_from(names), unique=True)):
        total = total + make_variable(name).scale(draw(small))
    if depth and draw(st.booleans()):
        inner, op, divisor = (
            draw(forms(names, depth - 1)),
            draw(st.sampled_from(("//", "%"))),
            draw(st.integers(1, 5)),
        )
        tag = f"({inner.terms}, {inner.const}) {op} {divisor}"
        total = total + AffineForm(((QuasiAffine(op, inner, divisor, tag), draw(small)),))
    return total


def points(extents: dict[str, int]) -> Iterator[dict[str, int]]:
    for values in itertools.product(*(range(e) for e in extents.values())):
        yield dict(zip(extents, values, strict=True))


@given(forms(), forms(), small)
def test_form_arithmetic_is_that_of_values(f: AffineForm, g: AffineForm, factor: int) -> None:
    for env in points(EXTENTS):
        x, y = evaluate_form(f, env), evaluate_form(g, env)
        assert evaluate_form(f + g, env) == x + y
        assert evaluate_form(f - g, env) == x - y
        assert evaluate_form(f.scale(factor), env) == x * factor
        assert evaluate_form(f.shift(factor), env) == x + factor


@given(forms(), forms(("x", "y")), forms(("x",)))
def test_substitution_commutes_with_evaluation(f: AffineForm, for_a: AffineForm, for_c: AffineForm) -> None:
    replaced = f.substitute({"a": for_a, "c": for_c})
    for env in points({"b": 4, "x": 3, "y": 2}):
        inner = {"a": evaluate_form(for_a, env), "b": env["b"], "c": evaluate_form(for_c, env)}
        assert evaluate_form(replaced, env) == evaluate_form(f, inner)


@given(forms())
def test_form_is_the_sum_of_its_inside_and_outside(f: AffineForm) -> None:
    inside = {"a", "c"}
    if f.select_crossing(inside).terms:
        return
    parts = f.select_inside(inside) + f.select_outside(inside)
    # A quotient of a constant has no loop, so it is in both parts; `to_affine` makes no such quotient.
    if all(f_atom.find_variables() for f_atom, _ in f.terms if isinstance(f_atom, QuasiAffine)):
        assert all(evaluate_form(parts, env) == evaluate_form(f, env) for env in points(EXTENTS))


@given(forms())
def test_range_bounds_every_value(f: AffineForm) -> None:
    low, high = find_range(f, EXTENTS)
    values = [evaluate_form(f, env) for env in points(EXTENTS)]
    assert low <= min(values)
    assert high >= max(values)


@given(forms(depth=0))
def test_range_of_a_form_without_quotient_is_exact(f: AffineForm) -> None:
    values = [evaluate_form(f, env) for env in points(EXTENTS)]
    assert find_range(f, EXTENTS) == (min(values), max(values))


LOOPS = {"a": 3, "b": 2, "c": 4, "d": 2}
AXES = {"a": "i", "b": "i", "c": "i", "d": "j"}


@st.composite
def reads(draw: st.DrawFn) -> list[tuple[AffineForm, ...]]:
    """One to three reads of a matrix: a split axis in any order, offsets, a second axis, a quotient."""
    split = AffineForm((("a", 8), ("b", 4), ("c", 1)))
    fused = AffineForm(
        (
            (QuasiAffine("//", make_variable("c"), 2, "c//2"), 3),
            (QuasiAffine("%", make_variable("c"), 2, "c%2"), 1),
        )
    )
    shifted = AffineForm(((QuasiAffine("//", make_variable("c").shift(-2), 2, "(c-2)//2"), 1),))
    kinds = [
        split,
        split.scale(2),
        split.scale(-1),
        split + make_variable("d"),
        fused,
        make_variable("d"),
        shifted,
        AffineForm(),
    ]
    first = (draw(st.sampled_from(kinds)), draw(st.sampled_from(kinds)))
    offsets = draw(st.lists(st.tuples(small, small), min_size=1, max_size=3))
    return [tuple(f.shift(n) for f, n in zip(first, offset, strict=True)) for offset in offsets]


def check_region(region: Region, forms: list[tuple[AffineForm, ...]], extents: dict[str, int]) -> None:
    """Check that each element read has coordinates of its own in the box, and that these give the element."""
    place: dict[tuple[int, ...], dict[tuple[int, ...], tuple[int, ...]]] = {}
    back = region.find_coordinates()
    outer = [n for n in extents if n not in region.inner_loops]
    for env in points(extents):
        for read in forms:
            element = tuple(int(evaluate_form(f, env)) for f in read)
            where = tuple(int(evaluate_form(f, env)) for f in region.locate(read))
            assert all(0 <= w < s.extent for w, s in zip(where, region.segments, strict=True))
            named = env | {f"#{i}": w for i, w in enumerate(where)}
            assert tuple(int(evaluate_form(f, named)) for f in back) == element
            seen = place.setdefault(tuple(env[n] for n in outer), {})
            assert seen.setdefault(where, element) == element


@settings(max_examples=200)
@given(reads(), st.sets(st.sampled_from(sorted(LOOPS))))
def test_region_has_every_read_at_its_own_place(forms: list[tuple[AffineForm, ...]], inner: set[str]) -> None:
    region = derive_region(forms, frozenset(inner), LOOPS, AXES)
    check_region(region, forms, LOOPS)


@settings(max_examples=200)
@given(reads())
def test_region_is_no_larger_than_its_hull(forms: list[tuple[AffineForm, ...]]) -> None:
    region = derive_region(forms, frozenset(LOOPS), LOOPS, AXES)
    hull = 1
    for dim in range(2):
        ends = [find_range(f[dim], LOOPS) for f in forms]
        hull *= max(high for _, high in ends) - min(low for low, _ in ends) + 1
    assert region.size <= hull


def test_strided_tile_is_smaller_than_its_hull() -> None:
    tile = (AffineForm((("i.1", 64), ("i.2", 4), ("i.3", 1))),)
    extents = {"i.1": 2, "i.2": 16, "i.3": 4}
    region = derive_region([tile], frozenset({"i.1", "i.3"}), extents, dict.fromkeys(extents, "i"))
    assert [(s.stride, s.extent) for s in region.segments] == [(64, 2), (1, 4)]
    assert region.size == 8


def test_stencil_has_one_hull() -> None:
    forms = [(make_variable("a").shift(n),) for n in (-1, 0, 1)]
    region = derive_region(forms, frozenset({"a"}), {"a": 6}, {"a": "a"})
    assert region.size == 8
    assert region.base[0].const == -1


def test_half_a_fused_index_is_refused() -> None:
    f = AffineForm((("f.0", 4), ("f.1", 1)))
    index = (AffineForm(((QuasiAffine("//", f, 3, "f//3"), 1),)),)
    with pytest.raises(ScheduleError, match="partly inside and partly outside the region"):
        derive_region([index], frozenset({"f.1"}), {"f.0": 3, "f.1": 4}, {"f.0": "f", "f.1": "f"})


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_regions_of_random_schedules_are_correct(first: int) -> None:
    """Only kernels with at most 3,000 iterations are checked."""
    checked = 0
    for seed in range(first, first + 10):
        for kernel in derive_launches(seeded_schedule(seed).program):
            extents = {name: int(extent) for name, extent in kernel.nest.extents.items()}
            if math.prod(extents.values()) <= 3000:
                for access in _reads(kernel.body):
                    if access.buffer is not None:
                        check_region(access.buffer.region, [access.index], extents)
                        checked += 1
    assert checked >= 10


def _reads(nodes: tuple[Node, ...]) -> Iterator[TensorAccess]:
    for node in nodes:
        if isinstance(node, LoopNode):
            yield from _reads(node.body)
        if isinstance(node, ComputeNode):
            yield from (*node.reads.values(), node.target)


def halves_twice() -> Schedule:
    """U is read at two offsets, and T at half of each; both producers are fused."""
    op = o.compute(
        "first", axes={"u": 8, "v": 16}, inputs={"X": (8, 16)}, output="T", body=lambda X, u, v: X[u, v] + 1
    )
    op = op.then("U", axes={"w": 8, "z": 16}, inputs={}, body=lambda T, w, z: T[w, z // 2] * 2)
    op = op.then("C", axes={"i": 8, "j": 8}, inputs={}, body=lambda U, i, j: U[i, j] + U[i, j + 5])
    return Schedule(op).bind("i", "block.x")


def test_same_quotient_at_two_offsets_is_two_reads() -> None:
    schedule = halves_twice().bind("j", "thread.x").compute_at("U", None).compute_at("T", None)
    check_tree(schedule)


def test_region_of_quotients_at_two_offsets_is_refused() -> None:
    schedule = halves_twice().bind("j", "block.y").compute_at("U", None).compute_at("T", None)
    with pytest.raises(ScheduleError, match="the reads differ by more than a constant"):
        derive_launches(schedule.program)
