"""Train the governor's model of a card, `ekc govern --model FILE`, or judge such models on jobs left out.

    python -m benchmarks.governor.predict --card h200 --out FILE [--without-counters] [--seeds N]
    python -m benchmarks.governor.predict [--card rtx3090] [--seeds N] [--json FILE]

The model (`ekc/governor/response_model.py`) predicts time and energy of a job over the SM clock, from its
counters, or with --without-counters from use and power alone, as on a card whose counters are not permitted.

It is trained on simulated jobs of simulated cards (seeds 1000 to 1011 of each kind); recordings of a real
card can be used in the same form (`TrainingRow`). Without --out the script judges such models by leaving one
job out. The bar is the mean of the other jobs at that clock, which knows nothing of the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, format_verdict, make_main
from ekc.boosted_trees import train_trees
from ekc.errors import InvalidInput
from ekc.governor.job_meter import make_reading
from ekc.governor.model_file import COUNTERS, TARGETS, ModelDescription
from ekc.governor.progress_rate import ProgressSource
from ekc.governor.protocols import Settings
from ekc.governor.readings import JobReading, ProgressRate
from ekc.governor.response_model import ResponseModel, save_model
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import SimulatedJob, SimulatedRun, compute_costs

CLOCK_RATIOS = tuple(float(ratio) for ratio in np.linspace(0.55, 1.0, 10))
"""Ratios of the SM clock to the default's of the training rows."""
WATCH_S = 30.0
"""Seconds of sensor readings at the default clock."""
COUNTER_WINDOW_S = 20.0
BOOSTING_PARAMETERS = {
    # Exact splits are midway between two clocks of the training rows. Other methods split at a clock itself;
    # a card whose clock is slightly below it would get the slowdown of the next lower one.
    "tree_method": "exact",
    "max_depth": 4,
    "eta": 0.15,
    "subsample": 0.8,
    "min_child_weight": 4,
    "seed": 7,
}
BOOSTING_ROUNDS = 80
TRAINING_SEEDS = range(1000, 1012)
JOB_SECONDS = 600.0
CARDS = ("rtx3090", "h200")
SAME_RATIO = 0.03
"""Clock ratios closer than this count as one, for the mean of the other jobs."""


@dataclass(frozen=True)
class TrainingRow:
    """One job at one SM clock."""

    job: str
    counters: dict[str, float]
    """Counters at the default clock, by `COUNTERS`."""
    reading: JobReading
    """The reading at the default clock."""
    ratio: float
    """SM clock over the default SM clock."""
    time: float
    """Seconds over the seconds at the default clock."""
    energy: float
    """Joules over the joules at the default clock."""


def build_rows(job: SimulatedJob, seed: int = 1) -> list[TrainingRow]:
    """Rows of a job: readings at the default clock, exact costs of its first phase at the other clocks."""
    run = SimulatedRun(job, seed)
    start, joules = run.now(), run.read_energy_j()
    samples = run.record(WATCH_S)
    seconds = run.now() - start
    watts = (run.read_energy_j() - joules) / seconds
    source = ProgressSource("none")
    reading = make_reading(Settings(), start, seconds, watts, ProgressRate(), samples, source)
    counters = run.read_counters(COUNTER_WINDOW_S)
    costs, clocks = compute_costs(job), job.card.list_sm_clocks_mhz()
    time, energy = (table[0, -1] / table[0, -1, -1] for table in (costs.seconds, costs.joules))
    # A power cap can keep the clock below the top one: ratios are relative to the clock that really runs.
    top = int(np.searchsorted(clocks, reading.clock_mhz))
    places = [int(np.abs(clocks - ratio * reading.clock_mhz).argmin()) for ratio in CLOCK_RATIOS]
    return [
        TrainingRow(
            job.name, counters, reading, float(clocks[n] / clocks[top]), float(time[n]), float(energy[n])
        )
        for n in places
    ]


def train_model(
    rows: Sequence[TrainingRow], gpu: str, counters: Sequence[str] = COUNTERS, trained_on: str = "other jobs"
) -> ResponseModel:
    """The model of a card, which needs `counters`; deterministic."""
    description = ModelDescription(gpu, tuple(counters), CLOCK_RATIOS, trained_on)
    inputs = ResponseModel(description, {}).build_inputs
    table = np.array([(*inputs(r.counters, r.reading), r.ratio) for r in rows])
    boosters = {}
    for target in TARGETS:
        logs = np.log([getattr(r, target) for r in rows])
        boosters[target] = train_trees(BOOSTING_PARAMETERS, table, logs, BOOSTING_ROUNDS)
    return ResponseModel(description, boosters)


def build_simulated_rows(card: str, seeds: Sequence[int] = TRAINING_SEEDS) -> list[TrainingRow]:
    """Rows of simulated jobs of every kind on a simulated card; deterministic."""
    jobs = (sample_job(seed, kind, card, JOB_SECONDS) for seed in seeds for kind in JOB_KINDS)
    return [row for job in jobs for row in build_rows(job)]


def train_simulated_model(
    card: str, counters: Sequence[str] = COUNTERS, seeds: Sequence[int] = TRAINING_SEEDS
) -> ResponseModel:
    """The model of a simulated card."""
    rows = build_simulated_rows(card, seeds)
    count = len({row.job for row in rows})
    return train_model(rows, card, counters, f"{count} simulated jobs on a simulated {card}")


def leave_one_out(
    rows: Sequence[TrainingRow], gpu: str, counters: Sequence[str] = COUNTERS
) -> dict[str, list[float]]:
    """Absolute relative errors of time and energy, each job predicted by a model of the other jobs."""
    errors: dict[str, list[float]] = {name: [] for name in TARGETS}
    for job in sorted({r.job for r in rows}):
        model = train_model([r for r in rows if r.job != job], gpu, counters)
        job_rows = [r for r in rows if r.job == job]
        inputs = model.build_inputs(job_rows[0].counters, job_rows[0].reading)
        predicted = model.predict(inputs, np.array([r.ratio for r in job_rows]))
        for name, values in zip(TARGETS, predicted, strict=True):
            true = [getattr(r, name) for r in job_rows]
            errors[name] += [float(abs(v / t - 1)) for v, t in zip(values, true, strict=True)]
    return errors


def compute_mean_errors(rows: list[TrainingRow]) -> dict[str, list[float]]:
    """Absolute relative errors of the mean of all other jobs at a clock."""
    errors: dict[str, list[float]] = {name: [] for name in TARGETS}
    for row in rows:
        others = [r for r in rows if r.job != row.job and abs(r.ratio - row.ratio) < SAME_RATIO]
        for quantity, values in errors.items():
            mean = float(np.mean([getattr(r, quantity) for r in others]))
            values.append(abs(mean / getattr(row, quantity) - 1))
    return errors


def judge_card(card: str, seeds: int) -> list[dict[str, object]]:
    """One row for each source of predictions."""
    rows = build_simulated_rows(card, TRAINING_SEEDS[:seeds])
    errors_by_source = {
        "counters and signals": leave_one_out(rows, card),
        "signals alone": leave_one_out(rows, card, ()),
        "mean of other jobs": compute_mean_errors(rows),
    }
    return [
        {
            "card": card,
            "from": source,
            "jobs": len({row.job for row in rows}),
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


def write_model(arguments: Arguments) -> dict[str, Any]:
    """Train the model of --card and write it. Raises `InvalidInput` without --card, or for a file that cannot
    be written."""
    if arguments.card is None:
        raise InvalidInput("--out: a model is of one card; give --card too")
    model = train_simulated_model(
        arguments.card, () if arguments.without_counters else COUNTERS, TRAINING_SEEDS[: arguments.seeds]
    )
    try:
        save_model(model, Path(arguments.out))
    except OSError as problem:
        raise InvalidInput(f"--out {arguments.out}: cannot be written ({problem.strerror})") from None
    print(f"wrote {arguments.out}: a model of {model.description.trained_on}")
    return {"simulated": True, "bar": None, "pass": None}


def measure(arguments: Arguments) -> dict[str, Any]:
    """Write the model of a card, or judge those of each card and print the table."""
    if arguments.out is not None:
        return write_model(arguments)
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


OPTIONS = {
    "--seeds": {"type": int, "default": len(TRAINING_SEEDS), "help": "training jobs of each kind"},
    "--card": {"choices": CARDS, "help": "only this card"},
    "--out": {"metavar": "FILE", "help": "write the model of --card"},
    "--without-counters": {"action": "store_true", "help": "a model that needs no counters, for --out"},
}
main = make_main(__doc__, measure, {"errors": "below those of the mean of other jobs"}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
