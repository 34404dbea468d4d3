"""Measurements as plain JSON values, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ekc.devices.base import Conditions, Interval, Metering, Timing


def plain(measurement: Timing | Metering) -> dict[str, Any]:
    """The fields by name, tuples as lists."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(measurement)))
    return values


def read_timing(data: Mapping[str, Any]) -> Timing:
    """The inverse of `plain`; fields that an earlier ekc did not write have their defaults."""
    return Timing(**_tupled(data) | {"interval_s": Interval(**data["interval_s"])} | _conditions(data))


def read_metering(data: Mapping[str, Any]) -> Metering:
    """The inverse of `plain`."""
    intervals = {name: Interval(**data[name]) for name in ("power_interval_w", "energy_interval_j")}
    return Metering(**_tupled(data) | intervals | _conditions(data))


def _conditions(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"conditions": Conditions(**_tupled(data["conditions"]))}


def _tupled(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
