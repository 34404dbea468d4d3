"""The models that `ekc govern --model` takes: how far they are off, and a file of one.

    python governor_model.py [--card rtx3090] [--write FILE] [--json FILE]

Trained on simulated jobs of simulated cards (seeds 1000 to 1011 of each kind), judged by leaving one job out:
time and energy over the SM clock as models of the other jobs predict them, from counters and signals, and
from signals alone, as on a card whose counters are not permitted. Held against knowing nothing of the job:
the mean of the other jobs at that clock. `--write` saves the model of `--card`, for `--model FILE`.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np

import ekc
from ekc.governor.predict import TrainingRow, build_rows, leave_one_out, train_simulated_model
from ekc.governor.predict.train import JOB_SECONDS, TRAINING_SEEDS
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job

CARDS = ("rtx3090", "h200")
NEAR = 0.03
"""Ratios of the clock closer than this are one, for the mean of the other jobs."""


def means(rows: list[TrainingRow]) -> dict[str, list[float]]:
    """Errors of the mean of all other jobs at a clock."""
    errors: dict[str, list[float]] = {"time": [], "energy": []}
    for row in rows:
        others = [r for r in rows if r.job != row.job and abs(r.ratio - row.ratio) < NEAR]
        for what, missed in errors.items():
            told = float(np.mean([getattr(r, what) for r in others]))
            missed.append(abs(told / getattr(row, what) - 1))
    return errors


def judged(card: str, seeds: int) -> list[dict[str, object]]:
    """A row for each way of knowing."""
    seeds_used = list(TRAINING_SEEDS)[:seeds]
    jobs = [sample_job(seed, kind, card, JOB_SECONDS) for kind in JOB_KINDS for seed in seeds_used]
    rows = [row for job in jobs for row in build_rows(job)]
    ways = {
        "counters and signals": leave_one_out(card, rows),
        "signals alone": leave_one_out(card, rows, has_counters=False),
        "mean of other jobs": means(rows),
    }
    return [
        {
            "card": card,
            "from": way,
            "jobs": len(jobs),
            **{f"{what}_median": float(np.median(off)) for what, off in errors.items()},
            **{f"{what}_p90": float(np.percentile(off, 90)) for what, off in errors.items()},
        }
        for way, errors in ways.items()
    ]


def verdict(rows: list[dict[str, object]]) -> None:
    """A model must be nearer than knowing nothing, in every figure."""
    for first, second, mean in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        for row in (first, second):
            figures = ("time_median", "energy_median", "time_p90", "energy_p90")
            row["bar"] = {name: mean[name] for name in figures}
            row["pass"] = all(float(str(row[name])) < float(str(mean[name])) for name in figures)


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=len(TRAINING_SEEDS), help="training jobs of each kind")
    parser.add_argument("--card", choices=CARDS, help="this one alone")
    parser.add_argument("--write", type=Path, help="save the model of --card")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.write and not given.card:
        parser.error("--write: a model is of one card; name it with --card")
    cards = (given.card,) if given.card else CARDS
    rows = [row for card in cards for row in judged(card, given.seeds)]
    verdict(rows)
    print(f"ekc {ekc.__version__}, Python {platform.python_version()}; simulated jobs on simulated cards")
    print(f"{'card':8s} {'from':21s} {'jobs':>4s} {'time':>6s} {'p90':>6s} {'energy':>7s} {'p90':>6s}")
    for r in rows:
        told = "" if "pass" not in r else "  pass" if r["pass"] else "  FAIL"
        print(
            f"{r['card']:8s} {r['from']:21s} {r['jobs']:4d} {r['time_median']:6.1%} {r['time_p90']:6.1%}"
            f" {r['energy_median']:7.1%} {r['energy_p90']:6.1%}{told}"
        )
    if given.write:
        train_simulated_model(given.card).save(given.write)
        print(f"wrote {given.write}: {given.write.stat().st_size / 1024:.0f} KiB")
    if given.json:
        passed = all(bool(r.get("pass", True)) for r in rows)
        given.json.write_text(json.dumps({"simulated": True, "rows": rows, "pass": passed}, indent=1))


if __name__ == "__main__":
    main()
