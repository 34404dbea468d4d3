"""What physics alone expects (`ekc.search.cost_model.analytic`), held against recordings of real GPUs.

python benchmarks/prior_accuracy.py --data DIR [--rows N] [--seed N] [--json FILE]

DIR holds the recordings. CLBlast configurations become schedules of ekc (clblast.py), their analysis is all
that the prior sees: nothing is compiled. Latency: a stratified sample of each recorded space, and its faster
third, where a search decides. Power: the A100 at the clock of most rows, no cap in its way, each kernel at
the pace that it was recorded to have. One constant was chosen by these: what a byte out of L1 costs
(`AnalyticSettings.l1_pj`). *spread*: standard deviation of the log of expected over recorded; *of rows*: of
the recorded figures themselves, so what a constant leaves; *slope*: of the line through the recorded logs
over the expected ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clblast
import numpy as np
from fidelity_rows import CLOCKS, LATENCY, SIDE, Recording, Row, read, stratified
from numpy.typing import NDArray
from ranking import spearman
from tune_table import table

import ekc
from ekc import devices
from ekc.devices.device import Device
from ekc.errors import InvalidInput
from ekc.search.cost_model import analytic
from ekc.search.cost_model.features import Quantities
from ekc.search.database.measured_set import analyse_schedules

Array = NDArray[np.float64]

POWER_MHZ = 1050.0
"""The clock of most rows of the recording over clocks."""
HEADERS = ("recording", "figure", "rows", "Spearman", "spread", "of rows", "slope")


def seen(device: Device, rows: Sequence[Row]) -> Quantities:
    """What the analysis says of recorded kernels."""
    return analyse_schedules([clblast.schedule(row.one, SIDE) for row in rows], device.limits)


def latencies(data: Path, recording: Recording, count: int, seed: int) -> list[dict[str, Any]]:
    """Lines of one recorded space."""
    device = devices.open(recording.device)
    rows = stratified(read(data, recording), count, seed)
    told, real = (
        analytic.predict_latency_s(seen(device, rows), device.peaks),
        np.array([row.seconds for row in rows]),
    )
    fast = real <= np.quantile(real, 1 / 3)
    return [
        line(recording.file, "latency", told, real),
        line(recording.file, "of the faster third", told[fast], real[fast]),
    ]


def power(data: Path) -> dict[str, Any]:
    """Power at the pace recorded."""
    device = devices.open(CLOCKS.device)
    rows = [row for row in read(data, CLOCKS) if row.clock_mhz == POWER_MHZ]
    figures, seconds = seen(device, rows), np.array([row.seconds for row in rows])
    pace = np.log(seconds / analytic.predict_latency_s(figures, device.peaks))
    standby = analytic.predict_standby_w(figures["balance"], device.peaks)
    told = analytic.scale_power(analytic.predict_power_w(figures, device.peaks), pace, standby)
    return line(CLOCKS.file, f"power, {POWER_MHZ:.0f} MHz", told, np.array([row.power_w for row in rows]))


def line(recording: str, figure: str, told: Array, real: Array) -> dict[str, Any]:
    """Expected figures against recorded ones."""
    logs, expected = np.log(real), np.log(told)
    return {
        "recording": recording.partition(".")[0],
        "figure": figure,
        "rows": len(real),
        "spearman": spearman(told, real),
        "spread": float((expected - logs).std()),
        "of_rows": float(logs.std()),
        "slope": float(np.polyfit(expected, logs, 1)[0]),
    }


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the recordings")
    parser.add_argument("--rows", type=int, default=500, help="of each space")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.rows < 6:
        parser.error(f"--rows: {arguments.rows} leave no two in the faster third; 6 is the least")
    try:
        lines = [x for one in LATENCY for x in latencies(arguments.data, one, arguments.rows, arguments.seed)]
        lines.append(power(arguments.data))
    except InvalidInput as problem:
        parser.error(str(problem))
    print(f"ekc {ekc.__version__}, recordings of real GPUs made by others, seed {arguments.seed}")
    print(table([HEADERS, *map(row_text, lines)]))
    if arguments.json:
        arguments.json.write_text(json.dumps({"lines": lines}, indent=1))


def row_text(one: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table as text."""
    rank = "-" if one["spearman"] is None else f"{one['spearman']:.3f}"
    figures = (f"{one[name]:.3f}" for name in ("spread", "of_rows", "slope"))
    return one["recording"], one["figure"], str(one["rows"]), rank, *figures


if __name__ == "__main__":
    main()
