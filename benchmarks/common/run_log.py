"""Finished runs, a line of JSON each: a benchmark that was killed goes on after the last one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class RunLog:
    """The finished runs in a file."""

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path, self._keys = path, keys
        self._lines = {self._identify(line): line for line in read_log(path)}

    def list_lines(self) -> list[Line]:
        """The finished runs, each once."""
        return list(self._lines.values())

    def find_or_make(self, asked: Line, make: Callable[[], Line], describe: Callable[[Line], str]) -> Line:
        """The finished run with what is asked under the keys; else a new one, which is printed and kept."""
        identity = self._identify(asked)
        if identity not in self._lines:
            self._lines[identity] = line = asked | make()
            append_line(self.path, line)
            print(describe(line), flush=True)
        return self._lines[identity]

    def _identify(self, line: Line) -> tuple[Any, ...]:
        return tuple(line.get(key) for key in self._keys)


def name_file(folder: Path, what: str, suffix: str) -> Path:
    """The file of runs or records of an operator."""
    return folder / f"{''.join(c if c.isalnum() else '-' for c in what)}.{suffix}"


def append_line(log: Path, line: Any) -> None:
    """Append a line. After a line that was cut short it starts a new line."""
    with log.open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        is_cut = file.read() not in (b"", b"\n")
        file.write(b"\n" * is_cut + json.dumps(line).encode() + b"\n")


def read_log(log: Path) -> Iterator[Any]:
    """Read the lines of a file."""
    for text in log.read_text().splitlines() if log.exists() else ():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            # The last line of a benchmark that was killed while it wrote: that run is run again.
            print(f"{log}: a line is cut short and does not count", file=sys.stderr)
