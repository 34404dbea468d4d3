"""What the runs of `ablation.py` say: ratios paired by operator, device and seed, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Line = dict[str, Any]
Place = tuple[str, str]
Logs = dict[Place, list[float]]
"""By operator and device: logs of the ratios of its seeds."""

RESAMPLED = 4000
LOSS_BAR, TIME_BAR = 1.010, 1.10
"""A mechanism may go where the upper end of the interval without it is below the first, and the search takes
less than the second of the time."""

FEWEST, ENOUGH = 5, 20
"""Seeds of each operator and device: with fewer than the first nothing is said, with the second it counts."""


def cells(lines: Sequence[Line]) -> dict[tuple[str, str, int], Line]:
    """By operator, device and seed."""
    return {(x["operator"], x["device"], x["seed"]): x for x in lines}


def paired(mine: Sequence[Line], base: Sequence[Line], figure: str) -> Logs:
    """Logs of a figure of each run over that of the base with the same operator, device and seed."""
    against, logs = cells(base), Logs()
    for cell, line in cells(mine).items():
        if cell in against:
            logs.setdefault(cell[:2], []).append(math.log(line[figure] / against[cell][figure]))
    return logs


def halves(lines: Sequence[Line], figure: str) -> Logs:
    """The same program against itself: of each operator and device, the first half of its seeds over the
    second, pair by pair in their order."""
    logs = Logs()
    places = dict.fromkeys((x["operator"], x["device"]) for x in lines)
    for place in places:
        seeds = sorted((x["seed"], x[figure]) for x in lines if (x["operator"], x["device"]) == place)
        half = len(seeds) // 2
        pairs = zip(seeds[:half], seeds[half : 2 * half], strict=True)
        logs[place] = [math.log(a / b) for (_, a), (_, b) in pairs]
    return {place: own for place, own in logs.items() if own}


def geometric_mean(logs: Mapping[Place, Sequence[float]]) -> float:
    """Of all ratios; every operator and device counts alike, however many seeds it has."""
    return math.exp(float(np.mean([np.mean(own) for own in logs.values()])))


def interval_of_places(logs: Mapping[Place, Sequence[float]], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the geometric mean over operators and devices: they are drawn again with replacement,
    each with all of its seeds. None for fewer than three."""
    if len(logs) < 3:
        return None
    means = np.array([np.mean(own) for own in logs.values()])
    random = np.random.default_rng(seed)
    return _ends(means[random.integers(0, len(means), (RESAMPLED, len(means)))].mean(axis=1))


def interval_of_seeds(logs: Mapping[Place, Sequence[float]], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the geometric mean for these operators and devices: the seeds of each are drawn again
    with replacement. None where one has fewer than two."""
    if any(len(own) < 2 for own in logs.values()):
        return None
    random, total = np.random.default_rng(seed), np.zeros(RESAMPLED)
    for own in logs.values():
        figures = np.array(own)
        total += figures[random.integers(0, len(figures), (RESAMPLED, len(figures)))].mean(axis=1)
    return _ends(total / len(logs))


def _ends(drawn: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.exp(np.percentile(drawn, (2.5, 97.5))).tolist()
    return low, high


def compared(name: str, mine: Sequence[Line], base: Sequence[Line], seed: int = 0) -> Line | None:
    """One line of the table: a variant beside the base; None where they share no cell."""
    logs = paired(mine, base, "without_luck_s")
    if not logs:
        return None
    shares = {"search_share": "search_s", "wall_share": "wall_s", "trials_share": "timed"}
    return told(name, logs, paired(mine, base, "latency_s"), seed) | {
        **{share: geometric_mean(paired(mine, base, figure)) for share, figure in shares.items()},
        "identical": _identical(mine, base),
    }


def told(name: str, logs: Logs, measured: Logs, seed: int = 0) -> Line:
    """The figures of some paired ratios, without the luck of the kernels and as measured."""
    return {
        "variant": name,
        "pairs": sum(map(len, logs.values())),
        "places": len(logs),
        "seeds": min(map(len, logs.values())),
        "mean": geometric_mean(logs),
        "interval": interval_of_places(logs, seed),
        "interval_of_seeds": interval_of_seeds(logs, seed),
        "worst": math.exp(max(max(own) for own in logs.values())),
        "measured_mean": geometric_mean(measured),
        "measured_interval": interval_of_places(measured, seed),
    }


def _identical(mine: Sequence[Line], base: Sequence[Line]) -> int:
    """Cells whose runs tried the same kernels in the same order, with the same figures."""
    against = cells(base)
    return sum(c in against and x.get("course") == against[c].get("course") for c, x in cells(mine).items())


def verdict(line: Line) -> str:
    """What the figures of a variant say of what it takes away, by the bars."""
    ends = [line["interval"], line["interval_of_seeds"]]
    if None in ends or line["seeds"] < FEWEST:
        return "too few seeds"
    said = "not shown"
    if all(high < LOSS_BAR for _, high in ends):
        said = "may go" if line.get("search_share", 1.0) < TIME_BAR else "slower"
    elif all(low > 1.0 for low, _ in ends):
        said = "worth it"
    return said if line["seeds"] >= ENOUGH else f"{said} so far"
