"""Kernels whose energy others measured, errors of predictions, and what repeated measurements say of the
noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.ranking import spearman
from benchmarks.common.recordings import Recording, read
from ekc.search.replay.table_space import compute_table_features

Array = NDArray[np.float64]

HOTSPOT = "hotspot A4000 energy"
REPEATS_FILE = "a4000_gemm_noise"
"""One kernel measured again and again on the A4000."""
USED_IF = {"MDIMA": "SA", "NDIMB": "SB"}
"""CLBlast: the threads that load A (B) into shared memory have a shape only where A (B) goes there."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """Settings `[n, d]`, times and energies of a recording, and which rows are one kernel."""

    settings: Array
    time: Array
    energy: Array
    kernel: NDArray[np.int64]

    def __getitem__(self, rows: Any) -> Kernels:
        return Kernels(self.settings[rows], self.time[rows], self.energy[rows], self.kernel[rows])

    @property
    def features(self) -> NDArray[np.float32]:
        """[rows, settings]: the configuration."""
        return self.settings.astype(np.float32)

    @property
    def timed(self) -> NDArray[np.float32]:
        """[rows, settings + 1]: the configuration and the log of its time."""
        return np.column_stack([self.settings, np.log(self.time)]).astype(np.float32)


def read_kernels(folder: Path, recording: Recording) -> Kernels:
    """The rows that have an energy and a time, settings described as a replay describes them."""
    by_energy, by_time = read(folder, recording), read(folder, replace(recording, figure="time_ms"))
    known = np.isfinite(by_energy.figures) & np.isfinite(by_time.figures)
    names, effective = by_energy.decision_names, by_energy.settings.copy()
    for name, switch in USED_IF.items():
        if name in names and switch in names:
            effective[by_energy.settings[:, names.index(switch)] == 0, names.index(name)] = 0
    kernel = np.unique(effective, axis=0, return_inverse=True)[1].reshape(-1)
    features = compute_table_features(by_energy.settings).astype(np.float64)
    return Kernels(features, by_time.figures, by_energy.figures, kernel)[known]


def compute_errors(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> dict[str, float | None]:
    """Relative errors and rank correlation of predictions."""
    error = np.abs(predicted / measured - 1)
    return {
        "mean": float(error.mean()),
        "median": float(np.median(error)),
        "rms": float(np.sqrt(np.mean(error**2))),
        "spearman": spearman(predicted, measured),
    }


def compute_deviations(values: Array, group: NDArray[np.int64]) -> Array:
    """Relative errors of measurements, by repeated measurements of one kernel:
    distances from their mean, widened because the mean is of few. Groups of one say nothing."""
    _, place, size = np.unique(group, return_inverse=True, return_counts=True)
    mean = np.bincount(place, values) / size
    many = size[place] > 1
    few = size[place][many]
    return np.asarray((values[many] / mean[place][many] - 1) * np.sqrt(few / (few - 1)))


def measure_noise(name: str, folder: Path, whole: Kernels) -> dict[str, Any]:
    """Noise of repeated measurements: the error of a model that knew every kernel's true energy."""
    what, energy, time, group = "configurations that are one kernel", whole.energy, whole.time, whole.kernel
    if name == HOTSPOT:
        repeats = Recording("repeats", REPEATS_FILE, ("rep",), "energy_j", (), 0, False)
        what = "one GEMM kernel on an A4000 (how many runs a row of hotspot averages is not recorded)"
        energy = read(folder, repeats).figures
        time = read(folder, replace(repeats, figure="time_ms")).figures
        group = np.zeros(len(energy), dtype=np.int64)
    spread, pace = compute_deviations(energy, group), compute_deviations(time, group)
    if not spread.size:
        return {"recording": name, "rows": 0}
    return {
        "recording": name,
        "rows": len(spread),
        "what": what,
        "energy_mean": float(np.abs(spread).mean()),
        "energy_median": float(np.median(np.abs(spread))),
        "energy_rms": float(np.sqrt(np.mean(spread**2))),
        "time_rms": float(np.sqrt(np.mean(pace**2))),
    }


def format_noise(found: dict[str, Any]) -> str:
    """One line of text about the noise."""
    if not found["rows"]:
        return f"{found['recording']}: nothing was measured twice"
    return (
        f"{found['recording']}: {found['rows']} measurements of {found['what']}; energies are "
        f"{found['energy_mean']:.1%} (mean), {found['energy_median']:.1%} (median), "
        f"{found['energy_rms']:.1%} (RMS) from the truth, times {found['time_rms']:.2%} (RMS)"
    )
