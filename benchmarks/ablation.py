"""What a search loses without one of its parts, on simulated devices and on recorded spaces; latency alone.

    python -m benchmarks.search.ablation [--folder DIR] [--program NAME] [--seeds FIRST:END] [--trials N]
        [--variants "A;B"] [--only TEXT] [--within SHARE] [--data DIR] [--show] [--against NAME] [--json FILE]

The six operators of `paper.py` on the simulated a100 and rtx4090; with --data on recordings too. Every
variant starts from the same seeds, and the latency of its winner is held against that of the default with
the same operator, device and seed. A simulated kernel carries a seeded factor of its own on its time (half a
percent), of which the best of many is luckier: *ratio* has that factor taken out, *measured* does not.

The bar: what is taken away may go where the upper end of the 95 % interval of the geometric mean of the
ratios is below 1.010, and the search takes less than 1.10 times the CPU seconds. Two intervals are printed,
and both must be below: operators and devices drawn again, each with all of its seeds (would it hold
elsewhere?), and the seeds of each drawn again (would it hold here with other seeds?). "not shown" is neither
below the bar nor above 1. With fewer than 5 seeds nothing is said, with fewer than 20 it is said "so far" and
does not pass.

*search CPU*: all but compiling, counting and timing, of all processes. *wall*: of the whole run, so it says
something only where every kernel was on file and nothing else ran; run it again as another --program. The
time to record the walks of a space (half a second of this process) is in neither share.

Why 64 trials: a run of 64 takes about 23 CPU seconds, one of 256 takes 92 (a new kernel 0.29: NVRTC 0.17,
counting what it executes 0.11; searching 4 to 5 and 18). Populations are compared with 256 as well, for a run
of 64 breeds 2,048 at a time by default, one of 256 breeds 8,192.

A run is a line in a file, added when it is finished; a benchmark that was killed goes on where it stood.
--within SHARE leaves out the variants whose ratio so far is more than SHARE above 1. --show runs nothing.
--against NAME compares the default of --program with that of another program, seed by seed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
from ablation_figures import (
    LOSS_BAR,
    TIME_BAR,
    compared,
    halves,
    told,
    verdict,
)
from ablation_recordings import RecordedPlace, recorded_places
from ablation_runs import Line, Place, check_program, identity, keep, read_lines
from ablation_variants import DEFAULT, STAGE_ONE, VARIANTS
from paper_runs import DEVICES, OPERATORS, code
from tune_table import table

import ekc

RECORDED = "recorded"
"""Stands where other runs have their device."""


def chosen(lines: list[Line], names: tuple[str, ...], within: float | None) -> list[str]:
    """The variants still worth running: the default, and what is near it so far."""
    if within is None:
        return list(names)
    base = [x for x in lines if x["variant"] == DEFAULT]
    kept = []
    for name in names:
        line = compared(name, [x for x in lines if x["variant"] == name], base)
        if name == DEFAULT or line is None or line["mean"] <= 1 + within:
            kept.append(name)
    return kept


def fill(
    places: list[Place | RecordedPlace],
    asked: argparse.Namespace,
    names: list[str],
    done: set[tuple[Any, ...]],
) -> None:
    """Run what is missing: all places with one seed before any has the next."""
    for seed in range(*asked.seeds):
        for place in places:
            for name in names:
                trials = place.trials(asked.trials) if isinstance(place, RecordedPlace) else asked.trials
                line = {
                    "program": asked.program,
                    "operator": place.operator,
                    "device": place.device_name,
                    "variant": name,
                    "seed": seed,
                    "trials": trials,
                }
                if identity(line) in done or not place.knows(name):
                    continue
                line |= {"code": code()} | place.run(name, seed, trials)
                keep(place.log, line)
                done.add(identity(line))
                print(_progress(line), flush=True)


def _progress(line: Line) -> str:
    found = line["latency_s"]
    what = f"{found:.4f} times the optimum" if line["device"] == RECORDED else f"{found * 1e6:.6g} us"
    return (
        f"{line['operator']} {line['device']} seed {line['seed']} {line['variant']}: {what}, "
        f"{line['timed']} timed, search {line['search_s']:.1f} s, measuring {line['measuring_s']:.1f} s"
    )


def figures(lines: list[Line], program: str, other: str | None) -> list[Line]:
    """Every line of the table of some runs with one number of trials."""
    mine = [x for x in lines if x["program"] == program]
    base = [x for x in mine if x["variant"] == DEFAULT]
    found = []
    for name in VARIANTS:
        if name != DEFAULT:
            found.append(compared(name, [x for x in mine if x["variant"] == name], base))
    logs = halves(base, "without_luck_s")
    if logs:
        found.append(told("default, other seeds", logs, halves(base, "latency_s")))
    if other is not None:
        others = [x for x in lines if x["program"] == other and x["variant"] == DEFAULT]
        found.append(compared(f"{program} over {other}", base, others))
    return [x | {"verdict": _judged(x)} for x in found if x is not None]


def _judged(line: Line) -> str:
    variant = VARIANTS.get(line["variant"])
    if variant is not None and variant.identical:
        return "identical" if line["identical"] == line["pairs"] else "DIFFERS"
    return verdict(line)


def show(lines: list[Line]) -> str:
    """The table."""
    rows = [
        (
            "variant",
            *("pairs", "seeds", "ratio", "places redrawn", "seeds redrawn", "worst"),
            *("measured", "places redrawn", "search CPU", "wall", "trials", ""),
        )
    ]
    for x in lines:
        rows.append(
            (
                x["variant"],
                str(x["pairs"]),
                str(x["seeds"]),
                f"{x['mean']:.4f}",
                _span(x["interval"]),
                _span(x["interval_of_seeds"]),
                f"{x['worst']:.3f}",
                f"{x['measured_mean']:.4f}",
                _span(x["measured_interval"]),
                *(_share(x, of) for of in ("search_share", "wall_share", "trials_share")),
                x["verdict"],
            )
        )
    return table(rows)


def _span(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"


def _share(line: Line, of: str) -> str:
    return f"{line[of]:.2f}" if line.get(of) is not None else "-"


def report(lines: list[Line], program: str, other: str | None) -> list[Line]:
    """Print a table for each number of trials, simulated and recorded apart; `other` is a program to be
    compared with."""
    shown = []
    kinds = sorted({(x["device"] == RECORDED, 0 if x["device"] == RECORDED else x["trials"]) for x in lines})
    for recorded, trials in kinds:
        some = [
            x for x in lines if (x["device"] == RECORDED) == recorded and (recorded or x["trials"] == trials)
        ]
        base = [x for x in some if x["program"] == program and x["variant"] == DEFAULT]
        if not base:
            continue
        own = figures(some, program, other)
        what = "recorded spaces" if recorded else f"{trials} trials, simulated devices"
        print(
            f"program {program}, {what}; default: {len(base)} runs, "
            f"{_mean(base, 'search_s'):.1f} s of search and {_mean(base, 'measuring_s'):.1f} s of measuring "
            "each, CPU"
        )
        if own:
            print(show(own))
        shown += [x | {"program": program, "trials": trials or None, "recorded": recorded} for x in own]
    return shown


def _mean(lines: list[Line], figure: str) -> float:
    return float(np.mean([x[figure] for x in lines]))


def _seeds(text: str) -> tuple[int, int]:
    first, _, end = text.rpartition(":")
    return int(first or 0), int(end)


def main() -> None:
    """Run what is missing, print the tables; write them as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("build/ablation"), help="of the finished runs")
    parser.add_argument(
        "--program", metavar="NAME", help="of the code that is run, by default its digest; of --show, all"
    )
    parser.add_argument("--seeds", type=_seeds, default=(0, 5), metavar="[FIRST:]END")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--variants", help="separated by semicolons: " + "; ".join(VARIANTS))
    parser.add_argument("--only", metavar="TEXT", help='operators and devices with this in "MM 1024^3 a100"')
    parser.add_argument("--within", type=float, metavar="SHARE")
    parser.add_argument("--data", type=Path, help="folder of recordings, to search these too")
    parser.add_argument("--no-simulated", action="store_true", help="with --data: recordings alone")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--against", metavar="NAME", help="another program to be compared with")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    names = tuple(v.strip() for v in asked.variants.split(";")) if asked.variants else STAGE_ONE
    for name in names:
        if name not in VARIANTS:
            parser.error(f"--variants: {name!r} is not one of {'; '.join(VARIANTS)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    lines = read_lines(asked.folder)
    if not asked.show:
        asked.program = asked.program or code()
        check_program(lines, asked.program)
        places: list[Place | RecordedPlace] = []
        if not asked.no_simulated:
            places += [Place(o, d, asked.folder) for o in OPERATORS for d in DEVICES]
        places += recorded_places(asked.data, asked.folder) if asked.data else []
        text = asked.only or ""
        places = [p for p in places if text in f"{p.operator} {p.device_name}"]
        if not places:
            parser.error(f"--only: nothing contains {text!r}")
        near = [x for x in lines if x["program"] == asked.program and x["device"] != RECORDED]
        near = [x for x in near if x["trials"] == asked.trials]
        fill(places, asked, chosen(near, names, asked.within), {identity(x) for x in lines})
        lines = read_lines(asked.folder)
    print(
        f"ekc {ekc.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{os.cpu_count()} cores; bars {LOSS_BAR:.3f} and {TIME_BAR:.2f}"
    )
    programs = [asked.program] if asked.program else list(dict.fromkeys(x["program"] for x in lines))
    shown = [line for program in programs for line in report(lines, program, asked.against)]
    if asked.json:
        judged = [x | {"pass": x["verdict"] in ("may go", "identical")} for x in shown]
        bars = {"ratio": LOSS_BAR, "search_share": TIME_BAR}
        asked.json.write_text(json.dumps({"lines": judged, "bar": bars}, indent=1))


if __name__ == "__main__":
    main()
