"""A refusal is a value: which rule, what was needed, what the limit is, what would be legal.

A `Check` has two faces. `mask()` says for every member of a population whether it passes;
`refusal()` explains one. Both read the same numbers, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import Refusal, ScheduleError


@dataclass(frozen=True, eq=False)
class Check:
    """One rule applied to one Program (numbers) or to a population (vectors)."""

    rule: str
    ok: Any
    """bool, or a boolean vector."""
    need: Any
    limit: Any
    nearest: Any
    """What would be legal; or a function of need and limit, where that is not to be worked out for a
    population of whom nobody asks."""
    unit: str = ""
    limit_format: str = "{}"
    """How the limit reads, filled in only when a refusal is printed."""

    def mask(self, size: int) -> NDArray[np.bool_]:
        """Who passes, as a vector of `size`."""
        return np.broadcast_to(np.asanyarray(self.ok, dtype=bool), (size,))

    def explain(self, row: int | None = None) -> Refusal | None:
        """Why this Program (or row `row` of a population) fails; None when it passes."""
        if bool(_pick_row(self.ok, row)):
            return None
        unit = f" {self.unit}" if self.unit else ""
        limit = self.limit_format.format(_pick_row(self.limit, row))
        if self.limit_format == "{}":
            limit += unit
        need = _pick_row(self.need, row)
        near = (
            self.nearest(need, _pick_row(self.limit, row))
            if callable(self.nearest)
            else _pick_row(self.nearest, row)
        )
        return Refusal(self.rule, f"{need}{unit}", limit, str(near))

    def enforce(self) -> None:
        """Raise the refusal of a single Program, if there is one."""
        refusal = self.explain()
        if refusal is not None:
            raise ScheduleError(refusal)


def _pick_row(value: Any, row: int | None) -> Any:
    if isinstance(value, np.ndarray):
        value = value[row] if row is not None and value.ndim else value.flat[0]
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    return value


def make_schedule_error(rule: str, need: str, limit: str, nearest: str) -> ScheduleError:
    """A structural refusal, ready to raise."""
    return ScheduleError(Refusal(rule, need, limit, nearest))
