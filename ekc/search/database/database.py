"""The record store: every measurement with its conditions, in one SQLite file.

A row is one measurement event. It is committed before the next measurement begins, so that a killed run loses
no measurement, and a second run finds those of the first.

SQLite commits a row to a log, `tuning.db-wal` beside `tuning.db`, and moves the rows into the file when the
last process closes it. A killed process closes nothing, and a copy of `tuning.db` alone would then lack the
rows of the run. So a thread moves committed rows into the file during the run.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import astuple, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from ekc.errors import RecordError
from ekc.forks import detach_in_children, hold_forks
from ekc.search.database import rows as sql
from ekc.search.database.conditions import RecordConditions
from ekc.search.database.record_file import (
    MAX_VALUE_BYTES,
    check_record_path,
    check_schema,
    describe_error,
    get_error_code,
    has_figure_index,
    has_log,
    limit_work,
    warn_of_log,
)
from ekc.search.database.rows import RecordKey, RecordKind, RecordRow, hash_operator, to_canonical_json
from ekc.version import __version__

CHECKPOINT_INTERVAL_S = 15.0
"""Seconds from a commit to the move of its row into the file. Half of the 30 s that the documentation
promises: a move that a reader in another process interrupts is repeated."""


class Checkpointer:
    """Moves committed rows from the log into the record file, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path, self._interval_s = path, CHECKPOINT_INTERVAL_S
        self.detach()
        detach_in_children(self)

    def detach(self) -> None:
        """Begin without a thread, as after a fork: a child has no threads, and its events may be locked."""
        self._due, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def request_checkpoint(self) -> None:
        """Have a committed row moved within the interval."""
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ekc-checkpoints", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread. SQLite moves the remaining rows when the file is closed."""
        self._closed.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._due.wait()
            if self._closed.wait(self._interval_s):
                return
            # Cleared before the move, so that a row committed meanwhile requests the next one.
            self._due.clear()
            if not _move_rows(self._path):
                self._due.set()


def _move_rows(path: Path) -> bool:
    """Move the rows of the log into the file. Returns whether all were moved. No process waits for another.
    After an error, such as a full disk, the rows stay in the log."""
    try:
        # A connection of SQLite belongs to one thread, so this thread opens its own.
        with (
            hold_forks(),
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection,
        ):
            busy, pages, moved = connection.execute("pragma wal_checkpoint(passive)").fetchone()
    except sqlite3.Error:
        return False
    return not busy and pages == moved


__all__ = ["RecordKey", "RecordKind", "RecordRow", "RecordStore", "hash_operator", "to_canonical_json"]

APPLICATION_ID = 0x656B6301
"""Mark of a record file in the header of SQLite: "ekc" and a 1."""
FORMAT_VERSION = 1
"""Version of the table. A file with a higher number comes from a newer ekc."""
ROWS_TOGETHER = 10_000
"""Rows of the index that are read in one go."""


class EmptyRecordError(RecordError):
    """A file that is read and holds nothing, as a run leaves it that was killed before its first row."""


class UnitedRows(NamedTuple):
    """Content of a file after rows were added."""

    before: int
    """Number of rows before."""
    after: int
    repeats: list[tuple[str, str, str, int, int]]
    """Measurements with several rows, as `rows.REPEATS` has them."""
    gpus: dict[str, int]
    """Number of GPUs, by UUID, that measured the rows of each real device."""


class RecordStore:
    """Rows of measurements in the file `path`, or in memory if it is None.

    `create=False` opens for reading only and makes no file. A write waits up to `busy_timeout_s` seconds for
    another process. Raises RecordError, one line, for a file that cannot be used. Only the thread that opened
    the store may use it.
    """

    def __init__(self, path: str | Path | None, *, create: bool = True, busy_timeout_s: float = 5.0) -> None:
        self.path = None if path is None else Path(path)
        """The file; None for a store in memory."""
        self._busy_timeout_s = busy_timeout_s
        if self.path is not None:
            check_record_path(self.path, create)
            if not create:
                warn_of_log(self.path)
        with self._raise_record_errors():
            self._connection = sqlite3.connect(
                _make_uri(self.path, create), uri=True, timeout=busy_timeout_s, isolation_level=None
            )
        self._schema_version: int | None = None
        self._checkpoints = Checkpointer(self.path) if create and self.path is not None else None
        try:
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            with self._raise_record_errors():
                self._prepare(create or self.path is None)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Added rows are already in it or in its log."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        with hold_forks():
            self._connection.close()

    def add(self, row: RecordRow) -> RecordRow:
        """Commit one row, and return it with `created` and `id` set. Raises InvalidInput for values that
        SQLite would change, RecordError if the file fails."""
        row = replace(row, created=row.created or datetime.now(UTC).isoformat())
        values = sql.row_to_sql(row)
        with self._raise_record_errors(), self._transaction():
            number = self._connection.execute(sql.INSERT, values).lastrowid
        assert number is not None  # an insert always has one
        if self._checkpoints is not None:
            self._checkpoints.request_checkpoint()
        return replace(row, id=number)

    def find(self, kind: RecordKind, key: RecordKey) -> RecordRow | None:
        """Find the latest row of this kind and identity; None if there is none."""
        found = self._select(sql.FIND, *sql.key_to_sql(kind, key))
        return sql.row_from_sql(found[0], self._display_name) if found else None

    def read_rows(self, *, operator: str | None = None, **columns: Any) -> Iterator[RecordRow]:
        """Read all rows, oldest first; only those of an operator (canonical JSON), and with these values of
        columns, if given; None counts as not given."""
        wanted = columns if operator is None else columns | {"operator_hash": hash_operator(operator)}
        given = {column: value for column, value in wanted.items() if value is not None}
        where = " and ".join(f"{column} = ?" for column in given) or "true"
        query = f"{sql.SELECT} where {where} order by id"
        for found in self._stream(query, tuple(given.values()), 1):
            yield sql.row_from_sql(found, self._display_name)

    def read_values(self) -> list[sql.StoredValues]:
        """Read all rows as they are stored, oldest first. Raises RecordError for a damaged row, figures
        included."""
        found = self._select(f"{sql.SELECT} order by id")
        for values in found:
            sql.row_from_sql(values, self._display_name).to_measurement()
        return [values[1:] for values in found]

    def read_row(self, number: int) -> RecordRow:
        """Read the row of a number, as the index of figures has it. Raises `RecordError` if it is damaged."""
        found = self._select(f"{sql.SELECT} where id = ?", number)
        if not found:
            raise RecordError(
                f"{self._display_name} is damaged: its index names row {number}, which is absent"
            )
        return sql.row_from_sql(found[0], self._display_name)

    def read_group_rows(self, group: sql.StoredGroup, **columns: Any) -> list[RecordRow]:
        """Read the rows of a group, oldest first; only those with these values of columns, if given."""
        conditions = vars(group.conditions)
        return list(self.read_rows(operator_hash=group.operator_hash, **conditions, **columns))

    def find_digests(self, start: str) -> dict[str, int]:
        """Find the digests of schedules that begin so, each with the number of its last row."""
        return dict(self._select(sql.DIGESTS, start, start))

    def list_groups(self, operator: str | None = None) -> list[sql.StoredGroup]:
        """List the operators, or a given one (canonical JSON), under each conditions, in the order of their
        last row."""
        digest = None if operator is None else hash_operator(operator)
        found = self._select_indexed(sql.GROUPS, (digest, digest))
        return [sql.group_from_sql(values, self._display_name) for values in found]

    def count_schedules(
        self, *, operator: str | None = None, kind: RecordKind | None = None
    ) -> dict[RecordConditions, int]:
        """Count the schedules by conditions, in the order of their last row; only of an operator (canonical
        JSON) or kind if given."""
        digest = None if operator is None else hash_operator(operator)
        found = self._select_indexed(sql.COUNTS, (digest, digest, kind, kind))
        return {sql.conditions_from_sql(values[:-1], self._display_name): values[-1] for values in found}

    def read_figures(self, group: sql.StoredGroup) -> Iterator[tuple[Any, ...]]:
        """Read the figures of a group, as `rows.FIGURES` has them."""
        given = group.operator_hash, *astuple(group.conditions)
        return self._select_indexed(sql.FIGURES, given)

    def _select_indexed(self, query: str, values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Select from the index of figures; without it, in a file of an earlier ekc, from all rows."""
        with self._raise_record_errors():
            indexed = "indexed by trials_figures" if has_figure_index(self._connection) else ""
        return self._stream(query.format(index=indexed), values, ROWS_TOGETHER)

    def _select(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._raise_record_errors():
            return self._connection.execute(query, values).fetchall()

    def _stream(self, query: str, values: tuple[Any, ...], together: int) -> Iterator[tuple[Any, ...]]:
        """Select rows, so many of them in one go."""
        with self._raise_record_errors():
            rows = self._connection.execute(query, values)
        while True:
            with self._raise_record_errors():
                some = rows.fetchmany(together)
            if not some:
                return
            yield from some

    def unite(self, rows: Iterable[sql.StoredValues]) -> UnitedRows:
        """Add the rows that the file lacks, all or none, and number all rows by the time of their
        measurement."""
        with self._raise_record_errors(), self._transaction():
            before = self._connection.execute(f"{sql.SELECT} order by id").fetchall()
            for values in before:
                sql.row_from_sql(values, self._display_name)
            after = sql.sort_by_time([*(values[1:] for values in before), *rows])
            numbered = [(number, *values) for number, values in enumerate(after, 1)]
            pairs = zip(before, numbered, strict=False)
            kept = next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(before), len(after)))
            self._connection.execute("delete from trials where id > ?", (kept,))
            self._connection.executemany(sql.INSERT_NUMBERED, numbered[kept:])
            repeats = self._connection.execute(sql.REPEATS).fetchall()
            gpus = dict(self._connection.execute(sql.GPUS).fetchall())
        return UnitedRows(len(before), len(after), repeats, gpus)

    @property
    def _display_name(self) -> str:
        return "the record store in memory" if self.path is None else str(self.path)

    def _prepare(self, create: bool) -> None:
        if create and self._is_blank():
            self._start_file()
        self._check_format()
        if create and not has_figure_index(self._connection):
            with self._transaction():
                self._connection.execute(sql.CREATE_FIGURE_INDEX.replace("index ", "index if not exists ", 1))
        # Write-ahead log with normal sync: the operating system has a commit before `add` returns, so kill -9
        # loses no committed row of file and log together. The file alone may lack those of the last seconds
        # (`Checkpointer`). Only a power cut may lose the last rows, and even then the file is not damaged.
        self._connection.execute("pragma synchronous = normal")
        if not create:
            # Not mode=ro: a read-only connection leaves its log files behind when it closes.
            self._connection.execute("pragma query_only = on")
            if self.path is not None:
                limit_work(self._connection, self.path)

    def _is_blank(self) -> bool:
        return self._read_pragma("application_id") == 0 and self._read_pragma("schema_version") == 0

    def _start_file(self) -> None:
        self._enable_write_ahead_log()
        with self._transaction():
            # Checked again under the lock: another process may have been first.
            if self._is_blank():
                self._connection.execute(sql.CREATE_TABLE)
                self._connection.execute(sql.CREATE_INDEX)
                self._connection.execute(sql.CREATE_FIGURE_INDEX)
                self._connection.execute(f"pragma user_version = {FORMAT_VERSION}")
                self._connection.execute(f"pragma application_id = {APPLICATION_ID}")
        # Now the file alone is a record file, and its log is empty.
        self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()

    def _enable_write_ahead_log(self) -> None:
        # SQLite does not wait for other processes while it changes the journal mode, so this does.
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                self._connection.execute("pragma journal_mode = wal")
                return
            except sqlite3.OperationalError as error:
                if get_error_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _check_format(self) -> None:
        if self._is_blank():
            raise EmptyRecordError(f"{self._display_name} is empty: no record was ever written to it")
        if self._read_pragma("application_id") != APPLICATION_ID:
            raise RecordError(
                f"{self._display_name} is an SQLite file, but not a record file of ekc; "
                "use another --records file"
            )
        version = self._read_pragma("user_version")
        if version > FORMAT_VERSION:
            raise RecordError(
                f"{self._display_name} has record format {version} of a newer ekc; "
                f"this is ekc {__version__}, which reads format {FORMAT_VERSION}: "
                "upgrade ekc or use another --records file"
            )
        self._schema_version = check_schema(self._connection, self._display_name)

    def _read_pragma(self, name: str) -> int:
        return int(self._connection.execute(f"pragma {name}").fetchone()[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        # "begin immediate" takes the write lock at once, so that any waiting happens here. A transaction may
        # be open if Ctrl-C came just before the try block.
        self._roll_back()
        try:
            self._connection.execute("begin immediate")
            if self._schema_version not in (None, self._read_pragma("schema_version")):
                # Another process changed the file since it was opened.
                self._schema_version = check_schema(self._connection, self._display_name)
            yield
            self._connection.execute("commit")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        # SQLite may have rolled back already, for example when the disk is full.
        if self._connection.in_transaction:
            self._connection.execute("rollback")

    @contextlib.contextmanager
    def _raise_record_errors(self) -> Iterator[None]:
        try:
            # A forked child inherits the connection, and must not inherit half a transaction.
            with hold_forks():
                yield
        except sqlite3.Error as error:
            raise RecordError(f"{self._display_name} {describe_error(error)}") from error


def _make_uri(path: Path | None, create: bool) -> str:
    if path is None:
        return "file::memory:"
    uri = path.absolute().as_uri()
    if create:
        return f"{uri}?mode=rwc"
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if not writable and not has_log(path):
        # No log can be written (a shared read-only folder) and none is in use: read without one.
        return f"{uri}?mode=ro&immutable=1"
    return f"{uri}?mode=rw"
