"""Effect of each mechanism of the search: latency or energy without it, on simulated devices.

    python -m benchmarks.search.ablation [--objective NAME] [--folder DIR] [--program NAME]
        [--seeds FIRST:END] [--trials N] [--variants "A;B"] [--only TEXT]
        [--show] [--against NAME] [--json FILE]

The six operators of `paper.py` on the simulated a100 and rtx4090. Every variant starts from the same seeds.
The latency of its winner is divided by that of the default with the same operator, device and seed. A
simulated kernel has a seeded factor of its own on its time (half a percent), and the best of many kernels has
a lucky one: *ratio* is without that factor, *measured* is with it.

Bar: a mechanism may go where the upper end of the 95 % interval of the geometric mean of the ratios is below
1.010, and the search takes less than 1.10 times the CPU seconds. Two intervals are printed, and both must be
below: one resamples operators and devices, each with all of its seeds (does it hold elsewhere?), the other
the seeds of each (does it hold here with other seeds?). "not shown" is neither below the bar nor above 1.
With fewer than 5 seeds there is no verdict. With fewer than 20 the verdict ends in "so far" and does not
pass. Each row has a verdict; the benchmark as a whole has none ("pass": null).

*search CPU*: all CPU seconds but those of compiling, counting and timing, of all processes. *wall*: seconds
of the whole run. It is only comparable where every kernel was stored before and nothing else ran; run it
again as another --program. The time to record the traces of a space (half a second of this process) is in
neither.

With --objective energy every run meters, as `ekc.tune` does, and the energies of the winners are compared:
each is at most 5 % slower than the fastest kernel of its run. *metered*: kernels metered over those of the
default.

Why 64 trials: a run of 64 takes about 23 CPU seconds, one of 256 takes 92 (a new kernel takes 0.29: NVRTC
0.17, counting its instructions 0.11; the search takes 3 to 5 and 12).

A run is a line in a file, added when the run ends; a benchmark that was killed continues after the last one.
--show runs nothing.
--against NAME compares the default of --program with that of another program, seed by seed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.search.ablation_figures import (
    FIGURES,
    LOSS_BAR,
    TIME_BAR,
    compare_variant,
    get_objective,
    judge,
    split_seeds,
    summarize,
)
from benchmarks.search.ablation_variants import DEFAULT, ENERGY_VARIANTS, STAGE_ONE, VARIANTS
from benchmarks.search.runs import (
    ONLY_PLACE,
    Line,
    Place,
    check_program,
    digest_code,
    format_run,
    parse_variants,
    read_lines,
    select_places,
)


def run_missing(places: list[Place], arguments: Arguments, names: tuple[str, ...]) -> None:
    """Run the missing runs: all places with one seed before the next seed."""
    for seed in range(*arguments.seeds):
        for place in places:
            for name in names:
                asked = {
                    "program": arguments.program,
                    "operator": place.operator,
                    "device": place.device_name,
                    "variant": name,
                    "seed": seed,
                    "trials": arguments.trials,
                    "code": digest_code(),
                }
                if arguments.objective == "energy":
                    asked["objective"] = "energy"
                make = partial(place.run, name, seed, arguments.trials, arguments.objective)
                place.log.find_or_make(asked, make, format_run)


def compare_all(lines: list[Line], program: str, other: str | None) -> list[Line]:
    """Every row of the table, for runs with one number of trials."""
    own = [x for x in lines if x["program"] == program]
    base = [x for x in own if x["variant"] == DEFAULT]
    rows = [
        compare_variant(name, [x for x in own if x["variant"] == name], base)
        for name in VARIANTS
        if name != DEFAULT
    ]
    figure, measured = FIGURES[get_objective(lines[0])]
    logs = split_seeds(base, figure)
    if logs:
        rows.append(summarize("default, other seeds", logs, split_seeds(base, measured)))
    if other is not None:
        others = [x for x in lines if x["program"] == other and x["variant"] == DEFAULT]
        rows.append(compare_variant(f"{program} over {other}", base, others))
    return [x | {"verdict": judge(x)} for x in rows if x is not None]


COLUMNS = (
    Column("variant", "variant"),
    Column("pairs", "pairs"),
    Column("seeds", "seeds"),
    Column("ratio", "mean", ".4f"),
    Column("places redrawn", "interval", ".4f"),
    Column("seeds redrawn", "interval_of_seeds", ".4f"),
    Column("worst", "worst", ".3f"),
    Column("measured", "measured_mean", ".4f"),
    Column("places redrawn", "measured_interval", ".4f"),
    Column("search CPU", "search_share", ".2f"),
    Column("wall", "wall_share", ".2f"),
    Column("trials", "trials_share", ".2f"),
    Column("metered", "metered_share", ".2f"),
    Column("", "verdict"),
)


def print_tables(lines: list[Line], program: str, other: str | None) -> list[Line]:
    """Print a table for each number of trials. Returns all rows. `other`: a program to compare with."""
    shown = []
    for trials in sorted({x["trials"] for x in lines}):
        some = [x for x in lines if x["trials"] == trials]
        base = [x for x in some if x["program"] == program and x["variant"] == DEFAULT]
        if not base:
            continue
        rows = compare_all(some, program, other)
        print(
            f"program {program}, {trials} trials, simulated devices; default: {len(base)} runs, "
            f"{_mean(base, 'search_s'):.1f} s of search and {_mean(base, 'measuring_s'):.1f} s of measuring "
            "each, CPU"
        )
        if rows:
            print(format_lines(COLUMNS, rows))
        shown += [x | {"program": program, "trials": trials} for x in rows]
    return shown


def _mean(lines: list[Line], key: str) -> float:
    return float(np.mean([x[key] for x in lines]))


def parse_seeds(text: str) -> tuple[int, int]:
    """(first, end) of "[FIRST:]END"."""
    first, _, end = text.rpartition(":")
    return int(first or 0), int(end)


OPTIONS = {
    "--objective": {"choices": tuple(FIGURES), "default": "latency"},
    "--folder": {"type": Path, "default": Path("build/ablation"), "help": "of the finished runs"},
    "--program": {
        "metavar": "NAME",
        "help": "name of the code that runs, by default its digest; with --show, all",
    },
    "--seeds": {"type": parse_seeds, "default": (0, 5), "metavar": "[FIRST:]END"},
    "--trials": {"type": int, "default": 64},
    "--variants": {"help": "separated by semicolons: " + "; ".join(VARIANTS)},
    "--only": ONLY_PLACE,
    "--show": {"action": "store_true", "help": "run nothing"},
    "--against": {"metavar": "NAME", "help": "another program to compare with"},
}


def _read_runs(arguments: Arguments) -> list[Line]:
    """The finished runs with this objective."""
    return [x for x in read_lines(arguments.folder) if get_objective(x) == arguments.objective]


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run the missing runs and print the tables."""
    names = STAGE_ONE if arguments.objective == "latency" else (DEFAULT, *ENERGY_VARIANTS)
    if arguments.variants:
        names = parse_variants(arguments.variants, ";", VARIANTS)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lines = _read_runs(arguments)
    if not arguments.show:
        arguments.program = arguments.program or digest_code()
        check_program(lines, arguments.program)
        places = [Place(*place, arguments.folder) for place in select_places(arguments.only)]
        run_missing(places, arguments, names)
        lines = _read_runs(arguments)
    print(f"bars: ratio {LOSS_BAR:.3f}, search CPU {TIME_BAR:.2f}")
    programs = [arguments.program] if arguments.program else list(dict.fromkeys(x["program"] for x in lines))
    shown = [row for program in programs for row in print_tables(lines, program, arguments.against)]
    judged = [x | {"pass": x["verdict"] == "may go"} for x in shown]
    return {"lines": judged, "pass": None}


BAR = {"ratio": LOSS_BAR, "search_share": TIME_BAR}
main = make_main(__doc__, measure, BAR, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
