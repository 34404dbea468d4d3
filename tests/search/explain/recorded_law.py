"""A recording of a GPU that does not exist, whose figures follow a law: what costs its energy is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import ekc
from ekc import devices
from ekc.devices.device import MeasurementConditions, Metering, Peaks, Timing
from ekc.devices.recording import RecordingWriter
from ekc.devices.statistics import Interval
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.target import Limits
from ekc.search.sketches.naive import make_naive_schedule
from ekc.search.space.space import Space

OP = ekc.matmul(128, 128, 128)
COUNT = 40
NOISE = 0.01
_LIKE = devices.open("a100")
Law = Callable[[dict[str, float]], tuple[float, float]]
"""Figures of the analysis -> (seconds, watts)."""


@dataclass
class MadeUp:
    """The attributes of a device that a recording has."""

    name: str = "Made-up GPU"
    label: str = "Made-up GPU (cuda:0)"
    simulated: bool = False
    arch: str = "sm_80"
    driver: str = "none"
    clock_regime: str = "free"
    data_policy: str = "none"
    memory_bytes: int | None = None
    limits: Limits = _LIKE.limits
    peaks: Peaks = field(default_factory=lambda: _LIKE.peaks)


@cache
def schedules(op: ekc.Operator = OP) -> list[ekc.Schedule]:
    """The naive one, and legal ones that were drawn."""
    space, random = Space(op, MadeUp().limits), np.random.default_rng(0)
    legal, _ = space.repair(random, space.sample(random, 4 * COUNT))
    drawn = (space.build_schedule(legal, row) for row in range(len(legal)))
    found = {s.digest: s for s in (make_naive_schedule(op), *drawn)}
    return list(found.values())[:COUNT]


def by_global_memory(figures: dict[str, float]) -> tuple[float, float]:
    """Time goes by sectors of global memory alone; power is always the same."""
    sectors = figures["total_global_load_sectors"] + figures["total_global_store_sectors"]
    return 1e-6 + 1e-10 * sectors, 200.0


def by_barriers(figures: dict[str, float]) -> tuple[float, float]:
    """A barrier costs more than anything; power is always the same."""
    return 1e-5 + 1e-8 * figures["total_barriers"], 200.0


def measured(latency_s: float, power_w: float) -> tuple[Timing, Metering]:
    said = MeasurementConditions("Made-up GPU", False, "none", "none", "free", 1000.0, 50.0, (), "none", "0")
    energy = latency_s * power_w
    seconds, watts, joules = (Interval(0.99 * x, 1.01 * x) for x in (latency_s, power_w, energy))
    return (
        Timing(latency_s, seconds, 1, said),
        Metering(power_w, watts, energy, joules, energy, energy, 50.0, 1.0, 1, said),
    )


def record(path: Path, law: Law, count: int = COUNT, metered: int = COUNT, failed: int = 0) -> Path:
    """So many schedules timed, the first of them metered; then some that failed."""
    device, random = MadeUp(), np.random.default_rng(1)
    with RecordingWriter(path, device) as writer:  # type: ignore[arg-type]
        for number, schedule in enumerate(schedules()[: count + failed]):
            figures = analyse_program(schedule.program, device.limits)
            writer.add_schedule(schedule, "drawn", figures, None)
            if number >= count:
                writer.add_failure(schedule, "device: made up for the test")
                continue
            seconds, watts = law({name: float(value[0]) for name, value in figures.items()})
            timing, metering = measured(seconds * np.exp(NOISE * random.standard_normal()), watts)
            writer.add_timing(schedule, timing)
            if number < metered:
                writer.add_metering(schedule, metering)
    return path
