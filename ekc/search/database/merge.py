"""Merging record files, such as those of the tasks of a job array, into one.

A merge copies rows as they are. Rows that are equal in all columns become one; all others stay. Rows are
numbered by the time of their measurement, so the result depends neither on the order of the files nor on the
number of merges. All of it is one step: a merge that is killed leaves the file as it was.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ekc.argument_checks import check_path, format_value
from ekc.errors import InvalidInput, RecordError
from ekc.search.database.database import EmptyRecordError, RecordStore, UnitedRows
from ekc.search.database.record_file import check_record_path
from ekc.search.database.rows import StoredValues
from ekc.tables import count_nouns


@dataclass(frozen=True)
class SourceRows:
    """The number of rows that a merge read from one file."""

    path: str
    rows: int


@dataclass(frozen=True)
class Conflict:
    """A measurement of which the merged file has rows with different figures. All stay, the latest counts."""

    kind: str
    """"timing", "metering", "failure" or "check"."""
    schedule_digest: str
    device: str
    rows: int


@dataclass(frozen=True)
class MergeReport:
    """The counts of a merge."""

    into: str
    sources: tuple[SourceRows, ...]
    rows: int
    """Rows in the merged file."""
    added: int
    """Rows that the merged file did not have before."""
    repeated: int
    """Measurements with more than one row: made again under the same conditions."""
    conflicts: tuple[Conflict, ...]
    """Repeated measurements whose rows differ in their figures or status."""
    gpus: dict[str, int]
    """Number of GPUs, by UUID, that measured the rows of each real device."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the attribute names."""
        return asdict(self)

    def __str__(self) -> str:
        read = sum(source.rows for source in self.sources)
        lines = [
            f"{self.into}: {count_nouns(f'{self.rows:,}', 'row')}, {self.added:,} of them new; "
            f"{read:,} read from {count_nouns(len(self.sources), 'file')}"
        ]
        if self.repeated:
            lines.append(
                f"{count_nouns(self.repeated, 'measurement')} made more than once under the same conditions, "
                f"{len(self.conflicts)} with different figures: all rows are kept, the latest counts"
            )
        lines += [
            f"{device}: rows of {count} GPUs; two boards of one kind may differ by more than two good kernels"
            for device, count in self.gpus.items()
            if count > 1
        ]
        return "\n".join(lines)


def merge_records(sources: Sequence[str | Path], into: str | Path) -> MergeReport:
    """Add the rows of some record files to the file `into`, which may exist already and may be one of them.

    Rows that are equal in all columns become one. Rows of the same measurement with other figures all stay,
    and the latest counts, as within one file; other conditions (driver, clocks, toolchain) make another
    measurement. All files are read before anything is written. A source without a row adds nothing, with a
    warning.

    Raises `InvalidInput` for arguments; `RecordError`, one line, for a file that cannot be read or written.
    Then `into` is as it was.
    """
    if isinstance(sources, str | Path) or not isinstance(sources, Sequence):
        raise InvalidInput(f"sources: {format_value(sources)} is no list of files; write ['a.db', 'b.db']")
    if not sources:
        raise InvalidInput("sources: no file is given; name at least one record file")
    check_path("into", into)
    found = [(str(check_path("sources", path)), _read_source(path)) for path in sources]
    united = _write_rows(Path(into), [row for _, some in found for row in some])
    return MergeReport(
        into=str(into),
        sources=tuple(SourceRows(path, len(some)) for path, some in found),
        rows=united.after,
        added=united.after - united.before,
        repeated=len(united.repeats),
        conflicts=tuple(Conflict(*one[:4]) for one in united.repeats if one[4] > 1),
        gpus=united.gpus,
    )


def _read_source(path: str | Path) -> list[StoredValues]:
    try:
        with RecordStore(path, create=False) as store:
            rows = store.read_values()
    except EmptyRecordError:
        rows = []
    if not rows:
        warnings.warn(f"{path} holds no row: it adds nothing", stacklevel=3)
    return rows


def _write_rows(into: Path, rows: Sequence[StoredValues]) -> UnitedRows:
    """Add rows to a file, as `RecordStore.unite`."""
    check_record_path(into, create=True)
    if not into.exists():
        if not rows:
            raise RecordError(f"there is no row to merge, so {into} is not made")
        try:
            return _write_new_file(into, rows)
        except FileExistsError:
            # Another process made it meanwhile.
            pass
    with RecordStore(into) as store:
        return store.unite(rows)


def _write_new_file(into: Path, rows: Sequence[StoredValues]) -> UnitedRows:
    """Write a record file in a folder beside `into`, and give it its name when it is complete. Raises
    FileExistsError if `into` exists by then."""
    try:
        with TemporaryDirectory(prefix=".ekc-merge-", dir=into.parent) as folder:
            new = Path(folder) / "new.db"
            try:
                with RecordStore(new) as store:
                    written = store.unite(rows)
            except RecordError as problem:
                raise RecordError(str(problem).replace(str(new), str(into))) from problem
            _move_new_file(new, into)
            return written
    except FileExistsError:
        raise
    except OSError as problem:
        raise RecordError(
            f"{into} cannot be written ({problem.strerror}); name a file in a folder that you can write"
        ) from problem


def _move_new_file(new: Path, into: Path) -> None:
    try:
        # A link, and no rename, which would replace a file that a run has made since.
        os.link(new, into)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links.
        if into.exists():
            raise FileExistsError(into) from None
        new.rename(into)
