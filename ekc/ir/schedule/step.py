"""Base of the steps: frozen dataclasses that rewrite Programs, with JSON and Python text both ways."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput, ScheduleError
from ekc.ir.program import Program
from ekc.ir.refusal import make_schedule_error
from ekc.ir.schedule.holes import Hole

STEP_CLASSES: dict[str, type[Step]] = {}
MAX_STEP_NUMBER = 2**40
"""Largest number that a step takes, the most elements of a tensor."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One rewrite of a Program."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        STEP_CLASSES[cls.kind] = cls

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            _check_type(self.kind, f, value)
            object.__setattr__(self, f.name, _to_python_int(value))

    def apply(self, program: Program) -> Program:
        """The rewritten Program. Raises `ScheduleError` for mistakes that no number could mend; rules on
        numbers are added to `program.checks`, so that they serve a population too."""
        raise NotImplementedError

    def make_error(self, need: str, problem: str, remedy: str) -> ScheduleError:
        """The error for a missing precondition of the step: see `ekc.ir.refusal.make_schedule_error`."""
        return make_schedule_error(self.kind, need, problem, remedy)

    def to_json(self) -> dict[str, Any]:
        """The step as plain JSON values, defaults left out."""
        fields = self._list_set_fields()
        return {"step": self.kind} | {f.name: _to_json_value(getattr(self, f.name)) for f in fields}

    def to_python(self) -> str:
        """The method call that makes the step: `.split("i", (2, 16, 4))`."""
        parts = []
        for f in self._list_set_fields():
            value = _format_python(getattr(self, f.name))
            parts.append(value if f.default is dataclasses.MISSING else f"{f.name}={value}")
        return f".{self.kind}({', '.join(parts)})"

    def _list_set_fields(self) -> list[dataclasses.Field[Any]]:
        fields, missing = dataclasses.fields(self), dataclasses.MISSING
        return [f for f in fields if f.default is missing or getattr(self, f.name) != f.default]

    def fill_holes(self, decisions: Mapping[str, Any]) -> Step:
        """The step with its holes replaced by decisions."""
        values = {f.name: _fill_value(getattr(self, f.name), decisions) for f in dataclasses.fields(self)}
        return type(self)(**values)

    def list_holes(self) -> tuple[tuple[str, Hole], ...]:
        """(field, hole) for each hole of the step. Raises `InvalidInput` for a hole in a field that has one
        value for all members of a population, such as the name of a loop."""
        found = [(f, x) for f, values in self._iterate_fields() for x in values if isinstance(x, Hole)]
        for f, place in found:
            if "Extent" not in str(f.type):
                raise InvalidInput(
                    f"{self.kind}: {f.name}={place} cannot be a hole; write a structure for each value"
                )
        return tuple((f.name, place) for f, place in found)

    def read_holes(self, filled: Step) -> dict[str, int]:
        """The inverse of `fill_holes`: the number of each hole in a step of the same class, as far as the
        fields of both are alike."""
        pairs = zip(self._iterate_fields(), filled._iterate_fields(), strict=True)
        both = [(a, b) for (_, own), (_, other) in pairs for a, b in zip(own, other, strict=False)]
        return {a.name: b for a, b in both if isinstance(a, Hole)}

    def _iterate_fields(self) -> list[tuple[dataclasses.Field[Any], tuple[Any, ...]]]:
        """Each field with its values; one value for a field that is no tuple."""
        pairs = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        return [(f, v if isinstance(v, tuple) else (v,)) for f, v in pairs]


def step_from_json(data: Any) -> Step:
    """The inverse of `Step.to_json`; `InvalidInput` names what cannot be a step."""
    if not isinstance(data, dict) or "step" not in data:
        raise InvalidInput(f"step: {data!r} is not a JSON object with a 'step' field")
    cls = STEP_CLASSES.get(data["step"]) if isinstance(data["step"], str) else None
    if cls is None:
        kinds = sorted(STEP_CLASSES)
        near = difflib.get_close_matches(str(data["step"]), kinds, n=1, cutoff=0.0)[0]
        raise InvalidInput(f"step: no {data['step']!r}; steps are {', '.join(kinds)}; nearest is {near!r}")
    values = {k: _lists_to_tuples(v) for k, v in data.items() if k != "step"}
    names = [f.name for f in dataclasses.fields(cls)]
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
            raise InvalidInput(
                f"step {cls.kind}: no field {name!r}; fields are {', '.join(names)}; nearest is {near!r}"
            )
    try:
        return cls(**values)
    except TypeError as problem:
        raise InvalidInput(f"step {cls.kind}: {str(problem).split('__init__() ')[-1]}") from None


def _check_type(kind: str, f: dataclasses.Field[Any], value: Any) -> None:
    """`InvalidInput` for a value of another type than declared, from JSON or a call."""
    declared = str(f.type)
    if value is None and "None" in declared:
        return
    many = declared.startswith("tuple")
    values = value if many and isinstance(value, tuple) else (value,)
    fits = _is_text if "str" in declared else _is_int
    if isinstance(value, tuple) != many or not all(map(fits, values)):
        one = "text" if fits is _is_text else "a whole number"
        needed = f"a tuple, each entry {one}" if many else one
        raise InvalidInput(f"{kind}: {f.name}={format_value(value)} is not {needed}")
    for number in values:
        if isinstance(number, (int, np.integer)) and not -MAX_STEP_NUMBER <= number <= MAX_STEP_NUMBER:
            near = MAX_STEP_NUMBER if number > 0 else -MAX_STEP_NUMBER
            raise InvalidInput(f"{kind}: {f.name}={format_value(number)} is beyond {near}; use {near}")


def is_vector_width(widths: Any) -> Any:
    """Whether one instruction can move `widths` elements; a mask for a vector of widths. A rule checks that
    the move has at most 16 bytes, as that depends on the element type."""
    w = np.asanyarray(widths)
    return (w == 1) | (w == 2) | (w == 4) | (w == 8) | (w == 16)


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, Hole))


def _is_int(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return np.issubdtype(value.dtype, np.integer)
    return isinstance(value, (int, np.integer, Hole)) and not isinstance(value, bool)


def _to_python_int(value: Any) -> Any:
    """Integers of NumPy as those of Python, which JSON takes; vectors of a population unchanged."""
    if isinstance(value, tuple):
        return tuple(map(_to_python_int, value))
    return int(value) if isinstance(value, np.integer) else value


def _to_json_value(value: Any) -> Any:
    return [_to_json_value(v) for v in value] if isinstance(value, tuple) else value


def _lists_to_tuples(value: Any) -> Any:
    return tuple(_lists_to_tuples(v) for v in value) if isinstance(value, list) else value


def _format_python(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        inner = ", ".join(map(_format_python, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)


def _fill_value(value: Any, decisions: Mapping[str, Any]) -> Any:
    if isinstance(value, Hole):
        return decisions[value.name]
    return tuple(_fill_value(v, decisions) for v in value) if isinstance(value, tuple) else value
