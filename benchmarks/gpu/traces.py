"""Sensor traces of small training loops, 20 samples a second, with the true starts of their steps.

The file is gzip of one JSON object: `format` and `version`; `device`, `simulated`, `created`; `traces`, a
list of objects: `name`, `step_s` (when each step began, on the clock of `time_s`), `sensor_s` (each power
reading is a mean over so many seconds), `reached_hz` (readings a second: fewer than asked for where they cost
too much), `power_limit_w`, and by sample `time_s`, `power_w`, `sm_util`, `memory_util` (percent),
`clock_mhz`. Values that a card does not report are NaN.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.contenders import describe_problem
from benchmarks.gpu.folder import TRACES
from benchmarks.gpu.kit import Budget, Kit, NotRun
from benchmarks.gpu.loops import LOOPS, Loop, Place
from benchmarks.gpu.pytorch import allow_tf32, read_gpu_uuid, wake_gpu
from ekc.errors import EkcError, RecordError
from ekc.governor import detect_period
from ekc.governor.samples import SensorSamples
from ekc.tables import format_table

KIND, VERSION = "ekc traces", 1
COLUMNS = ("time_s", "power_w", "sm_util", "memory_util", "clock_mhz")
DIGITS = 4
"""Decimal places: a tenth of a millisecond, and finer than any sensor."""


@dataclass(frozen=True)
class Trace:
    """One job."""

    name: str
    samples: SensorSamples
    step_s: NDArray[np.float64]

    @property
    def reached_hz(self) -> float:
        """Readings a second; NaN where there are not two."""
        at = self.samples.time_s
        return float((len(at) - 1) / (at[-1] - at[0])) if len(at) > 1 else float("nan")

    @property
    def period_s(self) -> float:
        """Median time of a step: one that was held up is no other period."""
        return float(np.median(np.diff(self.step_s)))


def write_traces(path: Path, device: str, simulated: bool, created: str, traces: Sequence[Trace]) -> None:
    """Write all traces in one step."""
    data = {
        "format": KIND,
        "version": VERSION,
        **{"device": device, "simulated": simulated, "created": created},
        "traces": [_to_json(trace) for trace in traces],
    }
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))
    aside.replace(path)


def read_traces(path: Path) -> tuple[dict[str, Any], list[Trace]]:
    """(header, traces). Raises `RecordError`."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
    except OSError as problem:
        raise RecordError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except (ValueError, EOFError) as problem:
        raise RecordError(f"{path} is no file of traces: {problem}") from None
    if not isinstance(data, dict) or data.get("format") != KIND:
        raise RecordError(f"{path} is no file of traces: it does not say {KIND!r}")
    if data["version"] != VERSION:
        raise RecordError(f"{path} holds traces of version {data['version']}; this reads {VERSION}")
    return data, [_from_json(one) for one in data.pop("traces")]


def _to_json(trace: Trace) -> dict[str, Any]:
    samples = trace.samples
    columns = {name: np.round(getattr(samples, name), DIGITS).tolist() for name in COLUMNS}
    return {
        "name": trace.name,
        "step_s": np.round(trace.step_s, DIGITS).tolist(),
        "sensor_s": samples.sensor_s,
        "reached_hz": round(trace.reached_hz, DIGITS),
        "power_limit_w": samples.power_limit_w,
        **columns,
    }


def _from_json(data: dict[str, Any]) -> Trace:
    columns = (np.array(data[name], dtype=np.float64) for name in COLUMNS)
    samples = SensorSamples(*columns, data["power_limit_w"], data["sensor_s"])
    return Trace(data["name"], samples, np.array(data["step_s"], dtype=np.float64))


MINUTES = 9.0
Recorded = tuple[SensorSamples, NDArray[np.float64]]
"""Samples, and the start of each step in seconds."""
LONGEST_S, SHORTEST_S = 50.0, 8.0
BEGIN_S = 8.0
"""Kept of a loop's time: for its first steps, that are not traced, and to end the last."""
GOOD_S, LEAST_S = BEGIN_S + 17.0, BEGIN_S + SHORTEST_S
"""Seconds of a loop: for ten steps, which are worth more than another loop; and for four, as at least three
show a period."""
DRY_S, LOOK_S = 20.0, 0.01
DRY_JOBS, DRY_CARD = ("compute", "memory"), "h200"


def run(kit: Kit, budget: Budget) -> None:
    """A trace for each loop."""
    file = kit.folder.path / TRACES
    known = read_traces(file)[1] if file.exists() else []
    names = {trace.name for trace in known}
    todo = {name: record for name, record in _list_jobs(kit).items() if name not in names}
    if kit.device.simulated and not kit.dry:
        raise NotRun(f"{kit.device.label} has no sensors to train beside")
    if not kit.dry:
        if importlib.util.find_spec("torch") is None:
            raise NotRun("PyTorch is not installed")
        wake_gpu(kit)
    left_out = set(todo)
    # A dry run takes virtual time.
    good, least = (0.1, 0.0) if kit.dry else (GOOD_S, LEAST_S)
    for (name, record), share in budget.share_time(list(todo.items()), good, least):
        left_out.discard(name)
        try:
            samples, steps = record(max(min(LONGEST_S, share - BEGIN_S), SHORTEST_S))
        except Exception as problem:
            # PyTorch may raise anything (no memory, no driver); the other loops are traced all the same.
            reason = describe_problem(problem)
            kit.folder.add_row("traces", name, "not run", reason=reason)
            continue
        known.append(Trace(name, samples, steps))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_traces(file, kit.device.label, kit.device.simulated, now, known)
        kit.folder.add_row("traces", name, "ok", samples=len(samples), steps=len(steps))
    for name in sorted(left_out):
        kit.folder.add_row("traces", name, "not run", reason="there was no time for it")


def _trace_training(kit: Kit, loop: Loop, seconds: float) -> Recorded:
    """Train until time is up; a thread reads the sensors meanwhile. Raises `EkcError` without sensors."""
    import torch

    from ekc.governor.live.probe import NvmlProbe

    torch.cuda.set_device(kit.gpu)
    # A part before this one may have left them otherwise.
    allow_tf32(torch.backends, False)
    torch.backends.cudnn.benchmark = False
    probe = NvmlProbe(read_gpu_uuid(torch), lambda: True, lambda: None)
    step = loop.make_step(Place(torch, "cuda", kit.seed))
    end = time.monotonic() + seconds
    recorded: list[SensorSamples | EkcError] = []

    def watch() -> None:
        try:
            recorded.append(probe.record(end - time.monotonic()))
        except EkcError as problem:
            recorded.append(problem)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    steps = []
    while time.monotonic() < end:
        steps.append(time.monotonic())
        step()
        torch.cuda.synchronize()
    watcher.join()
    if isinstance(recorded[0], EkcError):
        raise recorded[0]
    return recorded[0], np.array(steps)


def _list_jobs(kit: Kit) -> dict[str, Callable[[float], Recorded]]:
    """Functions that record a job for some seconds, by name. A dry run has simulated jobs, which say so."""
    if kit.dry:
        return {
            f"{kind} job on {DRY_CARD} (simulated)": partial(_trace_simulated_job, kit, kind)
            for kind in DRY_JOBS
        }
    return {name: partial(_trace_training, kit, loop) for name, loop in LOOPS.items()}


def _trace_simulated_job(kit: Kit, kind: str, seconds: float) -> Recorded:
    """Trace a simulated job in virtual time."""
    from ekc.governor.simulation.random_jobs import sample_job
    from ekc.governor.simulation.simulated_run import SimulatedRun

    job = sample_job(kit.seed, kind, DRY_CARD, 4 * DRY_S)
    counted = SimulatedRun(job, kit.seed, has_hooks=True)
    steps, number = [], -1.0
    while counted.now() < DRY_S:
        now = counted.read_step_count()
        if now is not None and now != number:
            steps.append(counted.now())
            number = now
        counted.record(LOOK_S)
    return SimulatedRun(job, kit.seed).record(DRY_S), np.array(steps)


def make_table(kit: Kit) -> str:
    """The true step beside what the detector of `ekc govern` finds in the trace."""
    file = kit.folder.path / TRACES
    known = read_traces(file)[1] if file.exists() else []
    rows = []
    for trace in known:
        period = detect_period(trace.samples, trace.samples.sampling_hz)
        watts = trace.samples.power_w
        rows.append(
            (
                trace.name,
                str(len(trace.samples)),
                f"{trace.reached_hz:.1f}",
                f"{np.nanmean(watts):.0f}",
                f"{trace.period_s:.4g}" if len(trace.step_s) > 1 else "-",
                f"{period.seconds:.4g}",
                period.verdict,
            )
        )
    missing = [
        f"  {r['item']}: not run: {r['reason']}"
        for r in kit.folder.list_rows("traces")
        if r["status"] == "not run"
    ]
    heads = (
        "training loop",
        "samples",
        "reached Hz",
        "mean W",
        "true step [s]",
        "period found [s]",
        "verdict",
    )
    shown = [f"  {name}: {loop.shows}" for name, loop in LOOPS.items() if name in {t.name for t in known}]
    title = f"traces: sensors of {kit.label}"
    return "\n".join([format_table(heads, rows, title), *shown, *missing])
