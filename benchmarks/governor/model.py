"""Boosted trees that predict a job's time and energy over the SM clock, relative to the default clock.

    python -m benchmarks.governor.model [--card rtx3090] [--seeds N] [--json FILE]

As in GPOEO (arXiv 2201.01684) their inputs are counters and the ratio of a clock to the default's. GPOEO's
two models of the memory clock are left out: memory clocks are few, and the governor measures them.

Trees are trained on simulated jobs of simulated cards (seeds 1000 to 1011 of each kind); recordings of a real
card can be used in the same form (`TrainingRow`). The script judges them by leaving one job out. They predict
from counters and signals, and from signals alone, as on a card whose counters are not permitted. The bar is
the mean of the other jobs at that clock, which knows nothing of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.governor.counted_run import CountedRun
from ekc.governor.job_meter import make_reading
from ekc.governor.progress_rate import ProgressSource
from ekc.governor.protocols import Settings
from ekc.governor.readings import JobReading, ProgressRate
from ekc.governor.response_curve import compute_lengthening, compute_reduction
from ekc.governor.samples import Values
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import SimulatedJob, compute_costs
from ekc.search.cost_model.xgboost_model import predict_values, train_trees

COUNTERS = ("sm_active", "dram", "tensor", "fma")
FEATURES = (*COUNTERS, "sm_util", "memory_util", "watts")
TARGETS = ("time", "energy")
CLOCK_RATIOS = np.linspace(0.55, 1.0, 10)
"""Ratios of the SM clock to the default's of the training rows, and of predictions that are fitted."""
WITH_COUNTERS, WITHOUT_COUNTERS = "", "blind_"
"""Prefixes of a target's name: predicted from counters and sensor readings, or from sensor readings alone."""
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
    features: tuple[float, ...]
    """Counters and readings at the default clock, in the order of `FEATURES`."""
    ratio: float
    """SM clock over the default SM clock."""
    time: float
    """Seconds over the seconds at the default clock."""
    energy: float
    """Joules over the joules at the default clock."""


Coefficients = tuple[float, ...]
"""Of a polynomial without constant."""
ResponseModel = Callable[[Mapping[str, float], JobReading], tuple[Coefficients, Coefficients]]
"""Predicts a job from its counters, which may be missing, and the reading at the default: the coefficients of
its slowdown over the lengthening of a clock cycle, and of its power over the reduction of the clock."""


def build_features(counters: Mapping[str, float], reading: JobReading) -> tuple[float, ...]:
    """The inputs of the trees but the clock ratio; NaN for a counter that is missing or not permitted."""
    measured = {"sm_util": reading.sm_util, "memory_util": reading.memory_util, "watts": reading.watts}
    values = {**counters, **measured}
    return tuple(float(values.get(name, float("nan"))) for name in FEATURES)


@dataclass(frozen=True)
class BoostedModel:
    """The trees of one card; a call predicts a job (`ResponseModel`)."""

    boosters: dict[str, Any]
    """XGBoost models by name of target."""

    def __call__(
        self, counters: Mapping[str, float], reading: JobReading
    ) -> tuple[Coefficients, Coefficients]:
        """Coefficients of slowdown and power over the SM clock."""
        inputs = build_features(counters, reading)
        return fit_coefficients(CLOCK_RATIOS, *self.predict(inputs, CLOCK_RATIOS))

    def predict(self, inputs: tuple[float, ...], ratio: Values) -> tuple[Values, Values]:
        """Time and energy relative to the default at each ratio of the SM clock."""
        kind = WITH_COUNTERS
        if np.isnan(inputs[: len(COUNTERS)]).all():
            inputs, kind = inputs[len(COUNTERS) :], WITHOUT_COUNTERS
        table = np.column_stack([np.tile(inputs, (len(ratio), 1)), ratio])
        time, energy = (predict_values(self.boosters[kind + target], table) for target in TARGETS)
        return np.exp(time), np.exp(energy)


def fit_coefficients(ratio: Values, time: Values, energy: Values) -> tuple[Coefficients, Coefficients]:
    """Coefficients of slowdown and of power, as a `ResponseModel` has them, fitted to time and energy at
    clock ratios, which ascend to 1."""
    power = energy / time
    slow = _fit_polynomial(compute_lengthening(ratio, 1.0), time / time[-1] - 1, 2)
    return slow, _fit_polynomial(compute_reduction(ratio, 1.0), power / power[-1] - 1, 3)


def _fit_polynomial(x: Values, y: Values, count: int) -> Coefficients:
    """Coefficients of a polynomial without constant, fitted to y / x.

    The governor chooses clocks near the default. A fit that weighs all clocks equally follows the lowest
    ones and predicts a third too much slowdown near the default.
    """
    positive = x > 0
    rows = x[positive][:, None] ** np.arange(count)
    # A small ridge term: the highest clocks alone do not determine the curvature.
    solved = np.linalg.solve(rows.T @ rows + 1e-3 * np.eye(count), rows.T @ (y[positive] / x[positive]))
    return tuple(float(v) for v in solved)


def build_rows(job: SimulatedJob, seed: int = 1) -> list[TrainingRow]:
    """Rows of a job: readings at the default clock, exact costs of its first phase at the other clocks."""
    run = CountedRun(job, seed)
    start, joules = run.now(), run.read_energy_j()
    samples = run.record(WATCH_S)
    seconds = run.now() - start
    watts = (run.read_energy_j() - joules) / seconds
    source = ProgressSource("none")
    reading = make_reading(Settings(), start, seconds, watts, ProgressRate(), samples, source)
    inputs = build_features(run.read_counters(COUNTER_WINDOW_S) or {}, reading)
    costs, clocks = compute_costs(job), job.card.list_sm_clocks_mhz()
    time, energy = (table[0, -1] / table[0, -1, -1] for table in (costs.seconds, costs.joules))
    # A power cap can keep the clock below the top one: ratios are relative to the clock that really runs.
    top = int(np.searchsorted(clocks, reading.clock_mhz))
    places = [int(np.abs(clocks - ratio * reading.clock_mhz).argmin()) for ratio in CLOCK_RATIOS]
    return [
        TrainingRow(job.name, inputs, float(clocks[n] / clocks[top]), float(time[n]), float(energy[n]))
        for n in places
    ]


def remove_counters(row: TrainingRow) -> TrainingRow:
    """The row as a card without counters would give it."""
    return replace(row, features=(float("nan"),) * len(COUNTERS) + row.features[len(COUNTERS) :])


def train_model(
    rows: Sequence[TrainingRow], kinds: Sequence[str] = (WITH_COUNTERS, WITHOUT_COUNTERS)
) -> BoostedModel:
    """Trees of one card, for each kind: with counters, and without, as not every card permits them."""
    boosters = {}
    table = np.array([(*r.features, r.ratio) for r in rows])
    for target in TARGETS:
        logs = np.log([getattr(r, target) for r in rows])
        for kind in kinds:
            columns = table[:, len(COUNTERS) :] if kind == WITHOUT_COUNTERS else table
            boosters[kind + target] = train_trees(BOOSTING_PARAMETERS, columns, logs, BOOSTING_ROUNDS)
    return BoostedModel(boosters)


def train_simulated_model(card: str) -> BoostedModel:
    """Trees trained on simulated jobs of a simulated card; deterministic."""
    jobs = (sample_job(seed, kind, card, JOB_SECONDS) for seed in TRAINING_SEEDS for kind in JOB_KINDS)
    return train_model([row for job in jobs for row in build_rows(job)])


def leave_one_out(rows: Sequence[TrainingRow], has_counters: bool = True) -> dict[str, list[float]]:
    """Absolute relative errors of time and energy, each job predicted by trees trained on the other jobs.

    `has_counters`: whether the trees get counters beside the sensor readings.
    """
    errors: dict[str, list[float]] = {name: [] for name in TARGETS}
    kinds = (WITH_COUNTERS if has_counters else WITHOUT_COUNTERS,)
    for job in sorted({r.job for r in rows}):
        model = train_model([r for r in rows if r.job != job], kinds)
        job_rows = [r if has_counters else remove_counters(r) for r in rows if r.job == job]
        predicted = model.predict(job_rows[0].features, np.array([r.ratio for r in job_rows]))
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
    used = TRAINING_SEEDS[:seeds]
    jobs = [sample_job(seed, kind, card, JOB_SECONDS) for kind in JOB_KINDS for seed in used]
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


def measure(arguments: Arguments) -> dict[str, Any]:
    """Train and judge the trees of each card, and print the table."""
    cards = (arguments.card,) if arguments.card else CARDS
    rows = [row for card in cards for row in judge_card(card, arguments.seeds)]
    add_verdicts(rows)
    print(format_lines(COLUMNS, rows, "simulated jobs on simulated cards", label_count=2))
    return {"simulated": True, "lines": rows}


COLUMNS = (
    Column("card", "card"),
    Column("from", "from"),
    Column("jobs", "jobs"),
    *(
        Column(header, f"{target}_{figure}", ".1%")
        for target in TARGETS
        for header, figure in ((target, "median"), ("p90", "p90"))
    ),
    Column("", "pass"),
)
OPTIONS = {
    "--seeds": {"type": int, "default": len(TRAINING_SEEDS), "help": "training jobs of each kind"},
    "--card": {"choices": CARDS, "help": "only this card"},
}
main = make_main(__doc__, measure, {"errors": "below those of the mean of other jobs"}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
