"""A small recording of the simulated a100, made for real: compiled, timed, metered."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

import ekc
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.recording import Writer
from ekc.ir.analysis.analysis import analyse
from ekc.search.space.naive import naive
from ekc.search.space.space import Space

OP = ekc.matmul(32, 32, 32)
OTHER = ekc.matvec(64, 64)
COUNT = 12
TARGET = "a100"


@cache
def schedules() -> list[tuple[ekc.Schedule, str]]:
    """The naive one, and legal ones that were drawn."""
    space = Space(OP, devices.open(TARGET).limits)
    random = np.random.default_rng(0)
    legal, _ = space.repair(random, space.draw(random, 4 * COUNT))
    found = {naive(OP).digest: (naive(OP), "naive")}
    for row in range(len(legal)):
        schedule = space.schedule(legal, row)
        found.setdefault(schedule.digest, (schedule, space.structure_name(legal, row)))
    return list(found.values())[:COUNT]


def record(path: Path, count: int = COUNT, every: int = 2) -> Path:
    """All timed, of `every` so many one metered, one timed twice, the last failed; then one of another
    operator."""
    device = devices.open(TARGET)
    with Writer(path, device) as writer:
        for number, (schedule, structure) in enumerate(schedules()[:count]):
            figures = analyse(schedule.program, device.limits)
            if number == count - 1:
                writer.schedule(schedule, structure, figures, None)
                writer.failure(schedule, "compile: made up for the test")
                continue
            kernel = compile_schedule(schedule, device.arch, device.limits)
            writer.schedule(schedule, structure, figures, kernel)
            writer.timing(schedule, device.time(kernel))
            if number % every == 0:
                writer.metering(schedule, device.meter(kernel))
            if number == 2:
                writer.timing(schedule, device.time(kernel, draw=2), repeat=2)
        other = naive(OTHER)
        kernel = compile_schedule(other, device.arch, device.limits)
        writer.schedule(other, "naive", analyse(other.program, device.limits), kernel)
        writer.timing(other, device.time(kernel))
    return path
