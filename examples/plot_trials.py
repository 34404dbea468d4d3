"""Draw the trials of a run: latency against energy, the Pareto front, the fastest and the chosen kernel.

Run:     python plot_trials.py [FILE.svg] [--trials N]
Prints:  the name of the file and the number of trials drawn; one line where Matplotlib is not installed.

Needs `pip install 'ekc[plot]'`. The A100 is simulated, as the title of the plot says. The 128 trials of the
default take about half a minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import ekc


def find_pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both latency and energy, fastest first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def draw_trials(result: ekc.TuningResult, file: Path) -> int:
    """Draw the trials that are at most 1.5 times as slow as the fastest; return their number."""
    import matplotlib.pyplot as plt

    limit = 1.5 * result.fastest.latency_s
    near = [t for t in result.trials if t.ok and t.energy_j is not None and t.latency_s <= limit]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    kinds = (
        ("metered", True, "tab:blue", "tab:blue"),
        ("predicted by the energy model", False, "none", "tab:gray"),
    )
    for label, is_metered, face, edge in kinds:
        chosen = [t for t in near if t.metered is is_metered]
        xs, ys = [t.latency_s * 1e6 for t in chosen], [t.energy_j * 1e3 for t in chosen]
        axes.scatter(xs, ys, s=26, facecolors=face, edgecolors=edge, label=f"{label} ({len(chosen)})")
    front = find_pareto_front([(t.latency_s * 1e6, t.energy_j * 1e3) for t in near])
    axes.plot(*zip(*front, strict=True), drawstyle="steps-post", color="tab:green", label="Pareto front")
    for label, trial, marker, color in (
        ("fastest", result.fastest, "D", "tab:orange"),
        ("chosen: least energy, at most 5 % slower", result.best, "*", "tab:red"),
    ):
        at = trial.latency_s * 1e6, trial.energy_j * 1e3
        axes.scatter(*at, marker=marker, s=160 if marker == "*" else 60, color=color, label=label, zorder=3)
    axes.set(xlabel="latency [us]", ylabel="energy [mJ]")
    axes.set_title(f"{result.best.schedule.op.name} on {result.device.label}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(file)
    return len(near)


def main() -> None:
    """Tune, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path("trials.svg"))
    parser.add_argument("--trials", type=int, default=128)
    arguments = parser.parse_args()
    if importlib.util.find_spec("matplotlib") is None:
        print("skipped: Matplotlib is not installed (pip install 'ekc[plot]')")
        sys.exit()
    result = ekc.tune(ekc.matmul(512, 3072, 768), target="a100", trials=arguments.trials, seed=0)
    print(f"{arguments.file}: {draw_trials(result, arguments.file)} trials, {result.device.label}")


if __name__ == "__main__":
    main()
