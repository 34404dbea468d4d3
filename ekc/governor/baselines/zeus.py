"""Zeus's GlobalPowerLimitOptimizer (ml-energy/zeus): one exhaustive sweep of power caps, over counted steps.

Defaults as published: caps from the highest down in steps of 25 W, at each 10 steps of warm-up and 40
profiled; then the least cap that keeps `MaxSlowdownConstraint(1.05)`. It needs step hooks in the script, so
the probe must have them.
"""

from __future__ import annotations

import contextlib

from ekc.errors import InvalidInput
from ekc.governor.measure import JobEnded, Meter
from ekc.governor.protocols import Actuator, Probe, Settings

WARM_UP = 10
PROFILED = 40
SLOWDOWN = 0.05
POLL_S = 2.0
FIRST_STEP_S = 60.0
"""Hooks tell nothing until the first step has ended; every simulated job has ended one by then."""


def zeus_sweep(probe: Probe, actuator: Actuator) -> None:
    """Steer one job until it ends."""
    meter = Meter(probe, actuator, lambda event: None)
    with contextlib.suppress(JobEnded):
        seconds: dict[float, float] = {}
        for cap in reversed(actuator.gears().power_w):
            actuator.apply(Settings(power_w=cap))
            _steps(meter, WARM_UP)
            seconds[cap] = _steps(meter, PROFILED)
        fastest = seconds[max(seconds)]
        kept = [cap for cap, each in seconds.items() if each <= (1 + SLOWDOWN) * fastest]
        actuator.apply(Settings(power_w=min(kept)))
        while True:
            meter.record(60.0)


def _steps(meter: Meter, count: int) -> float:
    """Seconds that each of the next steps took."""
    began, done = meter.probe.now(), meter.probe.steps() or 0.0
    while (meter.probe.steps() or 0.0) < done + count:
        meter.record(POLL_S)
        if meter.probe.steps() is None and meter.probe.now() - began > FIRST_STEP_S:
            raise InvalidInput("Zeus's sweep counts steps: this probe has no step hooks")
    return (meter.probe.now() - began) / ((meter.probe.steps() or 0.0) - done)
