"""Rules and analysis of many genomes at once, and the repair of those that break a rule.

Rules and analysis are recorded once as array operations, then replayed. Structures that share steps share the
recorded operations of these steps. `RepairOperator` says which decisions are lowered for a rule, and by how
much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.errors import ScheduleError
from ekc.ir.analysis.analysis import quantities
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.program import Program, make_initial_program
from ekc.ir.refusal import Check, at_most
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.trace.recorder import RECORDING_ROWS, Walk, WalkOutput, WalkTrace, record_walks
from ekc.search.data.defaults import SPACE
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.decisions import Decision

WalkedT = TypeVar("WalkedT")
REFUSED_NUMBERS = "numbers that a step refuses"
"""Rule for numbers that a step or the lowering refuses, while it takes others of the structure."""
EMPTY_BLOCKS = "blocks beyond the output"
"""Rule for edited structures: a `split` of a piece of a loop may have more iterations than the axis has
elements. Rules give none, and counts from a few blocks are wrong where others do nothing."""
_LEVELS_BY_RULE = {
    "registers": ("vthread", "tile"),
    "unrolling": ("vthread", "tile", "reduce"),
    "threads per block": ("thread",),
    "threads along z": ("thread",),
    "shared memory": ("vthread", "thread", "tile", "reduce"),
    "reduction on the spot": (),
}
"""Rule -> kinds of the tile levels that it depends on. A rule not named here may depend on all."""
_CHOICES_BY_RULE = {
    "unrolling": ("unroll", "written"),
    "registers": ("stages",),
    "shared memory": ("stages", "depth"),
    "reduction on the spot": ("warps",),
}
"""Rule -> uses of the choices that it depends on."""


@dataclass(frozen=True, eq=False)
class SortedGenomes:
    """Genomes sorted by structure: structure i has the rows from `bounds[i]` up to `bounds[i + 1]`."""

    bounds: Sequence[int]
    """First row of each structure, and the number of rows."""
    columns: Mapping[str, NDArray[np.int64]]
    """Hole -> value in each row; meaningless in the rows of structures without that hole."""

    def iterate_present(self, structure_indices: Iterable[int]) -> Iterator[tuple[int, slice]]:
        """(structure, its rows) for each of these structures that has rows."""
        for number in sorted(structure_indices):
            if self.bounds[number + 1] > self.bounds[number]:
                yield number, slice(self.bounds[number], self.bounds[number + 1])

    def select(self, first: int, last: int) -> SortedGenomes:
        """The genomes of the structures from `first` up to `last`."""
        begin, end = self.bounds[first], self.bounds[last]
        bounds = [bound - begin for bound in self.bounds[first : last + 1]]
        return SortedGenomes(bounds, self.slice_columns(slice(begin, end)))

    def slice_columns(self, rows: slice) -> dict[str, NDArray[np.int64]]:
        """Hole -> values in some of the rows."""
        return {hole: column[rows] for hole, column in self.columns.items()}


@dataclass(frozen=True, eq=False)
class RuleViolation:
    """A rule and the rows that break it. A row that fails two checks of the rule is listed twice."""

    rule: str
    rows: NDArray[np.intp]
    """Indices of the genomes that break it."""
    failed_checks: Sequence[tuple[NDArray[np.intp], Any, Any]]
    """(rows that fail, needed values, limits) of every failed check, in the order of `rows`."""

    @cached_property
    def violation(self) -> NDArray[np.float64]:
        """Ratio of need to limit for each row, at least 1; 1 where a rule has no numbers."""
        ratios, done = np.empty(len(self.rows)), 0
        for at, need, limit in self.failed_checks:
            ratios[done : done + len(at)] = _compute_violation(need, limit, at)
            done += len(at)
        return np.maximum(ratios, 1.0)


class StructureEvaluator:
    """Rules and quantities of the Programs of some structures, as functions of their holes."""

    def __init__(
        self,
        op: Operator,
        structures: Sequence[Structure],
        limits: LaunchLimits,
        sample: Mapping[str, NDArray[np.int64]],
    ) -> None:
        """`sample`: hole -> values of some genomes, with which the array operations are recorded. Empty:
        nothing is recorded, which pays for a few genomes."""
        self.op, self.structures, self.limits = op, structures, limits
        self._sample = {hole: np.resize(x, RECORDING_ROWS) for hole, x in sample.items()}
        self._recording: Iterator[WalkTrace] = iter(())

    def record_traces(self) -> None:
        """Record the array operations now; otherwise the first population waits for it."""
        _ = self._quantity_trace

    def build_program(self, structure: int, values: Mapping[str, Any]) -> Program:
        """The Program of a structure for numbers, or for vectors of numbers."""
        program = make_initial_program(self.op)
        for step in self.structures[structure].steps:
            program = step.fill_holes(values).apply(program)
        return program

    def find_violations(self, genomes: SortedGenomes) -> list[RuleViolation]:
        """The rules that some genomes break."""
        failed: dict[str, tuple[list[NDArray[np.intp]], list[Any]]] = {}
        found, unreplayed = self._replay(lambda: self._rule_trace, genomes)
        for structure, rows in genomes.iterate_present(unreplayed):
            listed = partial(self._list_checks, structure)
            for part, checks in self._walk_rows(structure, genomes, rows, listed):
                if isinstance(checks, ScheduleError):
                    found.append(WalkOutput(REFUSED_NUMBERS, part, (False, None, None)))
                else:
                    found += [WalkOutput(c.rule, part, _get_check_values(c)) for c in checks]
        for rule, rows, (ok, need, limit) in found:
            if not np.logical_and.reduce(ok, axis=None):
                at = (~ok).nonzero()[0] if np.ndim(ok) else np.arange(rows.stop - rows.start)
                broken, checked = failed.setdefault(rule, ([], []))
                broken.append(rows.start + at)
                checked.append((at, need, limit))
        return [RuleViolation(rule, np.concatenate(at), checked) for rule, (at, checked) in failed.items()]

    def compute_quantities(self, genomes: SortedGenomes) -> Iterator[tuple[str, slice, Any]]:
        """(name, rows, values) of every quantity of the analysis; a plain number where all rows agree."""
        found, unreplayed = self._replay(lambda: self._quantity_trace, genomes)
        for name, rows, (values,) in found:
            yield name, rows, values
        for structure, rows in genomes.iterate_present(unreplayed):
            for part, direct in self._walk_rows(structure, genomes, rows, self._compute_quantities):
                if isinstance(direct, ScheduleError):
                    raise direct
                yield from ((name, part, values) for name, values in direct.items())

    def _list_checks(self, structure: int, program: Program) -> list[Check]:
        own = _iterate_block_checks(program) if self.structures[structure].edits else ()
        return [*iterate_checks(program, self.limits), *own]

    def _compute_quantities(self, program: Program) -> dict[str, Any]:
        return quantities(program, self.limits)

    def _walk_rows(
        self, structure: int, genomes: SortedGenomes, rows: slice, walk: Callable[[Program], WalkedT]
    ) -> Iterator[tuple[slice, WalkedT | ScheduleError]]:
        """(some of the rows, what a walk over their Program gives). Rows are halved where a step or the
        lowering refuses one of them, down to the one that it refuses."""
        found: WalkedT | ScheduleError
        try:
            found = walk(self.build_program(structure, genomes.slice_columns(rows)))
        except ScheduleError as refusal:
            found = refusal
        if isinstance(found, ScheduleError) and rows.stop - rows.start > 1:
            middle = (rows.start + rows.stop) // 2
            for half in (slice(rows.start, middle), slice(middle, rows.stop)):
                yield from self._walk_rows(structure, genomes, half, walk)
        else:
            yield rows, found

    def _replay(
        self, record: Callable[[], WalkTrace], genomes: SortedGenomes
    ) -> tuple[list[WalkOutput], set[int]]:
        """Outputs of a trace, and the structures without outputs; these are analysed one by one."""
        if len(self._unrecorded) == len(self.structures):
            return [], self._unrecorded
        found, unreplayed = record()(genomes.columns, genomes.bounds)
        return found, unreplayed | self._unrecorded

    @cached_property
    def _unrecorded(self) -> set[int]:
        """Structures that are walked each time: all without a sample, else those with a step that refuses
        some of its numbers. Structures of the rules have none."""
        numbers = range(len(self.structures))
        own = [i for i in numbers if self.structures[i].edits or not self.structures[i].rules]
        return {i for i in own if self._is_refused(i)} if self._sample else set(numbers)

    def _is_refused(self, structure: int) -> bool:
        """Whether a step or the lowering refuses numbers of the sample."""
        try:
            program = self.build_program(structure, self._sample)
            self._list_checks(structure, program)
            self._compute_quantities(program)
        except ScheduleError:
            return True
        return False

    @cached_property
    def _rule_trace(self) -> WalkTrace:
        self._recording = record_walks(
            [self._make_walk(i) for i in range(len(self.structures))], self._sample
        )
        return next(self._recording)

    @cached_property
    def _quantity_trace(self) -> WalkTrace:
        """The trace of the analysis. Recorded on first use: sampling and repair need the rules alone."""
        _ = self._rule_trace
        try:
            return next(self._recording)
        except BaseException:
            # An interrupted recording cannot continue; the next use records the rules first.
            del self._rule_trace
            raise

    def _make_walk(self, structure: int) -> Walk:
        if structure in self._unrecorded:
            return lambda columns: iter(([], []))

        def walk(columns: Mapping[str, Any]) -> Iterator[Sequence[tuple[str, tuple[Any, ...]]]]:
            program = self.build_program(structure, columns)
            checks = (c for c in self._list_checks(structure, program) if not _always_holds(c.ok))
            yield [(c.rule, _get_check_values(c)) for c in checks]
            yield [(name, (value,)) for name, value in quantities(program, self.limits).items()]

        return walk


def _iterate_block_checks(program: Program) -> Iterator[Check]:
    """The checks of `EMPTY_BLOCKS`: the last iteration of a block loop begins inside its axis."""
    for nest in program.nests:
        blocks = {loop.name: loop.extent for loop in nest.loops if loop.is_block}
        for axis, form in nest.axis_forms.items():
            for atom, stride in form.terms:
                if isinstance(atom, str) and atom in blocks:
                    last = nest.compute.find_axis(axis).extent - 1
                    yield at_most(EMPTY_BLOCKS, (blocks[atom] - 1) * stride, last)


def _always_holds(ok: Any) -> bool:
    """Whether a check holds for all values of the holes."""
    return isinstance(ok, (bool, np.bool_)) and bool(ok)


def _get_check_values(check: Check) -> tuple[Any, Any, Any]:
    """(verdict, need, limit) of a check; need and limit are None where they are not numbers."""
    return (check.ok, check.need, check.limit) if check.has_violation else (check.ok, None, None)


def _compute_violation(need: Any, limit: Any, at: NDArray[np.intp]) -> Any:
    if need is None:
        return 1.0
    limits = _select_rows(limit, at)
    at_least_one = np.maximum(limits, 1) if isinstance(limits, np.ndarray) else max(limits, 1)
    return _select_rows(need, at) / at_least_one


def _select_rows(value: Any, at: NDArray[np.intp]) -> Any:
    return value[at] if isinstance(value, np.ndarray) and value.ndim else value


@dataclass(frozen=True, eq=False)
class RepairOperator:
    """The decisions whose lower values can repair one rule, as columns of the genome. Decisions that a
    structure does not use are 0 and stay 0."""

    halvings: tuple[tuple[int, NDArray[np.int64]], ...]
    """(column, table row -> row with one tile level halved) of every tile level."""
    lowerable_columns: NDArray[np.int64]
    """Columns whose index may be lowered: vector widths, pads, unrolling, pipeline depth."""
    starts_at_max: NDArray[np.bool_]
    """Whether each lowerable column goes down by one value at a time, to stay close to its maximum."""

    def apply(
        self,
        random: np.random.Generator,
        genes: NDArray[np.int64],
        rows: NDArray[np.intp],
        violation: NDArray[np.float64],
    ) -> None:
        """Bring some rows of `genes` one step closer to legal, in place: lower a choice, or halve tile levels
        log2(`violation`) times, where `violation` is need over limit."""
        halvings = np.minimum(np.ceil(np.log2(np.maximum(violation, 1.001))), SPACE.max_halvings)
        if len(self.lowerable_columns):
            halvings[self._lower_choices(random, genes, rows)] = 0
        if self.halvings:
            for number in range(int(halvings.max(initial=0))):
                self._halve_tiles(random, genes, rows[halvings > number])

    def _lower_choices(
        self, random: np.random.Generator, genes: NDArray[np.int64], rows: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Lower one random choice of each row by a random amount, or by one value if it starts at its
        maximum. Only half of the rows are lowered where tiles can shrink instead. Returns positions in
        `rows`."""
        values = _take_columns(genes, rows, self.lowerable_columns)
        at, pick = _pick_columns(random, values > 0)
        if self.halvings:
            chosen = random.random(len(at)) < 0.5
            at, pick = at[chosen], pick[chosen]
        before = _take_elements(values, at, pick)
        lowered = (random.random(len(at)) * before).astype(np.int64)
        if self.starts_at_max.any():
            lowered = np.where(self.starts_at_max.take(pick), before - 1, lowered)
        genes[rows[at], self.lowerable_columns.take(pick)] = lowered
        return at

    def _halve_tiles(
        self, random: np.random.Generator, genes: NDArray[np.int64], rows: NDArray[np.intp]
    ) -> None:
        """Halve one random tile level of each row, among those that can still shrink."""
        columns, begins, smaller = self._halving_tables
        values = _take_columns(genes, rows, columns)
        halved = smaller.take(values + begins)
        at, pick = _pick_columns(random, halved != values)
        genes[rows[at], columns.take(pick)] = _take_elements(halved, at, pick)

    @cached_property
    def _halving_tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(columns of `halvings`, first element of each table, all tables end to end)."""
        columns = np.array([column for column, _ in self.halvings])
        tables = [smaller for _, smaller in self.halvings]
        return columns, np.cumsum([0, *map(len, tables[:-1])]), np.concatenate(tables)


def _pick_columns(
    random: np.random.Generator, is_possible: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(rows with a possible column, a random possible column of each)."""
    pick = np.where(is_possible, random.random(is_possible.shape), -1.0).argmax(axis=1)
    rows = _take_elements(is_possible, np.arange(len(is_possible)), pick).nonzero()[0]
    return rows, pick.take(rows)


def _take_columns(table: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.int64]) -> NDArray[Any]:
    """`table[rows[:, None], columns]`, faster with `take`."""
    return np.asarray(table.ravel().take(rows[:, None] * table.shape[1] + columns))


def _take_elements(table: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[Any]:
    """`table[rows, columns]`, faster with `take`."""
    return np.asarray(table.ravel().take(rows * table.shape[1] + columns))


def make_repair_operator(rule: str, decisions: Sequence[Decision]) -> RepairOperator:
    """Make the repair operator of a rule from the decisions of a space, in the order of genome columns."""
    vector_columns = _find_columns(_list_vector_choices(rule), decisions)
    kinds = () if vector_columns else _LEVELS_BY_RULE.get(rule)
    halvings = tuple(
        (column, d.halved_rows[i])
        for column, d in enumerate(decisions)
        for i, kind in enumerate(d.kinds)
        if kind != "lane" and (kinds is None or kind in kinds)
    )
    columns = vector_columns or _find_columns(_CHOICES_BY_RULE.get(rule, ()), decisions)
    starts_at_max = np.array([decisions[c].starts_at_max for c in columns], bool)
    return RepairOperator(halvings, np.array(columns, np.int64), starts_at_max)


def _find_columns(names: Sequence[str], decisions: Sequence[Decision]) -> list[int]:
    """Columns of the choices with one of these uses."""
    uses = [d.uses or d.name.split("/")[-1:] for d in decisions]
    return [c for c, own in enumerate(uses) if not set(own).isdisjoint(names)]


def _list_vector_choices(rule: str) -> tuple[str, ...]:
    """Widths and pads of a rule on vectors; the smallest width with pad 0 is always legal."""
    subject = rule.removeprefix("vector width of ").removeprefix("write of ")
    if subject == rule:
        return ()
    tensor, _, scope = subject.partition(".")
    kinds = {"register": ("move",), "shared": ("vector", "flight", "pad"), "": ("vector",)}[scope]
    return tuple(f"{kind}.{tensor}" for kind in kinds)
