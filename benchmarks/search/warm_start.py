"""What records of other shapes and of another device are worth to a short run.

    python -m benchmarks.search.warm_start [--json FILE] [--only TEXT] [--trials N] [--taught N] [--seeds N]
        [--seed N]

For three operators on the simulated a100: `--taught` trials of two other shapes there, and of the operator
itself on the simulated rtx4090, are kept in record files; then runs of `--trials` trials start cold and warm.
Printed is the median over the seeds of the energy found by a warm start over that of the cold one with the
same seed, and the rank correlation of prior and measurement over the kernels of the cold runs, which no
lesson saw. All of it is simulated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ekc
from benchmarks.search.tune_table import table
from ekc import devices
from ekc.ir.analysis.analysis import analyse_program
from ekc.search.cost_model.features import make_model_inputs
from ekc.search.cost_model.transfer import TransferPrior
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.database.warm_start import load_transfer_prior
from ekc.search.tuning_result import TuningResult

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


def _tuned(op: ekc.Operator, target: str, trials: int, seed: int, **kept: Path) -> TuningResult:
    return ekc.tune(op, target, trials=trials, seed=seed, progress=False, **kept)


def _ranks(runs: list[TuningResult], lessons: TransferPrior) -> tuple[float | None, float | None]:
    """Rank correlation of the measured energies with the informed prior, and with the plain one."""
    device = devices.open(TARGET)
    trials = {t.schedule.digest: t for run in runs for t in run.trials if t.ok and t.metered}
    measured, plain, informed = [], [], []
    for t in trials.values():
        seen = make_model_inputs(analyse_program(t.schedule.program, device.limits), device.peaks)
        told = lessons.correct_inputs(seen)
        measured.append(t.energy_j)
        plain.append(float(seen.expected_latency_s[0] * seen.expected_power_w[0]))
        informed.append(float(told.expected_latency_s[0] * told.expected_power_w[0]))
    columns = (np.array(column, dtype=np.float64) for column in (measured, plain, informed))
    real, without, with_lessons = columns
    return spearman(with_lessons, real), spearman(without, real)


def lines(name: str, asked: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The lines of one operator."""
    made, others = CASES[name]
    op, seeds = made(), range(asked.seed, asked.seed + asked.seeds)
    shapes, device, both = (folder / f"{kind}.db" for kind in ("shapes", "device", "both"))
    for other in others:
        _tuned(other(), TARGET, asked.taught, asked.seed, records=shapes)
    both.write_bytes(shapes.read_bytes())
    for file in (device, both):
        _tuned(op, ELSEWHERE, asked.taught, asked.seed, records=file)
    cold = [_tuned(op, TARGET, asked.trials, seed) for seed in seeds]
    found = []
    teachers = {"other shapes": shapes, f"{ELSEWHERE} (simulated)": device, "both": both}
    for taught_by, file in teachers.items():
        lessons, told = load_transfer_prior(file, op, devices.open(TARGET), asked.seed)
        assert lessons is not None, told
        warm = [_tuned(op, TARGET, asked.trials, seed, warm_start=file) for seed in seeds]
        pairs = [(w.best.energy_j or 0.0, c.best.energy_j or 0.0) for w, c in zip(warm, cold, strict=True)]
        rank, without = _ranks(cold, lessons)
        found.append(
            {
                "operator": name,
                "taught_by": taught_by,
                "kernels": lessons.latency_model.row_count,
                "told": told,
                "ratio": statistics.median(w / c for w, c in pairs),
                "better": sum(w < c for w, c in pairs),
                "runs": len(pairs),
                "rank": rank,
                "rank_cold": without,
                "cold_j": statistics.median(c for _, c in pairs),
            }
        )
    return found


def show(found: list[dict[str, Any]]) -> str:
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
        for x in found
    ]
    return table([HEADERS, *rows])


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", metavar="TEXT", help="operators with this in their name")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--taught", type=int, default=64, help="trials of each run that is learned from")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    asked = parser.parse_args()
    names = [name for name in CASES if asked.only is None or asked.only in name]
    if not names:
        parser.error(f"--only: nothing contains {asked.only!r}; there are {', '.join(CASES)}")
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found += lines(name, asked, Path(folder))
    print(
        f"ekc {ekc.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{os.cpu_count()} cores; {devices.open(TARGET).label}, runs of {asked.trials} trials, "
        f"objective energy, seeds {asked.seed} to {asked.seed + asked.seeds - 1}; "
        f"taught by runs of {asked.taught}"
    )
    print(show(found))
    for x in found:
        print(f"{x['operator']}, {x['taught_by']}: {x['told']}")
    if asked.json:
        asked.json.write_text(json.dumps({"lines": found}, indent=1))


if __name__ == "__main__":
    main()
