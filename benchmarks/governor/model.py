"""Errors of the trees of `benchmarks.governor.predict`.

    python -m benchmarks.governor.model [--card rtx3090] [--seeds N] [--json FILE]

Trees are trained on simulated jobs of simulated cards (seeds 1000 to 1011 of each kind) and judged by
leaving one job out. They predict time and energy over the SM clock from counters and signals, and from
signals alone, as on a card whose counters are not permitted. The bar is the mean of the other jobs at that
clock, which knows nothing of the job.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from benchmarks.common.script import format_verdict, make_main
from benchmarks.governor.predict import TrainingRow, build_rows, leave_one_out
from benchmarks.governor.predict.train import JOB_SECONDS, TRAINING_SEEDS
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job

CARDS = ("rtx3090", "h200")
SAME_RATIO = 0.03
"""Clock ratios closer than this count as one, for the mean of the other jobs."""


def compute_mean_errors(rows: list[TrainingRow]) -> dict[str, list[float]]:
    """Absolute relative errors of the mean of all other jobs at a clock."""
    errors: dict[str, list[float]] = {"time": [], "energy": []}
    for row in rows:
        others = [r for r in rows if r.job != row.job and abs(r.ratio - row.ratio) < SAME_RATIO]
        for quantity, values in errors.items():
            mean = float(np.mean([getattr(r, quantity) for r in others]))
            values.append(abs(mean / getattr(row, quantity) - 1))
    return errors


def judge_card(card: str, seeds: int) -> list[dict[str, object]]:
    """One row for each source of predictions."""
    seeds_used = list(TRAINING_SEEDS)[:seeds]
    jobs = [sample_job(seed, kind, card, JOB_SECONDS) for kind in JOB_KINDS for seed in seeds_used]
    rows = [row for job in jobs for row in build_rows(job)]
    errors_by_source = {
        "counters and signals": leave_one_out(rows),
        "signals alone": leave_one_out(rows, has_counters=False),
        "mean of other jobs": compute_mean_errors(rows),
    }
    return [
        {
            "card": card,
            "from": source,
            "jobs": len(jobs),
            **{f"{quantity}_median": float(np.median(values)) for quantity, values in errors.items()},
            **{f"{quantity}_p90": float(np.percentile(values, 90)) for quantity, values in errors.items()},
        }
        for source, errors in errors_by_source.items()
    ]


def add_verdicts(rows: list[dict[str, object]]) -> None:
    """Add bar and pass: trees must beat the mean of other jobs in every figure."""
    for first, second, mean in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        for row in (first, second):
            figures = ("time_median", "energy_median", "time_p90", "energy_p90")
            row["bar"] = {name: mean[name] for name in figures}
            row["pass"] = all(float(str(row[name])) < float(str(mean[name])) for name in figures)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script alone."""
    parser.add_argument("--seeds", type=int, default=len(TRAINING_SEEDS), help="training jobs of each kind")
    parser.add_argument("--card", choices=CARDS, help="only this card")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and judge the trees of each card, and print the table."""
    cards = (arguments.card,) if arguments.card else CARDS
    rows = [row for card in cards for row in judge_card(card, arguments.seeds)]
    add_verdicts(rows)
    print("simulated jobs on simulated cards")
    print(f"{'card':8s} {'from':21s} {'jobs':>4s} {'time':>6s} {'p90':>6s} {'energy':>7s} {'p90':>6s}")
    for r in rows:
        print(
            f"{r['card']:8s} {r['from']:21s} {r['jobs']:4d} {r['time_median']:6.1%} {r['time_p90']:6.1%}"
            f" {r['energy_median']:7.1%} {r['energy_p90']:6.1%}  {format_verdict(r)}"
        )
    return {"simulated": True, "lines": rows}


main = make_main(__doc__, measure, {"errors": "below those of the mean of other jobs"}, add_options)

if __name__ == "__main__":
    sys.exit(main())
