"""The governor's search replayed on other authors' recordings of real GPUs, with noise on every reading.

    python -m benchmarks.governor.replay --data DIR [--draws 20] [--json FILE]

DIR holds power-cap sweeps of training jobs on V100 and A40 (Zeus) and clock sweeps of GPT-3 stages on A100
(Perseus). The search gets a row of a sweep, its seconds and watts times normal noise, each time that it asks
for that row, the default again too. The row that it chooses in the end is judged by what was recorded,
against a budget of 5 %: how much it saves beside the best row within the budget, and how many choices are
beyond 5.5 % and 7 %. A row that is beyond the budget may save more than the best one within it.

For comparison: the governor that never moves, the one that always takes the lowest row, and on clock sweeps
GPOEO's bracket, golden section and cubic smoothing, without noise, started in the middle and with the same
budget (as published it keeps a tenth below).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.recordings import read_table
from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.governor.baselines.gpoeo import BracketSearch
from benchmarks.governor.baselines.odpp import CostPoint, GpoeoRule
from ekc.governor.decision import LimitSearch, find_best
from ekc.governor.protocols import Settings
from ekc.governor.readings import JobReading, PhaseReadings, ProgressRate
from ekc.governor.request import Policy
from ekc.governor.response_curve import POWER_CAP, SM_CLOCK, ControlVariable
from ekc.governor.samples import Values

NOISES = (0.0, 0.005, 0.015)
"""Relative standard deviations of the noise on seconds and on watts of a reading. With the largest, two
readings of one row differ by 2.1 %, as those of an unchanged real job do."""
MIN_STATED_ERROR = 0.003
"""Relative standard error that is stated for a reading without noise; that of the noise is added."""
READING_S = 12.0
"""Seconds of a reading, those of a job with short iterations."""
MIN_ROWS = 5
BEYOND = (0.055, 0.07)
"""Slowdowns beyond which choices are counted."""
COLUMNS = (
    Column("recording", "recording"),
    Column("jobs", "jobs"),
    Column("noise", "noise", ".1%"),
    Column("draws", "draws"),
    Column("read", "readings", ".1f"),
    Column("of rows", "rows", ".1f"),
    Column("saved", "mean_saving", ".1%"),
    Column("best", "best_saving", ".1%"),
    Column("share", "share_of_best", ".1%"),
    Column(">5.5 %", "beyond", lambda shares: f"{shares[0]:.2%}"),
    Column(">7 %", "beyond", lambda shares: f"{shares[1]:.2%}"),
    Column("slower", "mean_slowdown", ".1%"),
    Column("worst", "worst_slowdown", ".1%"),
    Column("", "pass"),
)
LIMITED = "all where a limit acts"
SHARE_BARS = {0.0: 0.9, 0.005: 0.9, 0.015: 0.8}
"""Least share of the best saving, by noise."""
BEYOND_BARS = (0.02, 0.002)
"""Largest shares of choices beyond each of `BEYOND`."""


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

    def make_reading(self, place: int, noise: float, rng: np.random.Generator) -> JobReading:
        """A row as a measured reading; the highest limit serves as the default."""
        last = len(self.limit) - 1
        settings = Settings() if place == last else self.control.make_settings(self.limit[place])
        of_time, of_power = 1 + noise * rng.standard_normal(2)
        error = float(np.hypot(MIN_STATED_ERROR, noise))
        pace = ProgressRate(beats=1 / (float(self.seconds[place]) * of_time), beats_error=error)
        watts = float(self.joules[place] / self.seconds[place]) * of_power
        clock = float(self.limit[place]) if self.control is SM_CLOCK else float("nan")
        return JobReading(settings, 0.0, READING_S, watts, pace, 100.0, float("nan"), clock, error)


ReplayResult = dict[str, Any]
"""The choice of a search on one sweep. Slowdowns and savings are shares of the highest limit's row; the first
reading of the default is not counted in "readings"."""


def search_sweep(
    sweep: Sweep, policy: Policy, noise: float, rng: np.random.Generator
) -> tuple[LimitSearch, PhaseReadings]:
    """Search one sweep as the control loop would: (the search, all readings that it asked for)."""
    last = len(sweep.limit) - 1
    readings = PhaseReadings([sweep.make_reading(last, noise, rng)])
    search = LimitSearch(policy, sweep.control, sweep.limit)
    while (place := search.propose_next(readings)) is not None:
        group = readings.default_readings if place == last else readings.other_readings
        group.append(sweep.make_reading(place, noise, rng))
    return search, readings


def replay_sweep(sweep: Sweep, policy: Policy, noise: float, rng: np.random.Generator) -> ReplayResult:
    """Search one sweep and judge the choice by the recording."""
    search, readings = search_sweep(sweep, policy, noise, rng)
    value = search.choose_value(readings)
    chosen = len(sweep.limit) - 1 if value is None else int(np.searchsorted(sweep.limit, value))
    count = len(readings.default_readings) + len(readings.other_readings) - 1
    return make_result(sweep, policy, chosen, count)


def bracket_sweep(sweep: Sweep, policy: Policy) -> ReplayResult:
    """GPOEO's search on one sweep, from the middle of the clocks: there is no model of these cards."""
    last = len(sweep.limit) - 1
    points = [CostPoint(float(t), float(e)) for t, e in zip(sweep.seconds, sweep.joules, strict=True)]
    search = BracketSearch(sweep.limit, GpoeoRule(0, policy.max_slowdown), points[last], points.__getitem__)
    chosen = search.search(last // 2)
    return make_result(sweep, policy, chosen, len({chosen, *search.points} - {last}))


def make_result(sweep: Sweep, policy: Policy, chosen: int, readings: int) -> ReplayResult:
    """The chosen row beside the best row of the sweep within the budget."""
    slowdown, saving = sweep.compute_slowdown(), sweep.compute_saving()
    best = find_best(policy, slowdown, saving)
    places = [chosen, len(sweep.limit) - 1 if best is None else best]
    slower, saved = ([float(x[place]) for place in places] for x in (slowdown, saving))
    return {
        "name": sweep.name,
        "readings": readings,
        "rows": len(sweep.limit),
        "slowdown": slower[0],
        "saving": saved[0],
        "best_slowdown": slower[1],
        "best_saving": saved[1],
    }


def read_zeus(folder: Path, board: str) -> list[Sweep]:
    """Power-cap sweeps, one for each job."""
    table: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in read_table(folder / f"zeus_power_caps_{board}.csv"):
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
    for row in read_table(folder / "perseus_gpt3_a100_clocks.csv"):
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


def summarise_choices(name: str, results: list[ReplayResult], noise: float, draws: int) -> dict[str, Any]:
    """The row of one recording; the rows of `LIMITED` are judged."""
    saving, best = (float(np.mean([d[n] for d in results])) for n in ("saving", "best_saving"))
    slow = np.array([d["slowdown"] for d in results])
    row: dict[str, Any] = {
        "recording": name,
        "jobs": len(results) // draws,
        "noise": noise,
        "draws": draws,
        "readings": float(np.mean([d["readings"] for d in results])),
        "rows": float(np.mean([d["rows"] for d in results])),
        "mean_saving": saving,
        "best_saving": best,
        "share_of_best": saving / best if best > 0 else 1.0,
        "beyond": [float(np.mean(slow > limit)) for limit in BEYOND],
        "mean_slowdown": float(slow.mean()),
        "worst_slowdown": float(slow.max()),
    }
    if name == LIMITED:
        row["pass"] = row["share_of_best"] >= SHARE_BARS[noise] and all(
            share <= bar for share, bar in zip(row["beyond"], BEYOND_BARS, strict=True)
        )
    return row


def read_recordings(folder: Path) -> dict[str, list[Sweep]]:
    """Sweeps by recording; those of power caps that never act are apart."""
    recordings: dict[str, list[Sweep]] = {}
    for board in ("V100", "A40"):
        sweeps = read_zeus(folder, board.lower())
        recordings[f"Zeus caps, {board}"] = [s for s in sweeps if s.is_limited()]
        recordings[f"{board}, no cap acts"] = [s for s in sweeps if not s.is_limited()]
    recordings["Perseus clocks, A100"] = read_perseus(folder)
    return {name: sweeps for name, sweeps in recordings.items() if sweeps}


def measure(arguments: Arguments) -> dict[str, Any]:
    """Replay all sweeps and print the table."""
    recordings, policy = read_recordings(arguments.data), Policy()
    limited = [s for sweeps in recordings.values() for s in sweeps if s.is_limited()]
    rows, jobs = [], {}

    def add(name: str, results: list[ReplayResult], noise: float = 0.0, draws: int = 1) -> None:
        rows.append(summarise_choices(name, results, noise, draws))
        jobs[f"{name}, {noise:.1%}"] = results

    for noise in NOISES:
        draws = arguments.draws if noise else 1
        together: list[ReplayResult] = []
        for name, sweeps in recordings.items():
            results = [
                replay_sweep(s, policy, noise, np.random.default_rng([arguments.seed, draw, at]))
                for at, s in enumerate(sweeps)
                for draw in range(draws)
            ]
            add(name, results, noise, draws)
            together += results if sweeps[0].is_limited() else []
        add(LIMITED, together, noise, draws)
    add("never moves", [make_result(s, policy, len(s.limit) - 1, 0) for s in limited])
    add("always the lowest row", [make_result(s, policy, 0, 0) for s in limited])
    add("A100, golden section", [bracket_sweep(s, policy) for s in recordings["Perseus clocks, A100"]])
    print(format_lines(COLUMNS, rows, "rows of real GPUs, replayed; the noise is drawn"))
    return {"lines": rows, "jobs": jobs}


OPTIONS = {
    "--data": {"type": Path, "required": True, "help": "folder with the recordings"},
    "--draws": {"type": int, "default": 20, "help": "runs with other noise, default %(default)s"},
}
main = make_main(
    __doc__, measure, {"share_of_best": [*SHARE_BARS.values()], "beyond": BEYOND_BARS}, options=OPTIONS
)

if __name__ == "__main__":
    raise SystemExit(main())
