"""Boosted trees for time and energy relative to the default, over the SM clock.

As in GPOEO (arXiv 2201.01684) models see counters and the ratio of a clock to the default's; its two of the
memory clock are left out, since memory clocks are few and are tried. They are trained on simulated jobs
(`train.py`); whoever has recordings of a real card can train on rows of the same form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ekc.boosting import load_trees, predict_values
from ekc.errors import RecordError
from ekc.governor.readings import JobReading
from ekc.governor.response_curve import (
    CoefficientPrior,
    ResponsePrior,
    compute_lengthening,
    compute_reduction,
)
from ekc.governor.samples import Values

COUNTERS = ("sm_active", "dram", "tensor", "fma")
FEATURES = (*COUNTERS, "sm_util", "memory_util", "watts")
TARGETS = ("sm_time", "sm_energy")
CLOCK_RATIOS = np.linspace(0.55, 1.0, 10)
"""Clocks over the default's at which a prediction becomes a prior."""
WITH_COUNTERS, WITHOUT_COUNTERS = "", "blind_"
"""Before the name of a target: predicted from counters and signals, or from signals alone."""
BOOSTER_NAMES = tuple(kind + target for kind in (WITH_COUNTERS, WITHOUT_COUNTERS) for target in TARGETS)
FORMAT_VERSION = 3


@dataclass(frozen=True)
class TrainingRow:
    """One SM clock of one job: features at the default, ratio of the clock, time and energy over the
    default's."""

    job: str
    features: tuple[float, ...]
    """In the order of `FEATURES`."""
    ratio: float
    time: float
    energy: float


@dataclass(frozen=True)
class CoefficientSpread:
    """How far predictions are off: standard deviations of the coefficients of slowdown and of power, as jobs
    showed that a model was not trained on."""

    time: tuple[float, ...]
    power: tuple[float, ...]


def build_features(counters: Mapping[str, float], reading: JobReading) -> tuple[float, ...]:
    """The inputs of the models; NaN for a counter that is not there, or not permitted."""
    measured = {"sm_util": reading.sm_util, "memory_util": reading.memory_util, "watts": reading.watts}
    known = {**counters, **measured}
    return tuple(float(known.get(name, float("nan"))) for name in FEATURES)


@dataclass(frozen=True)
class BoostedModel:
    """The models of one card; a call gives the beliefs that `govern` begins with."""

    card: str
    trained_on: str
    """What the rows were; simulated ones say so."""
    boosters: dict[str, Any]
    """By name of target."""
    spread: CoefficientSpread
    blind_spread: CoefficientSpread
    """Without counters."""

    def __call__(self, counters: Mapping[str, float], reading: JobReading) -> ResponsePrior:
        """Priors of slowdown and power over the SM clock."""
        inputs = build_features(counters, reading)
        slow, watts = fit_coefficients(CLOCK_RATIOS, *self.predict(inputs, CLOCK_RATIOS))
        trust = self.blind_spread if _has_no_counters(inputs) else self.spread
        return ResponsePrior(CoefficientPrior(slow, trust.time), CoefficientPrior(watts, trust.power))

    def predict(self, inputs: tuple[float, ...], ratio: Values) -> tuple[Values, Values]:
        """Time and energy over the default's at each ratio of the SM clock."""
        inputs, kind = (
            (inputs[len(COUNTERS) :], WITHOUT_COUNTERS)
            if _has_no_counters(inputs)
            else (inputs, WITH_COUNTERS)
        )
        table = np.column_stack([np.tile(inputs, (len(ratio), 1)), ratio])
        time, energy = (predict_values(self.boosters[kind + target], table) for target in TARGETS)
        return np.exp(time), np.exp(energy)

    def save(self, file: Path) -> None:
        """Write as one JSON file."""
        models = {name: json.loads(booster.save_raw("json")) for name, booster in self.boosters.items()}
        whole = {
            "format": FORMAT_VERSION,
            "card": self.card,
            "trained_on": self.trained_on,
            "features": FEATURES,
        }
        whole |= {"trust": asdict(self.spread), "blind_trust": asdict(self.blind_spread)}
        file.write_text(json.dumps(whole | {"models": models}))

    @staticmethod
    def load(file: Path) -> BoostedModel:
        """Read what `save` wrote; `RecordError` for anything else."""
        try:
            whole = json.loads(file.read_text(encoding="utf-8-sig"))
            if whole["format"] != FORMAT_VERSION or tuple(whole["features"]) != FEATURES:
                raise RecordError(f"{file}: trained for another version of ekc; train it again")
            trust, blind = _parse_spread(whole["trust"]), _parse_spread(whole["blind_trust"])
            _check_complete(whole["card"], whole["models"])
            # Files of earlier versions hold models of the memory clock too.
            boosters = {name: _load_booster(name, whole["models"][name]) for name in BOOSTER_NAMES}
            return BoostedModel(whole["card"], str(whole["trained_on"]), boosters, trust, blind)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            told = str(error).splitlines() or [type(error).__name__]
            raise RecordError(f"{file} is no model of the governor: {told[0]}") from None


def _has_no_counters(inputs: tuple[float, ...]) -> bool:
    """Whether there was no counter."""
    return bool(np.isnan(inputs[: len(COUNTERS)]).all())


def _parse_spread(data: Mapping[str, Any]) -> CoefficientSpread:
    """As the file has it: two and three deviations, all above 0."""
    trust = CoefficientSpread(tuple(map(float, data["time"])), tuple(map(float, data["power"])))
    if (len(trust.time), len(trust.power)) != (2, 3):
        raise ValueError("its trust has another number of coefficients")
    if not all(0 < sigma < float("inf") for sigma in (*trust.time, *trust.power)):
        raise ValueError("its trust must be above 0")
    return trust


def _load_booster(name: str, model: Any) -> Any:
    """One of the models, with as many inputs as it will be given."""
    booster = load_trees(model)
    wanted = 1 + len(FEATURES) - (len(COUNTERS) if name.startswith(WITHOUT_COUNTERS) else 0)
    if booster.num_features() != wanted:
        raise ValueError(f"{name} takes {booster.num_features()} inputs, not {wanted}")
    return booster


def _check_complete(card: Any, models: Any) -> None:
    """Nothing is missing that a prediction needs."""
    if not isinstance(card, str) or not card:
        raise ValueError("it names no card")
    missing = [name for name in BOOSTER_NAMES if name not in models]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing")


def fit_coefficients(
    ratio: Values, time: Values, energy: Values
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Those of slowdown and of power, as in a `Prior`, of a job whose time and energy are known at ratios of
    the clock, ascending to 1."""
    power = energy / time
    slow = _fit_polynomial(compute_lengthening(ratio, 1.0), time / time[-1] - 1, 2)
    return slow, _fit_polynomial(compute_reduction(ratio, 1.0), power / power[-1] - 1, 3)


def _fit_polynomial(x: Values, y: Values, count: int) -> tuple[float, ...]:
    """Of a polynomial without constant. What is off counts as a share of x: a choice lies near the default,
    and a fit that weighs all clocks alike takes it from the lowest ones, by a third too slow."""
    some = x > 0
    rows = x[some][:, None] ** np.arange(count)
    # A whiff of ridge: the highest clocks alone do not tell the bend.
    solved = np.linalg.solve(rows.T @ rows + 1e-3 * np.eye(count), rows.T @ (y[some] / x[some]))
    return tuple(float(v) for v in solved)
