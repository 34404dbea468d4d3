"""One tuning run from baseline to result: baseline, rounds, finals, and the line over clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from ekc.errors import DeviceError, NothingLegal
from ekc.ir.schedule import Schedule
from ekc.search.candidate import Candidate
from ekc.search.finals import Finals
from ekc.search.measuring import FINAL_WINDOW_S, Bench, Failure
from ekc.search.method import OURS, Method
from ekc.search.models.lessons import Lessons
from ekc.search.options import Wish
from ekc.search.payoff import WhilePaying
from ekc.search.reporter import Reporter
from ekc.search.result import INTERRUPTED, STOPPED, DeviceNote, Trial, TuningResult
from ekc.search.roofline import roof
from ekc.search.rounds import Rounds, population_size
from ekc.search.schedules import Schedules
from ekc.search.space.naive import naive
from ekc.search.task import ScheduleTask

CLOCKS_TRIED = 8


class Run:
    """Call `run` once."""

    def __init__(
        self,
        space: Schedules,
        bench: Bench,
        workers: Executor,
        wish: Wish,
        reporter: Reporter | None = None,
        method: Method = OURS,
        lessons: Lessons | None = None,
    ) -> None:
        self.op, self.bench, self.device, self.wish = space.op, bench, bench.device, wish
        self.task = ScheduleTask(space, bench, workers, wish, reporter, method, lessons)
        self.reporter = self.task.reporter
        random, size = np.random.default_rng(wish.seed), population_size(wish.trials)
        self.breeder = self.task.method.breeder(space, random, size)
        self.paying = None if wish.calls is None else WhilePaying(self.task, wish.calls)
        self.rounds = Rounds(self.breeder, self.paying or self.task, wish.trials)
        self.interrupted = False
        self.clock_front: list[Trial] = []
        self.clocks_note = ""

    def run(self, start: Sequence[Schedule]) -> TuningResult:
        """Baseline, rounds, finals."""
        baseline = self.task.candidate(naive(self.op), "naive", 0)
        finals = Finals(
            self.op, self.bench, self.wish.objective, self.wish.max_slowdown, self.reporter.report
        )
        finalists: list[Candidate] = []
        try:
            self.reporter.enter("baseline")
            self._baseline(baseline)
            self.reporter.report("baseline", baseline)
            self.reporter.enter("breed", 1)
            self.rounds.run(self.task.given(start))
            self.task.meter_some(self.rounds.number)
            # The naive schedule too: where a search finds nothing better, that is what wins.
            self.reporter.enter("finals")
            finalists = finals.run([*self.task.candidates, baseline], self.task.on_time)
            if self.wish.search_clocks and finalists:
                self.reporter.enter("clocks")
                self._over_clocks(finals.winners(finalists)[0])
        except KeyboardInterrupt:
            if not self.task.working:
                raise
            self.interrupted = True
            self.task.learner.predict_all(self.task.working)
        working = finalists or finals.pick([*self.task.candidates, baseline])
        if not working or not self.task.working:
            raise NothingLegal(self._why_nothing())
        best, fastest = finals.winners(working)
        result = self._result(best, fastest, baseline)
        self.reporter.stage = "end"
        self.reporter.report("end", text=result.stopped)
        return result

    def _baseline(self, baseline: Candidate) -> None:
        timing = self.bench.time(baseline.schedule, lambda: baseline.kernel)
        if isinstance(timing, Failure):
            baseline.status = timing.status
            return
        baseline.timings.append(timing)
        metering = self.bench.meter(baseline.schedule, lambda: baseline.kernel, FINAL_WINDOW_S)
        if not isinstance(metering, Failure):
            baseline.meterings.append(metering)

    @property
    def _stopped(self) -> str:
        """Why the run ended early, if it did."""
        if self.interrupted:
            return INTERRUPTED
        if self.reporter.stopped:
            return STOPPED
        if self.task.late:
            return f"time budget of {self.wish.time_budget_s:g} s used"
        return self.rounds.stopped or (self.paying.stopped if self.paying else "")

    def _over_clocks(self, best: Candidate) -> None:
        """The best schedule metered at other clocks: the front over clocks, a line of its own. That a device
        lets nobody set them is an ordinary answer, told in the summary."""
        clocks = self.device.clocks()
        if not clocks.mhz:
            self.clocks_note = f"not searched: {clocks.reason}"
            return
        picks = sorted({clocks.mhz[int(i)] for i in np.linspace(0, len(clocks.mhz) - 1, CLOCKS_TRIED)})
        for mhz in picks:
            if not self.task.on_time():
                break
            trial = self._at_clock(best, mhz)
            self.clock_front += [trial] if trial is not None else []

    def _at_clock(self, best: Candidate, mhz: int) -> Trial | None:
        """None where the device failed; why is on file, and the first time in the summary."""
        try:
            bench = Bench(self.device.at_clock(mhz), self.bench.store, self.bench.spent)
        except DeviceError as problem:
            self.clocks_note = self.clocks_note or f"at {mhz} MHz: device: {problem}"
            return None
        c = self.task.candidate(best.schedule, best.structure, best.round)
        timing = bench.time(c.schedule, lambda: best.kernel)
        metering = bench.meter(c.schedule, lambda: best.kernel, FINAL_WINDOW_S)
        for outcome in (timing, metering):
            if isinstance(outcome, Failure):
                self.clocks_note = self.clocks_note or f"at {mhz} MHz: {outcome.status}"
                return None
        c.timings, c.meterings = [timing], [metering]  # type: ignore[list-item]
        self.reporter.report("clock", c)
        return c.trial()

    def _result(self, best: Candidate, fastest: Candidate, baseline: Candidate) -> TuningResult:
        device = self.device
        return TuningResult(
            op=self.op,
            device=DeviceNote(
                *(device.name, device.simulated, device.label, device.clock_regime, device.arch),
                replayed=self.bench.replays,
            ),
            objective=self.wish.objective,
            max_slowdown=self.wish.max_slowdown,
            best=best.trial(),
            fastest=fastest.trial(),
            baseline=baseline.trial(),
            trials=tuple(c.trial() for c in self.task.candidates),
            seconds=self.task.seconds,
            roof=roof(self.op, device.peaks),
            model_cards=tuple(self.task.learner.cards),
            refusals=dict(self.breeder.refusals),
            bred=self.breeder.repaired,
            clock_front=tuple(self.clock_front),
            clocks_note=self.clocks_note,
            stopped=self._stopped,
            spent=replace(self.bench.spent),
        )

    def _why_nothing(self) -> str:
        """One line: what was refused or failed, most frequent first."""
        reasons = Counter(self.breeder.refusals) + Counter(
            c.status.split("\n")[0] for c in self.task.candidates if not c.ok
        )
        listed = (
            ", ".join(f"{why} ({n})" for why, n in reasons.most_common(8))
            or self._stopped
            or "no schedule was tried"
        )
        return f"{self.op.name} on {self.device.label}: no schedule works; reasons: {listed}"
