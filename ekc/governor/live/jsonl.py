"""Events and reports as JSON has them."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from ekc.governor.events import Event


def event_to_json(name: str, event: Event) -> dict[str, Any]:
    """One line for machines: its kind, whose it is, the line for people, and its fields."""
    known = {"event": type(event).__name__, "gpu": name, "line": event.format_line()}
    return known | {x.name: to_plain_json(getattr(event, x.name)) for x in fields(event)}


def to_plain_json(value: Any) -> Any:
    """As JSON has it, which knows no NaN and no infinity."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain_json(asdict(value))
    if isinstance(value, dict):
        return {str(k): to_plain_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
