"""The display of a run on stderr: a bar in a terminal, plain lines elsewhere, nothing where it is closed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from ekc.search import progress
from ekc.search.data.events import TuningEvent
from tests.search.helpers import tune

ROOT = Path(__file__).parents[2]
EVENT = TuningEvent("stage", "conv_transpose2d", "rtx2080ti (simulated)", True, "finals", 3, 12.0, 128, 128)


def test_long_step_is_printed_repeatedly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PROGRESS_INTERVAL_S", 0.02)
    lines: list[str] = []
    with progress.show_progress(True) as (listen,):
        listen(EVENT)
        until = time.monotonic() + 20
        while len(lines) < 3 and time.monotonic() < until:
            time.sleep(0.02)
            lines += capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert lines[0] == (
        "   12 s  conv_transpose2d on rtx2080ti (simulated): 128/128 trials; "
        "checking and measuring the finalists"
    )
    assert not [t for t in progress.threading.enumerate() if t.name == "ekc-progress"]


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_run_without_stderr_is_silent(
    stderr: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = (tmp_path / "gone").open("w")
    file.close()
    monkeypatch.setattr(sys, "stderr", None if stderr is None else file)
    assert tune(trials=2, progress=True).trial_count == 2


CHILD = """
import time
from dataclasses import replace
from ekc.search.progress import show_progress
from tests.search.test_progress import EVENT
with show_progress(True) as (listen,):
    for tried in range(128):
        listen(replace(EVENT, name="trial", stage="measure", tried=tried + 1))
    time.sleep(0.2)
"""


@pytest.mark.parametrize("columns", [80, 40])
def test_bar_in_terminal_shows_elapsed_time(columns: int) -> None:
    main_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        env=environment | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=terminal,
        stdin=terminal,
    )
    os.close(terminal)
    shown = b""
    while part := _read(main_end):
        shown += part
    assert child.stdout is not None
    assert child.stdout.read() == b"", "stdout is for results"
    assert child.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    frames = [line for line in re.split(r"[\r\n]+", text) if "128/128" in line]
    assert frames
    for frame in frames:
        assert len(frame) <= columns
        assert re.search(r"128/128 \S+ 0:00:\d\d ", frame)
    if columns == 80:
        assert "rtx2080ti (simulated): compiling and timing" in frames[-1]


def _read(end: int) -> bytes:
    try:
        return os.read(end, 65536)
    except OSError:
        return b""
