"""Steps that cut, join and order loops: split, fuse, reorder, and divide for axes with quotients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ekc.ir.affine import (
    AffineForm,
    Atom,
    Extent,
    QuasiAffine,
    ceil_div,
    find_range,
    make_variable,
    max_extent,
)
from ekc.ir.divisions import compute_quotient_period, simplify_quotients
from ekc.ir.lowering.fusion import compute_staging_depth, find_misplaced_producer
from ekc.ir.program import Loop, Nest, Program
from ekc.ir.refusal import Check, at_least, fits, make_over_limit_error, make_schedule_error
from ekc.ir.schedule.step import MAX_STEP_NUMBER, Step


def check_loop_unmodified(rule: str, nest: Nest, loop: Loop) -> None:
    """Refuse to cut or join a loop that is bound, is unrolled, or has a staging."""
    if loop.level != "serial":
        raise make_schedule_error(
            rule,
            need=f"serial loop {loop.name}",
            problem=f"loop {loop.name} is bound to {loop.level}",
            remedy=f"{rule} before bind",
        )
    if np.any(np.asanyarray(loop.unroll) != 1):
        raise make_schedule_error(
            rule,
            need=f"unchanged loop {loop.name}",
            problem=f"loop {loop.name} is unrolled",
            remedy=f"{rule} before unroll",
        )
    users = [s.name for s in nest.stagings if s.at == loop.name]
    if users:
        raise make_schedule_error(
            rule,
            need=f"no staging in {loop.name}",
            problem=f"{users[0]} sits in loop {loop.name}",
            remedy=f"{rule} before cache_read",
        )


def check_names_free(rule: str, program: Program, names: list[str]) -> None:
    """Refuse names that other loops have. Of axes a, b and a_b, the loop fused from a and b would be named as
    the third."""
    taken = next((x for x in names if any(x in n.extents for n in program.nests)), None)
    if taken:
        raise make_schedule_error(
            rule,
            need=f"free name {taken}",
            problem=f"a loop is named {taken} already",
            remedy="rename the axes",
        )


@dataclass(frozen=True)
class Split(Step):
    """Cut one loop into several, the inner extents given from outer to inner.

    `split("i", (2, 16, 4))`::

        for i in 4096          ->   for i.0 in 32
                                      for i.1 in 2
                                        for i.2 in 16
                                          for i.3 in 4          i = i.0*128 + i.1*64 + i.2*4 + i.3

    The outermost extent is the rest, rounded up: a factor that does not divide adds a guard where the tensor
    ends. An inner piece of an axis has no such end, so its factors must divide.
    Called split in Halide and TVM, divide_loop in Exo.
    Refuses: an unknown loop, a loop that is bound, is unrolled or has a staging, a factor below 1,
    factors that do not divide an inner loop, pieces with names of other loops.
    """

    kind: ClassVar[str] = "split"
    loop: str
    factors: tuple[Extent, ...]

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.loop, "split")
        loop = nest.find_loop(self.loop)
        check_loop_unmodified("split", nest, loop)
        if not self.factors:
            raise self.make_error(
                need="at least one factor",
                problem="factors is empty",
                remedy=f'use split("{self.loop}", (1,))',
            )
        checks = [at_least(f"split {self.loop}", f, 1, "as a factor") for f in self.factors]
        strides = [math.prod(self.factors[i:]) for i in range(len(self.factors) + 1)]
        _check_iteration_count("split", strides[0], "use smaller factors")
        outer = ceil_div(loop.extent, max_extent(strides[0], 1))
        checks.append(_make_divides_check(nest, loop, strides[0]))
        names = [f"{loop.name}.{i}" for i in range(len(strides))]
        check_names_free("split", program, names)
        parts = [replace(loop, name=n, extent=e) for n, e in zip(names, (outer, *self.factors), strict=True)]
        form = AffineForm(tuple(zip(names, strides, strict=True)))
        new = nest.replace_loops((loop.name,), tuple(parts), {loop.name: form})
        return program.replace_nest(nest, new, *checks)


def _make_divides_check(nest: Nest, loop: Loop, step: Extent) -> Check:
    """The check that factors divide a loop, unless iterations past its end are outside the axis."""
    step = max_extent(step, 1)
    ok = np.asanyarray(loop.extent % step == 0)
    for axis, form in nest.axis_forms.items():
        least = _find_lower_bound(form, loop)
        rest = find_range(form.select_outside({loop.name}), nest.extents)[1]
        ok = ok | ((least >= nest.compute.find_axis(axis).extent) & (rest < least))
    limit, unit = "must be a divisor of {}", "as product of factors"
    return fits(f"split {loop.name}", ok, step, limit, _find_nearest_divisor, unit, loop.extent)


def _find_nearest_divisor(target: int, extent: int) -> int:
    """The divisor of an extent that is nearest to `target`, the smaller of two."""
    small = [d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0]
    return min((d for s in small for d in (s, extent // s)), key=lambda d: (abs(d - target), d))


def _find_lower_bound(form: AffineForm, loop: Loop) -> Extent:
    """A lower bound of an index at iterations of `loop` past its extent."""
    total = form.const
    for atom, coefficient in form.terms:
        total = total + coefficient * _find_atom_lower_bound(atom, loop)
    return total


def _find_atom_lower_bound(atom: Atom, loop: Loop) -> Extent:
    if isinstance(atom, str):
        return loop.extent if atom == loop.name else 0
    return _find_lower_bound(atom.inner, loop) // atom.divisor if atom.op == "//" else 0


def _check_iteration_count(rule: str, iterations: Extent, nearest: str) -> None:
    """Refuse more iterations than 64-bit indices can count later; populations have no such numbers."""
    if isinstance(iterations, int) and iterations > MAX_STEP_NUMBER:
        raise make_over_limit_error(rule, f"{iterations} iterations", f"at most {MAX_STEP_NUMBER}", nearest)


@dataclass(frozen=True)
class Fuse(Step):
    """Join a loop and the one directly inside it into one.

    `fuse("i.0", "j.0")`::

        for i.0 in 4           ->   for i.0_j.0 in 12           i.0 = i.0_j.0 / 3, j.0 = i.0_j.0 % 3
          for j.0 in 3

    Halide, TVM and Exo (mult_loops) have it too. Loops bound to the same hardware index share it without
    being fused; fuse is for joint loops that are cut again. A tile that cuts a joint loop is staged as part
    of a view of the tensor (`ekc.ir.lowering.implicit_gemm`): fused pixels make a convolution a matrix
    product. Refuses: unknown loops, loops of two computes, loops that are not neighbours, a spatial and a
    reduction loop, loops that are bound, are unrolled or have a staging, a name that is taken.
    """

    kind: ClassVar[str] = "fuse"
    outer: str
    inner: str

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.outer, "fuse")
        if self.inner not in nest.extents:
            program.find_nest(self.inner, "fuse")
            raise self.make_error(
                need="two loops of one nest",
                problem=f"{self.outer} and {self.inner} belong to two computes",
                remedy="fuse loops of one compute",
            )
        a, b = nest.find_loop(self.outer), nest.find_loop(self.inner)
        for loop in (a, b):
            check_loop_unmodified("fuse", nest, loop)
        at = nest.find_position(a.name)
        if nest.find_position(b.name) != at + 1:
            raise self.make_error(
                need=f"{b.name} directly inside {a.name}",
                problem=f"loop {b.name} is not directly inside {a.name}",
                remedy=f'call reorder("{a.name}", "{b.name}") first',
            )
        if a.is_reduction != b.is_reduction:
            raise self.make_error(
                need="two spatial or two reduction loops",
                problem=f"one of {a.name} and {b.name} is spatial, the other a reduction",
                remedy="fuse loops of one kind",
            )
        name = f"{a.name}_{b.name}"
        check_names_free("fuse", program, [name])
        joint_form = make_variable(name)
        values = {
            a.name: AffineForm(((QuasiAffine("//", joint_form, b.extent, f"{name}//{b.name}"), 1),)),
            b.name: AffineForm(((QuasiAffine("%", joint_form, b.extent, f"{name}%{b.name}"), 1),)),
        }
        _check_iteration_count("fuse", a.extent * b.extent, "leave the loops unfused")
        joint = Loop(name, f"{a.axis}+{b.axis}", a.extent * b.extent, a.is_reduction)
        return program.replace_nest(nest, nest.replace_loops((a.name, b.name), (joint,), values))


@dataclass(frozen=True)
class Reorder(Step):
    """Put loops into the given order. They take the places that they had together; other loops stay.

    `reorder("k", "i")`::

        for i                  ->   for k
          for j                       for j
            for k                       for i

    Any order computes the same sums; floating-point rounding may differ.
    Refuses: unknown loops, a loop named twice, loops of different computes, a copy moved out of the
    loop that fills its source, a vector loop that is no longer innermost.
    """

    kind: ClassVar[str] = "reorder"
    loops: tuple[str, ...]

    def apply(self, program: Program) -> Program:
        """See the class."""
        if not self.loops:
            return program
        nest = program.find_nest(self.loops[0], "reorder")
        for name in self.loops:
            if program.find_nest(name, "reorder") is not nest:
                raise self.make_error(
                    need="loops of one compute",
                    problem=f"{name} belongs to another compute than {self.loops[0]}",
                    remedy="call reorder once for each compute",
                )
        twice = [n for n in self.loops if self.loops.count(n) > 1]
        if twice:
            raise self.make_error("each loop once", f"{twice[0]} is named twice", "leave the second out")
        queue = [nest.find_loop(n) for n in self.loops]
        chosen = set(self.loops)
        loops = tuple(queue.pop(0) if x.name in chosen else x for x in nest.loops)
        new = replace(nest, loops=loops)
        _check_loop_order(new)
        return program.replace_nest(nest, new)

    def to_python(self) -> str:
        """`.reorder("k", "i")`: each name is an argument."""
        return f".reorder({', '.join(f'{n!r}' for n in self.loops)})".replace("'", '"')


def _check_loop_order(nest: Nest) -> None:
    """Refuse an order that breaks a condition of earlier steps."""
    for s in nest.stagings:
        source = nest.find_staging(s.source)
        if source and compute_staging_depth(nest, s.at) < compute_staging_depth(nest, source.at):
            raise make_schedule_error(
                "reorder",
                need=f"{s.at} inside {source.at}",
                problem=f"{source.name} is filled in {source.at}, and {s.name} reads it in {s.at}",
                remedy="reorder before cache_read",
            )
    wrong = find_misplaced_producer(nest)
    if wrong:
        source, user = wrong
        raise make_schedule_error(
            "reorder",
            need=f"{source.at} outside {user.at}",
            problem=f"{user.tensor} is computed from {source.tensor} in {user.at}",
            remedy="reorder before compute_at",
        )
    vectors = [x.name for x in nest.loops if x.level == "vector"]
    if vectors and nest.loops[-1].name != vectors[-1]:
        raise make_schedule_error(
            "reorder",
            need=f"{vectors[-1]} innermost",
            problem=f"loop {vectors[-1]} is vectorized",
            remedy="reorder before vectorize",
        )


@dataclass(frozen=True)
class Divide(Step):
    """Cut an axis where what is read divides it, so that a tile of it has a box of what it reads.

    `divide("o", 16)`::

        for o in 32                         ->   for o.0 in 2
          for c in 128                             for o.1 in 16
            Y[o] += X[o // 16 * 128 + c] * ...       for c in 128
                                                       Y[o.0*16 + o.1] += X[o.0*128 + c] * ...

    A `split` into the same two loops does not simplify the quotient, because the region of a tile must follow
    from the steps for any factors. Use `divide` for groups of channels and for phases of a transposed
    convolution. `by` is a multiple of the divisors of the axis; where it does not divide the extent, a guard
    is added where the tensor ends. Exo: divide_loop and simplify; TVM simplifies after each split. Refuses:
    an unknown loop; a loop that is bound, is unrolled, has a staging or is a piece of an axis; an axis
    without quotients; a number that is no multiple of the divisors or not below the extent; a nest with axes
    that are cut; names that are taken.
    """

    kind: ClassVar[str] = "divide"
    axis: str
    by: int

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.axis, self.kind)
        loop = nest.find_loop(self.axis)
        check_loop_unmodified(self.kind, nest, loop)
        self._check_axis(nest)
        self._check_axes_uncut(nest)
        self._check_divisor(nest)
        names = f"{loop.name}.0", f"{loop.name}.1"
        check_names_free(self.kind, program, [*names])
        # Axes of their own: a read need not go on from one to the other, as from piece to piece of a split.
        parts = (
            replace(loop, name=names[0], axis=names[0], extent=ceil_div(loop.extent, self.by)),
            replace(loop, name=names[1], axis=names[1], extent=self.by),
        )
        form = AffineForm(((names[0], self.by), (names[1], 1)))
        cut = nest.replace_loops((loop.name,), parts, {loop.name: form})
        divided = nest.divided_axes | {self.axis}
        quotients = simplify_quotients(nest.compute, divided, cut.axis_forms, cut.extents)
        return program.replace_nest(nest, replace(cut, divided_axes=divided, quotient_forms=quotients))

    def _check_axis(self, nest: Nest) -> None:
        if self.axis not in nest.axis_forms:
            raise self.make_error(
                need=f"an axis of {nest.output.name}",
                problem=f"loop {self.axis} is a piece of an axis",
                remedy=f'use split("{self.axis}", ({self.by},))',
            )

    def _check_axes_uncut(self, nest: Nest) -> None:
        """Refuse a nest with cut axes: vectors of factors would give a quotient a form for each member."""
        for axis, form in nest.axis_forms.items():
            uncut = (f"{axis}.0", f"{axis}.1") if axis in nest.divided_axes else (axis,)
            if tuple(atom for atom, _ in form.terms) != uncut:
                raise self.make_error(
                    need=f"uncut axes of {nest.output.name}",
                    problem=f"axis {axis} is cut",
                    remedy="divide first",
                )

    def _check_divisor(self, nest: Nest) -> None:
        extent = nest.compute.find_axis(self.axis).extent
        turns = compute_quotient_period(nest.compute, self.axis)
        if turns == 1:
            raise self.make_error(
                need=f"a quotient or remainder of {self.axis}",
                problem=f"{nest.compute.output.name} reads no quotient or remainder of {self.axis}",
                remedy=f'use split("{self.axis}", ({self.by},))',
            )
        if self.by < 1 or self.by % turns or self.by >= extent:
            near = max(1, min(round(self.by / turns), ceil_div(extent, turns) - 1)) * turns
            raise make_over_limit_error(
                self.kind,
                f"{self.axis} by {self.by}",
                f"must be a multiple of {turns} below {extent}",
                str(near) if near < extent else "leave it out",
            )
