"""Rules and analysis of one structure for many genomes: recorded once, replayed for every population."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.analysis import quantities
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.program import Program, initial
from ekc.ir.refusal import Check
from ekc.ir.rules import checks
from ekc.ir.tape import ROWS, record
from ekc.search.structures import Structure

Columns = Mapping[str, NDArray[np.int64]]
"""Values of every hole, a row per genome."""


class Walks:
    """What a structure's Programs are, as functions of its holes."""

    def __init__(self, op: Operator, structure: Structure, limits: Limits) -> None:
        self.op, self.structure, self.limits = op, structure, limits
        self._rules: list[str] = []
        self._figures: list[str] = []

    def program(self, values: Mapping[str, Any]) -> Program:
        """The Program for numbers, or for vectors of them."""
        program = initial(self.op)
        for step in self.structure.steps:
            program = step.filled(values).apply(program)
        return program

    def broken(
        self, columns: Columns, rows: int
    ) -> Iterator[tuple[str, NDArray[np.intp], NDArray[np.float64]]]:
        """Every rule that some rows break: its name, those rows, and by how much each exceeds the limit
        (a ratio of at least 1; 1 where a rule has no numbers)."""
        for rule, ok, need, limit in self._checked(columns, rows):
            if not np.all(ok):
                failed = np.flatnonzero(~np.broadcast_to(ok, rows))
                yield rule, failed, _excess(need, limit, failed, rows)

    def _checked(self, columns: Columns, rows: int) -> Iterator[tuple[str, Any, Any, Any]]:
        if not self._rules:
            self._record(columns, rows)
        found, rules = self._check_tape(columns, rows), self._rules
        if found is None:
            direct = list(checks(self.program(columns), self.limits))
            found, rules = tuple(_facts(direct)), [c.rule for c in direct]
        return zip(rules, found[0::3], found[1::3], found[2::3], strict=True)

    def figures(self, columns: Columns, rows: int) -> dict[str, Any]:
        """The analysis of every row; a plain number where all agree."""
        if not self._figures:
            self._record(columns, rows)
        found = self._figure_tape(columns, rows)
        if found is None:
            return quantities(self.program(columns), self.limits)
        return dict(zip(self._figures, found, strict=True))

    def _record(self, columns: Columns, rows: int) -> None:
        sample = {name: column[np.resize(np.arange(rows), ROWS)] for name, column in columns.items()}
        self._check_tape, self._figure_tape = record(self._walk, sample)

    def _walk(self, columns: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        program = self.program(columns)
        rules = list(checks(program, self.limits))
        self._rules = [c.rule for c in rules]
        yield list(_facts(rules))
        found = quantities(program, self.limits)
        self._figures = list(found)
        yield list(found.values())


def _facts(rules: Iterable[Check]) -> Iterator[Any]:
    """Verdict, need and limit of every rule; no need and limit where they are not numbers."""
    for c in rules:
        numbers = c.limit_text == "{}" and not isinstance(c.need, str) and not isinstance(c.limit, str)
        yield from (c.ok, c.need, c.limit) if numbers else (c.ok, None, None)


def _excess(need: Any, limit: Any, failed: NDArray[np.intp], rows: int) -> NDArray[np.float64]:
    if need is None:
        return np.ones(len(failed))
    ratio = np.broadcast_to(np.divide(need, np.maximum(limit, 1)), rows)[failed]
    return np.asarray(np.maximum(ratio, 1.0))
