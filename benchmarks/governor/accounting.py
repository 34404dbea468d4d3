"""Coverage of the governor's account: is what a job truly saved inside the 95 % interval that it reports?

    python -m benchmarks.governor.accounting [--seed 3000] [--seeds 4] [--data DIR] [--json FILE]

Each simulated job (six kinds, two cards, as many seeds of each) runs once under the governor and is known
exactly at the default. `net` is the saving of the whole job, search and checks billed. `static` is the best
limit for the whole job as the fitted curve estimates it: its saving is compared with the true one at that
limit, and `regret` is the true best static limit's saving less that. With `--data`, the second table does
the same with recorded sweeps of real GPUs, whose rows the search reads. There is no bar: nothing is tuned
for these figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.governor.compare import make_job_options, measure_default, sample_jobs
from benchmarks.governor.replay import Sweep, read_recordings, search_sweep
from ekc.governor.accounting import Accounted, StaticLimit, compute_true_static
from ekc.governor.decision import find_best
from ekc.governor.event_records import Event
from ekc.governor.loop import govern
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy
from ekc.governor.simulation.random_jobs import JOB_KINDS
from ekc.governor.simulation.simulated_run import (
    SimulatedJob,
    SimulatedRun,
    compute_clock_indices,
    compute_costs,
)

COLUMNS = (
    Column("", "name"),
    Column("jobs", "jobs"),
    Column("true", "true", ".1%"),
    Column("error", "error", ".2%"),
    Column("bias", "bias", "+.2%"),
    Column("+-", "half_width", ".1%"),
    Column("covered", "covered", ".1%"),
    Column("regret", "regret", ".2%"),
)


@dataclass(frozen=True)
class Estimate:
    """An estimated saving beside the true one; shares of the default's joules."""

    group: str
    true: float
    estimate: float
    half_width: float
    regret: float = float("nan")

    @property
    def is_covered(self) -> bool:
        """Whether the true saving is inside the interval."""
        return abs(self.estimate - self.true) <= self.half_width


def judge_job(job: SimulatedJob) -> tuple[Estimate, Estimate | None]:
    """The net saving of a governed job, and its best static limit as estimated."""
    run, events = SimulatedRun(job), list[Event]()
    govern(run, run, Policy(), events.append)
    account = [event for event in events if isinstance(event, Accounted)][-1]
    default_j, _ = measure_default(job)
    low, high = account.share_interval
    net = Estimate(job.kind, 1 - run.true_j / default_j, account.saved_share, (high - low) / 2)
    return net, None if account.static is None else judge_static(job, account.static)


def judge_static(job: SimulatedJob, static: StaticLimit) -> Estimate:
    """An estimated static limit beside what it truly saves."""
    true, (_, best, _) = compute_true_saving(job, static.settings), compute_true_static(job, Policy())
    return Estimate(job.kind, true, static.saving, static.half_width, best - true)


def compute_true_saving(job: SimulatedJob, settings: Settings) -> float:
    """What one limit for the whole job saves."""
    costs = compute_costs(job).joules.sum(axis=0)
    memory, gear, _ = compute_clock_indices(job.card, settings)
    return float(1 - costs[memory, gear] / costs[-1, -1])


def judge_sweep(sweep: Sweep, policy: Policy, group: str) -> Estimate | None:
    """The best limit of a recorded sweep by the curve through the rows that the search reads; None where the
    default is best."""
    last = len(sweep.limit) - 1
    search, readings = search_sweep(sweep, policy, 0.0, np.random.default_rng(0))
    curve = search.fit_response(readings)
    found = find_best(policy, curve.slowdown, curve.saving)
    if found is None or found == last:
        return None
    slowdown, saving = sweep.compute_slowdown(), sweep.compute_saving()
    best = find_best(policy, slowdown, saving)
    half_width = 1.96 * float(curve.saving_std[found])
    regret = float(saving[last if best is None else best] - saving[found])
    return Estimate(group, float(saving[found]), float(curve.saving[found]), half_width, regret)


def make_row(name: str, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Mean saving, rms error, bias, mean half width, coverage and mean regret of some jobs."""
    row = {"name": name, "jobs": len(estimates)}
    if not estimates:
        return row
    true, error, width, regret = np.array(
        [(x.true, x.estimate - x.true, x.half_width, x.regret) for x in estimates]
    ).T
    return row | {
        "true": true.mean(),
        "error": np.sqrt(np.mean(error**2)),
        "bias": error.mean(),
        "half_width": width.mean(),
        "covered": np.mean([x.is_covered for x in estimates]),
        "regret": None if np.isnan(regret).all() else np.nanmean(regret),
    }


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all jobs and print the tables."""
    results = [judge_job(job) for job in sample_jobs(arguments.seed, arguments.seeds, arguments.seconds)]
    net, static = [x for x, _ in results], [x for _, x in results if x is not None]
    rows = [make_row(f"net, {kind}", [x for x in net if x.group == kind]) for kind in JOB_KINDS]
    rows += [make_row("net, all", net), make_row("best static limit, all", static)]
    print(f"simulated jobs of {arguments.seconds:.0f} s, 95 % intervals; error: root of the mean square")
    print(format_lines(COLUMNS, rows))
    if arguments.data is not None:
        recorded = {
            name: [x for sweep in sweeps if (x := judge_sweep(sweep, Policy(), name)) is not None]
            for name, sweeps in read_recordings(arguments.data).items()
            if sweeps[0].is_limited()
        }
        title = "best static limit on recordings of real GPUs"
        print(format_lines(COLUMNS, [make_row(name, found) for name, found in recorded.items()], title))
        static += [x for found in recorded.values() for x in found]
    return {"net": [asdict(x) for x in net], "static": [asdict(x) for x in static]}


OPTIONS = {
    **make_job_options(4),
    "--data": {"type": Path, "help": "folder with the recordings"},
}
main = make_main(__doc__, measure, options=OPTIONS, seed=3000)

if __name__ == "__main__":
    raise SystemExit(main())
