"""During a run committed rows move from the log beside a record file into the file.

SQLite commits a row into a log, `tuning.db-wal` beside `tuning.db`, and empties it when the last process
closes the file. A process that is killed closes nothing: without this, a copy of `tuning.db` alone would lack
all that the run measured.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from ekc.forks import detach_in_children, hold_forks

CHECKPOINT_INTERVAL_S = 15.0
"""From a row to the move that takes it along: half of the 30 s that the documentation promises, as a move is
repeated that a reader in another process cut short."""


class Checkpointer:
    """Moves the rows of one record file, in a thread: also while the run waits for a compile or the meter."""

    def __init__(self, path: Path) -> None:
        self._path, self._interval_s = path, CHECKPOINT_INTERVAL_S
        self.detach()
        detach_in_children(self)

    def detach(self) -> None:
        """Begin without a thread: a forked child has none, and its events may be locked."""
        self._due, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def request_checkpoint(self) -> None:
        """A row was committed: move it within the interval."""
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ekc-checkpoints", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread. What is left in the log, SQLite moves when the file is closed."""
        self._closed.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._due.wait()
            if self._closed.wait(self._interval_s):
                return
            # Before the move: a row that is committed meanwhile asks for the next one.
            self._due.clear()
            if not _move_rows(self._path):
                self._due.set()


def _move_rows(path: Path) -> bool:
    """Move what is in the log into the file; whether all of it was. It waits for no other process and lets
    none wait. An error (a full disk) costs nothing that was committed: the rows stay in the log."""
    try:
        # SQLite connections belong to one thread, so this one has its own.
        with (
            hold_forks(),
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection,
        ):
            busy, pages, moved = connection.execute("pragma wal_checkpoint(passive)").fetchone()
    except sqlite3.Error:
        return False
    return not busy and pages == moved
