"""Hardware counters of recorded schedules, read by Nsight Compute.

`benchmarks.simulator.counters` compares them with the events that the simulated model counts without a GPU.
The clock is left as it is, and the L2 is warm. A profiled kernel is not timed here: replays disturb it.
"""

from __future__ import annotations

import csv
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu.folder import RECORDING
from benchmarks.gpu.kit import Budget, Kit, NotRun
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.messages import make_work
from ekc.devices.recording import RecordedRow, Recording, read_recording
from ekc.errors import EkcError
from ekc.tables import format_table

MINUTES = 1.5
LONGEST_S = 0.005
"""Latency of a kernel above which it is left out: Nsight Compute calls each dozens of times."""
BATCH = 3
"""Kernels of one run of Nsight Compute, which takes seconds to start."""
SECTIONS = (
    *("InstructionStats", "LaunchStats", "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables"),
    "WarpStateStats",
)
KEPT = ("dram__", "gpu__time", "l1tex__", "launch__", "lts__", "sass__", "sm__", "smsp__")
"""Beginnings of the names of the counters that are kept."""


def run(kit: Kit, budget: Budget) -> None:
    """A row for each recorded schedule that was timed, fastest first, operators in turn."""
    file = kit.folder.path / RECORDING
    why = _explain_absence(kit, file)
    if why:
        raise NotRun(why)
    rows = [row for row in _order_rows(read_recording(file)) if _is_counted(kit, row)]
    batches = [rows[n : n + BATCH] for n in range(0, len(rows), BATCH)]
    for batch in budget.take_affordable(batches):
        _count(kit, batch, budget.compute_left_s())


def _explain_absence(kit: Kit, recording: Path) -> str:
    """Why nothing is counted, or ""."""
    if kit.device.simulated:
        return f"{kit.label} has no counters"
    if shutil.which("ncu") is None:
        return "Nsight Compute (ncu) is not installed"
    return "" if recording.exists() else "nothing is recorded yet: run the part record"


def _order_rows(recording: Recording) -> list[RecordedRow]:
    """The timed rows: the fastest of each operator, then the second of each, and so on."""
    timed = sorted((row for row in recording.rows if row.timings), key=lambda r: r.find_timing().latency_s)
    place: dict[str, int] = {}
    count_by_operator: dict[int, int] = {}
    for row in timed:
        place[row.digest] = count_by_operator.get(row.operator, 0)
        count_by_operator[row.operator] = place[row.digest] + 1
    return sorted(timed, key=lambda row: place[row.digest])


def _is_counted(kit: Kit, row: RecordedRow) -> bool:
    is_good = bool(row.timings) and not row.failure and row.find_timing().latency_s < LONGEST_S
    return is_good and kit.folder.find_row("counters", row.digest) is None


def _count(kit: Kit, rows: list[RecordedRow], seconds: float) -> None:
    """Profile the kernels of some rows in one run."""
    compiled = list(_compile(kit, rows))
    try:
        with tempfile.TemporaryDirectory() as folder:
            table = _profile([one for _, one in compiled], kit.gpu, Path(folder), seconds)
    except EkcError as problem:
        for row, _ in compiled:
            kit.folder.add_row("counters", row.digest, str(problem))
        return
    lines = iter(table)
    for row, kernel in compiled:
        kit.folder.add_row("counters", row.digest, "ok", launches=[next(lines) for _ in kernel.launches])


def _compile(kit: Kit, rows: list[RecordedRow]) -> Iterator[tuple[RecordedRow, CompiledKernel]]:
    for row, make in kit.run_ahead(lambda row: kit.compile_kernel(row.schedule), rows):
        try:
            yield row, make()
        except EkcError as problem:
            kit.folder.add_row("counters", row.digest, str(problem))


def _profile(
    kernels: list[CompiledKernel], gpu: int, folder: Path, seconds: float
) -> list[dict[str, float | str]]:
    """Counters of each launch, in order. Raises `EkcError` where some are missing."""
    work, log = folder / "kernels.pickle", folder / "counters.csv"
    work.write_bytes(pickle.dumps([make_work(one) for one in kernels]))
    # By default ncu fixes the clock at its base value and flushes the caches before each pass.
    command = ["ncu", "--clock-control", "none", "--cache-control", "none", "--target-processes", "all"]
    command += [word for section in SECTIONS for word in ("--section", section)]
    command += [
        "--profile-from-start",
        "off",
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--log-file",
        str(log),
    ]
    command += [sys.executable, "-m", "benchmarks.gpu.counted_calls", str(work), str(gpu)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 1.0), check=False)
    except subprocess.TimeoutExpired:
        raise EkcError(f"ncu counted none of {len(kernels)} kernels in {seconds:.0f} s") from None
    text = log.read_text() if log.exists() else ""
    table = read_counters(text)
    expected = sum(len(kernel.launches) for kernel in kernels)
    if len(table) != expected:
        said = " ".join(f"{text if not table else ''} {done.stdout} {done.stderr}".split())[-300:]
        raise EkcError(f"ncu counted {len(table)} of {expected} launches: {said}")
    return table


def read_counters(text: str) -> list[dict[str, float | str]]:
    """Launches of a table in CSV as `ncu --page raw` writes it, after lines of its own: names in the first
    line, units in the second. Counters that are 0 are left out."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 2:
        return []
    rows = csv.DictReader([lines[0], *lines[2:]])
    return [_read_launch(row) for row in rows]


def _read_launch(row: dict[str, str]) -> dict[str, float | str]:
    counters: dict[str, float | str] = {"kernel": row["Kernel Name"]}
    for name, value in row.items():
        if name.startswith(KEPT):
            with suppress(ValueError):
                counters[name] = float(value.replace(",", ""))
    return {name: value for name, value in counters.items() if value}


def make_table(kit: Kit) -> str:
    """How many kernels were counted."""
    counts = Counter(row["status"] for row in kit.folder.list_rows("counters"))
    counted = counts.pop("ok", 0)
    lines = [("counted", str(counted)), *((why, str(count)) for why, count in counts.items())]
    return format_table(("kernels", "number"), lines, f"counters: of {kit.label}", label_count=1)
