"""Count of training steps, shared by the job and its governor: one number in a file that both map."""

from __future__ import annotations

import mmap
from pathlib import Path

from ekc.errors import InvalidInput

_BYTES = 8


class StepCounter:
    """Counts steps in the job: `with counter: ...` around each step; a step that raises does not count."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(_BYTES))
        self._cell = _map_counter(file, mmap.ACCESS_WRITE)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._cell[0] += 1


class StepReader:
    """Reads the count in the governor: None until the first step, since a job without hooks has no count."""

    def __init__(self, file: Path) -> None:
        try:
            self._cell = _map_counter(file, mmap.ACCESS_READ)
        except (OSError, ValueError) as problem:
            raise InvalidInput(f"--steps {file}: no file of steps ({problem})") from problem

    def __call__(self) -> float | None:
        """Steps so far; None before the first one."""
        return float(self._cell[0]) or None


def _map_counter(file: Path, access: int) -> memoryview:
    """Map one signed 64-bit number, which processors read and write atomically."""
    with file.open("r+b" if access == mmap.ACCESS_WRITE else "rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), _BYTES, access=access)).cast("q")
