"""Candidates and trials out of the rows of a record store: all that is on file of each schedule."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ekc.errors import InvalidInput, RecordError, ScheduleError
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.ir.serialize import operator_from_json
from ekc.search.candidate import Candidate
from ekc.search.finals import REJECTED_VERDICTS
from ekc.search.measuring import is_execution_verdict
from ekc.search.records.rows import RecordRow
from ekc.search.result import Trial


def read_operator(text: str, file: str | Path) -> Operator:
    """The operator that a row of `file` holds as JSON text; `RecordError` for a damaged row."""
    try:
        return operator_from_json(json.loads(text))
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{file} is damaged: it holds an operator that is not one ({problem})") from None


def rows_to_trials(rows: Iterable[RecordRow]) -> list[Trial]:
    """One Trial per schedule, as `stored_candidates` puts them together."""
    return [c.to_trial() for c in rows_to_candidates(rows)]


def rows_to_candidates(rows: Iterable[RecordRow]) -> list[Candidate]:
    """One Candidate per schedule, with all its figures; a wrong result, an unsafe kernel, or a failure with
    nothing measured after it, counts against it. Of equal measurements (two processes) the last one speaks;
    of long and short windows the long ones. A schedule that cannot be read is left out, with a warning.
    """
    grouped: dict[str, dict[object, RecordRow]] = {}
    for row in rows:
        same = (row.kind, row.key.draw, row.key.window_s)
        found = grouped.setdefault(row.key.schedule_digest, {})
        found.pop(same, None)
        found[same] = row
    candidates = []
    for digest, found in grouped.items():
        try:
            candidates.append(_rows_to_candidate(list(found.values())))
        except (InvalidInput, ScheduleError) as problem:
            # The latter of a step that this ekc refuses, and the one that wrote the row did not.
            warnings.warn(f"records: schedule {digest} left out: {problem}", stacklevel=2)
    return candidates


def make_unanalysed_candidate(schedule: Schedule) -> Candidate:
    """A candidate that nothing is known of: neither its figures nor what the models see of it."""
    return Candidate(schedule, "on file", np.zeros(0, np.float32), float("nan"), float("nan"), 0)


def _rows_to_candidate(rows: list[RecordRow]) -> Candidate:
    candidate = make_unanalysed_candidate(Schedule.from_json(rows[0].schedule))
    longest = max((r.key.window_s or 0.0 for r in rows), default=0.0)
    wrong = any(r.kind == "check" and r.status.startswith(REJECTED_VERDICTS) for r in rows)
    finals = any(r.kind == "timing" and r.key.draw for r in rows)
    for row in rows:
        if row.kind in ("timing", "metering") and not wrong:
            candidate.status = "ok"
        if row.kind == "timing" and bool(row.key.draw) == finals:
            candidate.timings.append(row.to_timing())
        elif row.kind == "metering" and row.key.window_s == longest:
            candidate.meterings.append(row.to_metering())
        elif row.kind == "failure" or (row.kind == "check" and row.status.startswith(REJECTED_VERDICTS)):
            candidate.status = row.status
        elif row.kind == "check" and is_execution_verdict(row):
            candidate.checked = row.status
    return candidate
