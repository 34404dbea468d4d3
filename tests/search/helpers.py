"""Small tuning runs that the tests of the tuner share."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ekc
from ekc.search.tuning_result import TuningResult

MV = ekc.matvec(256, 256)
TRIALS = 9
THREADS = ThreadPoolExecutor(2)
"""Threads, as a run of a second ends before worker processes have started."""


def tune(op: ekc.Operator = MV, **options: Any) -> TuningResult:
    options = {"trials": TRIALS, "progress": False, "target": "a100", "executor": THREADS} | options
    return ekc.tune(op, **options)


def winner(result: TuningResult) -> tuple[str, float | None, float | None]:
    return result.best.schedule.digest, result.best.energy_j, result.best.latency_s


def rows(file: Path) -> int:
    with sqlite3.connect(file) as connection:
        return int(connection.execute("select count(*) from trials").fetchone()[0])
