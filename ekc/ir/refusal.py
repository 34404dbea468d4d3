"""Checks that refuse: each applies one rule to a single Program or to a population.

`mask()` says for every member of a population whether it passes, `explain()` says why one fails. Both read
the same numbers, so they cannot disagree. The constructors below make the three kinds of
`ekc.errors.Refusal`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import MissingPrecondition, OverLimit, Refusal, ScheduleError, UnknownName


@dataclass(frozen=True, eq=False)
class Check:
    """One rule applied to one Program (numbers) or to a population (vectors)."""

    rule: str
    ok: Any
    """Whether the rule holds: a bool, or a boolean vector with an entry for each member of a population."""
    need: Any
    """The number that the rule is about, or a text."""
    limit: Any
    """The number that `limit_text` names, if any."""
    nearest: Any
    """The nearest legal choice: number, vector, text, or a function of need and limit, called if refused."""
    unit: str
    """The unit behind `need` in a refusal."""
    limit_text: str
    """The limit in words, `{}` where the number goes: "at most {}"."""
    kind: type[Refusal] = OverLimit

    @property
    def has_violation(self) -> bool:
        """Whether need / limit measures how far a member breaks the rule."""
        return self.limit_text in (_AT_MOST, _EXACTLY)

    def mask(self, size: int) -> NDArray[np.bool_]:
        """Which members of a population of `size` pass, as a vector."""
        return np.broadcast_to(np.asanyarray(self.ok, dtype=bool), (size,))

    def explain(self, row: int | None = None) -> Refusal | None:
        """Why this Program (or row `row` of a population) fails; None when it passes."""
        if bool(_pick_row(self.ok, row)):
            return None
        need, limit = _pick_row(self.need, row), _pick_row(self.limit, row)
        near = self.nearest(need, limit) if callable(self.nearest) else _pick_row(self.nearest, row)
        text = f"{need} {self.unit}" if self.unit else str(need)
        return self.kind(self.rule, text, self.limit_text.format(limit), str(near))

    def enforce(self) -> None:
        """Raise the refusal of a single Program, if there is one."""
        refusal = self.explain()
        if refusal is not None:
            raise ScheduleError(refusal)


_AT_MOST, _EXACTLY = "at most {}", "exactly {}"


def _pick_row(value: Any, row: int | None) -> Any:
    if isinstance(value, np.ndarray):
        value = value[row] if row is not None and value.ndim else value.flat[0]
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    return value


def at_most(rule: str, value: Any, limit: Any, unit: str = "", nearest: Any = None) -> Check:
    """The check that `value` is not over `limit`; the nearest choice is the limit unless given."""
    near = limit if nearest is None else nearest
    return Check(rule, value <= limit, value, limit, near, unit, _AT_MOST)


def at_least(rule: str, value: Any, limit: int, unit: str = "") -> Check:
    """The check that `value` is not below `limit`."""
    return Check(rule, value >= limit, value, limit, limit, unit, "at least {}")


def exactly(rule: str, value: Any, limit: Any, unit: str = "", nearest: Any = None) -> Check:
    """The check that `value` is `limit`."""
    near = limit if nearest is None else nearest
    return Check(rule, value == limit, value, limit, near, unit, _EXACTLY)


def fits(
    rule: str, ok: Any, value: Any, limit_text: str, nearest: Any, unit: str = "", limit: Any = None
) -> Check:
    """The check that `ok` holds for a number, with its limit in words: "must be a divisor of {}"."""
    return Check(rule, ok, value, limit, nearest, unit, limit_text)


def requires(rule: str, ok: Any, need: str, problem: str, remedy: str) -> Check:
    """The check of a precondition: `need` names it, `problem` is the fact where it fails."""
    return Check(
        rule, ok, need, None, remedy, "", problem.replace("{", "{{").replace("}", "}}"), MissingPrecondition
    )


def make_over_limit_error(rule: str, need: str, limit: str, nearest: str) -> ScheduleError:
    """The error for a number out of range that no population varies."""
    return ScheduleError(OverLimit(rule, need, limit, nearest))


def make_unknown_name_error(
    rule: str,
    kind: str,
    name: object,
    known_names: Iterable[str],
    remedy: str = "leave it out",
    plural: str = "",
) -> ScheduleError:
    """The error for a name that does not exist, with those known; `remedy` where there are none."""
    names, plural = list(dict.fromkeys(known_names)), plural or f"{kind}s"
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.0)
    limit = f"{plural} are {', '.join(names)}" if names else f"there are no {plural}"
    return ScheduleError(UnknownName(rule, f"{kind} {name!r}", limit, repr(near[0]) if near else remedy))


def make_schedule_error(rule: str, need: str, problem: str, remedy: str) -> ScheduleError:
    """The error for a missing precondition, which `need` names; `problem` is the fact against it."""
    return ScheduleError(MissingPrecondition(rule, need, problem, remedy))
