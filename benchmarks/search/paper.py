"""The search of the paper (arXiv 2411.18873), tested by ablation on simulated devices.

    python -m benchmarks.search.paper [--json FILE] [--only TEXT] [--seeds N] [--trials N] [--plots DIR]

Matrix products, matrix-vector products and convolutions on the simulated a100 and rtx4090. Every variant
of the search starts from the same seeds. "metering" is what a real meter would take, window, warm-up and
idle reading, counted also where a figure is on file already: virtual seconds. "search" is CPU time of the
thread that breeds, learns and chooses; threads that predict beside it are left out, and compiling and
measuring, which variants share through a record file. A run that was stopped goes on where it stood:
finished runs are kept beside the record files.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.search.ablation_variants import METHODS
from benchmarks.search.paper_figures import (
    LOSS_BAR,
    SHARE_BAR,
    compare_with_other_models,
    compute_median_and_most,
    compute_savings,
    compute_savings_within_runs,
    draw,
    judge_default,
    summarize_places,
    summarize_variants,
)
from benchmarks.search.runs import ONLY_PLACE, parse_variants, run_variants, select_places
from ekc.errors import InvalidInput

TRIALS, SEEDS = 64, 5


def run_all(
    chosen: list[tuple[str, str]],
    variants: tuple[str, ...],
    seeds: range,
    trials: int,
    folder: Path,
    processes: int,
) -> list[dict[str, Any]]:
    """All runs, one process per operator and device at a time, in the order of `chosen`."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = {pool.submit(run_variants, *place, variants, seeds, trials, folder): place for place in chosen}
        for job in as_completed(jobs):
            found[jobs[job]] = job.result()
    return [line for place in chosen for line in found[place]]


VARIANT_COLUMNS = (
    Column("variant", "variant"),
    Column("runs", "runs"),
    Column("energy", "energy_median", ".4f"),
    Column("interval", "energy_median_interval", ".3f"),
    Column("worst", "energy_worst", ".3f"),
    Column("metered", "metered", ".1%"),
    Column("most", "metered_most", ".1%"),
    Column("error", "error", ".1%"),
    Column("metering [virtual s]", "metering_s", ".0f"),
    Column("search [s]", "search_s", ".1f"),
)
"""Energy and cost of each variant."""
PLACE_COLUMNS = (
    Column("default, by operator and device", "place"),
    Column("energy [mJ]", "energy_j", ".4g", 1e3),
    Column("/ everything", "loss_median", ".4f"),
    Column("metered", "metered", ".1%"),
    Column("saving", "saving_median", ".1%"),
    Column("most", "saving_most", ".1%"),
)
"""The default and the energy objective, operator by operator."""
OPTIONS = {
    "--only": ONLY_PLACE,
    "--variants": {"help": "separated by commas: " + ", ".join(METHODS).replace("%", "%%")},
    "--seeds": {"type": int, "default": SEEDS, "help": "runs of each"},
    "--trials": {"type": int, "default": TRIALS},
    "--records": {"type": Path, "default": Path("build/paper"), "help": "folder of what was measured"},
    "--plots": {"type": Path, "metavar": "DIR", "help": "draw figures 4 and 5 there"},
    "--processes": {"type": int, "default": 2},
}


def format_saving(what: str, saving: dict[str, Any] | None, pairs: int) -> str:
    """One line on a saving: the interval is that of the median."""
    if saving is None:
        return f"{what}: no pair of runs"
    low, high = saving["median_interval"]
    return (
        f"{what}: median {saving['median']:.1%} ({low:.1%} to {high:.1%}), "
        f"maximum {saving['most']:.1%}, {saving['pairs']} of {pairs} pairs"
    )


def format_other_models(found: dict[str, Any] | None) -> str:
    """One line on how much of the savings other models confirm."""
    if found is None:
        return "other models: no default run"
    share = "-" if found["confirmed"] is None else f"{found['confirmed']:.0%}"
    return (
        f"mean saving within a run: {found['claimed_mean']:.1%} claimed, {found['other_models_mean']:.1%} by "
        f"other energies and residuals that recordings allow, {share} confirmed; they are sure of a saving "
        f"in {found['sure_of_a_saving']}, of a loss in {found['sure_of_a_loss']} of {found['runs']} runs"
    )


def draw_plots(lines: list[dict[str, Any]], folder: Path) -> str:
    """Draw the plots; returns a line of text about them."""
    try:
        return "plots: " + ", ".join(map(str, draw(lines, folder)))
    except InvalidInput as problem:
        return f"no plots: {problem}"


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all variants, and print the tables."""
    places = select_places(arguments.only)
    variants = parse_variants(arguments.variants or ",".join(METHODS), ",", METHODS)
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    lines = run_all(places, variants, seeds, arguments.trials, arguments.records, arguments.processes)
    by_variant, by_place = summarize_variants(lines, arguments.seed), summarize_places(lines)
    across = compute_median_and_most(compute_savings(lines), arguments.seed)
    within = compute_median_and_most(compute_savings_within_runs(lines), arguments.seed)
    others = compare_with_other_models(lines)
    judged, runs = judge_default(by_variant), len(places) * len(seeds)
    print(
        f"{arguments.trials} trials, seeds {seeds[0]} to {seeds[-1]}, "
        f"{len(places)} pairs of operator and simulated device, clocks fixed"
    )
    print("energy: of the winner over that of metering everything with the same seed, median and worst;")
    print("interval: of the median, 95 %, places resampled, then runs of each;")
    print("metered: of all timed kernels, finals included; error: median, of predictions before metering")
    print(format_lines(VARIANT_COLUMNS, by_variant))
    named = [x | {"place": f"{x['operator']}, {x['device']} (simulated)"} for x in by_place]
    print(format_lines(PLACE_COLUMNS, named))
    print(format_saving("least energy against latency only, at most 5 % slower", across, runs))
    print(format_saving("least energy against least latency within one run", within, runs))
    print(format_other_models(others))
    if arguments.plots:
        print(draw_plots(lines, arguments.plots))
    return {
        "lines": by_variant,
        "places": by_place,
        "saving": across,
        "saving_within_a_run": within,
        "other_models": others,
        "default": judged,
        "trials": arguments.trials,
        "seeds": arguments.seeds,
        "pass": None if judged is None else judged["pass"],
    }


main = make_main(__doc__, measure, {"energy_median": LOSS_BAR, "metered": SHARE_BAR}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
