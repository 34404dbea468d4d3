"""Statistics of `ablation.py`: ratios paired by operator, device and seed, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Line = dict[str, Any]
Place = tuple[str, str]
Logs = dict[Place, list[float]]
"""(operator, device) -> log ratio of each seed."""

RESAMPLE_COUNT = 4000
LOSS_BAR, TIME_BAR = 1.010, 1.10
"""A mechanism may go where the upper end of the interval of the ratio is below the first, and the search
takes less than the second times the CPU seconds."""

MIN_SEEDS, ENOUGH_SEEDS = 5, 20
"""Seeds of each operator and device: with fewer than the first there is no verdict, with the second it is
final."""


FIGURES = {"latency": ("without_luck_s", "latency_s"), "energy": ("energy_j", "energy_j")}
"""Objective -> the figures of a winner that are compared: without its own factor, and as measured. The own
factors of an energy (half a percent each on time and on power) stay in."""


def get_objective(line: Line) -> str:
    """Objective of a run. Runs stored before there were two have none."""
    return str(line.get("objective", "latency"))


def index_runs(lines: Sequence[Line]) -> dict[tuple[str, str, int], Line]:
    """(operator, device, seed) -> run."""
    return {(x["operator"], x["device"], x["seed"]): x for x in lines}


def pair_runs(runs: Sequence[Line], base: Sequence[Line], key: str) -> Logs:
    """Log of a figure of each run over that of the base with the same operator, device and seed."""
    base_runs, logs = index_runs(base), Logs()
    for cell, line in index_runs(runs).items():
        if cell in base_runs:
            logs.setdefault(cell[:2], []).append(math.log(line[key] / base_runs[cell][key]))
    return logs


def split_seeds(lines: Sequence[Line], key: str) -> Logs:
    """A program compared with itself: for each operator and device, the first half of its seeds over the
    second half, pair by pair in order."""
    logs = Logs()
    places = dict.fromkeys((x["operator"], x["device"]) for x in lines)
    for place in places:
        seeds = sorted((x["seed"], x[key]) for x in lines if (x["operator"], x["device"]) == place)
        half = len(seeds) // 2
        pairs = zip(seeds[:half], seeds[half : 2 * half], strict=True)
        logs[place] = [math.log(a / b) for (_, a), (_, b) in pairs]
    return {place: ratios for place, ratios in logs.items() if ratios}


def compute_geometric_mean(logs: Mapping[Place, Sequence[float]]) -> float:
    """Geometric mean of all ratios. Every operator and device has equal weight, for any number of seeds."""
    return math.exp(float(np.mean([np.mean(ratios) for ratios in logs.values()])))


def compute_interval_of_places(
    logs: Mapping[Place, Sequence[float]], seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of the geometric mean over operators and devices: these are resampled, each with all of
    its seeds. None for fewer than three."""
    if len(logs) < 3:
        return None
    means = np.array([np.mean(ratios) for ratios in logs.values()])
    random = np.random.default_rng(seed)
    return _compute_ends(means[random.integers(0, len(means), (RESAMPLE_COUNT, len(means)))].mean(axis=1))


def compute_interval_of_seeds(
    logs: Mapping[Place, Sequence[float]], seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of the geometric mean for these operators and devices: the seeds of each are resampled.
    None where one has fewer than two."""
    if any(len(own) < 2 for own in logs.values()):
        return None
    random, total = np.random.default_rng(seed), np.zeros(RESAMPLE_COUNT)
    for own in logs.values():
        figures = np.array(own)
        total += figures[random.integers(0, len(figures), (RESAMPLE_COUNT, len(figures)))].mean(axis=1)
    return _compute_ends(total / len(logs))


def _compute_ends(means: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.exp(np.percentile(means, (2.5, 97.5))).tolist()
    return low, high


def compare_variant(name: str, runs: Sequence[Line], base: Sequence[Line], seed: int = 0) -> Line | None:
    """A row of the table: a variant against the base; None where they share no operator, device and seed."""
    figure, measured = FIGURES[get_objective(runs[0])] if runs else FIGURES["latency"]
    logs = pair_runs(runs, base, figure)
    if not logs:
        return None
    shares = {"search_share": "search_s", "wall_share": "wall_s", "trials_share": "timed"}
    if get_objective(runs[0]) == "energy":
        shares["metered_share"] = "metered"
    return summarize(name, logs, pair_runs(runs, base, measured), seed) | {
        **{share: compute_geometric_mean(pair_runs(runs, base, key)) for share, key in shares.items()},
    }


def summarize(name: str, logs: Logs, measured: Logs, seed: int = 0) -> Line:
    """Statistics of paired ratios: `logs` without the own factors of the kernels, `measured` with them."""
    return {
        "variant": name,
        "pairs": sum(map(len, logs.values())),
        "places": len(logs),
        "seeds": min(map(len, logs.values())),
        "mean": compute_geometric_mean(logs),
        "interval": compute_interval_of_places(logs, seed),
        "interval_of_seeds": compute_interval_of_seeds(logs, seed),
        "worst": math.exp(max(max(own) for own in logs.values())),
        "measured_mean": compute_geometric_mean(measured),
        "measured_interval": compute_interval_of_places(measured, seed),
    }


def judge(row: Line) -> str:
    """The verdict on the mechanism that a variant removes."""
    ends = [row["interval"], row["interval_of_seeds"]]
    if None in ends or row["seeds"] < MIN_SEEDS:
        return "too few seeds"
    verdict = "not shown"
    if all(high < LOSS_BAR for _, high in ends):
        verdict = "may go" if row.get("search_share", 1.0) < TIME_BAR else "slower"
    elif all(low > 1.0 for low, _ in ends):
        verdict = "worth it"
    return verdict if row["seeds"] >= ENOUGH_SEEDS else f"{verdict} so far"
