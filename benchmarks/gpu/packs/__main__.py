"""Make a pack of compiled kernels for a visit to a GPU; no GPU is needed.

    python -m benchmarks.gpu.packs --device h100 --out h100.pack

1,000 kernels of each of four operators by the rule in `benchmarks/gpu/packs/rule.py`. A run that was stopped
goes on where it was, when it is started again. Where predictions are on file, the pack has their schedules,
and the new predictions are compared with those on file. Delete the file to draw other schedules. Where there
is no file, the rule draws the schedules, and the file is written. That of a pack with --small, --count or
--seed lies beside the pack. Status 1: the kernels or figures differ from those on file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.script import Arguments, make_parser
from benchmarks.gpu.items import list_recorded_items, list_small_items
from benchmarks.gpu.packs.make import Plan, make_pack
from benchmarks.gpu.packs.predictions import (
    FIGURES,
    FOLDER,
    OperatorPredictions,
    Predictions,
    name_file,
    read_predictions,
    write_predictions,
)
from ekc.errors import EkcError

COUNT, SMALL_COUNT = 1000, 24
INTERRUPTED, BAD_INPUT = 130, 2
FIGURE_TOLERANCE = 0.01
"""Largest relative difference of a figure on file and the same one computed again. The simulated device
counts the PTX, and NVRTC may give other PTX with the same machine code."""


def main(words: Sequence[str] | None = None) -> int:
    """Make the pack, and compare the predictions with the committed ones."""
    arguments = _parse_arguments(words)
    items = tuple(list_small_items()) if arguments.small else list_recorded_items()
    count = arguments.count or (SMALL_COUNT if arguments.small else COUNT)
    plan = Plan(arguments.device, items, count, arguments.seed)
    began = time.monotonic()
    try:
        is_filed = not (arguments.small or arguments.count or arguments.seed)
        place = (FOLDER if is_filed else arguments.out.parent) / name_file(plan.device)
        filed = read_predictions(place) if place.exists() else None
        operators = make_pack(plan, arguments.out, filed)
        found = sum(len(one.schedules) for one in operators)
        megabytes = arguments.out.stat().st_size / 1e6
        print(f"{arguments.out}: {found} kernels, {megabytes:.1f} MB, {time.monotonic() - began:.0f} s")
        return _file_predictions(place, filed, plan, operators)
    except EkcError as problem:
        print(f"benchmarks.gpu.packs: {problem}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def _file_predictions(
    path: Path, filed: Predictions | None, plan: Plan, operators: tuple[OperatorPredictions, ...]
) -> int:
    """Write the predictions where there are none; else compare."""
    if filed is None:
        sha256 = write_predictions(path, plan.conditions, operators)
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB, SHA-256 {sha256}")
        return 0
    differences = list_differences(filed, plan, operators)
    print("\n".join([f"{path}: {'the same' if not differences else 'differs'}", *differences]))
    return int(bool(differences))


def list_differences(filed: Predictions, plan: Plan, operators: Sequence[OperatorPredictions]) -> list[str]:
    """Differences from the filed predictions: conditions, schedules, machine code, figures; one line each."""
    lines = [
        f"  {name}: filed {filed.conditions.get(name)!r}, now {value!r}"
        for name, value in plan.conditions.items()
        if filed.conditions.get(name) != value
    ]
    for mine in operators:
        theirs = filed.find(mine.name)
        known = dict(zip(theirs.schedules, theirs.codes, strict=True))
        both = [n for n, digest in enumerate(mine.schedules) if digest in known]
        changed = sum(known[mine.schedules[n]] != mine.codes[n] for n in both)
        if len(both) < max(len(mine.schedules), len(known)) or changed:
            lines.append(
                f"  {mine.name}: {len(both)} of {len(known)} filed schedules, {changed} with other code"
            )
        elif mine.schedules != theirs.schedules:
            lines.append(f"  {mine.name}: another order")
        elif (most := _find_most_difference(mine, theirs)) > FIGURE_TOLERANCE:
            lines.append(f"  {mine.name}: other figures, by up to {most:.1%}")
    return lines


def _find_most_difference(mine: OperatorPredictions, theirs: OperatorPredictions) -> float:
    """The largest relative difference of a figure."""
    ratios = [mine.figures[name] / theirs.figures[name] for name in FIGURES]
    return float(np.abs(np.array(ratios) - 1.0).max())


OPTIONS = {
    "--device": {
        "default": "h100",
        "help": "simulated device of the pack; default: h100",
    },
    "--out": {
        "type": Path,
        "required": True,
        "help": "file of the pack",
    },
    "--seed": {
        "type": int,
        "default": 0,
    },
    "--count": {
        "type": int,
        "help": f"kernels of each operator; default: {COUNT}",
    },
    "--small": {
        "action": "store_true",
        "help": "small operators and few kernels, for a dry run",
    },
}


def _parse_arguments(words: Sequence[str] | None) -> Arguments:
    parser = make_parser(__doc__, OPTIONS, "python -m benchmarks.gpu.packs")
    arguments = parser.parse_args(words)
    if arguments.count is not None and arguments.count < 1:
        parser.error(f"--count {arguments.count}: 1 or more")
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
