"""Queries of a record file: all measurements of each schedule as candidates and trials, and the best one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ekc import devices
from ekc.argument_checks import check_flag, check_path
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Device
from ekc.errors import InvalidInput, RecordError, ScheduleError
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import check_operator, check_slowdown, parse_objective
from ekc.search.data.selection import select_winners
from ekc.search.data.trial import Trial
from ekc.search.database.conditions import (
    MAX_LISTED,
    RecordConditions,
    describe_counts,
    get_present_conditions,
    group_rows,
    sort_by_nearness,
)
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.database.figures import combine_rows, group_by_schedule
from ekc.search.database.rows import RecordRow


def read_operator(text: str, file: str | Path) -> Operator:
    """Read the operator of a row from its JSON text. Raises `RecordError` for a damaged row."""
    try:
        return operator_from_json(json.loads(text))
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{file} is damaged: it holds an operator that is not one ({problem})") from None


def rows_to_trials(rows: Iterable[RecordRow]) -> list[Trial]:
    """Combine rows into one trial per schedule, as `rows_to_candidates`."""
    return [c.to_trial() for c in rows_to_candidates(rows)]


def rows_to_candidates(rows: Iterable[RecordRow]) -> list[Candidate]:
    """Combine rows into one candidate per schedule. A wrong result, an unsafe kernel, or a failure without a
    later measurement makes its status. Of rows with equal keys, from two processes, the last one counts; of
    several metering windows the longest. A schedule that cannot be read is left out, with a warning.
    """
    candidates = []
    for digest, found in group_by_schedule(rows).items():
        try:
            candidates.append(_rows_to_candidate(found))
        except (InvalidInput, ScheduleError) as problem:
            # ScheduleError: this version of ekc refuses a step that the one that wrote the row did not.
            warnings.warn(f"records: schedule {digest} left out: {problem}", stacklevel=2)
    return candidates


def make_unanalysed_candidate(schedule: Schedule) -> Candidate:
    """Make a candidate without figures and without model inputs."""
    unknown = float("nan")
    return Candidate(schedule, "on file", np.zeros(0, np.float32), unknown, unknown, unknown, 0)


def _rows_to_candidate(rows: list[RecordRow]) -> Candidate:
    candidate, figures = make_unanalysed_candidate(Schedule.from_json(rows[0].schedule)), combine_rows(rows)
    candidate.status, candidate.checked = figures.status, figures.checked
    candidate.timings, candidate.meterings = figures.timings, figures.meterings
    return candidate


DEFAULT_MAX_SLOWDOWN = 0.05
"""Default of the slowdown that the best may have, relative to the fastest."""


@dataclass(frozen=True)
class SelectionRule:
    """The rule that selects the best schedule. Raises `InvalidInput` for an invalid objective or slowdown."""

    objective: str = "energy"
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN

    def __post_init__(self) -> None:
        parse_objective(self.objective)
        check_slowdown(self.max_slowdown)

    def __str__(self) -> str:
        if self.objective == "latency":
            return "by latency"
        return f"by {self.objective}, at most {100 * self.max_slowdown:g} % slower than the fastest"

    def select_winners(self, trials: Sequence[Trial]) -> tuple[Trial, Trial]:
        """Select (the best, the fastest)."""
        return select_winners(trials, self.objective, self.max_slowdown)


DEFAULT_RULE = SelectionRule()


def best(
    op: Operator,
    records: str | Path,
    target: str = "auto",
    objective: str = "energy",
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    any_toolchain: bool = False,
) -> Trial:
    """Find the best metered schedule of an operator on a device in a record file, by the rule of `tune`.

    any_toolchain: if no schedule was metered under the conditions here, take one that was metered with
    another NVRTC, generator or driver, at other clocks, or else on another device. It is compiled here, to
    check that it can be, and `measured_elsewhere` of the trial has its conditions.

    Raises `RecordError` for the file, `InvalidInput` for arguments, and if the file has no metered schedule
    of the operator; with `any_toolchain` also the errors of compiling."""
    check_operator(op)
    check_path("records", records)
    check_flag("any_toolchain", any_toolchain)
    rule = SelectionRule(objective, max_slowdown)
    return choose_best(op, records, devices.open(target), rule, any_toolchain)


def choose_best(
    op: Operator,
    records: str | Path,
    device: Device,
    rule: SelectionRule = DEFAULT_RULE,
    any_toolchain: bool = False,
) -> Trial:
    """Find the best metered schedule for an open device, as `best`."""
    found, _ = rule.select_winners(load_finalists(op, records, device, any_toolchain))
    if found.measured_elsewhere:
        compile_schedule(found.schedule, device.arch, device.limits)
    return found


def load_finalists(
    op: Operator, records: str | Path, device: Device, any_toolchain: bool = False
) -> list[Trial]:
    """Load the metered schedules that the best is selected from. Raises as `best`, but for compiling."""
    with RecordStore(records, create=False) as store:
        groups = group_rows(store.read_rows(operator=to_canonical_json(op.to_json())))
        here = get_present_conditions(device)
        trials = choose_finalists(groups.get(here, ()))
        if trials:
            return trials
        for there in sort_by_nearness(groups, here) if any_toolchain else ():
            trials = choose_finalists(groups[there])
            if trials:
                # The stored verdict is of a kernel by another toolchain.
                return [replace(t, measured_elsewhere=str(there), checked="") for t in trials]
        raise InvalidInput(
            f"{op.name} on {device.label}: no metered schedule in {records}"
            + (_list_other_conditions(groups, here) or _list_other_operators(store, records))
        )


def choose_finalists(rows: Sequence[RecordRow]) -> list[Trial]:
    """Choose the schedules measured in finals, or all without finals: one first timing may be luck."""
    complete = [t for t in rows_to_trials(rows) if t.ok and t.metered and t.latency_s and t.energy_j]
    finals = {row.key.schedule_digest for row in rows if row.kind == "timing" and row.key.draw}
    return [t for t in complete if t.schedule.digest in finals] or complete


def _list_other_conditions(
    groups: Mapping[RecordConditions, Sequence[RecordRow]], here: RecordConditions
) -> str:
    """End of an error message: the conditions of the operator's stored schedules; "" without any."""
    metered = {there: [row for row in rows if row.kind == "metering"] for there, rows in groups.items()}
    counts = describe_counts({there: rows for there, rows in metered.items() if rows}, here)
    if counts:
        needed = here.describe_differences(there for there, rows in metered.items() if rows)
        return (
            f"{f' was made with {needed}' if needed else ''}; it holds {counts}; --any-toolchain "
            "(any_toolchain=True) takes the best of the nearest, ekc tune --records measures here"
        )
    timed = {there: [row for row in rows if row.kind == "timing"] for there, rows in groups.items()}
    own = len({row.key.schedule_digest for row in timed.get(here, ())})
    rest = describe_counts({there: rows for there, rows in timed.items() if rows}, here)
    listed = " and ".join(text for text in (f"{own} under the conditions here" if own else "", rest) if text)
    if not listed:
        return ""
    return f"; it holds schedules that were timed and not metered: {listed}; run ekc tune with --records"


def _list_other_operators(store: RecordStore, file: str | Path) -> str:
    """Make the end of an error message: the operators with metered schedules."""
    texts = dict.fromkeys(row.key.operator for row in store.read_rows(kind="metering"))
    names = [str(read_operator(text, file)).splitlines()[0] for text in texts]
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    listed = (
        f"it holds those of {', '.join(names[:MAX_LISTED])}{more}" if names else "nothing was metered in it"
    )
    return f"; {listed}; run ekc tune with --records"
