"""Figures of schedules: compiled, with the CUDA text; of a sample of the space of the search; recorded.

The jobs of worker processes are here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule, generate
from ekc.devices.device import Device
from ekc.devices.recording import RecordedDevice
from ekc.devices.recording.reader import RecordedRow
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import EkcError
from ekc.explorer.steps import (
    Estimates,
    estimate_families,
    estimate_schedules,
    list_legal_families,
    price_quantities,
)
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.schedule import Schedule
from ekc.search.space.space import Space

COUNTS = {
    "blocks": "blocks",
    "threads": "threads per block",
    "active_warps": "resident warps per SM",
    "total_operations": "arithmetic instructions of warps",
    "total_tensor_products": "tensor-core products",
    "total_loop_steps": "loop steps of warps",
    "total_global_load_requests": "global loads of warps",
    "total_global_load_sectors": "sectors of 32 bytes loaded",
    "total_shared_load_requests": "shared loads of warps",
    "total_shared_load_wavefronts": "passes through shared banks",
    "total_barriers": "barriers of warps",
    "l2_bytes": "bytes from L2",
    "dram_bytes": "bytes from DRAM",
}
"""Quantities of the analysis that the page shows, with their names there."""


@dataclass(frozen=True)
class StepFigures:
    """The compiled, or recorded, figures of one schedule. Latency and energy are those of one call."""

    digest: str
    source: str
    """"compiled for a100 (simulated)" or "recorded ..."."""
    latency_s: float | None = None
    energy_j: float | None = None
    power_w: float | None = None
    failure: str = ""
    """Why there are no figures; "" where there are."""
    cuda_source: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    """Quantity of `COUNTS` -> value, from the analysis of the schedule."""
    causes: tuple[tuple[str, float, str, float], ...] = ()
    """(cause, count, unit, joules) of one call, counted from the compiled kernel; simulated devices only."""
    estimated_latency_s: float | None = None
    """The estimate without compiling, to show its error."""
    estimated_energy_j: float | None = None


@cache
def open_device(target: str) -> Device:
    """The device of a target, opened once a process."""
    return devices.open(target)


def run_figures_job(schedule_json: str, target: str) -> StepFigures:
    """Compile a schedule, time and meter it; a failure is part of the result. A job of a worker."""
    schedule, device = Schedule.from_json(schedule_json), open_device(target)
    if isinstance(device, RecordedDevice):
        return _read_recorded_figures(schedule, device)
    try:
        kernel = compile_schedule(schedule, device.arch, device.limits)
        timing = device.time(kernel)
        metering = device.meter(kernel)
    except EkcError as problem:
        return StepFigures(
            schedule.digest, device.label, failure=str(problem), counts=_count(schedule, device)
        )
    estimate = estimate_schedules([schedule], device)
    return StepFigures(
        schedule.digest,
        f"compiled for {device.label}",
        timing.latency_s,
        metering.energy_j,
        metering.power_w,
        cuda_source=kernel.cuda_source,
        resources=_list_resources(kernel),
        counts=_count(schedule, device),
        causes=_list_causes(kernel, device),
        estimated_latency_s=float(estimate.latency_s[0]),
        estimated_energy_j=float(estimate.energy_j[0]),
    )


def _read_recorded_figures(schedule: Schedule, device: RecordedDevice) -> StepFigures:
    row, source = device.recording.by_digest.get(schedule.digest), f"recorded: {device.label}"
    counts = _count(schedule, device)
    try:
        text = generate(schedule, device.limits).source
    except EkcError as problem:
        return StepFigures(schedule.digest, source, failure=str(problem))
    if row is None:
        return StepFigures(schedule.digest, source, failure="not recorded", cuda_source=text, counts=counts)
    return StepFigures(
        schedule.digest,
        source,
        *read_figures(row),
        row.failure,
        text,
        {"registers": max((r.registers for r in row.resources), default=0)},
        counts,
    )


def read_figures(row: RecordedRow) -> tuple[float | None, float | None, float | None]:
    """(latency in seconds, energy in joules, power in watts) of a recorded schedule, as far as known."""
    timing = row.find_timing() if row.timings else None
    metering = row.find_metering() if row.meterings else None
    return (
        timing.latency_s if timing else None,
        metering.energy_j if metering else None,
        metering.power_w if metering else None,
    )


def _count(schedule: Schedule, device: Device) -> dict[str, float]:
    try:
        quantities = analyse_program(schedule.program, device.limits)
    except EkcError:
        return {}
    return {name: float(quantities[name][0]) for name in COUNTS}


def _list_resources(kernel: CompiledKernel) -> dict[str, float]:
    """The most that a launch needs."""
    return {
        "registers per thread": max(r.registers for r in kernel.resources),
        "shared bytes per block": max(
            r.shared_bytes + one.shared_bytes
            for r, one in zip(kernel.resources, kernel.launches, strict=True)
        ),
        "spilled bytes per thread": max(r.spill_store_bytes for r in kernel.resources),
        "launches": len(kernel.launches),
    }


def _list_causes(kernel: CompiledKernel, device: Device) -> tuple[tuple[str, float, str, float], ...]:
    if not isinstance(device, SimulatedDevice):
        return ()
    breakdown = device.break_down_energy(kernel)
    return tuple((c.name, c.count, c.unit, c.joules) for c in breakdown.causes)


def compute_share_below(value: float, sample: np.ndarray) -> float:
    """Share of the sample that is better (less) than a value, from 0 to 1."""
    return float(np.mean(sample < value)) if len(sample) else float("nan")


def list_recorded_neighbours(
    schedule: Schedule, device: RecordedDevice
) -> list[tuple[RecordedRow, tuple[str, ...]]]:
    """All recorded schedules of the operator but the present one, and how they differ from it: steps left out
    (with a minus) and added (with a plus). Those with fewest changes come first."""
    others = [row for row in device.recording.find_rows(schedule.op) if row.digest != schedule.digest]
    found = [(row, _list_changes(schedule, row.schedule)) for row in others]
    return sorted(found, key=lambda one: len(one[1]))


def _list_changes(before: Schedule, after: Schedule) -> tuple[str, ...]:
    old, new = ([s.to_python().removeprefix(".") for s in one.steps] for one in (before, after))
    changes = []
    for tag, i, j, k, n in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            changes += [f"- {text}" for text in old[i:j]] + [f"+ {text}" for text in new[k:n]]
    return tuple(changes)


# Jobs of worker processes: arguments and results pickle.


def import_modules() -> None:
    """Import what the jobs need, as the first job of a worker."""
    from ekc.codegen import nvrtc

    nvrtc.version()


def run_list_job(
    schedule_json: str, target: str, part: int, parts: int
) -> tuple[dict[int, list[int]], Estimates]:
    """(family number -> its legal entries, their estimated figures), for every `parts`-th family of the
    menu."""
    device = open_device(target)
    families = list_legal_families(_read_schedule(schedule_json), device.limits, part, parts)
    return {x.number: x.rows.tolist() for x in families}, estimate_families(families, device)


@cache
def _read_schedule(schedule_json: str) -> Schedule:
    return Schedule.from_json(schedule_json)


def run_present_job(schedule_json: str, target: str) -> Estimates | None:
    """Estimated figures of a schedule; None where its analysis is not possible."""
    try:
        return estimate_schedules([_read_schedule(schedule_json)], open_device(target))
    except EkcError:
        return None


SAMPLE_SIZE = 400
"""Schedules drawn from the space, before those that break a rule are dropped."""


def run_sample_job(empty_json: str, target: str, seed: int = 0) -> Estimates:
    """Estimated figures of legal schedules drawn from the space that the search of ekc breeds in."""
    device = open_device(target)
    space = Space(Schedule.from_json(empty_json).op, device.limits)
    random = np.random.default_rng(seed)
    drawn, _ = space.repair(random, space.sample(random, SAMPLE_SIZE))
    return price_quantities(space.compute_quantities(drawn), device)
