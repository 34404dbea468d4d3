"""Two plots of `paper.py`, after figures 4 and 5 of arXiv 2411.18873. They need matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.paper_runs import ADAPTIVE, EVERYTHING

Line = dict[str, Any]
NOTE = "simulated devices, virtual meter"


def draw(lines: Sequence[Line], folder: Path) -> list[Path]:
    """Write what the runs allow; the paths written. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in (("predicted-energy", predicted), ("energy-over-metering", plot_over_time)):
        figure = Figure(figsize=(5, 4), layout="constrained")
        if plot(figure.subplots(), lines):
            written.append(folder / f"{name}.svg")
            figure.savefig(written[-1])
    return written


def predicted(axes: Any, lines: Sequence[Line]) -> bool:
    """Energies predicted before they were metered, against the meter; adaptive runs, each relative to the
    least energy that its run found."""
    mine = [x for x in lines if x["variant"] == ADAPTIVE and x["judged"]]
    for device in dict.fromkeys(x["device"] for x in mine):
        pairs = np.concatenate([np.array(x["judged"]) / x["energy_j"] for x in mine if x["device"] == device])
        axes.scatter(pairs[:, 2], pairs[:, 0], s=8, alpha=0.5, label=f"{device} (simulated)")
    if mine:
        low, high = axes.get_xlim()
        axes.plot((low, high), (low, high), "--", color="gray")
        axes.set(
            xlabel="metered energy / least of the run", ylabel="predicted / least of the run", title=NOTE
        )
        axes.legend()
    return bool(mine)


def plot_over_time(axes: Any, lines: Sequence[Line]) -> bool:
    """Least energy metered so far over the seconds that a meter would have taken, median over all runs of a
    variant, relative to what metering everything found in the end."""
    last = {(x["operator"], x["device"], x["seed"]): x for x in lines if x["variant"] == EVERYTHING}
    if not last:
        return False
    longest = max(x["metering_s"] for x in lines)
    seconds = np.geomspace(10, longest, 200)
    for variant in dict.fromkeys(x["variant"] for x in lines):
        mine = [x for x in lines if x["variant"] == variant and x["curve"]]
        curves = [
            evaluate_curve(x["curve"], seconds) / last[x["operator"], x["device"], x["seed"]]["energy_j"]
            for x in mine
        ]
        axes.plot(seconds, np.median(curves, axis=0), label=variant)
    axes.set(
        xscale="log", xlabel="metering [virtual s]", ylabel="least energy / metering everything", title=NOTE
    )
    axes.set_ylim(0.95, 1.5)
    axes.legend(fontsize="small")
    return True


def evaluate_curve(curve: Sequence[tuple[float, float]], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The curve's value at each time; infinity before its first point."""
    when, value = np.array(curve).T
    at = np.searchsorted(when, seconds, side="right")
    return np.asarray(np.concatenate([[np.inf], value])[at])
