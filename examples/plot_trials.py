"""Draw the trials of a run: latency against energy, the Pareto front, the fastest and the chosen kernel.

Run:     python plot_trials.py [FILE.html | FILE.svg] [--trials N]
Prints:  the name of the file and the number of trials; one line where Plotly is not installed.

Needs `pip install 'ekc[plot]'`; for a picture (.svg) also `pip install kaleido` and Chromium. The A100 is
simulated, as the title of the plot says. The 128 trials of the default take about half a minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import ekc


def write_plot(result: ekc.TuningResult, file: Path) -> None:
    """Write a page that opens without a network, or a picture, by the ending of the file."""
    figure = result.plot("front")
    if file.suffix == ".svg":
        figure.update_layout(paper_bgcolor="white")
        figure.write_image(file, width=1000)
    else:
        figure.write_html(file)


def main() -> None:
    """Tune, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path("trials.html"))
    parser.add_argument("--trials", type=int, default=128)
    arguments = parser.parse_args()
    if importlib.util.find_spec("plotly") is None:
        print("skipped: Plotly is not installed (pip install 'ekc[plot]')")
        sys.exit()
    result = ekc.tune(ekc.matmul(512, 3072, 768), target="a100", trials=arguments.trials, seed=0)
    write_plot(result, arguments.file)
    print(f"{arguments.file}: {result.trial_count} trials, {result.device.label}")


if __name__ == "__main__":
    main()
