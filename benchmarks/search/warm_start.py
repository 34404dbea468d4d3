"""Gain of a warm start: short runs that learn from records of other shapes and of another device.

    python -m benchmarks.search.warm_start [--json FILE] [--only TEXT] [--trials N] [--taught N] [--seeds N]
        [--seed N]

For three operators on the simulated a100: `--taught` trials of two other shapes there, and of the operator
itself on the simulated rtx4090, are kept in record files; then runs of `--trials` trials start cold and warm.
Printed is the median over the seeds of the energy found by a warm start over that of the cold one with the
same seed, and the rank correlation of prior and measurement over the kernels of the cold runs, which the
prior has not learned from. All of it is simulated. No bar: it depends on the records whether a warm start
helps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ekc
from benchmarks.common.script import WIDE_TABLE, make_main, select_names
from ekc import devices
from ekc.ir.analysis.analysis import analyse_program
from ekc.search.cost_model.features import make_model_inputs
from ekc.search.cost_model.transfer import TransferPrior
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.database.warm_start import load_transfer_prior
from ekc.search.tuning_result import TuningResult
from ekc.tables import format_table

TARGET, ELSEWHERE = "a100", "rtx4090"
Made = Callable[[], ekc.Operator]
CASES: dict[str, tuple[Made, tuple[Made, ...]]] = {
    "MM 1024^3": (
        lambda: ekc.matmul(1024, 1024, 1024),
        (lambda: ekc.matmul(512, 512, 512), lambda: ekc.matmul(2048, 1024, 512)),
    ),
    "MV 4096x4096": (
        lambda: ekc.matvec(4096, 4096),
        (lambda: ekc.matvec(2048, 2048), lambda: ekc.matvec(8192, 1024)),
    ),
    "conv 16x256x14x14 3x3": (
        lambda: ekc.conv2d(16, 256, 14, 14, out_channels=256, kernel=3, padding=1),
        (
            lambda: ekc.conv2d(1, 64, 56, 56, out_channels=64, kernel=3, padding=1),
            lambda: ekc.conv2d(8, 128, 28, 28, out_channels=128, kernel=3, padding=1),
        ),
    ),
}
HEADERS = ("operator", "taught by", "kernels", "energy warm / cold", "better", "rank", "cold prior", "J")


def _tune(op: ekc.Operator, target: str, trials: int, seed: int, **kept: Path) -> TuningResult:
    return ekc.tune(op, target, trials=trials, seed=seed, progress=False, **kept)


def _rank_priors(runs: list[TuningResult], prior: TransferPrior) -> tuple[float | None, float | None]:
    """Rank correlation of the measured energies with the learned prior, and with the analytic one."""
    device = devices.open(TARGET)
    trials = {t.schedule.digest: t for run in runs for t in run.trials if t.ok and t.metered}
    measured, plain, informed = [], [], []
    for t in trials.values():
        inputs = make_model_inputs(analyse_program(t.schedule.program, device.limits), device.prior)
        corrected = prior.correct_inputs(inputs)
        measured.append(t.energy_j)
        plain.append(float(inputs.expected_latency_s[0] * inputs.expected_power_w[0]))
        informed.append(float(corrected.expected_latency_s[0] * corrected.expected_power_w[0]))
    columns = (np.array(column, dtype=np.float64) for column in (measured, plain, informed))
    real, without, with_prior = columns
    return spearman(with_prior, real), spearman(without, real)


def measure_operator(name: str, arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The lines of one operator."""
    made, others = CASES[name]
    op, seeds = made(), range(arguments.seed, arguments.seed + arguments.seeds)
    shapes, device, both = (folder / f"{kind}.db" for kind in ("shapes", "device", "both"))
    for other in others:
        _tune(other(), TARGET, arguments.taught, arguments.seed, records=shapes)
    both.write_bytes(shapes.read_bytes())
    for file in (device, both):
        _tune(op, ELSEWHERE, arguments.taught, arguments.seed, records=file)
    cold = [_tune(op, TARGET, arguments.trials, seed) for seed in seeds]
    found = []
    teachers = {"other shapes": shapes, f"{ELSEWHERE} (simulated)": device, "both": both}
    for taught_by, file in teachers.items():
        prior, note = load_transfer_prior(file, op, devices.open(TARGET), arguments.seed)
        assert prior is not None, note
        warm = [_tune(op, TARGET, arguments.trials, seed, warm_start=file) for seed in seeds]
        pairs = [(w.best.energy_j or 0.0, c.best.energy_j or 0.0) for w, c in zip(warm, cold, strict=True)]
        rank, without = _rank_priors(cold, prior)
        found.append(
            {
                "operator": name,
                "taught_by": taught_by,
                "kernels": prior.latency_model.row_count,
                "note": note,
                "ratio": statistics.median(w / c for w, c in pairs),
                "better": sum(w < c for w, c in pairs),
                "runs": len(pairs),
                "rank": rank,
                "rank_cold": without,
                "cold_j": statistics.median(c for _, c in pairs),
            }
        )
    return found


def format_lines(lines: list[dict[str, Any]]) -> str:
    """The table."""
    rows = [
        (
            x["operator"],
            x["taught_by"],
            str(x["kernels"]),
            f"{x['ratio']:.3f}",
            f"{x['better']} of {x['runs']}",
            *("-" if r is None else f"{r:.2f}" for r in (x["rank"], x["rank_cold"])),
            f"{x['cold_j']:.4g}",
        )
        for x in lines
    ]
    return format_table(HEADERS, rows, width=WIDE_TABLE)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script alone."""
    parser.add_argument("--only", metavar="TEXT", default="", help="operators with this in their name")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--taught", type=int, default=64, help="trials of each run that is learned from")
    parser.add_argument("--seeds", type=int, default=5)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure each operator, and print the table."""
    lines = []
    for name in select_names(CASES, arguments.only):
        with tempfile.TemporaryDirectory() as folder:
            lines += measure_operator(name, arguments, Path(folder))
    print(
        f"{devices.open(TARGET).label}, runs of {arguments.trials} trials, objective energy, seeds "
        f"{arguments.seed} to {arguments.seed + arguments.seeds - 1}; taught by runs of {arguments.taught}"
    )
    print(format_lines(lines))
    for x in lines:
        print(f"{x['operator']}, {x['taught_by']}: {x['note']}")
    return {"lines": lines}


main = make_main(__doc__, measure, add_options=add_options)

if __name__ == "__main__":
    sys.exit(main())
