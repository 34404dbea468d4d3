"""A plot of clock, power and period over the time of a governed job. Needs matplotlib, which ekc does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.governor.events import Applied, Measured, Shifted
from ekc.governor.live.report import GovernorLog


def plot_log(governor_log: GovernorLog, file: Path) -> None:
    """Three panels over one axis of minutes. Raises `InvalidInput` without matplotlib, or for a bad file."""
    check_plot_file(file)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    clock, power, period = figure.subplots(3, sharex=True)
    trace = np.array(governor_log.trace or [(0.0, np.nan, np.nan)])
    minutes = (trace[:, 0] - trace[0, 0]) / 60
    clock.plot(minutes, trace[:, 2], linewidth=0.8, label="SM clock")
    _plot_limits(clock, governor_log, trace[0, 0], minutes[-1])
    power.plot(minutes, trace[:, 1], linewidth=0.8)
    seen = [
        (x.reading.at_s, 1 / x.reading.pace.beats)
        for x in governor_log.select_events(Measured)
        if x.reading.pace.beats > 0
    ]
    at, seconds = np.array(seen or [(np.nan, np.nan)]).T
    period.plot((at - trace[0, 0]) / 60, seconds, "o", markersize=3)
    for shift in governor_log.select_events(Shifted):
        for axes in (clock, power, period):
            axes.axvline((shift.at_s - trace[0, 0]) / 60, color="gray", linestyle=":")
    clock.set(ylabel="MHz", title=governor_log.name)
    power.set(ylabel="W, whole board", ylim=(0, None))
    period.set(ylabel="iteration [s]", xlabel="minutes", ylim=(0, None))
    figure.savefig(file)


def check_plot_file(file: Path) -> None:
    """Refuse before the job starts what could not be drawn after it. Raises `InvalidInput`."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as problem:
        raise InvalidInput(
            "--plot needs matplotlib: pip install matplotlib, or leave --plot out"
        ) from problem
    kinds = FigureCanvasBase.get_supported_filetypes()
    if file.suffix.removeprefix(".") not in kinds:
        raise InvalidInput(f"--plot {file}: it must end in one of {', '.join(sorted(kinds))}")
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"--plot {file}: there is no folder {file.parent}")


def _plot_limits(axes: Any, governor_log: GovernorLog, start_s: float, end_min: float) -> None:
    """The SM limit in force, where there is one."""
    told = [
        ((x.at_s - start_s) / 60, x.settings.sm_mhz or np.nan) for x in governor_log.select_events(Applied)
    ]
    if told:
        at, limit = np.array([*told, (end_min, told[-1][1])]).T
        axes.step(at, limit, where="post", color="black", linewidth=1.2, label="limit set")
        axes.legend(fontsize="small")
