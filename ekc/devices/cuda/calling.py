"""Calls a kernel back to back until told to stop: what runs in the worker while the parent meters.

Two batches are queued at any time, so that the GPU never waits for the host between calls, and they are
short, so that it stops soon after it is told.
"""

from __future__ import annotations

from collections.abc import Callable

from ekc.devices.cuda.stage import Stage
from ekc.devices.cuda.timing import Unit
from ekc.devices.meter import Calls

BATCH_S = 0.01
"""A hundredth of the interval at which energy counters move."""


def queued_s(unit: Unit) -> float:
    """Seconds of the two batches."""
    return 2 * unit.seconds(unit.repeats(BATCH_S))


def call_until(stage: Stage, unit: Unit, told: Callable[[], bool]) -> Calls:
    """Queue batches until `told()`; how many calls there were, and the GPU's time from first to last."""
    driver, stream = stage.driver, stage.stream
    repeats = unit.repeats(BATCH_S)
    begin, before, after = stage.events(3)
    driver.record(begin, stream)
    batches = 0

    def queue(end: int) -> None:
        for _ in range(repeats):
            unit.queue()
        driver.record(end, stream)

    queue(before)
    while True:
        queue(after)
        driver.wait(before)
        batches += 1
        before, after = after, before
        if told():
            break
    driver.wait(before)
    return Calls((batches + 1) * repeats * unit.calls, driver.elapsed_s(begin, before))
