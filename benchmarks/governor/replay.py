"""The governor's search replayed on other authors' recordings of real GPUs.

    python -m benchmarks.governor.replay --data DIR [--json FILE]

DIR holds power-cap sweeps of training jobs on V100 and A40 (Zeus) and clock sweeps of GPT-3 stages on A100
(Perseus). The search gets a row of a sweep, seconds and watts as recorded, when it visits it. Its choice is
visited too, and made again until a visited row is chosen. The choice is compared with the best row of the
sweep within the budget (5 % slower than without a limit); `regret` is that row's saving less the choice's.
For comparison, on clock sweeps: GPOEO's bracket, golden section and cubic smoothing, started in the middle
and with the same budget (as published it keeps a tenth below).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.script import format_verdict, make_main
from benchmarks.governor.baselines.gpoeo import BracketSearch
from benchmarks.governor.baselines.odpp import CostPoint, GpoeoRule
from ekc.errors import InvalidInput
from ekc.governor import objective
from ekc.governor.job_reading import JobReading, ProgressRate
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings
from ekc.governor.readings import PhaseReadings
from ekc.governor.response_curve import POWER_CAP, SM_CLOCK, ControlVariable, ResponsePrior
from ekc.governor.samples import Values
from ekc.governor.search import LimitSearch

CAP_ERROR, CLOCK_ERROR = 0.02, 0.003
"""Relative standard errors of a recorded time. Epochs of jobs that no cap affects differ by 2 to 5 % from
one cap to the next; Perseus' means differ by less."""
MIN_ROWS = 5
COLUMNS = {"jobs": 5, "visited": 8, "of rows": 8, "saved": 7, "best": 7, "share": 7}
COLUMNS |= {"regret": 7, "slower": 7, "worst": 7, "best found": 11}
THEIRS = "A100, golden section"
BARS = {"share_of_best": 0.9, "mean_slowdown": 0.05, "worst_slowdown": 0.07}


@dataclass(frozen=True)
class Sweep:
    """One job at every recorded limit, ascending; arrays of one length."""

    name: str
    control: ControlVariable
    limit: Values
    seconds: Values
    joules: Values

    def compute_slowdown(self) -> Values:
        """Slowdown against the highest limit, as a share of its time."""
        return np.asarray(self.seconds / self.seconds[-1] - 1)

    def compute_saving(self) -> Values:
        """Joules saved, as a share of those at the highest limit."""
        return np.asarray(1 - self.joules / self.joules[-1])

    def is_limited(self) -> bool:
        """Whether any limit is below what the job draws without one; otherwise rows differ only by noise."""
        return self.control is SM_CLOCK or bool(self.limit[0] < self.joules[-1] / self.seconds[-1])

    def make_reading(self, place: int) -> JobReading:
        """A row as a measured reading; the highest limit serves as the default."""
        last = len(self.limit) - 1
        settings = Settings() if place == last else self.control.make_settings(self.limit[place])
        pace = ProgressRate(
            beats=1 / float(self.seconds[place]),
            beats_error=CLOCK_ERROR if self.control is SM_CLOCK else CAP_ERROR,
        )
        watts = float(self.joules[place] / self.seconds[place])
        clock = float(self.limit[place]) if self.control is SM_CLOCK else float("nan")
        return JobReading(settings, 0.0, 1.0, watts, pace, 100.0, float("nan"), clock)


@dataclass(frozen=True)
class ReplayResult:
    """The result of a search on one sweep; slowdowns and savings are shares of the highest limit's row."""

    name: str
    points: int
    rows: int
    slowdown: float
    saving: float
    best_slowdown: float
    best_saving: float


def replay_sweep(sweep: Sweep, policy: Policy) -> ReplayResult:
    """Search one sweep as the control loop would, with the rows that it visits."""
    readings = PhaseReadings([sweep.make_reading(len(sweep.limit) - 1)])
    search = LimitSearch(
        policy, sweep.control, sweep.limit, ResponsePrior(sweep.control.time_prior, sweep.control.power_prior)
    )
    visited = {len(sweep.limit) - 1}

    def visit(place: int) -> None:
        if place not in visited:
            readings.other_readings.append(sweep.make_reading(place))
            visited.add(place)

    while (place := search.propose_next(readings)) is not None and place not in visited:
        visit(place)
    while True:
        gear = search.choose_gear(readings)
        chosen = len(sweep.limit) - 1 if gear is None else int(np.searchsorted(sweep.limit, gear))
        if chosen in visited:
            break
        visit(chosen)
    return make_result(sweep, policy, visited)


def bracket_sweep(sweep: Sweep, policy: Policy) -> ReplayResult:
    """GPOEO's search on one sweep, from the middle of the clocks: there is no model of these cards."""
    last = len(sweep.limit) - 1
    points = [CostPoint(float(t), float(e)) for t, e in zip(sweep.seconds, sweep.joules, strict=True)]
    search = BracketSearch(sweep.limit, GpoeoRule(0, policy.max_slowdown), points[last], points.__getitem__)
    chosen = search.search(last // 2)
    return make_result(sweep, policy, {last, chosen, *search.points})


def make_result(sweep: Sweep, policy: Policy, visited: set[int]) -> ReplayResult:
    """The best visited row within the budget, beside the best row of the sweep."""
    places = sorted(visited)
    slowdown, saving = sweep.compute_slowdown(), sweep.compute_saving()
    index = objective.find_best(policy, slowdown[places], saving[places])
    chosen = places[index if index is not None else -1]
    best = objective.find_best(policy, slowdown, saving)
    best = len(sweep.limit) - 1 if best is None else best
    return ReplayResult(
        sweep.name,
        len(visited) - 1,
        len(sweep.limit),
        float(slowdown[chosen]),
        float(saving[chosen]),
        float(slowdown[best]),
        float(saving[best]),
    )


def read_rows(folder: Path, name: str) -> list[dict[str, str]]:
    """Rows of one recording. Raises `InvalidInput` where the folder does not hold it."""
    file = folder / name
    if not file.is_file():
        raise InvalidInput(f"data: {folder} has no {name}; name the folder that holds the recordings")
    with file.open() as stream:
        return list(csv.DictReader(stream))


def read_zeus(folder: Path, board: str) -> list[Sweep]:
    """Power-cap sweeps, one for each job."""
    table: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in read_rows(folder, f"zeus_power_caps_{board}.csv"):
        name = " ".join(row[k] for k in ("network", "dataset", "batch_size", "optimizer"))
        cap, seconds, watts = (float(row[k]) for k in ("power_limit", "time_per_epoch", "average_power"))
        table[name].append((cap, seconds, watts * seconds))
    return [
        make_sweep(f"{name} {board}", POWER_CAP, rows)
        for name, rows in sorted(table.items())
        if len(rows) >= MIN_ROWS
    ]


def read_perseus(folder: Path) -> list[Sweep]:
    """Clock sweeps, one for each pipeline stage: forward and backward together."""
    table: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for row in read_rows(folder, "perseus_gpt3_a100_clocks.csv"):
        cell = table[row["stage"]][float(row["frequency"])]
        cell[0] += float(row["time"])
        cell[1] += float(row["energy"])
    return [
        make_sweep(f"GPT-3 stage {stage} a100", SM_CLOCK, [(f, *cell) for f, cell in cells.items()])
        for stage, cells in sorted(table.items())
    ]


def make_sweep(name: str, control: ControlVariable, rows: list[tuple[float, ...]]) -> Sweep:
    """A sweep from rows of (limit, seconds, joules) in any order."""
    limit, seconds, joules = np.array(sorted(rows)).T
    return Sweep(name, control, limit, seconds, joules)


def summarise(name: str, results: list[ReplayResult]) -> dict[str, object]:
    """The row of one recording."""
    saving, best = (float(np.mean([getattr(d, n) for d in results])) for n in ("saving", "best_saving"))
    slow = [d.slowdown for d in results]
    row: dict[str, object] = {
        "recording": name,
        "jobs": len(results),
        "rows": float(np.mean([d.rows for d in results])),
        "points": float(np.mean([d.points for d in results])),
        "most_points": max(d.points for d in results),
        "mean_saving": saving,
        "best_saving": best,
        "share_of_best": saving / best if best > 0 else 1.0,
        "worst_regret": max(d.best_saving - d.saving for d in results),
        "mean_slowdown": float(np.mean(slow)),
        "worst_slowdown": max(slow),
        "found_best": sum(d.best_saving - d.saving < 1e-9 for d in results),
    }
    if name.endswith("felt") or name == THEIRS:
        # No bar: where no cap is felt the best row's saving is noise, and the other search is not ours.
        return row
    row["bar"] = BARS
    row["pass"] = (
        saving >= BARS["share_of_best"] * best
        and float(np.mean(slow)) <= BARS["mean_slowdown"]
        and max(slow) <= BARS["worst_slowdown"]
    )
    return row


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script alone."""
    parser.add_argument("--data", type=Path, required=True, help="folder with the recordings")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Replay all sweeps and print the table."""
    recordings: dict[str, list[Sweep]] = {}
    for board in ("V100", "A40"):
        sweeps = read_zeus(arguments.data, board.lower())
        recordings[f"Zeus caps, {board}"] = [s for s in sweeps if s.is_limited()]
        recordings[f"{board}, no cap felt"] = [s for s in sweeps if not s.is_limited()]
    recordings["Perseus clocks, A100"] = read_perseus(arguments.data)
    policy = Policy()
    results = {
        name: [replay_sweep(s, policy) for s in sweeps] for name, sweeps in recordings.items() if sweeps
    }
    results[THEIRS] = [bracket_sweep(s, policy) for s in recordings["Perseus clocks, A100"]]
    rows = [summarise(name, each) for name, each in results.items()]
    print("rows of real GPUs, replayed")
    print(f"{'recording':22s} " + " ".join(f"{name:>{width}s}" for name, width in COLUMNS.items()))
    for r in rows:
        print(
            f"{r['recording']:22s} {r['jobs']:5d} {r['points']:8.1f} {r['rows']:8.1f} {r['mean_saving']:7.1%}"
            f" {r['best_saving']:7.1%} {r['share_of_best']:7.1%} {r['worst_regret']:7.1%}"
            f" {r['mean_slowdown']:7.1%} {r['worst_slowdown']:7.1%} {r['found_best']:11d}"
            f"  {format_verdict(r) or '(no bar)'}"
        )
    return {
        "lines": rows,
        "jobs": {name: [result.__dict__ for result in each] for name, each in results.items()},
    }


main = make_main(__doc__, measure, BARS, add_options)

if __name__ == "__main__":
    sys.exit(main())
