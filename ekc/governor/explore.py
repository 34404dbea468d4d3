"""The search in one phase: SM clocks or caps, then memory clocks where there are several, then the choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekc.governor import objective
from ekc.governor import phase as phases
from ekc.governor.events import Chosen
from ekc.governor.measure import JobMeter
from ekc.governor.phase import EventCallback, Phase
from ekc.governor.protocols import Gears, Settings
from ekc.governor.reading import get_rate_error

MAX_MEMORY_UTIL = 12.0
"""Percent of memory use above which a lower memory clock is not tried."""
MAX_TRADED_SLOWDOWN = 0.02
"""Slowdown that the SM clock may give back for a lower memory clock."""


def run_search(meter: JobMeter, phase: Phase, gears: Gears, on_event: EventCallback) -> None:
    """Search SM clocks, then memory clocks where there are several, and put the choice in force."""
    start, joules = meter.probe.now(), meter.probe.read_energy_j()
    points = len(phase.readings.other_readings)
    while (place := phase.search.propose_next(phase.readings)) is not None:
        settings = phase.search.control.make_settings(phase.search.gears[place], phase.search.memory_mhz)
        if not phases.measure_settings(meter, phase, settings, "candidate", on_event):
            break
        last = phase.readings.other_readings[-1]
        if phase.readings.estimate_default_error(last.at_s) > max(0.008, 0.8 * get_rate_error(last.pace)):
            phases.remeasure_default(meter, phase, on_event)
    if len(phase.readings.default_readings) == 1 and phase.readings.other_readings:
        phases.remeasure_default(meter, phase, on_event)
    phase.choice = phases.choose_settings(phase)
    if gears.memory_mhz and _can_memory_pay(phase):
        _search_memory_clocks(meter, phase, gears, on_event)
    meter.set_limits(phase.choice, "the choice")
    expected = phases.predict_choice(phase)
    spent = meter.probe.now() - start, meter.probe.read_energy_j() - joules
    visited = len(phase.readings.other_readings) - points
    on_event(Chosen(meter.probe.now(), phase.choice, expected.slowdown, expected.saving, visited, *spent))


def _can_memory_pay(phase: Phase) -> bool:
    use = float(np.mean([r.memory_util for r in phase.readings.default_readings]))
    return phase.progress.kind in ("steps", "period") and use < MAX_MEMORY_UTIL


def _find_faster_settings(
    phase: Phase, base_settings: Settings, slowdown_reduction: float
) -> Settings | None:
    """The choice at the default's memory clock that leaves so much more of the budget."""
    now = phase.search.fit_response(phase.readings)
    wanted = phases.predict_settings(phase, base_settings).slowdown - slowdown_reduction
    fast = np.flatnonzero(
        (now.slowdown <= wanted) & (now.gears < phase.search.get_default_limit(phase.readings))
    )
    return phase.search.control.make_settings(now.gears[fast[0]]) if len(fast) else None


def _search_memory_clocks(meter: JobMeter, phase: Phase, gears: Gears, on_event: EventCallback) -> None:
    """Step down the memory clock at the chosen SM clock while that is allowed and better."""
    policy = phase.search.policy
    best, standing = phases.predict_choice(phase), phase.choice
    top = gears.memory_mhz[-1]
    for memory in reversed([m for m in gears.memory_mhz if m < 0.9 * top]):
        settings = replace(standing, memory_mhz=memory)
        if not phases.measure_settings(meter, phase, settings, "candidate", on_event):
            return
        now = phase.readings.compare_to_default(phase.readings.other_readings[-1])
        over = float(objective.compute_violation(policy, now.slowdown, now.saving))
        if (
            0 < over <= MAX_TRADED_SLOWDOWN
            and (faster := _find_faster_settings(phase, standing, over)) is not None
        ):
            settings = replace(faster, memory_mhz=memory)
            if not phases.measure_settings(meter, phase, settings, "candidate", on_event):
                return
            now = phase.readings.compare_to_default(phase.readings.other_readings[-1])
            over = float(objective.compute_violation(policy, now.slowdown, now.saving))
        if not over <= 0:
            return
        if objective.compute_score(policy, now.slowdown, now.saving) >= objective.compute_score(
            policy, best.slowdown, best.saving
        ):
            return
        best, phase.choice = now, settings
        phase.search = replace(phase.search, memory_mhz=memory)
