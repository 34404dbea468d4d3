"""Progress of a run: a bar in a terminal, one output of a notebook that is updated in place, and elsewhere a
plain line on stderr every few seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from html import escape
from typing import Any

from ekc.search.data.events import EventListener, TuningEvent
from ekc.search.data.trial import describe_trial

PROGRESS_INTERVAL_S = 5.0
"""Seconds between two plain lines."""
UPDATE_INTERVAL_S = 0.25
"""Seconds between two updates in a notebook, at least."""


@contextmanager
def show_progress(is_shown: bool) -> Iterator[tuple[EventListener, ...]]:
    """Show progress while the block runs; yields the display as listener, or None if none is shown."""
    if not is_shown or sys.stderr is None or sys.stderr.closed:
        yield ()
    elif is_notebook():
        with closing(_NotebookDisplay()) as output:
            yield (output.listen,)
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _open_bar() as listener:
            yield (listener,)
    else:
        with closing(_LineDisplay()) as lines:
            yield (lines.listen,)


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
        """Keep the newest event. The end is written at once."""
        self._received_at_s = time.monotonic()
        self._event = event
        if event.name == "end":
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
        with suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()


def _format_line(event: TuningEvent, elapsed_s: float) -> str:
    why = f" ({event.text})" if event.text and event.name == "end" else ""
    run = f"{elapsed_s:5.0f} s  {event.subject} on {event.device}"
    return f"{run}: {event.progress_text}; {event.stage_text}{why}"


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook. IPython is not imported to find out."""
    ipython: Any = sys.modules.get("IPython")
    # A module that is being imported, or one of that name, may have no such function.
    shell = ipython.get_ipython() if hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class _NotebookDisplay:
    """One output of the cell that runs. The last state stays."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._event: TuningEvent | None = None
        self._updated_at_s = 0.0

    def listen(self, event: TuningEvent) -> None:
        """Keep the newest event, and show it if the last update is long enough ago."""
        self._event = event
        if time.monotonic() - self._updated_at_s >= UPDATE_INTERVAL_S:
            self._update(event.stage_text)

    def close(self) -> None:
        """Show the last event. A run without an end was stopped by an exception."""
        if self._event is not None:
            is_ended = self._event.name in ("end", "error")
            self._update(self._event.stage_text if is_ended else "stopped")

    def _update(self, stage: str) -> None:
        event = self._event
        assert event is not None
        stage = "failed" if event.name == "error" else stage
        why = f" ({event.text})" if event.text else ""
        run = f"{event.subject} on {event.device}: {event.progress_text}"
        text = f"{run}; {event.seconds:.0f} s; {stage}{why}"
        bar = f'<progress value="{event.tried}" max="{event.planned}" style="width:8em"></progress>'
        html = f'<div style="color:inherit;background:none">{bar} {escape(text)}</div>'
        content = {"text/plain": text, "text/html": html}
        if self._handle is None:
            import IPython.display

            display: Any = IPython.display.display
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._updated_at_s = time.monotonic()


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
            found = f"{describe_trial(event.best)}; " if event.best else ""
            words = f"{event.device}: {found}{event.stage_text}; {event.subject}"
            bar.update(task, completed=event.tried, total=event.planned, description=words)

        yield listen
