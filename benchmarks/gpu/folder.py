"""The files of a run: few and small; every row is written before the next is measured."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ekc.errors import RecordError

ROWS = "rows.jsonl"
RECORDING = "recording.jsonl.gz"
TUNING = "tuning.sqlite"
"""Not *.db: git ignores those here, and what it ignores is left behind."""
TRACES = "traces.json.gz"
PLAN = "plan.json"
REPORT = "report.txt"
FILES = (ROWS, RECORDING, TUNING, TRACES, PLAN, REPORT)
"""At most these six."""
MOST_BYTES = 16_000_000
"""Size of each file in bytes, at most."""
VERSION = 1
SHARED_CONDITIONS = ("device", "driver", "clock_regime", "data_policy")
"""Conditions that all rows of a folder share, and that a report prints once. A recording requires the
same."""

AWAY = "away"
"""Mark of a run that opened the folder without the device."""

Row = dict[str, Any]


class Folder:
    """The folder of a run, with the rows that are in it. A run into the same folder goes on where the last
    one stopped. Without `conditions` it is opened as it is, with no device. Raises `RecordError` for one of
    another device or of none, or that cannot be written."""

    def __init__(self, path: Path, conditions: Mapping[str, Any] | None = None) -> None:
        self.path = path
        try:
            if conditions is not None:
                path.mkdir(parents=True, exist_ok=True)
            self.rows = _read_rows(path / ROWS)
            if conditions is not None:
                self._check_conditions(conditions)
                self.begin_run(conditions)
        except OSError as problem:
            raise RecordError(f"{path} cannot be used: {problem.strerror}; name another --out") from None
        if not self.list_runs():
            raise RecordError(
                f"{path} holds no run: there is no {ROWS} in it; name the folder of one by --out"
            )
        self._check_conditions(self.measured)

    def begin_run(self, conditions: Mapping[str, Any]) -> None:
        """Begin a run under these conditions; the rows that follow belong to it."""
        self._write_row({"part": "run", "version": VERSION, **conditions})

    @property
    def measured(self) -> Row:
        """The conditions of the last run that had the device."""
        return [run for run in self.list_runs() if not run.get(AWAY)][-1]

    def _check_conditions(self, conditions: Mapping[str, Any]) -> None:
        for then in self.list_runs():
            if then["version"] != VERSION:
                raise RecordError(f"{self.path} has rows of version {then['version']}; name another --out")
            for fact in SHARED_CONDITIONS:
                if then.get(fact) != conditions.get(fact):
                    conflict = f"{then.get(fact)}, this is {conditions.get(fact)}"
                    raise RecordError(f"{self.path} is of {conflict}: name another --out")

    def list_rows(self, part: str) -> list[Row]:
        """The last row of each item of a part, oldest item first."""
        rows = [row for row in self.rows if row["part"] == part and row["item"]]
        return list({row["item"]: row for row in rows}.values())

    def list_runs(self) -> list[Row]:
        """The conditions of every run into this folder, the present one last."""
        return [row for row in self.rows if row["part"] == "run"]

    def find_row(self, part: str, item: str) -> Row | None:
        """The last row of an item that was run; an item that was not run is tried again."""
        rows = [row for row in self.list_rows(part) if row["item"] == item and row["status"] != "not run"]
        return rows[0] if rows else None

    def add_row(self, part: str, item: str, status: str, **facts: Any) -> Row:
        """Write a row: status "ok", "FAIL", "not run", or the problem."""
        return self._write_row({"part": part, "item": item, "status": status, **facts})

    def add_note(self, part: str, status: str, reason: str) -> Row:
        """Write a note on a whole part in this run."""
        return self.add_row(part, "", status, reason=reason)

    def list_notes(self, part: str) -> list[Row]:
        """Notes on a part in this run."""
        begun = max(n for n, row in enumerate(self.rows) if row["part"] == "run")
        return [row for row in self.rows[begun:] if row["part"] == part and not row["item"]]

    def _write_row(self, row: Row) -> Row:
        """Raises `RecordError` where there is no room, and leaves no half line for the next to join."""
        path = self.path / ROWS
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as problem:
            with suppress(OSError):
                os.truncate(path, before)
            raise RecordError(f"{path} cannot be written: {problem.strerror}") from None
        self.rows.append(row)
        return row

    def is_full(self, name: str) -> bool:
        """Whether a file is near its limit: nothing more goes into it."""
        file = self.path / name
        return file.exists() and file.stat().st_size > 0.9 * MOST_BYTES


def _read_rows(path: Path) -> list[Row]:
    """All rows; a last line that was cut short by a kill is dropped, from the file too."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        # Not rewritten: a kill or a full disk would then lose every row.
        os.truncate(path, len(whole.encode()))
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as problem:
        raise RecordError(f"{path} is damaged ({problem}); name another --out") from None
