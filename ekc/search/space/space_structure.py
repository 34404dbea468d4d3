"""`SpaceStructure`: one structure of a space, to look at, to search, and to keep in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ekc.argument_checks import check_text
from ekc.errors import InvalidInput
from ekc.file_limits import parse_json
from ekc.ir.schedule import Hole, Step, step_from_json
from ekc.ir.schedule.holes import MAX_HOLE_NUMBER
from ekc.ir.validate import check_int
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.rules import Rule

STRUCTURE_FORMAT = 1
"""Version of the JSON of a structure."""


@dataclass(frozen=True, eq=False)
class SpaceStructure:
    """One structure of a space: a list of schedule steps with open numbers (holes)."""

    name: str
    rules: tuple[Rule, ...]
    """Rules that made it, in their order; none for a structure that a user wrote."""
    steps: tuple[Step, ...]
    """Steps whose holes have their values: a structure of `ekc.tune(op, space=[...])`."""
    holes: Mapping[str, tuple[tuple[int, ...], ...]]
    """Name of a hole -> its values, each a tuple of numbers."""

    @property
    def combinations(self) -> int:
        """Number of ways to fill the holes, legal or not."""
        return math.prod(map(len, self.holes.values()))

    def to_json(self) -> str:
        """The structure as JSON text, for a file."""
        columns = {hole.name: hole for step in self.steps for _, hole in step.list_holes()}
        holes = {name: {"decision": hole.decision, "column": hole.column} for name, hole in columns.items()}
        data = {
            "format": STRUCTURE_FORMAT,
            "name": self.name,
            "rules": [vars(rule) for rule in self.rules],
            "steps": [step.to_json() for step in self.steps],
            "holes": holes,
            "values": self.holes,
        }
        return json.dumps(data, default=lambda hole: {"hole": hole.name})

    @classmethod
    def from_json(cls, text: str) -> SpaceStructure:
        """The inverse of `to_json`. `ekc.tune(op, space=[...])` checks the steps. Raises `InvalidInput`."""
        check_text("structure", text, "what SpaceStructure.to_json gives")
        try:
            data: Any = parse_json(text.removeprefix("\ufeff"))
        except ValueError as problem:
            raise InvalidInput(f"structure: not JSON ({problem})") from None
        if not isinstance(data, dict) or data.get("format") != STRUCTURE_FORMAT:
            found = data.get("format") if isinstance(data, dict) else None
            raise InvalidInput(f"structure: format {found!r}, this version of ekc reads {STRUCTURE_FORMAT}")
        try:
            return _read_structure(data)
        except InvalidInput:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise InvalidInput(
                f"structure: not what SpaceStructure.to_json gives ({type(problem).__name__}: {problem})"
            ) from None

    def __str__(self) -> str:
        """The steps as Python, with <name> for a hole."""
        return "\n".join(step.to_python() for step in self.steps)


def describe_structure(structure: Structure) -> SpaceStructure:
    """The structure with the values in its holes."""
    holes = {d.name: tuple(map(tuple, d.table.tolist())) for d in structure.decisions}
    filled = {
        name: Hole(name, d.name, column, holes[d.name])
        for d in structure.decisions
        for column, name in enumerate(d.holes)
    }
    steps = tuple(step.fill_holes(filled) for step in structure.steps)
    return SpaceStructure(structure.name, tuple(sorted(structure.rules)), steps, holes)


def _read_structure(data: dict[str, Any]) -> SpaceStructure:
    rules = tuple(Rule(**rule) for rule in data["rules"])
    values = {
        name: tuple(tuple(_check_number(name, number) for number in row) for row in rows)
        for name, rows in data["values"].items()
    }
    holes = {
        name: Hole(name, at["decision"], at["column"], values[at["decision"]])
        for name, at in data["holes"].items()
    }
    steps = tuple(step_from_json(_put_holes(step, holes)) for step in data["steps"])
    return SpaceStructure(data["name"], rules, steps, values)


def _check_number(hole: str, number: Any) -> int:
    return check_int(f"hole {hole!r}: a value", number, MAX_HOLE_NUMBER, minimum=0)


def _put_holes(value: Any, holes: Mapping[str, Hole]) -> Any:
    """JSON values with `{"hole": NAME}` replaced by the hole."""
    if isinstance(value, list):
        return [_put_holes(one, holes) for one in value]
    if isinstance(value, dict) and set(value) == {"hole"}:
        return holes[value["hole"]]
    return {key: _put_holes(one, holes) for key, one in value.items()} if isinstance(value, dict) else value
