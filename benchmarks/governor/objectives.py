"""Power caps, deadlines and saved choices on simulated jobs, whose truth is known.

    python -m benchmarks.governor.objectives [--seed 6000] [--seeds 2] [--seconds 3600] [--json FILE]

`cap`: 85 % of the mean power at the default. `over` is the mean power from the first choice to the end of the
job, beyond the cap; `slower` is compared with the fastest clock that keeps the cap from the first second.
`deadline`: 8 % after the end at the default, the work left given in seconds or by counted steps; `late` is
beyond the deadline, and the saving is compared with that of the best clock which ends in time. A job whose
later steps are longer cannot be planned by counting steps, so jobs that change are a row of their own.
`saved choice`: the job again with other noise, with the choice of the first run, and then with a choice whose
clock is a fifth too low. There is no bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, make_main
from benchmarks.governor.compare import make_job_options, measure_default, sample_jobs
from ekc.governor.accounting import compute_true_static
from ekc.governor.event_records import Chosen, Event
from ekc.governor.loop import govern
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy
from ekc.governor.saved_choice import SavedChoice, SavedChoiceTried
from ekc.governor.simulation.simulated_run import SimulatedJob, SimulatedRun

CAP_SHARE = 0.85
DEADLINE_SHARE = 1.08
WRONG_CLOCK = 0.8


@dataclass
class Outcome:
    """One job under one objective; shares of the default's seconds and joules."""

    group: str
    beyond: float
    """Beyond the cap or the deadline, as a share of it."""
    slowdown: float
    saving: float
    best_slowdown: float
    best_saving: float


class ChoiceRecorder:
    """Joules and seconds of a run at its first choice, and its events."""

    def __init__(self, run: SimulatedRun) -> None:
        self.run, self.events = run, list[Event]()
        self.chosen: tuple[float, float] | None = None

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Chosen) and self.chosen is None:
            self.chosen = self.run.true_j, self.run.now()

    def compute_watts(self) -> float:
        """Mean power from the first choice on; of the whole run without one."""
        joules, seconds = self.chosen or (0.0, 0.0)
        return (self.run.true_j - joules) / (self.run.now() - seconds)


def run_objective(job: SimulatedJob, group: str, policy: Policy, bill: tuple[float, float]) -> Outcome:
    """Govern one job; `bill`: joules and seconds at the default."""
    run = SimulatedRun(job, has_hooks=policy.steps_total is not None)
    recorder = ChoiceRecorder(run)
    govern(run, run, policy, recorder)
    if policy.deadline_s is not None:
        beyond = run.now() / policy.deadline_s - 1
    else:
        beyond = recorder.compute_watts() / (policy.power_cap_w or 1.0) - 1
    _, saving, slowdown = compute_true_static(job, policy)
    return Outcome(group, beyond, run.now() / bill[1] - 1, 1 - run.true_j / bill[0], slowdown, saving)


def run_objectives(job: SimulatedJob) -> list[Outcome]:
    """One job under a cap and two deadlines."""
    bill = measure_default(job)
    kind = "changing" if job.count_regimes() > 1 else "steady"
    cap = Policy("speed", power_cap_w=CAP_SHARE * bill[0] / bill[1])
    deadline = Policy(deadline_s=DEADLINE_SHARE * bill[1], remaining_s=bill[1])
    steps = replace(deadline, remaining_s=None, steps_total=int(job.iteration[-1]) + 1)
    return [
        run_objective(job, f"cap, {kind}", cap, bill),
        run_objective(job, f"deadline by seconds, {kind}", deadline, bill),
        run_objective(job, f"deadline by steps, {kind}", steps, bill),
    ]


@dataclass
class SavedOutcome:
    """A job without a saved choice, with its own, and with a wrong one."""

    settled_s: tuple[float, ...]
    """Seconds until the first choice, in each of the three runs."""
    saving: tuple[float, ...]
    slowdown: tuple[float, ...]
    trusted: tuple[int, ...]
    tried: tuple[int, ...]


def run_saved(job: SimulatedJob) -> SavedOutcome:
    """The three runs of one job."""
    bill, kept = measure_default(job), list[SavedChoice]()
    runs = [_run_with(job, 0, [], kept)]
    own = list(kept)
    runs += [_run_with(job, 1, own, []), _run_with(job, 2, [_spoil(job, x) for x in own], [])]
    tried = [[x for x in r.events if isinstance(x, SavedChoiceTried)] for r in runs]
    settled = [r.chosen[1] if r.chosen else float("nan") for r in runs]
    return SavedOutcome(
        tuple(settled),
        tuple(1 - r.run.true_j / bill[0] for r in runs),
        tuple(r.run.now() / bill[1] - 1 for r in runs),
        tuple(sum(x.is_trusted for x in found) for found in tried),
        tuple(map(len, tried)),
    )


def _run_with(
    job: SimulatedJob, seed: int, saved: Sequence[SavedChoice], kept: list[SavedChoice]
) -> ChoiceRecorder:
    run = SimulatedRun(job, seed)
    recorder = ChoiceRecorder(run)

    def save(choices: Sequence[SavedChoice]) -> None:
        kept[:] = choices

    govern(run, run, on_event=recorder, saved=saved, save=save)
    return recorder


def _spoil(job: SimulatedJob, choice: SavedChoice) -> SavedChoice:
    """The choice with a clock a fifth lower, and the outcome of the right one."""
    clocks = job.card.list_offered().sm_mhz
    wanted = WRONG_CLOCK * (choice.settings.sm_mhz or clocks[-1])
    low = min(clocks, key=lambda mhz: abs(mhz - wanted))
    return replace(choice, settings=Settings(sm_mhz=low, memory_mhz=choice.settings.memory_mhz))


def format_outcomes(name: str, outcomes: Sequence[Outcome]) -> str:
    """One row of the first table."""
    beyond = np.array([x.beyond for x in outcomes])
    slow, saved, best_slow, best = (
        float(np.mean([getattr(x, n) for x in outcomes]))
        for n in ("slowdown", "saving", "best_slowdown", "best_saving")
    )
    row = f"{name:30s} {len(outcomes):5d} {(beyond > 0).sum():7d} {beyond.max():+7.1%} {beyond.mean():+7.1%}"
    return f"{row} {slow:7.1%} {best_slow:7.1%} {saved:7.1%} {best:7.1%}"


def format_saved(outcomes: Sequence[SavedOutcome]) -> str:
    """The second table: one row for each of the three runs."""
    lines = [
        f"{'saved choice':30s} {'settled after: median, mean':>28s} {'tried':>6s} {'kept':>5s} {'saved':>7s}"
    ]
    lines[0] += f" {'slower':>7s} {'worst':>7s}"
    for place, name in enumerate(("without", "its own", "clock a fifth too low")):
        settled = np.array([x.settled_s[place] for x in outcomes])
        slow = np.array([x.slowdown[place] for x in outcomes])
        counts = (sum(getattr(x, n)[place] for x in outcomes) for n in ("tried", "trusted"))
        tried, kept = counts
        saved = float(np.mean([x.saving[place] for x in outcomes]))
        times = f"{np.nanmedian(settled):.0f} s, {np.nanmean(settled):.0f} s"
        lines.append(
            f"{name:30s} {times:>28s} {tried:6d} {kept:5d} {saved:7.1%} {slow.mean():7.1%} {slow.max():7.1%}"
        )
    return "\n".join(lines)


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all jobs and print the tables."""
    jobs = list(sample_jobs(arguments.seed, arguments.seeds, arguments.seconds))
    outcomes = [outcome for job in jobs for outcome in run_objectives(job)]
    print("everything below is simulated")
    print(
        f"{'':30s} {'jobs':>5s} {'beyond':>7s} {'worst':>7s} {'mean':>7s} {'slower':>7s} {'best':>7s}"
        f" {'saved':>7s} {'best':>7s}"
    )
    for name in sorted({x.group for x in outcomes}):
        print(format_outcomes(name, [x for x in outcomes if x.group == name]))
    saved = [run_saved(job) for job in jobs]
    print(format_saved(saved))
    return {"objectives": [vars(x) for x in outcomes], "saved": [vars(x) for x in saved]}


OPTIONS = {
    **make_job_options(2),
}
main = make_main(__doc__, measure, options=OPTIONS, seed=6000)

if __name__ == "__main__":
    raise SystemExit(main())
