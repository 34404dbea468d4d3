"""Seconds of one call, by events on the GPU: what runs in the worker.

Several samples are queued before the first is waited for, so that no sample begins on an idle GPU whose
host is still launching. Between two events lie enough calls to be long beside the events' resolution, and
calls shorter than a launch takes the host are replayed from a graph.

Cold: before each call a buffer larger than the L2 is written, outside the events; each sample is one call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ekc.devices.cuda.median import relative_width
from ekc.devices.cuda.messages import Rules, Samples
from ekc.devices.cuda.stage import Stage

SHORT_S = 200e-6
"""Calls that look shorter are replayed from a graph. A first look holds what the host needs (about 5 us for
each launch) and an idle GPU's clock, which may be a sixth of its highest: only what looks far longer than
both is sure to be longer than the host takes."""
GRAPH_S = 1e-3
"""A graph holds about so much work."""
GRAPH_CALLS = 100
"""And never more calls."""
SAMPLE_S = 2e-3
"""Time between two events: a thousand times their resolution."""
WARM_UP_S = 0.05
"""Back-to-back calls before the first sample; an idle GPU takes tens of milliseconds to raise its clock."""
LOADED_S = 1.0
"""The first call also loads the code. Where that may be what it took, a second one is looked at."""
ROUND_S = 0.1
"""Queued at once at most, unless fewer than `Rules.fewest` samples take longer."""
FLUSH = 2
"""How many times the L2 is overwritten: it may be cut in halves that each hold a copy."""
FLUSH_LEAST = 1 << 26
"""Bytes at least: while they are written the host queues the call. Twice an L2 of 6 MB takes some GPUs 14 us,
and an event that happens before its call is there counts the host too."""


@dataclass(frozen=True)
class Unit:
    """What is queued between two events, as often as `repeats`."""

    queue: Callable[[], None]
    calls: int
    call_s: float
    """A first estimate."""
    method: str

    def repeats(self, seconds: float) -> int:
        """How often it fits into a time, at least once."""
        return max(1, round(seconds / (self.calls * self.call_s)))

    def seconds(self, repeats: int) -> float:
        """How long that takes so often."""
        return repeats * self.calls * self.call_s


def calls_of_a_graph(call_s: float) -> int:
    """How many calls one graph holds, when one takes about so long; the benchmarks hold libraries to it."""
    return min(GRAPH_CALLS, max(1, round(GRAPH_S / max(call_s, 1e-9))))


def enough(take: Callable[[int], list[float]], rules: Rules, passed: Callable[[], float]) -> list[float]:
    """Rounds of samples, each as long as all before, until the interval of the median is narrow. `take` gives
    so many or fewer; `passed` tells the seconds since it all began.

    Looks are few, and after numbers that were chosen before: the interval is right for these."""
    samples: list[float] = []
    wanted = rules.first_look
    while True:
        samples += take(wanted - len(samples))
        if len(samples) >= rules.most or passed() >= rules.seconds:
            return samples
        if len(samples) >= wanted:
            if relative_width(samples) <= rules.width:
                return samples
            wanted = min(2 * wanted, rules.most)


class Timer:
    """Times what stands on a stage."""

    def __init__(self, stage: Stage, l2_bytes: int, now: Callable[[], float] = time.monotonic) -> None:
        self._stage, self._driver, self._now = stage, stage.driver, now
        self._flush_bytes = max(FLUSH * l2_bytes, FLUSH_LEAST)
        self._flush_room: int | None = None

    def time(self, rules: Rules, tell: Callable[[float], None] = lambda seconds: None) -> Samples:
        """What stands there, by these rules. `tell` is told after a first call how long the samples take that
        are always taken."""
        began = self._now()
        with self.unit(rules.cold) as unit:
            repeats = 1 if rules.cold else unit.repeats(SAMPLE_S)
            tell(rules.fewest * unit.seconds(repeats))
            self._warm_up(unit)

            def take(most: int) -> list[float]:
                return self._round(unit, repeats, most, rules)

            samples = enough(take, rules, lambda: self._now() - began)
        return Samples(tuple(samples), unit.method, repeats * unit.calls)

    @contextmanager
    def unit(self, alone: bool = False) -> Iterator[Unit]:
        """What to queue: the launches of one call, or a graph of many calls that are short (of one, if
        `alone`)."""
        once = self._one(self._stage.call)
        if once < LOADED_S:
            once = self._one(self._stage.call)
        if once >= SHORT_S:
            yield Unit(self._stage.call, 1, once, "events")
            return
        calls = 1 if alone else calls_of_a_graph(once)
        with self._stage.captured(calls) as replay:
            each = max(self._one(replay) / calls, 1e-9)
            yield Unit(replay, calls, each, "graph replay")

    def _one(self, queue: Callable[[], None]) -> float:
        start, end = self._pairs(1)[0]
        self._driver.record(start, self._stage.stream)
        queue()
        self._driver.record(end, self._stage.stream)
        self._driver.wait(end)
        return self._driver.elapsed_s(start, end)

    def _warm_up(self, unit: Unit) -> None:
        """Nothing for a call that was itself long enough."""
        if unit.call_s >= WARM_UP_S:
            return
        end = self._pairs(1)[0][1]
        for _ in range(unit.repeats(WARM_UP_S)):
            unit.queue()
        self._driver.record(end, self._stage.stream)
        self._driver.wait(end)

    def _round(self, unit: Unit, repeats: int, most: int, rules: Rules) -> list[float]:
        """Up to `most` samples, queued together."""
        number = max(1, min(most, round(ROUND_S / unit.seconds(repeats))))
        pairs = self._pairs(max(number, min(most, rules.fewest)))
        for start, end in pairs:
            if rules.cold:
                self._flush()
            self._driver.record(start, self._stage.stream)
            for _ in range(repeats):
                unit.queue()
            self._driver.record(end, self._stage.stream)
        self._driver.wait(pairs[-1][1])
        return [self._driver.elapsed_s(*pair) / (repeats * unit.calls) for pair in pairs]

    def _flush(self) -> None:
        if self._flush_room is None:
            self._flush_room = self._driver.allocate(self._flush_bytes)
        self._driver.fill(self._flush_room, 0, self._flush_bytes, self._stage.stream)

    def _pairs(self, number: int) -> list[tuple[int, int]]:
        events = self._stage.events(2 * number)
        return list(zip(events[::2], events[1::2], strict=True))
