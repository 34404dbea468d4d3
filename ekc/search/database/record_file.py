"""Checks of a record file before it is used, as a file may come from somebody else: its path and first bytes,
the tables and indexes in it, and the journal beside it. All refusals are `RecordError`, one line each."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sqlite3
import warnings
from pathlib import Path

from ekc.errors import RecordError
from ekc.search.database import rows as sql

MAX_VALUE_BYTES = 1 << 24
"""Bytes of one text in a record file, at most (16 MiB). A row of ekc has some thousand."""
NOT_SQLITE_TEXT = "is not an SQLite file (or its first bytes are damaged); use another --records file"
DAMAGED_TEXT = "is damaged or cut short; restore a copy of it or use another --records file"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_OBJECTS = {
    "trials": sql.CREATE_TABLE,
    "trials_identity": sql.CREATE_INDEX,
    "trials_figures": sql.CREATE_FIGURE_INDEX,
    # SQLite makes these: for the row numbers, and for `analyze`.
    "sqlite_sequence": "create table sqlite_sequence(name,seq)",
    "sqlite_stat1": "create table sqlite_stat1(tbl,idx,stat)",
    "sqlite_stat4": "create table sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
}


def check_record_path(path: Path, create: bool) -> None:
    """Check that a file can be a record file, as far as can be seen without opening it as one. Raises
    `RecordError`."""
    if "\0" in str(path):
        raise RecordError(f"{path!r} cannot be opened: a name cannot hold a null byte")
    try:
        if path.is_dir():
            raise RecordError(f"{path} is a folder; name a file in it, such as {path / 'tuning.db'}")
        if not path.parent.is_dir():
            raise RecordError(f"folder {path.parent} does not exist; {_suggest_folder(path.parent)}")
        if not create and not path.exists():
            siblings = [p.name for p in path.parent.iterdir() if p.is_file()]
            near = difflib.get_close_matches(path.name, siblings, n=1)
            hint = f"did you mean {path.with_name(near[0])}?" if near else "ekc tune --records writes one"
            raise RecordError(f"there is no record file {path}; {hint}")
        if path.exists():
            _check_bytes(path)
        _check_journal(path)
    except OSError as error:
        raise RecordError(f"{path} cannot be opened: {error.strerror}") from error


def _check_bytes(path: Path) -> None:
    # SQLite overwrites a file of a few bytes, and fills a truncated last page with zeros. So these two cases
    # are checked before it opens the file.
    if not path.is_file():
        raise RecordError(f"{path} is not a plain file; use another --records file")
    with path.open("rb") as file:
        head, size = file.read(100), os.fstat(file.fileno()).st_size
    if head and not head.startswith(b"SQLite format 3\0"):
        raise RecordError(f"{path} {NOT_SQLITE_TEXT}")
    page = int.from_bytes(head[16:18], "big")  # 65536 is written as 1
    cut = len(head) < 100 or (page > 1 and size % page)
    if head and cut and not has_log(path):
        raise RecordError(f"{path} {DAMAGED_TEXT}")


def _check_journal(path: Path) -> None:
    """Refuse a rollback journal that names a super-journal: SQLite deletes the file of that name, whatever it
    is, when it rolls back. No journal of ekc names one, as it never writes two files in one transaction."""
    journal = path.resolve().with_name(f"{path.resolve().name}-journal")
    if not journal.is_file():
        return
    with journal.open("rb") as file:
        file.seek(-min(len(_JOURNAL_MAGIC), os.fstat(file.fileno()).st_size), os.SEEK_END)
        if file.read() == _JOURNAL_MAGIC:
            raise RecordError(
                f"{journal} is beside {path.name} and names a file that SQLite would delete; "
                "ekc writes no such journal: move it away"
            )


def check_schema(connection: sqlite3.Connection, name: str) -> int:
    """Check that a file holds the table and the indexes of ekc and nothing else: a trigger or a view of
    somebody else would run within the commands of ekc. Returns SQLite's number of the schema. Raises
    `RecordError`; `name` is the file's."""
    connection.execute("pragma trusted_schema = off")
    version = int(connection.execute("pragma schema_version").fetchone()[0])
    found = connection.execute("select type, name, sql from sqlite_master").fetchall()
    for kind, what, text in found:
        if what in _OBJECTS and _normalise(text) == _normalise(_OBJECTS[what]):
            continue
        own = "is not that of ekc" if what in _OBJECTS else "is none of ekc's"
        raise RecordError(
            f"{name} is not used: its {kind} {what!r:.40} {own}, and could change or hide records; "
            "drop it with sqlite3 if you know what it does, or use another --records file"
        )
    if "trials" not in (what for _, what, _ in found):
        raise RecordError(f"{name} is damaged: it has no table trials")
    return version


def has_figure_index(connection: sqlite3.Connection) -> bool:
    """Whether a file has the index of figures; a file of an earlier ekc has none."""
    query = "select count(*) from sqlite_master where name = 'trials_figures'"
    return bool(connection.execute(query).fetchone()[0])


def _normalise(text: object) -> str:
    return re.sub(r" ?([(),]) ?", r"\1", " ".join(str(text).lower().split()))


def limit_work(connection: sqlite3.Connection, path: Path) -> None:
    """Bound the work of a reader by the size of its file: SQLite may read damaged pages again and again."""
    left = 2000 + path.stat().st_size // 5_000

    def count_steps() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(count_steps, 100_000)


def has_log(path: Path) -> bool:
    """Whether a log is beside a file: it is in use, or will be completed from its log."""
    return _get_log_path(path).exists()


def warn_of_log(path: Path) -> None:
    """Warn of a log that has rows: a copy of the file alone would lack them."""
    log = _get_log_path(path)
    with contextlib.suppress(OSError):
        if log.stat().st_size:
            warnings.warn(
                f"{log} is beside {path.name}: a run is under way or was killed, and its last rows may be "
                "in the -wal file alone; copy both files together",
                RuntimeWarning,
                stacklevel=4,
            )


def _get_log_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _suggest_folder(folder: Path) -> str:
    missing = folder
    while not missing.parent.is_dir():
        missing = missing.parent
    siblings = [p.name for p in missing.parent.iterdir() if p.is_dir()]
    near = difflib.get_close_matches(missing.name, siblings, n=1)
    if near:
        return f"did you mean {missing.with_name(near[0])}?"
    return f"create it, or use a file in {missing.parent}"


def get_error_code(error: sqlite3.Error) -> int:
    """Primary code of an error. It is the low byte; errors of the Python module itself carry none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def describe_error(error: sqlite3.Error) -> str:
    """The end of a message of which the file is the beginning."""
    match get_error_code(error):
        case sqlite3.SQLITE_NOTADB:
            return NOT_SQLITE_TEXT
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return "is locked by another process; close it or use another --records file"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return f"cannot be written ({error}); use a --records file in a folder that you can write"
        case sqlite3.SQLITE_CORRUPT:
            return DAMAGED_TEXT
        case sqlite3.SQLITE_FULL:
            return "cannot grow: the disk is full"
        case sqlite3.SQLITE_TOOBIG:
            return f"is damaged: a value in it has more than {MAX_VALUE_BYTES:,} bytes"
        case sqlite3.SQLITE_INTERRUPT:
            return "is damaged: reading it takes longer than a file of its size can"
        case _:
            return f"cannot be used: {error}"
