"""Gain of splitting long sums over blocks (split-k): the same search with and without.

    python -m benchmarks.search.split_k [--json FILE] [--only TEXT] [--target NAME] [--trials N] [--seed N]

Each operator is tuned for speed on a simulated device twice, among all structures of its space and among
those without split sums (rule 9 of docs/explanation/schedule-space.md). Operators with few outputs of long
sums should gain. The last operator has something to lose. Bar: none is slower with split sums.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ekc
from benchmarks.common.script import ONLY, Column, format_lines, make_main, select_names
from ekc import devices
from ekc.devices.simulated import specs
from ekc.processes.pool import count_cores
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.space import Space
from ekc.search.tuning_result import TuningResult

BAR = 1.0
"""Latency with split sums over latency without, at most."""
OPERATORS: dict[str, Callable[[], ekc.Operator]] = {
    "MV 64x65536": lambda: ekc.matvec(64, 65536),
    "fp32 MM 64x64x16384": lambda: ekc.matmul(64, 64, 16384),
    "fp16 MM 64x64x16384": lambda: ekc.matmul(64, 64, 16384, dtype="float16"),
    "fp16 conv 1x512x7x7 3x3 -> 512": lambda: ekc.conv2d(
        1, 512, 7, 7, out_channels=512, kernel=3, padding=1, dtype="float16"
    ),
    "MM 384x384x2048": lambda: ekc.matmul(384, 384, 2048),
}
COLUMNS = (
    Column("operator", "operator"),
    Column("whole [us]", "whole_s", ".1f", 1e6),
    Column("in parts [us]", "in_parts_s", ".1f", 1e6),
    Column("ratio", "ratio", ".2f"),
    Column("whole [mJ]", "whole_j", ".2f", 1e3),
    Column("in parts [mJ]", "in_parts_j", ".2f", 1e3),
    Column("best", "best"),
    Column("", "pass"),
)
OPTIONS = {
    "--only": ONLY,
    "--target": {"choices": specs.list_names(), "default": "a100"},
    "--trials": {"type": int, "default": 64},
}


def tune_among(
    op: ekc.Operator, chosen: tuple[Structure, ...], arguments: argparse.Namespace
) -> TuningResult:
    """Tune an operator among some structures."""
    device = devices.open(arguments.target)
    wish = TuneOptions(arguments.trials, "latency", 0.05, False, arguments.seed, None)
    with RecordStore(None) as store, ThreadPoolExecutor(count_cores()) as workers:
        space = Space(op, device.limits, chosen)
        return TuningRun(space, Measurer(device, store), workers, wish).run(())


def measure_operator(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tune one operator both ways."""
    op = OPERATORS[name]()
    found = derive_structures(op, devices.open(arguments.target).limits)
    whole = tuple(s for s in found if all(step.kind != "rfactor" for step in s.steps))
    before, after = tune_among(op, whole, arguments).fastest, tune_among(op, found, arguments).fastest
    assert before.latency_s is not None
    assert after.latency_s is not None
    ratio = after.latency_s / before.latency_s
    return {
        "operator": name,
        "structures": [len(whole), len(found)],
        "whole_s": before.latency_s,
        "in_parts_s": after.latency_s,
        "whole_j": before.energy_j,
        "in_parts_j": after.energy_j,
        "best": after.structure,
        "ratio": ratio,
        "bar": {"ratio": BAR},
        "pass": ratio <= BAR,
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tune each operator with and without split sums, and print the table."""
    names = select_names(OPERATORS, arguments.only)
    print(f"{arguments.target} (simulated), fastest of {arguments.trials} trials, seed {arguments.seed}")
    lines = [measure_operator(name, arguments) for name in names]
    print(format_lines(COLUMNS, lines))
    return {"lines": lines}


main = make_main(__doc__, measure, {"ratio": BAR}, options=OPTIONS)

if __name__ == "__main__":
    sys.exit(main())
