"""One phase of a job, learned: measured at the default, predicted, searched, and a choice made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Protocol

import numpy as np

from ekc.governor import objective
from ekc.governor.events import Checked, CountersRead, Event, Measured, PeriodFound, Predicted
from ekc.governor.knob import SM, knob_of
from ekc.governor.landscape import Beliefs
from ekc.governor.ledger import Ledger, Outcome
from ekc.governor.measure import Meter, reading
from ekc.governor.period import find_period
from ekc.governor.policy import Policy
from ekc.governor.progress import CLEAR, Beat, beat_of, pace_of, stepping
from ekc.governor.protocols import Gears, Settings
from ekc.governor.reading import UNTOLD, Reading
from ekc.governor.same_work import disturbed, offbeat
from ekc.governor.samples import Samples, joined, mean
from ekc.governor.search import Search
from ekc.governor.tempo import tempo
from ekc.governor.watch import lifted, longest_idle_s, signature, working

MORE_S = 5.0
LONGEST_FIRST_S = 75.0
FEW_STEPS = 3
"""So many must have ended before it is said how long one takes."""
COUNTER_S = (4.0, 25.0)
"""Counter windows last a period, within this."""
IDLE_S = 8.0
"""Without a kernel for so long, and for longer than an iteration, a job is idle."""
IDLE_PERIODS = 1.5
TRIES = 2
POLL_S = 2.0
"""Between two looks whether work has come back."""
CONFIRMED = 3
"""So many defaults agree on a period: chance does not."""
SHORTEST_LOOK_S = 10.0
LONGEST_LOOK_S = 40.0
APERIODIC_LOOK_S = 24.0
"""Looks at a job under its choice."""

Tell = Callable[[Event], None]
Held = dict[Settings, float]


class Model(Protocol):
    """Says what to expect before any clock was tried."""

    @property
    def trained_on(self) -> str:
        """For people; what is simulated says so."""
        ...

    def __call__(self, counters: Mapping[str, float], reading: Reading) -> Beliefs:
        """From counters, if there are any, and the reading at the default."""
        ...


@dataclass
class Phase:
    """What is known of one phase."""

    beat: Beat
    ledger: Ledger
    search: Search
    default: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """Its signature at the default limits."""
    choice: Settings = field(default_factory=Settings)
    top_memory_mhz: int = 0
    held: Held = field(default_factory=dict)
    """Seconds under each setting."""
    within: float = 0.0
    """The slowdown that the last search had to keep."""
    refuted: bool = False
    """Whether the last whole check found the choice other than believed: no phase to take up again."""

    def most_stretch(self, settings: Settings) -> float:
        """How much longer an iteration can be under these limits."""
        base = self.search.base(self.ledger)
        memory = 1.0
        if settings.memory_mhz is not None and self.top_memory_mhz:
            # What does not wait for memory is not stretched by it.
            use = mean(np.array([r.memory_util for r in self.ledger.defaults])) / 100
            memory += use * (self.top_memory_mhz / settings.memory_mhz - 1)
        return max(1.0, base / (self.search.knob.of(settings) or base)) * memory

    def follow(self, samples: Samples) -> bool | None:
        """Let the beat drift with the job: what is seen under the choice says how long the default would
        be. Whether the beat was there; None where that cannot be told."""
        if self.beat.source != "period":
            return None
        expected = 1 + expectation(self).slowdown
        found = tempo(samples, self.beat.period_s * expected, 0.97, 1.03)
        if found is None:
            return None
        if found.clarity >= CLEAR:
            drifted = found.seconds / expected
            self.beat = replace(self.beat, period_s=0.7 * self.beat.period_s + 0.3 * drifted)
        return found.clarity >= CLEAR / 2

    def look_s(self) -> float:
        """Whole iterations under the choice, as a part of one scatters; without a beat as long as a few."""
        if not self.beat.period_s > 0:
            return APERIODIC_LOOK_S
        period = self.beat.period_s * (1 + expectation(self).slowdown)
        fewest, most = (max(1, ceil(SHORTEST_LOOK_S / period)), max(1, int(LONGEST_LOOK_S / period)))
        return period * min(max(3, fewest), most)

    def expected_look(self) -> np.ndarray | None:
        """The signature of the last reading under the limits nearest to the choice."""
        gear, knob = self.search.knob.of(self.choice), self.search.knob
        if gear is None:
            return None
        memory = self.choice.memory_mhz
        read = [r for r in self.ledger.others if r.settings.memory_mhz == memory and knob.of(r.settings)]
        if not read:
            return None
        last = min(reversed(read), key=lambda r: abs((knob.of(r.settings) or gear) - gear))
        return lifted(last.watts, last.sm_util, last.memory_util)

    def confirmed(self) -> bool:
        """Whether the beat was found again at the default as it had been: it is one, and where it is gone the
        job is another."""
        return sum(r.pace.beats > 0 for r in self.ledger.defaults) >= CONFIRMED

    def idle(self, samples: Samples) -> bool:
        """Whether a stretch stood still."""
        longest = IDLE_S if not self.beat.period_s > 0 else max(IDLE_S, IDLE_PERIODS * self.beat.period_s)
        return longest_idle_s(samples) > longest


@dataclass(frozen=True)
class _Uncounted:
    """Records until it is known that hooks count steps: no period is needed then."""

    meter: Meter

    def record(self, seconds: float) -> Samples:
        """As the meter does."""
        return self.meter.record(seconds)

    def running(self) -> bool:
        """Whether there is no step yet."""
        return self.meter.probe.steps() is None


def begin(meter: Meter, policy: Policy, gears: Gears, tell: Tell) -> Phase:
    """Measure at the driver's default and find out what tells progress."""
    meter.set(Settings(), "the default is what everything is held against")
    start, joules, steps = meter.probe.now(), meter.probe.energy_j(), meter.probe.steps() or 0.0
    found = find_period(_Uncounted(meter))
    # Asked now: hooks tell nothing until the first step has ended, which may take longer than the others.
    if meter.probe.steps() is not None:
        samples, beat, first = _hooked(meter, found.samples, start, steps)
    else:
        samples, beat = found.samples, beat_of(found)
        seconds = meter.probe.now() - start
        pace, beat = pace_of(beat, samples, 1.05)
        watts = (meter.probe.energy_j() - joules) / seconds
        first = reading(Settings(), start, seconds, watts, pace, samples, beat)
    tell(PeriodFound(meter.probe.now(), beat.verdict, beat.period_s, beat.source))
    knob = knob_of(gears)
    search = Search(policy, knob, knob.gears(gears), Beliefs(knob.time, knob.power))
    top = max(gears.memory_mhz, default=0)
    phase = Phase(beat, Ledger([first]), search, signature(samples), top_memory_mhz=top)
    tell(Measured(meter.probe.now(), first, "default", 0.0, 0.0))
    return phase


def _hooked(meter: Meter, samples: Samples, start: float, steps: float) -> tuple[Samples, Beat, Reading]:
    """By steps: so many were counted at the start, from which the samples are."""
    while (done := (meter.probe.steps() or 0.0) - steps) < FEW_STEPS:
        if meter.probe.now() - start > LONGEST_FIRST_S:
            break
        samples = joined(samples, meter.record(MORE_S))
    first, beat = meter.read(stepping(samples, done), 1.05)
    if first.pace.period_s > 0:
        # Before the first step ended, something else may have run.
        beat = replace(beat, period_s=first.pace.period_s)
    return samples, beat, first


def count(meter: Meter, phase: Phase, model: Model | None, tell: Tell) -> None:
    """Read counters over a period, where that is permitted, and let the model say what to expect."""
    if model is None or phase.search.knob is not SM or not len(phase.search.gears):
        return
    longest = phase.beat.period_s if phase.beat.period_s > 0 else 10.0
    seconds = float(np.clip(longest, *COUNTER_S))
    counters = meter.probe.counters(seconds)
    if counters is not None:
        tell(CountersRead(meter.probe.now(), seconds, counters))
    foreseen = model(counters or {}, phase.ledger.defaults[-1])
    phase.search = replace(phase.search, foreseen=foreseen)
    now = phase.search.landscape(phase.ledger)
    place = now.choice(phase.search.policy)
    where = phase.search.knob.settings(now.gears[place])
    expected = float(now.slowdown[place]), float(now.saving[place])
    tell(Predicted(meter.probe.now(), where, *expected, model.trained_on))


def visit(meter: Meter, phase: Phase, settings: Settings, purpose: str, tell: Tell) -> bool:
    """Read the job under some limits. A stretch into which something came between does not count; False where
    it was so each time."""
    meter.set(settings, purpose)
    for _ in range(TRIES):
        seen, beat = meter.read(phase.beat, phase.most_stretch(settings))
        if not disturbed(phase, seen):
            phase.beat = beat
            note(meter, phase, seen, purpose, tell)
            return True
        while not working(meter.record(POLL_S)):
            pass
    return False


def note(meter: Meter, phase: Phase, seen: Reading, purpose: str, tell: Tell) -> None:
    """Keep a reading."""
    phase.ledger.others.append(seen)
    outcome = phase.ledger.outcome(seen)
    tell(Measured(meter.probe.now(), seen, purpose, outcome.slowdown, outcome.saving))


def again(meter: Meter, phase: Phase, tell: Tell, longest_s: float | None = None) -> bool:
    """Measure the default once more: what drifts meanwhile is then known. False where it was disturbed.

    `longest_s`: as in `Meter.read`.
    """
    meter.set(Settings(), "the default again")
    seen, beat = meter.read(phase.beat, 1.05, longest_s)
    if disturbed(phase, seen):
        return False
    if offbeat(phase, seen):
        if phase.beat.source == "steps" or phase.confirmed():
            return False
        phase.beat = Beat("throughput", verdict="aperiodic")
        phase.ledger.distrust_beats()
        seen = replace(seen, pace=replace(seen.pace, beats=UNTOLD, beats_error=UNTOLD, period_s=UNTOLD))
        tell(PeriodFound(meter.probe.now(), "aperiodic", UNTOLD, "throughput"))
    else:
        phase.beat = beat
    if seen.pace.period_s > 0:
        phase.beat = replace(phase.beat, period_s=seen.pace.period_s)
    phase.ledger.defaults.append(seen)
    tell(Measured(meter.probe.now(), seen, "default", 0.0, 0.0))
    return True


def checked(phase: Phase, at_s: float) -> Checked | None:
    """The mean of all checks of the choice; None where progress was told in none."""
    outcomes = [phase.ledger.outcome(r) for r in phase.ledger.others if r.settings == phase.choice]
    outcomes = [o for o in outcomes if np.isfinite(o.slowdown)]
    if not outcomes:
        return None
    weight = np.array([1 / o.error**2 for o in outcomes])
    mean = float(weight @ [o.slowdown for o in outcomes] / weight.sum())
    unsure = np.hypot(1 / np.sqrt(weight.sum()), np.median([o.shared for o in outcomes]))
    return Checked(at_s, mean, float(1.96 * unsure), float(np.mean([o.saving for o in outcomes])))


def chosen(phase: Phase) -> Settings:
    """The best that is known at the phase's memory clock; the default where nothing is better."""
    gear, memory = phase.search.chosen(phase.ledger), phase.search.memory_mhz
    if gear is not None:
        return phase.search.knob.settings(gear, memory)
    alone = Settings(memory_mhz=memory)
    told = believed(phase, alone)
    within = objective.violation(phase.search.policy, told.slowdown, told.saving) <= 0
    # Not unless it was held so: what the memory clock costs by itself no curve tells.
    return alone if alone == phase.choice and within else Settings()


def expectation(phase: Phase) -> Outcome:
    """What the choice is believed to do."""
    return believed(phase, phase.choice)


def believed(phase: Phase, settings: Settings) -> Outcome:
    """What limits are believed to do, at the memory clock of the search."""
    gear = phase.search.knob.of(settings)
    if gear is None:
        return _read_last(phase, settings)
    now = phase.search.landscape(phase.ledger)
    place = int(np.searchsorted(now.gears, gear))
    slowdown, saving = float(now.slowdown[place]), float(now.saving[place])
    return Outcome(slowdown, float(now.sigma[place]), 0.0, (1 - saving) / (1 + slowdown), 0.0)


def _read_last(phase: Phase, settings: Settings) -> Outcome:
    """The default, or a memory clock alone: no curve leads there, so what was read there last counts."""
    outcomes = [phase.ledger.outcome(r) for r in phase.ledger.others if r.settings == settings]
    told = [o for o in outcomes if np.isfinite(o.slowdown)]
    return told[-1] if told else Outcome(0.0, 0.0, 0.0, 1.0, 0.0)
