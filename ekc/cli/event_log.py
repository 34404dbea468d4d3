"""`--log-json FILE`: every event of a run as one JSON object a line, written at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ekc.cli.output import log
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.search.events import TuningEvent
    from ekc.search.layers import Layer


class EventLog:
    """A file of events, begun with the first. Once it cannot be written, a line says so and the run goes on.
    Without a file it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._given_up = path is None

    def check(self, *measurements: Path | None) -> None:
        """Refuse a file that cannot be written, or that is one of these, without touching what it holds.

        Raises `InvalidInput`.
        """
        if self._path is None:
            return
        if self._path.resolve() in [file.resolve() for file in measurements if file is not None]:
            raise InvalidInput(f"--log-json: {self._path} is a file of measurements; name another one")
        try:
            self._path.open("a").close()
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise InvalidInput(f"--log-json: {self._path} cannot be written ({reason})") from problem

    def listener(self, layer: Layer | None = None) -> Callable[[TuningEvent], None]:
        """Writes the events of one run; those of a layer with its name and model."""
        own = {} if layer is None else {"layer": layer.name, "model": layer.uses[0].model}

        def write(event: TuningEvent) -> None:
            whole = event.to_json()
            self._write({"event": whole.pop("name"), "time": datetime.now(UTC).isoformat(), **own, **whole})

        return write

    def close(self) -> None:
        """Let go of the file."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()

    def _write(self, event: dict[str, object]) -> None:
        if self._given_up or self._path is None:
            return
        try:
            self._file = self._file or self._path.open("w", encoding="utf-8")
            self._file.write(json.dumps(event) + "\n")
            self._file.flush()
        except OSError as problem:
            self._given_up = True
            self.close()
            log(f"ekc: --log-json: {self._path} cannot be written any more ({problem.strerror})")
