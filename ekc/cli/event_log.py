"""`--log-json FILE`: every event of a run as one JSON object per line, flushed after each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ekc.cli.output import log
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.search.data.events import TuningEvent

STANDARD_STREAMS = (1, 2)
"""File descriptors of standard output and standard error."""
DATABASE_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Suffixes of the names of an SQLite database and of the files that SQLite keeps beside it."""
MAX_FIRST_LINE = 1_000_000
"""Bytes of the first line of an existing file that are read, to see whether the line is an event."""


class EventLog:
    """A file of events, opened at the first event. After a failed write it logs one line and stops writing;
    the run goes on. Name "-": standard output. Name None: no log."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._file: IO[str] | None = None
        self._is_disabled = name is None

    def check_writable(self, records: Path | None) -> None:
        """Raise `InvalidInput` for a file that cannot be written, that is this file of measurements, or that
        has other contents than an event log. The file is not changed."""
        if self._name is None:
            return
        if not self._name:
            raise InvalidInput("--log-json: '' names no file; give a name, or - for standard output")
        if _find_stream(self._name) is not None:
            return
        path = Path(self._name)
        if records is not None and is_database(path, records):
            raise InvalidInput(f"--log-json: {path} is a file of measurements; name another one")
        try:
            may_write = not path.is_file() or _may_overwrite(path)
            if may_write:
                path.open("a").close()
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise InvalidInput(f"--log-json: {path} cannot be written ({reason})") from problem
        if not may_write:
            raise InvalidInput(f"--log-json: {path} exists and is no event log; choose another name")

    def make_listener(self) -> Callable[[TuningEvent], None]:
        """Make the callback that writes one run's events."""

        def write(event: TuningEvent) -> None:
            fields = event.to_json()
            self._write({"event": fields.pop("name"), "time": datetime.now(UTC).isoformat()} | fields)

        return write

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()

    def _write(self, event: dict[str, object]) -> None:
        if self._is_disabled or self._name is None:
            return
        try:
            self._file = self._file or _open_log(self._name)
            self._file.write(json.dumps(event) + "\n")
            self._file.flush()
        except OSError as problem:
            self._is_disabled = True
            self.close()
            log(f"ekc: --log-json: {self._name} cannot be written any more ({problem.strerror})")


def _open_log(name: str) -> IO[str]:
    """Open the file, emptied. A standard stream is duplicated: it keeps its offset and contents."""
    stream = _find_stream(name)
    return open(name if stream is None else os.dup(stream), "w", encoding="utf-8")


def _find_stream(name: str) -> int | None:
    """The descriptor of the standard stream that a file name refers to; None for any other file."""
    if name == "-":
        return 1
    for stream in STANDARD_STREAMS:
        with suppress(OSError, ValueError):
            if os.path.samestat(os.stat(name), os.fstat(stream)):
                return stream
    return None


def is_database(path: Path, database: Path) -> bool:
    """Whether a path is this database, also through links, or a file that SQLite keeps beside it."""
    with suppress(OSError, ValueError):
        if path.samefile(database):
            return True
    resolved = database.resolve()
    return path.resolve() in [resolved.with_name(resolved.name + end) for end in DATABASE_SUFFIXES]


def _may_overwrite(path: Path) -> bool:
    """Whether a file is empty or an event log: its first line is a JSON object with the key "event"."""
    with path.open("rb") as file:
        line = file.readline(MAX_FIRST_LINE)
    if not line:
        return True
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and "event" in first
