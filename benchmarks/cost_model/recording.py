"""The energy model of ekc on a recording: every schedule predicted from the others, beside simpler rules.

    python -m benchmarks.cost_model.recording FILE [--models DIR] [--json FILE] [--seed N] [--folds K]

FILE is a recording (`docs/reference/recordings.md`). Of each operator the metered schedules are dealt into K
folds, no schedule in two; the model learns from K - 1 of them and predicts the energy of the rest from their
measured latency, as in a tuning run. --models: folder of the boosted models that correct the prior, by
default those of ekc; `benchmarks.cost_model.train --without NAME` makes some that have not seen a device.
"not corrected" is without them. "latency x constant power" takes the median power of the same rows,
"P0 t + E0" fits two numbers to them, and "the prior alone" is counted work times round constants, scaled to
their median. Errors are absolute and relative, of energies. Bar: the mean error of the model is
below that of latency x constant power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.cost_model.energy_rows import compute_errors
from ekc.devices.analytic_prior import predict_prior
from ekc.devices.recording import Origin, RecordedRow, Recording, read_recording
from ekc.errors import InvalidInput
from ekc.ir.analysis.analysis import analyse_program
from ekc.search.cost_model.boosted_prior import FOLDER, BoostedPrior
from ekc.search.cost_model.features import build_features, scale_power
from ekc.search.cost_model.latency_law import fit_two_numbers
from ekc.search.cost_model.power_model import PowerModel
from ekc.search.data.candidate import Candidate

Array = NDArray[np.float64]
Predict = Callable[[Sequence[Candidate], Sequence[Candidate], BoostedPrior], Array]
"""(known, asked, boosted models for the device) -> joules of the asked."""

FOLDS = 5
FEWEST = 10
"""Metered schedules of an operator, below which nothing is said of it."""
MODEL, RULE, PRIOR = "ekc's model", "latency x constant power", "the prior alone"
PLAIN, TWO_NUMBERS = "not corrected", "P0 t + E0"
COLUMNS = (
    Column("operator", "operator"),
    Column("rows", "rows"),
    Column("prediction", "prediction"),
    Column("mean", "mean", ".2%"),
    Column("median", "median", ".2%"),
    Column("RMS", "rms", ".2%"),
    Column("Spearman", "spearman", ".4f"),
    Column("", "pass"),
)
OPTIONS = {
    "file": {"type": Path, "help": "a recording"},
    "--models": {"type": Path, "default": FOLDER, "help": "folder of the boosted models"},
    "--folds": {"type": int, "default": FOLDS},
}


def predict_by_model(known: Sequence[Candidate], asked: Sequence[Candidate], booster: BoostedPrior) -> Array:
    """Predict as a tuning run would."""
    return _predict_by_power_model(known, asked, PowerModel(booster.peaks, booster))


def predict_uncorrected(
    known: Sequence[Candidate], asked: Sequence[Candidate], booster: BoostedPrior
) -> Array:
    """Predict as a tuning run would without the boosted models."""
    return _predict_by_power_model(known, asked, PowerModel(booster.peaks))


def _predict_by_power_model(
    known: Sequence[Candidate], asked: Sequence[Candidate], model: PowerModel
) -> Array:
    model.learn(known)
    return _get_latencies(asked) * np.exp(model.predict_timed(asked)[0])


def predict_constant_power(
    known: Sequence[Candidate], asked: Sequence[Candidate], booster: BoostedPrior
) -> Array:
    """Predict energy as latency times the median power: the trivial predictor."""
    return _get_latencies(asked) * np.median([c.power_w for c in known])


def predict_by_two_numbers(
    known: Sequence[Candidate], asked: Sequence[Candidate], booster: BoostedPrior
) -> Array:
    """Predict energy as P0 times latency plus E0, both fitted."""
    latency_s, watts = _get_latencies(known), np.array([c.power_w for c in known])
    asked_s = _get_latencies(asked)
    return asked_s * np.exp(fit_two_numbers(latency_s, watts).predict_log_power(asked_s))


def predict_by_prior(known: Sequence[Candidate], asked: Sequence[Candidate], booster: BoostedPrior) -> Array:
    """Predict by the analytic prior, scaled by one factor."""
    scale = np.median(np.array([c.power_w for c in known]) / _predict_paced_power(known))
    return _get_latencies(asked) * scale * _predict_paced_power(asked)


PREDICTIONS: dict[str, Predict] = {
    MODEL: predict_by_model,
    PLAIN: predict_uncorrected,
    RULE: predict_constant_power,
    TWO_NUMBERS: predict_by_two_numbers,
    PRIOR: predict_by_prior,
}


def _predict_paced_power(candidates: Sequence[Candidate]) -> Array:
    """Watts that the prior expects of kernels that take as long as these do."""
    pace = np.log([c.latency_s / c.expected_latency_s for c in candidates])
    expected_w, standby_w = np.array([(c.expected_power_w, c.standby_w) for c in candidates]).T
    return scale_power(expected_w, pace, standby_w)


def _get_latencies(candidates: Sequence[Candidate]) -> Array:
    return np.array([c.latency_s for c in candidates])


def make_candidates(recording: Recording, number: int, booster: BoostedPrior) -> list[Candidate]:
    """The metered rows of an operator, as a tuning run would hold them."""
    mine = [r for r in recording.rows if r.operator == number and r.timings and r.meterings]
    return [_make_candidate(row, recording.origin, booster) for row in mine]


def _make_candidate(row: RecordedRow, origin: Origin, booster: BoostedPrior) -> Candidate:
    # The figures of the recording are those of the ekc that made it, which may have counted otherwise.
    quantities = analyse_program(row.schedule.program, origin.limits)
    prior, features = predict_prior(quantities, origin.peaks), build_features(quantities)
    figures = (float(figure[0]) for figure in (prior.latency_s, prior.power_w, prior.standby_w))
    made = Candidate(row.schedule, row.structure, features[0], *figures, 0)
    made.booster_inputs = booster.make_inputs(features, prior)[0]
    made.timings, made.meterings = [row.find_timing()], [row.find_metering()]
    return made


def predict_folds(
    whole: list[Candidate], predict: Predict, booster: BoostedPrior, folds: int, seed: int
) -> Array:
    """Every schedule predicted from the folds that do not hold it."""
    fold = np.random.default_rng(seed).permutation(len(whole)) % folds
    found = np.full(len(whole), np.nan)
    for n in range(folds):
        known = [c for c, f in zip(whole, fold, strict=True) if f != n]
        asked = [c for c, f in zip(whole, fold, strict=True) if f == n]
        found[fold == n] = predict(known, asked, booster)
    return found


def measure_operator(
    recording: Recording, number: int, booster: BoostedPrior, folds: int, seed: int
) -> list[dict[str, Any]]:
    """All lines of one operator; one that says why not, where too little was metered."""
    name = str(recording.operators[number]).splitlines()[0]
    whole = make_candidates(recording, number, booster)
    if len(whole) < max(FEWEST, folds):
        why = f"not judged: at least {max(FEWEST, folds)} metered schedules are needed"
        return [{"operator": name, "rows": len(whole), "prediction": why}]
    measured = np.array([c.energy_j for c in whole])
    lines: list[dict[str, Any]] = [
        {"operator": name, "rows": len(whole), "prediction": how}
        | compute_errors(predict_folds(whole, predict, booster, folds, seed), measured)
        for how, predict in PREDICTIONS.items()
    ]
    bar = next(line["mean"] for line in lines if line["prediction"] == RULE)
    lines[0] |= {"bar": {"mean": bar}, "pass": lines[0]["mean"] < bar}
    return lines


def measure(arguments: Arguments) -> dict[str, Any]:
    """Predict each operator of the recording, and print the table."""
    if arguments.folds < 2:
        raise InvalidInput(f"--folds: {arguments.folds}, at least 2; use 2 or more")
    if not (arguments.models / "energy.json.gz").is_file():
        raise InvalidInput(
            f"--models: {arguments.models} holds no energy.json.gz; benchmarks.cost_model.train writes it"
        )
    recording = read_recording(arguments.file)
    booster = BoostedPrior(recording.origin.peaks, recording.origin.limits.sms, arguments.models)
    how = booster, arguments.folds, arguments.seed
    lines = [x for n in range(len(recording.operators)) for x in measure_operator(recording, n, *how)]
    origin = recording.origin
    print(f"{origin.description}, {origin.driver}, {origin.clock_regime}")
    if origin.simulated:
        print("Simulated: the energies are those of a model, not of a GPU.")
    print(f"Relative errors of energies; {arguments.folds} folds by schedule, seed {arguments.seed}")
    print(format_lines(COLUMNS, lines))
    return {"device": origin.description, "simulated": origin.simulated, "lines": lines}


main = make_main(__doc__, measure, {"mean": f"below that of {RULE}"}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
