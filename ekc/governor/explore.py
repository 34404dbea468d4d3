"""The search in one phase: SM clocks or caps, then memory clocks where there are several, then the choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekc.governor import objective
from ekc.governor import phase as phases
from ekc.governor.events import Chosen
from ekc.governor.measure import Meter
from ekc.governor.phase import Phase, Tell
from ekc.governor.protocols import Gears, Settings
from ekc.governor.reading import known

MEMORY_USE = 12.0
"""Percent of memory use above which a lower memory clock is not tried."""
TRADED = 0.02
"""Slowdown that the SM clock may give back for a lower memory clock."""


def explore(meter: Meter, phase: Phase, gears: Gears, tell: Tell) -> None:
    """Search SM clocks, then memory clocks where there are several, and put the choice in force."""
    start, joules = meter.probe.now(), meter.probe.energy_j()
    points = len(phase.ledger.others)
    while (place := phase.search.next(phase.ledger)) is not None:
        settings = phase.search.knob.settings(phase.search.gears[place], phase.search.memory_mhz)
        if not phases.visit(meter, phase, settings, "candidate", tell):
            break
        last = phase.ledger.others[-1]
        if phase.ledger.base_error(last.at_s) > max(0.008, 0.8 * known(last.pace)):
            phases.again(meter, phase, tell)
    if len(phase.ledger.defaults) == 1 and phase.ledger.others:
        phases.again(meter, phase, tell)
    phase.choice = phases.chosen(phase)
    if gears.memory_mhz and _memory_may_pay(phase):
        _explore_memory(meter, phase, gears, tell)
    meter.set(phase.choice, "the choice")
    expected = phases.expectation(phase)
    spent = meter.probe.now() - start, meter.probe.energy_j() - joules
    visited = len(phase.ledger.others) - points
    tell(Chosen(meter.probe.now(), phase.choice, expected.slowdown, expected.saving, visited, *spent))


def _memory_may_pay(phase: Phase) -> bool:
    use = float(np.mean([r.memory_util for r in phase.ledger.defaults]))
    return phase.beat.source in ("steps", "period") and use < MEMORY_USE


def _faster(phase: Phase, standing: Settings, by: float) -> Settings | None:
    """The choice at the default's memory clock that leaves so much more of the budget."""
    now = phase.search.landscape(phase.ledger)
    wanted = phases.believed(phase, standing).slowdown - by
    fast = np.flatnonzero((now.slowdown <= wanted) & (now.gears < phase.search.base(phase.ledger)))
    return phase.search.knob.settings(now.gears[fast[0]]) if len(fast) else None


def _explore_memory(meter: Meter, phase: Phase, gears: Gears, tell: Tell) -> None:
    """Step down the memory clock at the chosen SM clock while that is allowed and better."""
    policy = phase.search.policy
    best, standing = phases.expectation(phase), phase.choice
    top = gears.memory_mhz[-1]
    for memory in reversed([m for m in gears.memory_mhz if m < 0.9 * top]):
        settings = replace(standing, memory_mhz=memory)
        if not phases.visit(meter, phase, settings, "candidate", tell):
            return
        now = phase.ledger.outcome(phase.ledger.others[-1])
        over = float(objective.violation(policy, now.slowdown, now.saving))
        if 0 < over <= TRADED and (faster := _faster(phase, standing, over)) is not None:
            settings = replace(faster, memory_mhz=memory)
            if not phases.visit(meter, phase, settings, "candidate", tell):
                return
            now = phase.ledger.outcome(phase.ledger.others[-1])
            over = float(objective.violation(policy, now.slowdown, now.saving))
        if not over <= 0:
            return
        if objective.score(policy, now.slowdown, now.saving) >= objective.score(
            policy, best.slowdown, best.saving
        ):
            return
        best, phase.choice = now, settings
        phase.search = replace(phase.search, memory_mhz=memory)
