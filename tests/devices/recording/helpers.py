"""A small recording of the simulated a100: compiled, timed and metered."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

import ekc
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.recording import RecordingWriter
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.space.space import Space

OP = ekc.matmul(32, 32, 32)
OTHER = ekc.matvec(64, 64)
COUNT = 12
TARGET = "a100"


@cache
def schedules() -> list[tuple[ekc.Schedule, str]]:
    """The naive schedule, and drawn legal ones."""
    space = Space(OP, devices.open(TARGET).limits)
    random = np.random.default_rng(0)
    legal, _ = space.repair(random, space.sample(random, 4 * COUNT))
    found = {make_naive_schedule(OP).digest: (make_naive_schedule(OP), "naive")}
    for row in range(len(legal)):
        schedule = space.build_schedule(legal, row)
        found.setdefault(schedule.digest, (schedule, space.get_structure_name(legal, row)))
    return list(found.values())[:COUNT]


def record(path: Path, count: int = COUNT, every: int = 2) -> Path:
    """Record schedules: all timed, one of `every` metered, one timed twice, the last failed; then one
    schedule of another operator."""
    device = devices.open(TARGET)
    with RecordingWriter(path, device) as writer:
        for number, (schedule, structure) in enumerate(schedules()[:count]):
            figures = analyse_program(schedule.program, device.limits)
            if number == count - 1:
                writer.add_schedule(schedule, structure, figures, None)
                writer.add_failure(schedule, "compile: made up for the test")
                continue
            kernel = compile_schedule(schedule, device.arch, device.limits)
            writer.add_schedule(schedule, structure, figures, kernel)
            writer.add_timing(schedule, device.time(kernel))
            if number % every == 0:
                writer.add_metering(schedule, device.meter(kernel))
            if number == 2:
                writer.add_timing(schedule, device.time(kernel, repeat=2), repeat=2)
        other = make_naive_schedule(OTHER)
        kernel = compile_schedule(other, device.arch, device.limits)
        writer.add_schedule(other, "naive", analyse_program(other.program, device.limits), kernel)
        writer.add_timing(other, device.time(kernel))
    return path
