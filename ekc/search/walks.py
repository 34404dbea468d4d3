"""Rules and analysis of the structures of a space for many genomes: recorded once, replayed for every
population. Structures that share steps share what follows from these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.analysis import quantities
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.program import Program, initial
from ekc.ir.refusal import Check
from ekc.ir.rules import checks
from ekc.ir.tape import ROWS, Tape, record
from ekc.search.structures import Structure


@dataclass(frozen=True, eq=False)
class Sorted:
    """Genomes sorted by structure: those of structure i are the rows `bounds[i]` to `bounds[i + 1]`."""

    bounds: Sequence[int]
    columns: Mapping[str, NDArray[np.int64]]
    """Values of every hole; a structure that does not have it does not look."""

    def present(self) -> Iterator[tuple[int, slice]]:
        """Structures that have rows, and these."""
        for number, (low, high) in enumerate(zip(self.bounds, self.bounds[1:], strict=False)):
            if high > low:
                yield number, slice(low, high)

    def of(self, rows: slice) -> dict[str, NDArray[np.int64]]:
        """The columns of some rows."""
        return {hole: column[rows] for hole, column in self.columns.items()}


@dataclass(frozen=True, eq=False)
class Broken:
    """A rule, and the rows that break it; a row stands twice where two checks of one name fail."""

    rule: str
    rows: NDArray[np.intp]
    excess: NDArray[np.float64]
    """By how much each is beyond the limit: a ratio of at least 1; 1 where a rule has no numbers."""


class Walks:
    """What the Programs of some structures are, as functions of their holes."""

    def __init__(
        self,
        op: Operator,
        structures: Sequence[Structure],
        limits: Limits,
        sample: Mapping[str, NDArray[np.int64]],
    ) -> None:
        """`sample`: values of every hole to record with, such as a population has; any number of rows."""
        self.op, self.structures, self.limits = op, structures, limits
        self._sample = {hole: np.resize(column, ROWS) for hole, column in sample.items()}
        self._rules: list[list[str]] = []
        self._figures: list[list[str]] = []

    def program(self, structure: int, values: Mapping[str, Any]) -> Program:
        """The Program for numbers, or for vectors of them."""
        program = initial(self.op)
        for step in self.structures[structure].steps:
            program = step.filled(values).apply(program)
        return program

    def broken(self, genomes: Sorted) -> list[Broken]:
        """Every rule that some rows break."""
        failed: dict[str, list[NDArray[np.intp]]] = {}
        excess: dict[str, list[NDArray[np.float64]]] = {}
        found = self._tapes[0](genomes.columns, genomes.bounds)
        for structure, rows in genomes.present():
            facts, rules = found[structure], self._rules[structure]
            if facts is None:
                direct = list(checks(self.program(structure, genomes.of(rows)), self.limits))
                facts, rules = tuple(_facts(direct)), [c.rule for c in direct]
            count = rows.stop - rows.start
            for rule, ok, need, limit in zip(rules, facts[0::3], facts[1::3], facts[2::3], strict=True):
                if not np.logical_and.reduce(ok, axis=None):
                    at = np.logical_not(ok).nonzero()[0] if np.ndim(ok) else np.arange(count)
                    failed.setdefault(rule, []).append(rows.start + at)
                    excess.setdefault(rule, []).append(_excess(need, limit, at))
        return [Broken(rule, np.concatenate(at), np.concatenate(excess[rule])) for rule, at in failed.items()]

    def figures(self, genomes: Sorted) -> Iterator[tuple[slice, dict[str, Any]]]:
        """The analysis of the rows of each structure; a plain number where all agree."""
        found = self._tapes[1](genomes.columns, genomes.bounds)
        for structure, rows in genomes.present():
            figures = found[structure]
            if figures is None:
                yield rows, quantities(self.program(structure, genomes.of(rows)), self.limits)
            else:
                yield rows, dict(zip(self._figures[structure], figures, strict=True))

    @cached_property
    def _tapes(self) -> tuple[Tape, ...]:
        return record([self._walk(i) for i in range(len(self.structures))], self._sample)

    def _walk(self, structure: int) -> Callable[[Mapping[str, Any]], Iterator[Sequence[Any]]]:
        def walk(columns: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
            program = self.program(structure, columns)
            rules = [c for c in checks(program, self.limits) if not _always(c.ok)]
            self._rules.append([c.rule for c in rules])
            yield list(_facts(rules))
            found = quantities(program, self.limits)
            self._figures.append(list(found))
            yield list(found.values())

        return walk


def _always(ok: Any) -> bool:
    """Whether a rule holds whatever the holes are."""
    return isinstance(ok, (bool, np.bool_)) and bool(ok)


def _facts(rules: Iterable[Check]) -> Iterator[Any]:
    """Verdict, need and limit of every rule; no need and limit where they are not numbers."""
    for c in rules:
        numbers = c.limit_text == "{}" and not isinstance(c.need, str) and not isinstance(c.limit, str)
        yield from (c.ok, c.need, c.limit) if numbers else (c.ok, None, None)


def _excess(need: Any, limit: Any, at: NDArray[np.intp]) -> NDArray[np.float64]:
    if need is None:
        return np.ones(len(at))
    ratio = _of(need, at) / np.maximum(_of(limit, at), 1)
    return np.asarray(np.maximum(ratio, np.ones(len(at))))


def _of(value: Any, at: NDArray[np.intp]) -> Any:
    return value[at] if np.ndim(value) else value
