"""Calls a kernel back to back until told to stop: what runs in the worker while the parent meters.

Two batches are queued at any time, so that the GPU never waits for the host between calls, and they are
short, so that it stops soon after it is told.
"""

from __future__ import annotations

from collections.abc import Callable

from ekc.devices.cuda.stage import LoadedKernel
from ekc.devices.cuda.timing import QueueUnit
from ekc.devices.meter import CompletedCalls

BATCH_DURATION_S = 0.01
"""A hundredth of the interval at which energy counters move."""


def compute_queued_s(unit: QueueUnit) -> float:
    """Seconds of the two batches."""
    return 2 * unit.estimate_seconds(unit.count_repeats(BATCH_DURATION_S))


def call_back_to_back(
    loaded_kernel: LoadedKernel, unit: QueueUnit, should_stop: Callable[[], bool]
) -> CompletedCalls:
    """Queue batches until `told()`; how many calls there were, and the GPU's time from first to last."""
    driver, stream = loaded_kernel.driver, loaded_kernel.stream
    repeats = unit.count_repeats(BATCH_DURATION_S)
    begin, before, after = loaded_kernel.get_events(3)
    driver.record_event(begin, stream)
    batches = 0

    def queue(end: int) -> None:
        for _ in range(repeats):
            unit.queue()
        driver.record_event(end, stream)

    queue(before)
    while True:
        queue(after)
        driver.wait_for_event(before)
        batches += 1
        before, after = after, before
        if should_stop():
            break
    driver.wait_for_event(before)
    return CompletedCalls((batches + 1) * repeats * unit.calls, driver.elapsed_s(begin, before))
