"""Trials out of the rows of a record store: all that is on file of each schedule, put together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ekc.ir.schedule import Schedule
from ekc.search.candidate import Candidate
from ekc.search.measuring import read_metering, read_timing
from ekc.search.result import Trial
from ekc.search.rows import Row


def stored_trials(rows: Iterable[Row]) -> list[Trial]:
    """One Trial per schedule, means over its figures; later failures and wrong results count against it.

    Where a schedule was measured with long and short windows, the long ones speak.
    """
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.key.schedule_digest, []).append(row)
    return [_trial(group) for group in grouped.values()]


def _trial(rows: list[Row]) -> Trial:
    candidate = Candidate(
        Schedule.from_json(rows[0].schedule),
        "on file",
        np.zeros(0, np.float32),
        float("nan"),
        float("nan"),
        0,
    )
    longest = max((r.key.window_s or 0.0 for r in rows), default=0.0)
    finals = any(r.kind == "timing" and r.key.draw for r in rows)
    for row in rows:
        if row.kind == "timing" and bool(row.key.draw) == finals:
            candidate.timings.append(read_timing(row.payload))
        elif row.kind == "metering" and row.key.window_s == longest:
            candidate.meterings.append(read_metering(row.payload))
        elif row.kind == "failure" or (row.kind == "check" and row.status.startswith("wrong result")):
            candidate.status = row.status
        elif row.kind == "check":
            candidate.checked = row.status
    return candidate.trial()
