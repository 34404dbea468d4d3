"""Timing in the worker: seconds of one call, measured by events on the GPU.

Several samples are queued before the first is waited for, so that no sample begins on an idle GPU whose host
is still launching. There are enough calls between two events to be long against the resolution of events.
Calls shorter than the host needs for a launch are replayed from a graph.

Cold: before each call a buffer larger than the L2 is written, outside the events; each sample is one call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ekc.devices.cuda.loaded_kernel import LoadedKernel
from ekc.devices.cuda.messages import TimingRules, TimingSamples
from ekc.devices.statistics import compute_relative_width

GRAPH_CALL_THRESHOLD_S = 200e-6
"""Seconds of a call below which calls are replayed from a graph. A first measurement contains the time of the
host (about 5 us for each launch) and the clock of an idle GPU, which may be a sixth of its highest: only
calls that seem far longer than both are surely longer than the host needs."""
GRAPH_DURATION_S = 1e-3
"""Seconds of work in one graph, about."""
MAX_GRAPH_CALLS = 100
"""Calls in one graph, at most."""
SAMPLE_DURATION_S = 2e-3
"""Seconds between two events: a thousand times their resolution."""
WARM_UP_DURATION_S = 0.05
"""Seconds of calls before the first sample; an idle GPU takes tens of milliseconds to raise its clock."""
CODE_LOAD_THRESHOLD_S = 1.0
"""Seconds of a first call above which a second one is measured: the first call also loads the code."""
MAX_ROUND_DURATION_S = 0.1
"""Seconds of work queued at once, at most, unless `TimingRules.min_samples` samples take longer."""
FLUSH_REPEATS = 2
"""Times that the L2 is overwritten: it may consist of halves that each hold a copy."""
MIN_FLUSH_BYTES = 1 << 26
"""Bytes to overwrite, at least: meanwhile the host queues the call. Twice an L2 of 6 MB takes some GPUs 14
us, and an event that happens before its call is queued counts the host too."""


@dataclass(frozen=True)
class QueueUnit:
    """Work that is queued between two events, `repeats` times."""

    queue: Callable[[], None]
    calls: int
    call_s: float
    """First estimate of the seconds of a call."""
    method: str

    def count_repeats(self, seconds: float) -> int:
        """Repeats that fit into a time, at least one."""
        return max(1, round(seconds / (self.calls * self.call_s)))

    def estimate_seconds(self, repeats: int) -> float:
        """Seconds of so many repeats."""
        return repeats * self.calls * self.call_s


def choose_graph_calls(call_s: float) -> int:
    """Calls in one graph, for calls of about that length; benchmarks use the same number for libraries."""
    return min(MAX_GRAPH_CALLS, max(1, round(GRAPH_DURATION_S / max(call_s, 1e-9))))


def sample_until_narrow(
    take_samples: Callable[[int], list[float]], rules: TimingRules, elapsed_s: Callable[[], float]
) -> list[float]:
    """Take rounds of samples, each as long as all before, until the interval of the median is narrow. `take`
    gives so many samples or fewer; `elapsed_s` gives the seconds since the start.

    Checks are few, and after numbers of samples that are fixed in advance: the interval is corrected for
    these.
    """
    samples: list[float] = []
    target_count = rules.first_check_samples
    while True:
        samples += take_samples(target_count - len(samples))
        if len(samples) >= rules.max_samples or elapsed_s() >= rules.max_seconds:
            return samples
        if len(samples) >= target_count:
            if compute_relative_width(samples) <= rules.target_width:
                return samples
            target_count = min(2 * target_count, rules.max_samples)


class KernelTimer:
    """Times the loaded kernel."""

    def __init__(
        self, loaded_kernel: LoadedKernel, l2_bytes: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._loaded_kernel, self._driver, self._now = loaded_kernel, loaded_kernel.driver, now
        self._flush_bytes = max(FLUSH_REPEATS * l2_bytes, MIN_FLUSH_BYTES)
        self._flush_address: int | None = None

    def time(
        self, rules: TimingRules, on_estimate: Callable[[float], None] = lambda seconds: None
    ) -> TimingSamples:
        """Time the loaded kernel by these rules. After a first call `on_estimate` gets the seconds that the
        minimum number of samples takes."""
        start_s = self._now()
        with self.prepare_unit(rules.is_cold) as unit:
            repeats = 1 if rules.is_cold else unit.count_repeats(SAMPLE_DURATION_S)
            on_estimate(rules.min_samples * unit.estimate_seconds(repeats))
            self._warm_up(unit)

            def take(most: int) -> list[float]:
                return self._take_round(unit, repeats, most, rules)

            samples = sample_until_narrow(take, rules, lambda: self._now() - start_s)
        return TimingSamples(tuple(samples), unit.method, repeats * unit.calls)

    @contextmanager
    def prepare_unit(self, is_single_call: bool = False) -> Iterator[QueueUnit]:
        """The unit to queue: the launches of a call, or a graph of short calls (one if `is_single_call`)."""
        once = self._time_once(self._loaded_kernel.queue_launches)
        if once < CODE_LOAD_THRESHOLD_S:
            once = self._time_once(self._loaded_kernel.queue_launches)
        if once >= GRAPH_CALL_THRESHOLD_S:
            yield QueueUnit(self._loaded_kernel.queue_launches, 1, once, "events")
            return
        calls = 1 if is_single_call else choose_graph_calls(once)
        with self._loaded_kernel.capture_graph(calls) as replay:
            each = max(self._time_once(replay) / calls, 1e-9)
            yield QueueUnit(replay, calls, each, "graph replay")

    def _time_once(self, queue: Callable[[], None]) -> float:
        start, end = self._get_event_pairs(1)[0]
        self._driver.record_event(start, self._loaded_kernel.stream)
        queue()
        self._driver.record_event(end, self._loaded_kernel.stream)
        self._driver.wait_for_event(end)
        return self._driver.elapsed_s(start, end)

    def _warm_up(self, unit: QueueUnit) -> None:
        """Warm the GPU up; not for a call that was long enough."""
        if unit.call_s >= WARM_UP_DURATION_S:
            return
        end = self._get_event_pairs(1)[0][1]
        for _ in range(unit.count_repeats(WARM_UP_DURATION_S)):
            unit.queue()
        self._driver.record_event(end, self._loaded_kernel.stream)
        self._driver.wait_for_event(end)

    def _take_round(self, unit: QueueUnit, repeats: int, max_samples: int, rules: TimingRules) -> list[float]:
        """Up to `max_samples` samples, queued together."""
        number = max(1, min(max_samples, round(MAX_ROUND_DURATION_S / unit.estimate_seconds(repeats))))
        pairs = self._get_event_pairs(max(number, min(max_samples, rules.min_samples)))
        for start, end in pairs:
            if rules.is_cold:
                self._overwrite_l2()
            self._driver.record_event(start, self._loaded_kernel.stream)
            for _ in range(repeats):
                unit.queue()
            self._driver.record_event(end, self._loaded_kernel.stream)
        self._driver.wait_for_event(pairs[-1][1])
        return [self._driver.elapsed_s(*pair) / (repeats * unit.calls) for pair in pairs]

    def _overwrite_l2(self) -> None:
        if self._flush_address is None:
            self._flush_address = self._driver.allocate(self._flush_bytes)
        self._driver.fill(self._flush_address, 0, self._flush_bytes, self._loaded_kernel.stream)

    def _get_event_pairs(self, number: int) -> list[tuple[int, int]]:
        events = self._loaded_kernel.get_events(2 * number)
        return list(zip(events[::2], events[1::2], strict=True))
