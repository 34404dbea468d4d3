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
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, Column, format_lines, make_main
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


Outcome = dict[str, Any]
"""A run of one job; shares of the default's seconds and joules."""


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

    def compare(self, bill: tuple[float, float]) -> dict[str, float]:
        """Slowdown and saving against the joules and seconds at the default."""
        return {"slowdown": self.run.now() / bill[1] - 1, "saving": 1 - self.run.true_j / bill[0]}


def run_objective(job: SimulatedJob, group: str, policy: Policy, bill: tuple[float, float]) -> Outcome:
    """Govern one job; `bill`: joules and seconds at the default. "beyond" is a share of the cap or of the
    deadline."""
    run = SimulatedRun(job, has_hooks=policy.steps_total is not None)
    recorder = ChoiceRecorder(run)
    govern(run, run, policy, recorder)
    if policy.deadline_s is not None:
        beyond = run.now() / policy.deadline_s - 1
    else:
        beyond = recorder.compute_watts() / (policy.power_cap_w or 1.0) - 1
    _, saving, slowdown = compute_true_static(job, policy)
    facts = {"group": group, "beyond": beyond, "best_slowdown": slowdown, "best_saving": saving}
    return facts | recorder.compare(bill)


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


def run_saved(job: SimulatedJob) -> list[Outcome]:
    """The runs of one job: without a saved choice, with its own, and with a wrong one."""
    bill, own = measure_default(job), list[SavedChoice]()
    runs = {"without": _run_with(job, 0, [], own)}
    runs["its own"] = _run_with(job, 1, own, [])
    runs["clock a fifth too low"] = _run_with(job, 2, [_spoil(job, x) for x in own], [])
    outcomes = []
    for name, recorder in runs.items():
        tried = [x.is_trusted for x in recorder.events if isinstance(x, SavedChoiceTried)]
        settled_s = recorder.chosen[1] if recorder.chosen else float("nan")
        facts = {"group": name, "settled_s": settled_s, "tried": len(tried), "trusted": sum(tried)}
        outcomes.append(facts | recorder.compare(bill))
    return outcomes


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


OBJECTIVE_COLUMNS = (
    Column("", "group"),
    Column("jobs", "jobs"),
    Column("beyond", "times_beyond"),
    Column("worst", "worst_beyond", "+.1%"),
    Column("mean", "beyond", "+.1%"),
    Column("slower", "slowdown", ".1%"),
    Column("best", "best_slowdown", ".1%"),
    Column("saved", "saving", ".1%"),
    Column("best", "best_saving", ".1%"),
)
SAVED_COLUMNS = (
    Column("saved choice", "group"),
    Column("settled after [s]: median", "median_settled_s", ".0f"),
    Column("mean", "settled_s", ".0f"),
    Column("tried", "tried_in_all"),
    Column("kept", "trusted_in_all"),
    Column("saved", "saving", ".1%"),
    Column("slower", "slowdown", ".1%"),
    Column("worst", "worst_slowdown", ".1%"),
)


def summarize(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A line for each group: the mean of each figure, and the figures of the tables that are no means."""
    lines = []
    for group in dict.fromkeys(x["group"] for x in outcomes):
        mine = [x for x in outcomes if x["group"] == group]
        figures = {name: np.array([x[name] for x in mine]) for name in mine[0] if name != "group"}
        line = {name: np.nanmean(values) for name, values in figures.items()}
        line |= {"group": group, "jobs": len(mine), "worst_slowdown": figures["slowdown"].max()}
        if "beyond" in figures:
            beyond = figures["beyond"]
            line |= {"times_beyond": int((beyond > 0).sum()), "worst_beyond": beyond.max()}
        else:
            line |= {f"{name}_in_all": int(figures[name].sum()) for name in ("tried", "trusted")}
            line["median_settled_s"] = np.nanmedian(figures["settled_s"])
        lines.append(line)
    return lines


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all jobs and print the tables."""
    jobs = list(sample_jobs(arguments.seed, arguments.seeds, arguments.seconds))
    outcomes = [outcome for job in jobs for outcome in run_objectives(job)]
    saved = [outcome for job in jobs for outcome in run_saved(job)]
    outcomes.sort(key=lambda outcome: outcome["group"])
    print(format_lines(OBJECTIVE_COLUMNS, summarize(outcomes), "everything below is simulated"))
    print(format_lines(SAVED_COLUMNS, summarize(saved)))
    return {"objectives": outcomes, "saved": saved}


OPTIONS = {
    **make_job_options(2),
}
main = make_main(__doc__, measure, options=OPTIONS, seed=6000)

if __name__ == "__main__":
    raise SystemExit(main())
