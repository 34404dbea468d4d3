"""Zeus's GlobalPowerLimitOptimizer (ml-energy/zeus): one exhaustive sweep of power caps, over counted steps.

Defaults as published: caps from the highest down in steps of 25 W, each with 10 steps of warm-up and 40
profiled steps; then the least cap within `MaxSlowdownConstraint(1.05)`. It needs step hooks in the script,
so the probe must have them.
"""

from __future__ import annotations

import contextlib

from ekc.errors import InvalidInput
from ekc.governor.job_meter import JobEnded, JobMeter
from ekc.governor.protocols import Actuator, Probe, Settings

WARM_UP_STEPS = 10
PROFILED_STEPS = 40
MAX_SLOWDOWN = 0.05
POLL_S = 2.0
FIRST_STEP_S = 60.0
"""Seconds to wait for the first step, since hooks report a count only after it; enough for every simulated
job."""


def run_zeus_sweep(probe: Probe, actuator: Actuator) -> None:
    """Govern one job until it ends."""
    meter = JobMeter(probe, actuator, lambda event: None)
    with contextlib.suppress(JobEnded):
        seconds: dict[float, float] = {}
        for cap in reversed(actuator.list_offered().power_w):
            actuator.apply(Settings(power_w=cap))
            _time_steps(meter, WARM_UP_STEPS)
            seconds[cap] = _time_steps(meter, PROFILED_STEPS)
        fastest = seconds[max(seconds)]
        allowed = [cap for cap, step_s in seconds.items() if step_s <= (1 + MAX_SLOWDOWN) * fastest]
        actuator.apply(Settings(power_w=min(allowed)))
        while True:
            meter.record(60.0)


def _time_steps(meter: JobMeter, count: int) -> float:
    """Mean seconds of the next `count` steps."""
    began, first = meter.probe.now(), meter.probe.read_step_count() or 0.0
    while (meter.probe.read_step_count() or 0.0) < first + count:
        meter.record(POLL_S)
        if meter.probe.read_step_count() is None and meter.probe.now() - began > FIRST_STEP_S:
            raise InvalidInput("Zeus's sweep counts steps: this probe has no step hooks")
    return (meter.probe.now() - began) / ((meter.probe.read_step_count() or 0.0) - first)
