"""What it is worth to cut long sums into parts over blocks: the same search with and without.

    python -m benchmarks.search.split_k [--json FILE] [--only TEXT] [--target NAME] [--trials N] [--seed N]

Each operator is tuned for speed on a simulated device twice, among all structures of its space and among
those without parts (rule 9 of docs/schedule-space.md). Few outputs of long sums should gain; where they
have something to lose stands below them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ekc
from benchmarks.search.tune_table import table
from ekc import devices
from ekc.devices.simulated import specs
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.space import Space
from ekc.search.tuning_result import TuningResult

BAR = 1.0
"""In parts over whole: at most as slow."""
OPERATORS: dict[str, Callable[[], ekc.Operator]] = {
    "MV 64x65536": lambda: ekc.matvec(64, 65536),
    "fp32 MM 64x64x16384": lambda: ekc.matmul(64, 64, 16384),
    "fp16 MM 64x64x16384": lambda: ekc.matmul(64, 64, 16384, dtype="float16"),
    "fp16 conv 1x512x7x7 3x3 -> 512": lambda: ekc.conv2d(
        1, 512, 7, 7, out_channels=512, kernel=3, padding=1, dtype="float16"
    ),
    "MM 384x384x2048": lambda: ekc.matmul(384, 384, 2048),
}
HEADERS = ("operator", "whole [us]", "in parts [us]", "ratio", "whole [mJ]", "in parts [mJ]", "best", "")


def tuned(op: ekc.Operator, chosen: tuple[Structure, ...], asked: argparse.Namespace) -> TuningResult:
    """The search among some structures."""
    device = devices.open(asked.target)
    wish = TuneOptions(asked.trials, "latency", 0.05, False, asked.seed, None)
    with RecordStore(None) as store, ThreadPoolExecutor(os.cpu_count()) as workers:
        space = Space(op, device.limits, chosen)
        return TuningRun(space, Measurer(device, store), workers, wish).run(())


def line(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One operator, both ways."""
    op = OPERATORS[name]()
    found = derive_structures(op, devices.open(asked.target).limits)
    whole = tuple(s for s in found if all(step.kind != "rfactor" for step in s.steps))
    before, after = tuned(op, whole, asked).fastest, tuned(op, found, asked).fastest
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


def show(lines: list[dict[str, Any]]) -> str:
    """The table."""
    rows = [
        (
            x["operator"],
            f"{x['whole_s'] * 1e6:.1f}",
            f"{x['in_parts_s'] * 1e6:.1f}",
            f"{x['ratio']:.2f}",
            f"{x['whole_j'] * 1e3:.2f}",
            f"{x['in_parts_j'] * 1e3:.2f}",
            x["best"],
            "pass" if x["pass"] else "FAIL",
        )
        for x in lines
    ]
    return table([HEADERS, *rows])


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", metavar="TEXT", default="", help="operators with this in their name")
    parser.add_argument("--target", choices=specs.list_names(), default="a100")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    names = [name for name in OPERATORS if asked.only in name]
    if not names:
        parser.error(f"--only: nothing contains {asked.only!r}; there are {', '.join(OPERATORS)}")
    print(
        f"ekc {ekc.__version__}, Python {platform.python_version()}, {asked.target} (simulated), "
        f"fastest of {asked.trials} trials, seed {asked.seed}"
    )
    lines = [line(name, asked) for name in names]
    print(show(lines))
    if asked.json:
        asked.json.write_text(json.dumps({"lines": lines, "pass": all(x["pass"] for x in lines)}, indent=1))


if __name__ == "__main__":
    main()
