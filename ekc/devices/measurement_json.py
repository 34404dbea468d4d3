"""Measurements as plain JSON values and back; each value is checked against the type of its field."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from ekc.argument_checks import is_number
from ekc.devices.device import Measurement, Metering, Timing
from ekc.devices.statistics import Interval
from ekc.errors import InvalidInput

Read = TypeVar("Read")
POSITIVE_FIELDS = ("latency_s", "power_w", "energy_j", "fp32_flops", "dram_bytes_per_s", "board_power_w")
"""Fields that are divisors, or whose logarithm is taken."""
FIGURE_BOUNDS = {"timing": (1e-9, 1e6), "metering": (1e-3, 1e4)}
"""Least and greatest latency of a call in seconds, and power of one board in watts: beyond what any board
can do, so that a greater figure comes from a damaged file."""
_BOUNDED_FIELDS = {"latency_s": ("s", FIGURE_BOUNDS["timing"]), "power_w": ("W", FIGURE_BOUNDS["metering"])}
MAX_POWER_OVER_CAP = 2.0
"""Metered power relative to the power cap of the board, at most. Boards pass their cap by some percent."""


def measurement_to_json(measurement: Measurement) -> dict[str, Any]:
    """The fields by name, tuples as lists."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(measurement)))
    return values


def timing_from_json(data: Mapping[str, Any]) -> Timing:
    """The timing of `measurement_to_json`. Fields that an earlier ekc did not write have their defaults,
    fields of a newer one are left out. Raises `InvalidInput` for other data."""
    return dataclass_from_json(Timing, data)


def metering_from_json(data: Mapping[str, Any]) -> Metering:
    """The metering of `measurement_to_json`, as `timing_from_json`. Its power is at most what the board can
    draw, and its energy that power over the time of a call."""
    metering = dataclass_from_json(Metering, data)
    cap_w, power_w = metering.conditions.power_cap_w, metering.power_w
    if cap_w is not None and not power_w <= MAX_POWER_OVER_CAP * cap_w:
        raise InvalidInput(f"power_w is {power_w:g} W, and the power cap of the board {cap_w:g} W")
    call_s = metering.energy_j / power_w
    low, high = FIGURE_BOUNDS["timing"]
    if not low <= call_s <= high:
        raise InvalidInput(f"energy_j is {metering.energy_j:g} J at {power_w:g} W: a call of {call_s:g} s")
    return metering


def dataclass_from_json(kind: type[Read], data: Mapping[str, Any]) -> Read:
    """A dataclass from its fields by name, as `timing_from_json`."""
    needed, types = _inspect_fields(cast(Hashable, kind))
    missing = [name for name in needed if name not in data]
    if missing:
        raise InvalidInput(f"it has no {', '.join(missing)}")
    return kind(**{name: _value_from_json(name, types[name], data[name]) for name in types if name in data})


@cache
def _inspect_fields(kind: Any) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Names of fields without a default, and types of all fields."""
    fields, absent = dataclasses.fields(kind), dataclasses.MISSING
    return tuple(f.name for f in fields if absent is f.default is f.default_factory), get_type_hints(kind)


def _value_from_json(name: str, kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        found = dataclass_from_json(kind, value)
        if isinstance(found, Interval) and not (
            found.low <= found.high and 0 < found.low + found.high < math.inf
        ):
            raise InvalidInput(
                f"{name} is {found.low:g} to {found.high:g}; low <= high and low + high > 0 are needed"
            )
        return found
    if get_origin(kind) is tuple and isinstance(value, list):
        # JSON has no tuples.
        return tuple(_value_from_json(name, get_args(kind)[0], one) for one in value)
    if get_origin(kind) is Mapping and isinstance(value, dict):
        return {key: _value_from_json(key, get_args(kind)[1], one) for key, one in value.items()}
    if get_origin(kind) in (tuple, Mapping) or not _matches_type(kind, value):
        raise InvalidInput(f"{name} is {value!r:.40}, which is no {getattr(kind, '__name__', kind)}")
    if isinstance(value, int) and isinstance(0.0, kind):
        value = float(value)
    if name in POSITIVE_FIELDS and not 0 < value < math.inf:
        raise InvalidInput(f"{name} is {value:g}; it must be a finite number above 0")
    if name in _BOUNDED_FIELDS:
        unit, (low, high) = _BOUNDED_FIELDS[name]
        if not low <= value <= high:
            raise InvalidInput(f"{name} is {value:g} {unit}; no board is outside {low:g} to {high:g} {unit}")
    return value


def _matches_type(kind: Any, value: Any) -> bool:
    """Whether a JSON value has a plain type; integers that a float can hold count as floats too."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (isinstance(0.0, kind) and is_number(value))
