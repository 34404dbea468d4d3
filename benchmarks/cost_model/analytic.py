"""Accuracy of the analytic prior (`ekc.search.cost_model.analytic`) on recordings of real GPUs.

    python -m benchmarks.cost_model.analytic --data DIR [--rows N] [--seed N] [--json FILE]

DIR holds the recordings. CLBlast configurations become schedules of ekc (clblast.py), their analysis is all
that the prior sees: nothing is compiled. Latency: a stratified sample of each recorded space, and its faster
third, where a search decides. Power: the A100 at the clock of most rows, no cap in its way, each kernel at
the pace that it was recorded to have. One constant was chosen by these: what a byte out of L1 costs
(`AnalyticSettings.l1_pj`). *spread*: standard deviation of the log of expected over recorded; *of rows*: of
the recorded figures themselves, so what a constant leaves; *slope*: of the line through the recorded logs
over the expected ones. No bar: the models of a run correct the prior.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import clblast
from benchmarks.common.ranking import spearman
from benchmarks.common.script import WIDE_TABLE, make_main
from benchmarks.simulator.rows import CLOCKS, LATENCY, SIDE, Recording, Row, read, sample_stratified
from ekc import devices
from ekc.devices.device import Device
from ekc.errors import InvalidInput
from ekc.search.cost_model import analytic
from ekc.search.cost_model.features import Quantities
from ekc.search.database.measured_set import analyse_schedules
from ekc.tables import format_table

Array = NDArray[np.float64]

POWER_MHZ = 1050.0
"""The clock of most rows of the recording over clocks."""
HEADERS = ("recording", "figure", "rows", "Spearman", "spread", "of rows", "slope")


def analyse_rows(device: Device, rows: Sequence[Row]) -> Quantities:
    """Analyse recorded kernels."""
    return analyse_schedules([clblast.build_schedule(row.one, SIDE) for row in rows], device.limits)


def compare_latencies(data: Path, recording: Recording, count: int, seed: int) -> list[dict[str, Any]]:
    """Compare latencies: the lines of one recorded space."""
    device = devices.open(recording.device)
    rows = sample_stratified(read(data, recording), count, seed)
    predicted, real = (
        analytic.predict_latency_s(analyse_rows(device, rows), device.peaks),
        np.array([row.seconds for row in rows]),
    )
    fast = real <= np.quantile(real, 1 / 3)
    return [
        make_line(recording.file, "latency", predicted, real),
        make_line(recording.file, "of the faster third", predicted[fast], real[fast]),
    ]


def compare_powers(data: Path) -> dict[str, Any]:
    """Compare powers, each kernel at its recorded pace."""
    device = devices.open(CLOCKS.device)
    rows = [row for row in read(data, CLOCKS) if row.clock_mhz == POWER_MHZ]
    figures, seconds = analyse_rows(device, rows), np.array([row.seconds for row in rows])
    pace = np.log(seconds / analytic.predict_latency_s(figures, device.peaks))
    standby = analytic.predict_standby_w(figures["balance"], device.peaks)
    predicted = analytic.scale_power(analytic.predict_power_w(figures, device.peaks), pace, standby)
    return make_line(
        CLOCKS.file, f"power, {POWER_MHZ:.0f} MHz", predicted, np.array([row.power_w for row in rows])
    )


def make_line(recording: str, figure: str, predicted: Array, real: Array) -> dict[str, Any]:
    """A line of predicted against recorded figures."""
    logs, expected = np.log(real), np.log(predicted)
    return {
        "recording": recording.partition(".")[0],
        "figure": figure,
        "rows": len(real),
        "spearman": spearman(predicted, real),
        "spread": float((expected - logs).std()),
        "of_rows": float(logs.std()),
        "slope": float(np.polyfit(expected, logs, 1)[0]),
    }


def format_line(one: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table as text."""
    rank = "-" if one["spearman"] is None else f"{one['spearman']:.3f}"
    figures = (f"{one[name]:.3f}" for name in ("spread", "of_rows", "slope"))
    return one["recording"], one["figure"], str(one["rows"]), rank, *figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script alone."""
    parser.add_argument("--data", type=Path, required=True, help="the folder of the recordings")
    parser.add_argument("--rows", type=int, default=500, help="of each space")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare the prior with each recording, and print the table."""
    if arguments.rows < 6:
        raise InvalidInput(f"--rows: {arguments.rows} leave no two in the faster third; at least 6")
    lines = [
        x for one in LATENCY for x in compare_latencies(arguments.data, one, arguments.rows, arguments.seed)
    ]
    lines.append(compare_powers(arguments.data))
    print(f"recordings of real GPUs made by others, seed {arguments.seed}")
    print(format_table(HEADERS, [*map(format_line, lines)], label_count=2, width=WIDE_TABLE))
    return {"lines": lines}


main = make_main(__doc__, measure, add_options=add_options)

if __name__ == "__main__":
    sys.exit(main())
