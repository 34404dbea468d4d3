"""The boosted model: what the prior of a device gets wrong, learned before any run.

Two XGBoost models predict the log of latency over its prior, and the log of energy over the prior's energy at
the same latency. Their inputs are the features of a schedule, the prior's own figures and the peaks of the
device; the second one also has the latency, measured or predicted. They were trained on schedules of many
operators and devices (`python -m benchmarks.cost_model.train`), and are shipped with their card
(`boosted_prior/card.json`): trained on what, errors on operators and devices left out, versions.

A prior that does not say how long each resource works (`Prior.resource_times_s`) is not corrected.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.boosted_trees import parse_trees, predict_values
from ekc.devices.device import Peaks, Prior
from ekc.search.cost_model.feature_table import DEVICE_FACTS, FEATURE_NAMES

Array = NDArray[np.float64]

FOLDER = Path(__file__).parent / "boosted_prior"
"""Folder of the shipped models: `latency.json.gz`, `energy.json.gz` and `card.json`."""
RESOURCES = ("arithmetic", "tensor", "l1", "l2", "dram")
"""Resources whose time the analytic prior estimates."""
PRIOR_INPUTS = (
    *(f"prior_{name}_share" for name in RESOURCES),
    "prior_latency_us",
    "prior_power_share",
    "prior_standby_share",
)
INPUT_NAMES = (*FEATURE_NAMES, *PRIOR_INPUTS, *(f.name for f in DEVICE_FACTS))
"""Inputs of both models, in order. Those of the prior and of the device are logarithms to base 2: of shares
of the prior's latency and of the power cap, of microseconds, and of the facts in their units."""
LATENCY_INPUT = "latency_over_prior"
"""One more input of the model of energy: natural log of latency over its prior."""
_LEAST_SHARE = 1e-3
"""Least share of a resource in the latency: no logarithm of 0."""


def list_device_facts(peaks: Peaks, sms: int) -> dict[str, float]:
    """`DEVICE_FACTS` -> value for a device."""
    rates = peaks.fp32_flops, peaks.flops_by_type["float16"], peaks.dram_bytes_per_s
    values = *rates, peaks.board_power_w, float(sms)
    return dict(zip((f.name for f in DEVICE_FACTS), values, strict=True))


@dataclass(frozen=True, eq=False)
class BoostedModels:
    """The models of latency and energy, and their card."""

    latency: Any
    energy: Any
    card: dict[str, Any]


@cache
def load_models(folder: Path = FOLDER) -> BoostedModels:
    """Load models once. The first call imports XGBoost, which takes some tenths of a second."""
    latency, energy = (
        parse_trees(gzip.decompress((folder / f"{name}.json.gz").read_bytes()).decode())
        for name in ("latency", "energy")
    )
    return BoostedModels(latency, energy, json.loads((folder / "card.json").read_text()))


def add_latency(inputs: NDArray[np.float32], log_latency: Array) -> NDArray[np.float32]:
    """[rows, `INPUT_NAMES` + 1]: inputs of the model of energy."""
    return np.column_stack([inputs, log_latency.astype(np.float32)])


@dataclass(frozen=True, eq=False)
class BoostedPrior:
    """The models for one device."""

    peaks: Peaks
    sms: int
    """Multiprocessors of the device."""
    folder: Path = FOLDER
    """Folder of the models, which are loaded at the first prediction."""

    @property
    def models(self) -> BoostedModels:
        """The models of the folder."""
        return load_models(self.folder)

    def predict_latency(self, inputs: NDArray[np.float32]) -> Array:
        """Log of latency over its prior, from `inputs[rows, INPUT_NAMES]`."""
        return predict_values(self.models.latency, inputs).astype(np.float64)

    def predict_energy(self, inputs: NDArray[np.float32], log_latency: Array) -> Array:
        """Log of energy over the prior's energy at the same latency. `log_latency[rows]`: natural log of that
        latency over its prior."""
        return predict_values(self.models.energy, add_latency(inputs, log_latency)).astype(np.float64)

    def make_inputs(self, features: NDArray[np.float32], prior: Prior) -> NDArray[np.float32]:
        """[rows, `INPUT_NAMES`]: inputs of the models for schedules with these features and this prior;
        [rows, 0] for a prior that is not corrected."""
        if not prior.resource_times_s:
            return np.zeros((len(features), 0), np.float32)
        shares = [prior.resource_times_s[name] / prior.latency_s for name in RESOURCES]
        watts = [figure / self.peaks.board_power_w for figure in (prior.power_w, prior.standby_w)]
        columns = np.stack([*shares, prior.latency_s * 1e6, *watts])
        table = np.empty((len(features), len(INPUT_NAMES)), np.float32)
        first, last = len(FEATURE_NAMES), len(FEATURE_NAMES) + len(PRIOR_INPUTS)
        table[:, :first] = features
        table[:, first:last] = np.log2(np.maximum(columns, _LEAST_SHARE)).T
        table[:, last:] = np.log2(list(list_device_facts(self.peaks, self.sms).values()))
        return table
