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

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.common.operators import PAPER_OPERATORS
from benchmarks.common.script import WIDE_TABLE, make_main, select_names
from benchmarks.search.paper_figures import (
    LOSS_BAR,
    SHARE_BAR,
    compare_with_other_models,
    compute_median_and_most,
    compute_savings,
    compute_savings_within_runs,
    judge_default,
    summarize_places,
    summarize_variants,
)
from benchmarks.search.paper_runs import DEVICES, METHODS, run_variants
from ekc.errors import InvalidInput
from ekc.tables import format_table

TRIALS, SEEDS = 64, 5


def select_places(only: str) -> list[tuple[str, str]]:
    """(operator, device) of the pairs whose names together contain `only`."""
    every = {f"{operator} {device}": (operator, device) for operator in PAPER_OPERATORS for device in DEVICES}
    return [every[name] for name in select_names(every, only)]


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


def format_variants(variants: list[dict[str, Any]]) -> str:
    """Energy and cost of each variant."""
    rows = [
        (
            "variant",
            "runs",
            "energy",
            "interval",
            "worst",
            "metered",
            "most",
            "error",
            "metering [virtual s]",
            "search [s]",
        )
    ]
    for v in variants:
        rows.append(
            (
                v["variant"],
                str(v["runs"]),
                _format_figure(v["energy_median"], ".4f"),
                _format_interval(v["energy_median_interval"]),
                _format_figure(v["energy_worst"], ".3f"),
                f"{v['metered']:.1%}",
                f"{v['metered_most']:.1%}",
                _format_figure(v["error"], ".1%"),
                f"{v['metering_s']:.0f}",
                f"{v['search_s']:.1f}",
            )
        )
    return format_table(rows[0], rows[1:], width=WIDE_TABLE)


def format_places(lines: list[dict[str, Any]]) -> str:
    """The default and the energy objective, operator by operator."""
    rows = [("default, by operator and device", "energy [mJ]", "/ everything", "metered", "saving", "most")]
    for x in lines:
        rows.append(
            (
                f"{x['operator']}, {x['device']} (simulated)",
                _format_figure(x["energy_j"] and x["energy_j"] * 1e3, ".4g"),
                _format_figure(x["loss_median"], ".4f"),
                _format_figure(x["metered"], ".1%"),
                _format_figure(x["saving_median"], ".1%"),
                _format_figure(x["saving_most"], ".1%"),
            )
        )
    return format_table(rows[0], rows[1:], width=WIDE_TABLE)


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
    from benchmarks.search.paper_plots import draw

    try:
        return "plots: " + ", ".join(map(str, draw(lines, folder)))
    except InvalidInput as problem:
        return f"no plots: {problem}"


def _format_interval(value: list[float] | None) -> str:
    return "-" if value is None else f"{value[0]:.3f} to {value[1]:.3f}"


def _format_figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script alone."""
    parser.add_argument(
        "--only", metavar="TEXT", default="", help='operators and devices with this in "MM 1024^3 a100"'
    )
    parser.add_argument("--variants", help="separated by commas: " + ", ".join(METHODS).replace("%", "%%"))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of each")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument(
        "--records", type=Path, default=Path("build/paper"), help="folder of what was measured"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw figures 4 and 5 there")
    parser.add_argument("--processes", type=int, default=2)


def parse_variants(text: str | None) -> tuple[str, ...]:
    """The variants that the option names; all without it."""
    variants = tuple(v.strip() for v in text.split(",")) if text else tuple(METHODS)
    for variant in variants:
        if variant not in METHODS:
            raise InvalidInput(f"--variants: no {variant!r}; variants are {', '.join(METHODS)}")
    return variants


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all variants, and print the tables."""
    places = select_places(arguments.only)
    variants = parse_variants(arguments.variants)
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
    print(format_variants(by_variant))
    print(format_places(by_place))
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


main = make_main(__doc__, measure, {"energy_median": LOSS_BAR, "metered": SHARE_BAR}, add_options)

if __name__ == "__main__":
    sys.exit(main())
