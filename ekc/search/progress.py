"""Progress of a run on stderr: a bar in a terminal, elsewhere a plain line every few seconds."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ekc.search.data.events import EventListener, TuningEvent, describe_trial

PROGRESS_INTERVAL_S = 5.0
"""Seconds between two plain lines."""


@contextmanager
def show_progress(is_shown: bool) -> Iterator[tuple[EventListener, ...]]:
    """Show progress while the block runs; yields the display as listener, or None if none is shown."""
    if not is_shown or sys.stderr is None or sys.stderr.closed:
        yield ()
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _open_bar() as listener:
            yield (listener,)
    else:
        lines = _LineDisplay()
        try:
            yield (lines.listen,)
        finally:
            lines.close()


class _LineDisplay:
    """Writes a line every `PROGRESS_INTERVAL_S` seconds, also while one step takes longer."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._event: TuningEvent | None = None
        self._received_at_s = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_periodically, name="ekc-progress", daemon=True)
        self._thread.start()

    def listen(self, event: TuningEvent) -> None:
        """Keep the newest event. The forecast and the end are written at once."""
        self._received_at_s = time.monotonic()
        self._event = event
        if event.name == "forecast":
            self._write(event.text)
        elif event.name == "end":
            self._write(_format_line(event, event.seconds))

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _write_periodically(self) -> None:
        while not self._closed.wait(PROGRESS_INTERVAL_S):
            event = self._event
            if event is not None:
                self._write(_format_line(event, event.seconds + time.monotonic() - self._received_at_s))

    def _write(self, line: str) -> None:
        # A closed pipe is no reason to end the run.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()


def _format_line(event: TuningEvent, elapsed_s: float) -> str:
    why = f" ({event.text})" if event.text and event.name == "end" else ""
    run = f"{elapsed_s:5.0f} s  {event.operator} on {event.device}"
    return f"{run}: {event.progress_text}; {event.stage_text}{why}"


@contextmanager
def _open_bar() -> Iterator[EventListener]:
    """Show a bar as wide as the terminal. Text that does not fit is cut at its end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=3)),
        BarColumn(bar_width=10),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
    )
    console = Console(stderr=True, force_jupyter=False, highlight=False, markup=False)
    with Progress(*columns, console=console, expand=True) as bar:
        task = bar.add_task("", total=None)

        def listen(event: TuningEvent) -> None:
            if event.name == "forecast":
                bar.console.print(event.text, soft_wrap=True)
            found = f"{describe_trial(event.best)}; " if event.best else ""
            words = f"{event.device}: {found}{event.stage_text}; {event.operator}"
            bar.update(task, completed=event.tried, total=event.planned, description=words)

        yield listen
