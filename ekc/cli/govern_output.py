"""Output of `ekc govern`: one line for each event, a status line, and JSON lines in a file."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ekc.cli.output import log
from ekc.errors import InvalidInput
from ekc.governor.event_records import Applied, Checked, Chosen, Event, event_to_json, to_plain_json

if TYPE_CHECKING:
    from ekc.governor.live.job_report import GovernorLog, GovernorReport
    from ekc.governor.live.metrics import GovernorMetrics


class GovernOutput:
    """Listener that writes complete lines, so that lines of the job are never split."""

    def __init__(
        self,
        is_quiet: bool,
        json_path: Path | None,
        is_terminal_shared: bool,
        metrics: GovernorMetrics | None = None,
    ) -> None:
        self._metrics = metrics
        self._is_quiet = is_quiet
        self._lock = threading.Lock()
        self._json_file = None if json_path is None else _open_json_file(json_path)
        self._status: _TerminalStatusLine | _TitleStatusLine | None = None
        if not is_quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._status = _TitleStatusLine() if is_terminal_shared else _TerminalStatusLine()

    def on_event(self, governor_log: GovernorLog, event: Event) -> None:
        """Print an event with the time since the job began; write all its fields as JSON."""
        with self._lock:
            self._write_json(event_to_json(governor_log.name, event))
            self._update_metrics(lambda metrics: metrics.add_event(governor_log, event))
            if not self._is_quiet:
                elapsed = _format_elapsed(event.at_s - governor_log.events[0].at_s)
                self._print_line(f"ekc govern: {elapsed} {governor_log.name}: {event.format_line()}")

    def on_samples(self, governor_log: GovernorLog) -> None:
        """Update the status line and the metrics from the newest samples."""
        with self._lock:
            self._update_metrics(lambda metrics: metrics.add_samples(governor_log))
        with self._lock, contextlib.suppress(OSError):
            if self._status is not None and governor_log.trace:
                self._status.show(_format_status(governor_log))

    def on_trouble(self, governor_log: GovernorLog, line: str) -> None:
        """Print a failure, also with `--quiet`."""
        with self._lock:
            self._write_json({"event": "Trouble", "gpu": governor_log.name, "line": line})
            if governor_log.problem is not None:
                self._update_metrics(lambda metrics: metrics.fail(governor_log))
            self._print_line(f"ekc govern: {governor_log.name}: {line}")

    def on_note(self, line: str) -> None:
        """Print a message about leases, also with `--quiet`."""
        with self._lock:
            self._write_json({"event": "Note", "line": line})
            self._print_line(f"ekc govern: {line}")

    def on_progress(self, line: str) -> None:
        """Print a message about the GPUs of the job."""
        with self._lock:
            self._write_json({"event": "Note", "line": line})
            if not self._is_quiet:
                self._print_line(f"ekc govern: {line}")

    def finish(
        self, reports: Sequence[GovernorReport], core_share: float | None, absence: str | None = None
    ) -> None:
        """Print the reports, or the reason for their absence, and remove the status line."""
        with self._lock:
            self._stop_status()
            plain = to_plain_json(list(reports))
            self._write_json({"event": "Report", "reports": plain, "core_share": core_share})
            if not reports and not self._is_quiet:
                why = f": {absence}" if absence else ""
                self._print_line(f"ekc govern: nothing was measured, so there is no report{why}")
            for report in [] if self._is_quiet else reports:
                self._print_line("\n".join(("ekc govern: report", *report.format_lines())))
            if core_share is not None and not self._is_quiet:
                self._print_line(f"  {'governor':15} {core_share:.1%} of one core")

    def close(self) -> None:
        """Restore the terminal and stop serving metrics."""
        with self._lock:
            self._stop_status()
            if self._metrics is not None:
                self._metrics.close()

    def _update_metrics(self, update: Callable[[GovernorMetrics], None]) -> None:
        if self._metrics is None:
            return
        try:
            update(self._metrics)
        except OSError as problem:
            self._metrics = None
            self._print_line(f"ekc govern: --metrics cannot be written any more ({problem.strerror})")

    def _stop_status(self) -> None:
        if self._status is not None:
            with contextlib.suppress(OSError):
                self._status.stop()
            self._status = None

    def _print_line(self, line: str) -> None:
        """Print a line; a terminal that is closed must not end the governor or change its exit status."""
        with contextlib.suppress(OSError):
            if self._status is not None:
                self._status.print_above(line)
                return
        log(line)

    def _write_json(self, value: dict[str, Any]) -> None:
        try:
            if self._json_file is not None:
                self._json_file.write(json.dumps(value) + "\n")
                self._json_file.flush()
        except OSError as problem:
            if self._json_file is sys.stdout:
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - otherwise Python fails again at exit
            self._json_file = None
            self._print_line(f"ekc govern: --json cannot be written any more ({problem.strerror})")


class _TerminalStatusLine:
    """Status in the last line of the terminal, where no other process writes to it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, force_jupyter=False)
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._live.start()

    def show(self, line: str) -> None:
        from rich.text import Text

        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def print_above(self, line: str) -> None:
        """Print a permanent line."""
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        self._live.stop()


class _TitleStatusLine:
    """Status in the terminal's title: a status line would split the output of the job."""

    _SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"

    def __init__(self) -> None:
        self._write(self._SAVE_TITLE)

    def show(self, line: str) -> None:
        self._write(f"\x1b]2;{line}\x07")

    def print_above(self, line: str) -> None:
        """Print a permanent line."""
        log(line)

    def stop(self) -> None:
        self._write(self._RESTORE_TITLE)

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _format_status(governor_log: GovernorLog) -> str:
    at_s, watts, clock = governor_log.trace[-1]
    elapsed = _format_elapsed(at_s - governor_log.events[0].at_s)
    events = [x for x in governor_log.events if isinstance(x, Applied | Chosen | Checked)]
    activity = events[-1].format_line() if events else "measuring at the previous settings"
    return f"{governor_log.name}: {elapsed}, {watts:.0f} W, {clock:.0f} MHz; {activity}"


def _format_elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    return f"{minutes:3d}:{rest:02d}"


def _open_json_file(file: Path) -> IO[str]:
    if str(file) == "-":
        return sys.stdout
    try:
        return file.open("w")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidInput(f"--json {file}: cannot be written ({reason})") from problem
