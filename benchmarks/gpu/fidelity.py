"""The simulated model of this GPU compared with the measurements on it, row by row of the recording."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.common.ranking import compute_error
from benchmarks.common.script import Column, format_lines
from benchmarks.gpu.folder import RECORDING
from benchmarks.gpu.kit import Budget, Kit, NotRun
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Device
from ekc.devices.recording import RecordedRow, read_recording
from ekc.devices.simulated import specs
from ekc.errors import EkcError
from ekc.ir.analysis.analysis import analyse_program
from ekc.search.cost_model.row_weights import spearman

MINUTES = 2.0


def run(kit: Kit, budget: Budget) -> None:
    """A row for each recorded schedule that was metered, then for those only timed."""
    file = kit.folder.path / RECORDING
    if not file.exists():
        raise NotRun("nothing is recorded yet: run the part record")
    recording = read_recording(file)
    model = find_model(recording.origin.name)
    if model is None:
        names = ", ".join(specs.list_names())
        raise NotRun(f"there is no simulated model of {recording.origin.name}, only of {names}")
    timed = sorted((r for r in recording.rows if r.timings), key=lambda r: not r.meterings)
    todo = (r for r in timed if kit.folder.find_row("fidelity", r.digest) is None)
    for row in budget.take_affordable(todo):
        _simulate(kit, model, row, str(recording.operators[row.operator]).splitlines()[0])


def find_model(name: str) -> Device | None:
    """The simulated device whose name is in the product name: rtx4090 in NVIDIA GeForce RTX 4090."""
    plain = "".join(filter(str.isalnum, name.lower()))
    names = [known for known in specs.list_names() if known in plain]
    return devices.open(max(names, key=len)) if names else None


def _simulate(kit: Kit, model: Device, row: RecordedRow, operator: str) -> None:
    timing = row.find_timing()
    facts: dict[str, Any] = {"operator": operator, "latency_s": timing.latency_s}
    try:
        recorded_mhz = timing.conditions.clock_mhz
        model = model.at_clock(min(model.clocks().mhz, key=lambda mhz: abs(mhz - recorded_mhz)))
        # The figures of a recording are those of the ekc that made it, which may have counted otherwise.
        figures = analyse_program(row.schedule.program, model.limits)
        facts["prior_s"] = float(model.prior(figures).latency_s[0])
        kernel = compile_schedule(row.schedule, model.arch, model.limits)
        facts["simulated_s"] = model.time(kernel).latency_s
        if row.meterings:
            metering = row.find_metering()
            facts |= {"power_w": metering.power_w, "simulated_w": model.meter(kernel).power_w}
    except EkcError as problem:
        kit.folder.add_row("fidelity", row.digest, str(problem), **facts)
        return
    kit.folder.add_row("fidelity", row.digest, "ok", model=model.label, **facts)


def make_table(kit: Kit) -> str:
    """Rank correlations and errors by operator; of the model, of the prior, which uses the analysis
    alone, and of a constant power."""
    rows = [r for r in kit.folder.list_rows("fidelity") if r["status"] == "ok"]
    if not rows:
        return "fidelity: nothing to compare"
    lines = [
        _judge_operator(op, [r for r in rows if r["operator"] == op])
        for op in dict.fromkeys(r["operator"] for r in rows)
    ]
    title = f"fidelity: {rows[0]['model']} against {kit.label}"
    text = format_lines(COLUMNS, lines, title)
    if read_recording(kit.folder.path / RECORDING).origin.simulated:
        text += "\n  the recording is of the simulated model itself, so it says nothing about a GPU"
    return text


COLUMNS = (
    Column("operator", "operator"),
    Column("rows", "rows"),
    Column("latency: rank", "rank", ".2f"),
    Column("error", "error", ".1%"),
    Column("prior: rank", "prior_rank", ".2f"),
    Column("power: error", "power_error", ".1%"),
    Column("constant: error", "constant_error", ".1%"),
)


def _judge_operator(operator: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    real, simulated, expected = (
        np.array([r[k] for r in rows]) for k in ("latency_s", "simulated_s", "prior_s")
    )
    line = {
        "operator": operator,
        "rows": len(rows),
        "rank": spearman(simulated, real),
        "error": compute_error(simulated, real),
        "prior_rank": spearman(expected, real),
    }
    if metered := [r for r in rows if "power_w" in r]:
        watts, predicted = (np.array([r[k] for r in metered]) for k in ("power_w", "simulated_w"))
        constant = np.full(len(watts), np.median(watts))
        line["power_error"] = compute_error(predicted, watts)
        line["constant_error"] = compute_error(constant, watts)
    return line
