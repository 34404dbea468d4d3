"""The governor's search replayed on recordings of real GPUs made by others.

    python governor_replay.py --data DIR [--json FILE]

Power-cap sweeps of training jobs on V100 and A40 (Zeus), clock sweeps of GPT-3 stages on A100 (Perseus); DIR
holds them. The search sees a row of a sweep when it visits it: seconds and watts as recorded, nothing else.
Its choice is visited too, and reconsidered until the one it has seen is the one it wants. Held against the
best row of the sweep within the budget (5 % slower than without a limit); `regret` is what the choice lacks
of that row's saving. Beside it, on clock sweeps, GPOEO's bracket, golden section and
cubic smoothing, begun in the middle and held to the same budget (as published it keeps a tenth below).
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ekc
from ekc.errors import InvalidInput
from ekc.governor import policy as objective
from ekc.governor.baselines.gpoeo import BracketSearch
from ekc.governor.baselines.odpp import CostPoint, GpoeoRule
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings
from ekc.governor.readings import JobReading, PhaseReadings, ProgressRate
from ekc.governor.response_curve import POWER_CAP, SM_CLOCK, ControlVariable, ResponsePrior
from ekc.governor.samples import Values
from ekc.governor.search import LimitSearch

CAP_ERROR, CLOCK_ERROR = 0.02, 0.003
"""Standard errors that the search is told of a recorded time: epochs of jobs that no cap touches differ by 2
to 5 % from one cap to the next; Perseus' means differ by less."""
FEWEST_ROWS = 5
COLUMNS = {"jobs": 5, "visited": 8, "of rows": 8, "saved": 7, "best": 7, "share": 7}
COLUMNS |= {"regret": 7, "slower": 7, "worst": 7, "best found": 11}
THEIRS = "A100, golden section"
BARS = {"share_of_best": 0.9, "mean_slowdown": 0.05, "worst_slowdown": 0.07}


@dataclass(frozen=True)
class Sweep:
    """One job at every recorded limit, ascending; arrays of one length."""

    name: str
    knob: ControlVariable
    limit: Values
    seconds: Values
    joules: Values

    def slowdown(self) -> Values:
        """Against the highest limit."""
        return np.asarray(self.seconds / self.seconds[-1] - 1)

    def saving(self) -> Values:
        """Share of the joules at the highest limit."""
        return np.asarray(1 - self.joules / self.joules[-1])

    def touched(self) -> bool:
        """Whether any limit lies below what the job does without; otherwise rows differ by noise alone."""
        return self.knob is SM_CLOCK or bool(self.limit[0] < self.joules[-1] / self.seconds[-1])

    def reading(self, place: int) -> JobReading:
        """A row as if just measured; the highest limit stands for the default."""
        last = len(self.limit) - 1
        settings = Settings() if place == last else self.knob.make_settings(self.limit[place])
        pace = ProgressRate(
            beats=1 / float(self.seconds[place]),
            beats_error=CLOCK_ERROR if self.knob is SM_CLOCK else CAP_ERROR,
        )
        watts = float(self.joules[place] / self.seconds[place])
        clock = float(self.limit[place]) if self.knob is SM_CLOCK else float("nan")
        return JobReading(settings, 0.0, 1.0, watts, pace, 100.0, float("nan"), clock)


@dataclass(frozen=True)
class Replayed:
    """What the search made of a sweep."""

    name: str
    points: int
    rows: int
    slowdown: float
    saving: float
    best_slowdown: float
    best_saving: float


def replay(sweep: Sweep, policy: Policy) -> Replayed:
    """Search one sweep as the loop would, seeing only the rows that it visits."""
    ledger = PhaseReadings([sweep.reading(len(sweep.limit) - 1)])
    search = LimitSearch(
        policy, sweep.knob, sweep.limit, ResponsePrior(sweep.knob.time_prior, sweep.knob.power_prior)
    )
    seen = {len(sweep.limit) - 1}

    def visit(place: int) -> None:
        if place not in seen:
            ledger.other_readings.append(sweep.reading(place))
            seen.add(place)

    while (place := search.propose_next(ledger)) is not None and place not in seen:
        visit(place)
    while True:
        gear = search.choose_gear(ledger)
        wanted = len(sweep.limit) - 1 if gear is None else int(np.searchsorted(sweep.limit, gear))
        if wanted in seen:
            break
        visit(wanted)
    return replayed(sweep, policy, seen)


def bracketed(sweep: Sweep, policy: Policy) -> Replayed:
    """The same by GPOEO's search, from the middle of the clocks: there is no model for these cards."""
    last = len(sweep.limit) - 1
    points = [CostPoint(float(t), float(e)) for t, e in zip(sweep.seconds, sweep.joules, strict=True)]
    search = BracketSearch(sweep.limit, GpoeoRule(0, policy.max_slowdown), points[last], points.__getitem__)
    chosen = search.search(last // 2)
    return replayed(sweep, policy, {last, chosen, *search.points})


def replayed(sweep: Sweep, policy: Policy, seen: set[int]) -> Replayed:
    """What was seen is known: among the rows visited, the best within the budget."""
    places = sorted(seen)
    told = objective.find_best(policy, sweep.slowdown()[places], sweep.saving()[places])
    took = places[told if told is not None else -1]
    best = objective.find_best(policy, sweep.slowdown(), sweep.saving())
    best = len(sweep.limit) - 1 if best is None else best
    return Replayed(
        sweep.name,
        len(seen) - 1,
        len(sweep.limit),
        float(sweep.slowdown()[took]),
        float(sweep.saving()[took]),
        float(sweep.slowdown()[best]),
        float(sweep.saving()[best]),
    )


def read(folder: Path, name: str) -> list[dict[str, str]]:
    """One recording; `InvalidInput` where the folder has none."""
    file = folder / name
    if not file.is_file():
        raise InvalidInput(f"data: {folder} has no {name}; name the folder that holds the recordings")
    with file.open() as stream:
        return list(csv.DictReader(stream))


def zeus(folder: Path, board: str) -> list[Sweep]:
    """Every job of a power-cap sweep."""
    table: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in read(folder, f"zeus_power_caps_{board}.csv"):
        name = " ".join(row[k] for k in ("network", "dataset", "batch_size", "optimizer"))
        cap, seconds, watts = (float(row[k]) for k in ("power_limit", "time_per_epoch", "average_power"))
        table[name].append((cap, seconds, watts * seconds))
    return [
        sweep(f"{name} {board}", POWER_CAP, rows)
        for name, rows in sorted(table.items())
        if len(rows) >= FEWEST_ROWS
    ]


def perseus(folder: Path) -> list[Sweep]:
    """Forward and backward of each pipeline stage together."""
    table: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for row in read(folder, "perseus_gpt3_a100_clocks.csv"):
        cell = table[row["stage"]][float(row["frequency"])]
        cell[0] += float(row["time"])
        cell[1] += float(row["energy"])
    return [
        sweep(f"GPT-3 stage {stage} a100", SM_CLOCK, [(f, *cell) for f, cell in cells.items()])
        for stage, cells in sorted(table.items())
    ]


def sweep(name: str, knob: ControlVariable, rows: list[tuple[float, ...]]) -> Sweep:
    """Rows of (limit, seconds, joules) in any order."""
    limit, seconds, joules = np.array(sorted(rows)).T
    return Sweep(name, knob, limit, seconds, joules)


def summed(name: str, done: list[Replayed]) -> dict[str, object]:
    """The row of one recording."""
    saving, best = (float(np.mean([getattr(d, n) for d in done])) for n in ("saving", "best_saving"))
    slow = [d.slowdown for d in done]
    row: dict[str, object] = {
        "recording": name,
        "jobs": len(done),
        "rows": float(np.mean([d.rows for d in done])),
        "points": float(np.mean([d.points for d in done])),
        "most_points": max(d.points for d in done),
        "mean_saving": saving,
        "best_saving": best,
        "share_of_best": saving / best if best > 0 else 1.0,
        "worst_regret": max(d.best_saving - d.saving for d in done),
        "mean_slowdown": float(np.mean(slow)),
        "worst_slowdown": max(slow),
        "found_best": sum(d.best_saving - d.saving < 1e-9 for d in done),
    }
    if name.endswith("felt") or name == THEIRS:
        # Nothing to find, what the best row saves is the noise of the recording; or not ours.
        return row
    row["bar"] = BARS
    row["pass"] = (
        saving >= BARS["share_of_best"] * best
        and float(np.mean(slow)) <= BARS["mean_slowdown"]
        and max(slow) <= BARS["worst_slowdown"]
    )
    return row


def main() -> None:
    """Replay, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the recordings")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    recordings: dict[str, list[Sweep]] = {}
    for board in ("V100", "A40"):
        sweeps = zeus(given.data, board.lower())
        recordings[f"Zeus caps, {board}"] = [s for s in sweeps if s.touched()]
        recordings[f"{board}, no cap felt"] = [s for s in sweeps if not s.touched()]
    recordings["Perseus clocks, A100"] = perseus(given.data)
    policy = Policy()
    done = {name: [replay(s, policy) for s in sweeps] for name, sweeps in recordings.items() if sweeps}
    done[THEIRS] = [bracketed(s, policy) for s in recordings["Perseus clocks, A100"]]
    rows = [summed(name, each) for name, each in done.items()]
    print(f"ekc {ekc.__version__}, Python {platform.python_version()}; rows of real GPUs, replayed")
    print(f"{'recording':22s} " + " ".join(f"{name:>{width}s}" for name, width in COLUMNS.items()))
    for r in rows:
        verdict = "pass" if r.get("pass") else "FAIL" if "pass" in r else "(no bar)"
        print(
            f"{r['recording']:22s} {r['jobs']:5d} {r['points']:8.1f} {r['rows']:8.1f} {r['mean_saving']:7.1%}"
            f" {r['best_saving']:7.1%} {r['share_of_best']:7.1%} {r['worst_regret']:7.1%}"
            f" {r['mean_slowdown']:7.1%} {r['worst_slowdown']:7.1%} {r['found_best']:11d}  {verdict}"
        )
    if given.json:
        jobs = {name: [d.__dict__ for d in each] for name, each in done.items()}
        passed = all(bool(r.get("pass", True)) for r in rows)
        given.json.write_text(json.dumps({"rows": rows, "jobs": jobs, "pass": passed}, indent=1))


if __name__ == "__main__":
    main()
