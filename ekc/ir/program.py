"""A Program: for every compute, an ordered nest of loops and the tensors staged along it.

The loops of a nest are a list, and a staging names the loop it sits in, so a step rewrites one entry and
everything that follows from it (regions, guards, barriers, where an accumulator starts) is derived in
`ekc.ir.lowering.lower` from the new list, never patched. Extents may be vectors: one Program can represent a
population that shares its structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ekc.display import format_html_table, format_line, shorten
from ekc.ir.affine import AffineForm, Extent, make_variable, to_affine
from ekc.ir.compute import Compute, TensorSpec
from ekc.ir.expr import Expr, Load
from ekc.ir.operator import Operator
from ekc.ir.refusal import Check, make_unknown_name_error
from ekc.tables import count_nouns

BLOCK_LEVELS = ("block.x", "block.y", "block.z")
THREAD_LEVELS = ("thread.x", "thread.y", "thread.z")
SERIAL_LEVELS = ("serial", "vthread", "vector")
"""Levels that run one after another inside a thread; a vthread is a strided slice of a thread's tile."""


@dataclass(frozen=True, eq=False)
class Loop:
    """One loop. `axis` is the axis of the operator it was cut from (joined by + after a fuse)."""

    name: str
    axis: str
    extent: Extent
    is_reduction: bool
    level: str = "serial"
    unroll: Extent = 1
    """Number of iterations that are written out; the extent itself unrolls fully, 0 leaves the number to the
    compiler."""
    stages: Extent = 1
    """Number of copies of each shared tile: with 2 the next tile is loaded while one is used."""
    copy: str = "register"
    """Way in which tiles of a pipelined loop are copied: "register" (through these) or "async" (cp.async)."""

    @property
    def is_block(self) -> bool:
        """Whether the loop is bound to blocks."""
        return self.level in BLOCK_LEVELS

    @property
    def is_thread(self) -> bool:
        """Whether the loop is bound to the threads of a block."""
        return self.level in THREAD_LEVELS

    @property
    def is_serial(self) -> bool:
        """Whether one thread runs the loop."""
        return self.level in SERIAL_LEVELS


@dataclass(frozen=True, eq=False)
class Staging:
    """A region of a tensor copied closer, inside the loop `at` (None: once per block)."""

    tensor: str
    source: str
    """Name of the tensor, or of the staging that this one is copied from."""
    scope: str
    """Memory of the copy: "shared", "register", or "fragment" (spread over the lanes of a warp)."""
    at: str | None
    vector: Extent = 1
    order: tuple[int, ...] = ()
    """The tensor's dimensions as stored, slowest first; () keeps the source's order."""
    pad: Extent = 0
    """Extra elements at the end of each stored row."""
    swizzle: Extent = 1
    """Number of 16-byte chunks that change places within each 128-byte line; 1 for no swizzle."""
    panel: int = 0
    """Elements of a row that are stored before those of the next row; 0 for all of them."""
    producer: Compute | None = None
    """The compute whose values fill the region (compute_at); None where the region is copied."""
    warps: Extent = 1
    """Number of warps that share the reduction of one element, where `producer` is a reduction."""
    unroll: Extent = 0
    """Rounds of a copy by all threads that are written out; 0 leaves the number to the code generator."""

    @property
    def name(self) -> str:
        """Name of the staging: `A.shared`, `A.register`."""
        return f"{self.tensor}.{self.scope}"

    def __repr__(self) -> str:
        return format_line(self, f"{self.name} from {self.source}, at {self.at or 'the start'}")


@dataclass(frozen=True, eq=False)
class Nest:
    """The loops of one compute, the stagings along them, and each axis in terms of loops."""

    compute: Compute
    loops: tuple[Loop, ...]
    axis_forms: dict[str, AffineForm]
    quotient_forms: dict[str, AffineForm] = field(default_factory=dict)
    """Simplified forms of quotients and remainders of divided axes, by their text. Entries of a body that
    compute_inline has replaced do no harm."""
    divided_axes: frozenset[str] = frozenset()
    """Axes that `divide` has cut."""
    stagings: tuple[Staging, ...] = ()
    has_accumulator: bool = False
    """Whether the output is held in registers until complete (cache_write)."""
    store_vector: Extent = 1
    instruction: str = ""
    """Name of the tensor-core instruction that executes the innermost loops (tensorize); "" for none."""
    is_atomic: bool = False
    """Whether the accumulator is added to the output by atomics, which a launch before clears."""
    epilogue: Compute | None = None
    """The computes fused behind this one (compute_inline), as one body over its axes. The body reads the
    finished element of `compute` and gives the element that is written."""

    @property
    def output(self) -> TensorSpec:
        """The tensor that the launch writes."""
        return (self.epilogue or self.compute).output

    @property
    def written_value(self) -> Expr:
        """The element that is written, in terms of the finished element of `compute`."""
        return self.epilogue.body if self.epilogue else self.compute.output_element

    @property
    def is_unscheduled(self) -> bool:
        """Whether loops are the axes of the compute: none bound, staged, accumulated or fused."""
        loops = [(x.name, x.level) for x in self.loops if np.ndim(x.unroll) == 0 and x.unroll == 1]
        touched = self.stagings or self.has_accumulator or self.epilogue or self.instruction or self.is_atomic
        return not touched and loops == [(a.name, "serial") for a in self.compute.axes]

    @cached_property
    def index_forms(self) -> dict[str, AffineForm]:
        """Axes and quotients in terms of loops, for `to_affine_index` of an index of the body."""
        return self.axis_forms | self.quotient_forms

    @cached_property
    def read_forms(self) -> dict[Load, tuple[AffineForm, ...]]:
        """Reads of the body -> their indices in terms of loops."""
        return {x: tuple(to_affine(i, self.index_forms) for i in x.index) for x in self.compute.loads}

    @cached_property
    def extents(self) -> dict[str, Extent]:
        """Loop extents by name."""
        return {loop.name: loop.extent for loop in self.loops}

    @cached_property
    def axis_by_loop(self) -> dict[str, str]:
        """The axis of each loop, by loop name; "" where the axis has one point."""
        still = {a.name for a in self.compute.axes if a.extent == 1}
        return {loop.name: "" if loop.axis in still else loop.axis for loop in self.loops}

    @cached_property
    def computes(self) -> tuple[Compute, ...]:
        """The compute, and the producers that it is fused with (compute_at)."""
        return (self.compute, *(s.producer for s in self.stagings if s.producer))

    @cached_property
    def fused_reduction_extents(self) -> dict[str, Extent]:
        """Extents of the reduction axes of producers (compute_at), by name."""
        return {a.name: a.extent for c in self.computes[1:] for a in c.reduction_axes}

    def find_loop(self, name: str) -> Loop:
        """The loop of that name."""
        return self.loops[self.find_position(name)]

    def find_position(self, name: str) -> int:
        """Position of the loop in the nest, 0 for the outermost."""
        return next(i for i, loop in enumerate(self.loops) if loop.name == name)

    def list_inner_loops(self, at: str | None) -> list[str]:
        """Names of the serial loops inside the loop `at`; of all serial loops for None."""
        serial = [x.name for x in self.loops if x.is_serial]
        return serial if at is None else serial[serial.index(at) + 1 :]

    def replace_loops(
        self, old: tuple[str, ...], new: tuple[Loop, ...], forms: Mapping[str, AffineForm]
    ) -> Nest:
        """The nest with neighbouring loops `old` replaced; `forms` gives each in terms of new ones."""
        at = self.find_position(old[0])
        return replace(
            self,
            loops=(*self.loops[:at], *new, *self.loops[at + len(old) :]),
            axis_forms={axis: form.substitute(forms) for axis, form in self.axis_forms.items()},
            quotient_forms={text: form.substitute(forms) for text, form in self.quotient_forms.items()},
        )

    def replace_loop(self, name: str, change: Callable[[Loop], Loop]) -> Nest:
        """The nest with one loop replaced."""
        return replace(self, loops=tuple(change(x) if x.name == name else x for x in self.loops))

    def is_async(self, staging: Staging) -> bool:
        """Whether a staging is filled by asynchronous copies."""
        if staging.scope != "shared" or staging.at is None:
            return False
        return self.find_loop(staging.at).copy == "async"

    def find_staging(self, name: str) -> Staging | None:
        """The staging of that name."""
        return next((s for s in self.stagings if s.name == name), None)

    def __repr__(self) -> str:
        return format_line(self, f"{self.output}: {', '.join(loop.name for loop in self.loops)}")


@dataclass(frozen=True, eq=False)
class Program:
    """An operator and how each of its computes is carried out, one nest a launch."""

    op: Operator
    nests: tuple[Nest, ...]
    checks: tuple[Check, ...] = field(default=(), repr=False)
    """Checks that the steps so far added; all of them pass for a single Program."""
    launches: tuple[object, ...] | None = field(default=None, init=False, repr=False)
    """The launch trees, kept by `ekc.ir.lowering.lower.derive_launches` once it has derived them."""

    def find_nest(self, loop: str, rule: str) -> Nest:
        """The nest that has a loop of that name; `ScheduleError` with the nearest name where none has."""
        for nest in self.nests:
            if loop in nest.extents:
                return nest
        names = [name for nest in self.nests for name in nest.extents]
        raise make_unknown_name_error(rule, "loop", loop, names)

    def find_output_nest(self, tensor: str, rule: str) -> Nest:
        """The nest whose compute has that output; `ScheduleError` with the nearest name where none has."""
        nests = {n.compute.output.name: n for n in self.nests}
        if tensor not in nests:
            raise make_unknown_name_error(rule, "output", tensor, nests)
        return nests[tensor]

    @property
    def nondeterministic_outputs(self) -> tuple[str, ...]:
        """Names of float outputs that differ from run to run, as blocks add to them in any order."""
        return tuple(n.output.name for n in self.nests if n.is_atomic and not n.output.dtype.is_integer)

    def replace_nest(self, old: Nest, new: Nest, *checks: Check) -> Program:
        """The Program with one nest replaced and the checks of a step added."""
        nests = tuple(new if n is old else n for n in self.nests)
        return Program(self.op, nests, (*self.checks, *checks))

    def __repr__(self) -> str:
        loops, stagings = (sum(len(getattr(nest, x)) for nest in self.nests) for x in ("loops", "stagings"))
        counts = ((len(self.nests), "nest"), (loops, "loop"), (stagings, "staging"))
        return format_line(self, f"{shorten(self.op.name)}: {', '.join(count_nouns(*c) for c in counts)}")

    def _repr_html_(self) -> str:
        """A table of the loops of each nest, from outer to inner, with what is staged in each."""
        rows = [row for nest in self.nests for row in _list_loop_rows(nest)]
        headers = ("output", "loop", "iterations", "runs on", "written out", "copies of tiles", "staged")
        return format_html_table(headers, rows, f"Program of {self.op.name}", label_count=2)


def _list_loop_rows(nest: Nest) -> Iterator[tuple[str, ...]]:
    """A row of text for each loop of a nest; the first one names the output."""
    name = nest.output.name
    for loop in nest.loops:
        counts = ("" if str(x) == "1" else shorten(str(x)) for x in (loop.unroll, loop.stages))
        staged = ", ".join(s.name for s in nest.stagings if s.at == loop.name)
        yield (name, loop.name, shorten(str(loop.extent)), loop.level, *counts, staged)
        name = ""


def make_initial_program(op: Operator) -> Program:
    """Every compute as a plain serial nest over its axes: the Program of the empty schedule."""
    return Program(op, tuple(_make_plain_nest(compute) for compute in op.computes))


def _make_plain_nest(compute: Compute) -> Nest:
    loops = tuple(Loop(a.name, a.name, a.extent, a.is_reduction) for a in compute.axes)
    return Nest(compute, loops, {a.name: make_variable(a.name) for a in compute.axes})
