"""Energy of A100 kernels: event energies fitted to the clock under the power cap, and scores on other rows.

    python -m benchmarks.simulator.energy --data DIR [--json FILE] [--seed N] [--rows N] [--cache DIR]
        [--write-docs]

Rows of `a100_gemm_energy` below 1400 MHz fit (beyond, the cap does not hold the clock); each is predicted by
energies that were fitted without its fold of kernels. Rows of `a100_gemm_clocks` score and never fit. "Energy
of equals" is the rank correlation of log energies over all pairs of rows at one clock whose times are within
5 %, in both orders of a pair. Intervals are 95 % bootstrap intervals over kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.ranking import compute_error
from benchmarks.common.script import DATA, Arguments, Column, format_lines, make_main, use_compile_cache
from benchmarks.simulator import learner, write_docs
from benchmarks.simulator.energy_fit import (
    FOLDS,
    GROUPS,
    Runs,
    Vector,
    compute_active_power,
    compute_hot_temperature,
    compute_settled_power,
    fit_energies,
    identify_kernel,
    list_kinds,
    list_published,
    make_runs,
    predict_capped_clock,
)
from benchmarks.simulator.power import score_fma, score_streaming
from benchmarks.simulator.rows import (
    CLOCKS,
    LATENCY,
    Pairs,
    compile_work,
    compute_interval,
    compute_rank,
    compute_works,
    pair_rows,
    read,
    resample_groups,
)
from ekc.devices.simulated import power
from ekc.devices.simulated.latency import estimate_latency

SPEC = CLOCKS.spec
CENSORED_MHZ = 1400.0
"""Clock from which on the recorded clock may be the highest that can be set, and no sign of power."""
EQUAL_TIME = 0.05
TILE_AREA = "tile area"
BARS = {
    "clock under the cap, recorded time": 0.75,
    "clock under the cap, simulated time": 0.55,
    "energy of equals, recorded time": 0.75,
}
BARS_FROM = {"energy of equals, simulated time": TILE_AREA}
"""Scores whose bar is that of another prediction."""
POWER_BAR = 0.06
RESAMPLES = 300
TREE_DEPTH = 4
CLOCK_GRID_MHZ = np.linspace(SPEC.min_mhz, SPEC.boost_mhz, 41)


def compute_times_over_clocks(pairs: Pairs) -> Vector:
    """Simulated seconds of each row at the clocks of the grid, `[n, clocks]`."""
    return np.array(
        [
            [estimate_latency(SPEC, work.events, work.resident, clock).seconds for clock in CLOCK_GRID_MHZ]
            for _, work in pairs
        ]
    )


def make_interpolator(times: Vector) -> Callable[[Vector], Vector]:
    """The times of all rows at a clock of each, from those on the grid."""
    step = CLOCK_GRID_MHZ[1] - CLOCK_GRID_MHZ[0]

    def interpolate(clock: Vector) -> Vector:
        place = np.clip((clock - CLOCK_GRID_MHZ[0]) / step, 0, len(CLOCK_GRID_MHZ) - 1.001)
        first = place.astype(np.int64)
        rows, share = np.arange(len(clock)), place - first
        # Nearly all time is cycles, and so the rate is nearly linear over the clock.
        rate = (1 - share) / times[rows, first] + share / times[rows, first + 1]
        return np.asarray(1.0 / rate)

    return interpolate


def predict_out_of_fold(
    runs: Runs, is_fit: NDArray[np.bool_], get_seconds: Callable[[Vector], Vector]
) -> Vector:
    """The clock of every row under the cap, by energies that were fitted without its fold of kernels."""
    found = np.empty(len(runs.seconds))
    for fold in range(FOLDS):
        energies = fit_energies(SPEC, runs[is_fit & (runs.fold != fold)])
        held = runs.fold == fold
        found[held] = predict_capped_clock(SPEC, runs, energies, get_seconds)[held]
    return found


def list_equals(runs: Runs) -> NDArray[np.int64]:
    """Pairs of rows at one clock whose times are equal within `EQUAL_TIME`, `[2, pairs]`."""
    close = [
        (a, b)
        for a, b in combinations(range(len(runs.seconds)), 2)
        if runs.clock_mhz[a] == runs.clock_mhz[b]
        and abs(np.log(runs.seconds[a] / runs.seconds[b])) <= np.log1p(EQUAL_TIME)
    ]
    return np.array(close, dtype=np.int64).reshape(-1, 2).T


def rank_equals(predicted: Vector, recorded: Vector, pairs: NDArray[np.int64]) -> float:
    """Rank correlation of differences over pairs, each both ways round."""
    ours, real = (value[pairs[0]] - value[pairs[1]] for value in (predicted, recorded))
    return compute_rank(np.concatenate([ours, -ours]), np.concatenate([real, -real]))


def score_predictions(
    what: str,
    predictions: Mapping[str, Vector],
    score: Callable[[Vector, NDArray[np.int64]], float],
    kernel: NDArray[np.int64],
    seed: int,
    bar: float | str,
    is_met: Callable[[float, float], bool] = operator.ge,
) -> list[dict[str, Any]]:
    """One line for each prediction: its score of all rows, and its 95 % interval over resampled kernels. The
    bar, or the score of the prediction that it names, judges the first."""
    every, lines = np.arange(len(kernel)), []
    for name, values in predictions.items():
        interval = compute_interval(
            [score(values, rows) for rows in resample_groups(kernel, seed, RESAMPLES)]
        )
        lines.append({"what": what, "by": name, "score": score(values, every), "interval": interval})
    limit = bar if isinstance(bar, float) else score(predictions[bar], every)
    lines[0] |= {"bar": bar, "pass": is_met(lines[0]["score"], limit)}
    return lines


def score_clocks(pairs: Pairs, runs: Runs, seed: int) -> list[dict[str, Any]]:
    """Clocks under the cap of the rows below `CENSORED_MHZ`, out of fold."""
    is_fit = runs.clock_mhz < CENSORED_MHZ
    times = make_interpolator(compute_times_over_clocks(pairs))
    logs, shipped = np.log(runs.seconds)[:, None], np.array(list(list_kinds(SPEC).values()))
    trees = [
        learner.predict_out_of_fold(features, runs.clock_mhz, runs.fold, is_fit, TREE_DEPTH, 0)
        for features in (np.hstack([runs.settings, logs]), runs.settings)
    ]
    lines = []
    for what, get_seconds, by_trees in zip(
        list(BARS)[:2], (lambda _: runs.seconds, times), trees, strict=True
    ):
        predictions = {
            "fitted, out of fold": predict_out_of_fold(runs, is_fit, get_seconds),
            "shipped": predict_capped_clock(SPEC, runs, shipped, get_seconds),
            "boosted trees, out of fold": by_trees,
            TILE_AREA: runs.tile_area,
            "time alone": get_seconds(runs.clock_mhz),
        }

        def rank(values: Vector, rows: NDArray[np.int64]) -> float:
            kept = rows[is_fit[rows]]
            return compute_rank(values[kept], runs.clock_mhz[kept])

        lines += score_predictions(what, predictions, rank, runs.kernel, seed, BARS[what])
    return lines


def score_equals(pairs: Pairs, sweep: Runs, fitted: Runs, seed: int) -> list[dict[str, Any]]:
    """Energies of rows at other clocks and of other kernels than those that fit."""
    recorded, equals = np.log(sweep.power_w * sweep.seconds), list_equals(sweep)
    times = make_interpolator(compute_times_over_clocks(pairs))(sweep.clock_mhz)
    fit, shipped = fit_energies(SPEC, fitted), np.array(list(list_kinds(SPEC).values()))

    def compute_logs(energies: Vector, seconds: Vector) -> Vector:
        return np.asarray(
            np.log(compute_settled_power(SPEC, sweep, energies, sweep.clock_mhz, seconds) * seconds)
        )

    def rank(values: Vector, rows: NDArray[np.int64]) -> float:
        times_drawn = np.bincount(rows, minlength=len(sweep.seconds))
        return rank_equals(values, recorded, np.repeat(equals, np.prod(times_drawn[equals], axis=0), axis=1))

    lines = []
    bars = {what: bar for what, bar in (BARS | BARS_FROM).items() if what.startswith("energy")}
    for (what, bar), seconds in zip(bars.items(), (sweep.seconds, times), strict=True):
        predictions = {
            "fitted": compute_logs(fit, seconds),
            "shipped": compute_logs(shipped, seconds),
            "boosted trees": np.log(predict_sweep_by_trees(fitted, sweep, seconds)[1]),
            TILE_AREA: -sweep.tile_area,
            "time alone": np.log(seconds),
        }
        lines += score_predictions(what, predictions, rank, sweep.kernel, seed, bar)
    return lines


def predict_sweep_by_trees(fitted: Runs, sweep: Runs, seconds: Vector) -> tuple[Vector, Vector]:
    """Watts and joules by boosted trees that learn the energy of a kernel's events from its configuration and
    cycles, at the cap, and by the model's idle power."""
    none, hot = np.zeros(fitted.picojoules.shape[1]), compute_hot_temperature(SPEC)
    fixed = power.compute_idle_power(SPEC, fitted.clock_mhz, hot)
    fixed += compute_active_power(SPEC, fitted, none, fitted.clock_mhz, fitted.seconds)
    joules = (SPEC.power.tdp_w - fixed) * fitted.seconds / SPEC.voltage.at_clock(fitted.clock_mhz) ** 2
    model = learner.train_trees(_join_cycles(fitted, fitted.seconds), np.log(joules), TREE_DEPTH, 0)
    found = np.exp(model(_join_cycles(sweep, seconds)))
    # One kind of event, of one picojoule, stands for all.
    whole = replace(sweep, picojoules=np.outer(found, np.arange(len(none)) == 0))
    watts = compute_settled_power(SPEC, whole, np.ones(len(none)), sweep.clock_mhz, seconds)
    return watts, watts * seconds


def _join_cycles(runs: Runs, seconds: Vector) -> Vector:
    return np.hstack([runs.settings, np.log(seconds * runs.clock_mhz)[:, None]])


def score_power(sweep: Runs, fitted: Runs, seed: int) -> list[dict[str, Any]]:
    """Median errors of board power on the sweep, at recorded times and clocks."""
    clock, seconds = sweep.clock_mhz, sweep.seconds
    fit, shipped = fit_energies(SPEC, fitted), np.array(list(list_kinds(SPEC).values()))
    predictions = {
        "fitted": compute_settled_power(SPEC, sweep, fit, clock, seconds),
        "shipped": compute_settled_power(SPEC, sweep, shipped, clock, seconds),
        "boosted trees": predict_sweep_by_trees(fitted, sweep, seconds)[0],
        "constant": np.full(len(clock), np.median(sweep.power_w)),
    }

    def score(watts: Vector, rows: NDArray[np.int64]) -> float:
        return compute_error(watts[rows], sweep.power_w[rows])

    what = "power, recorded time"
    return score_predictions(what, predictions, score, sweep.kernel, seed, POWER_BAR, operator.le)


def measure_energies(fitted: Runs, seed: int) -> list[dict[str, Any]]:
    """Each energy that is fitted: published, bounds, shipped, fitted, and its interval over resampled
    kernels; the same where each energy has a factor of its own, None where no kernel has such events."""
    alone = {kind: (kind,) for group in GROUPS.values() for kind in group}
    fits = {
        name: (fit_energies(SPEC, fitted, groups), draw_fits(fitted, groups, seed))
        for name, groups in (("fitted", GROUPS), ("alone", alone))
    }
    lines = []
    for n, (kind, shipped) in enumerate(list_kinds(SPEC).items()):
        if kind not in alone:
            continue
        published = list_published(SPEC)[kind]
        bounds = [published / power.BOUND_FACTOR, published * power.BOUND_FACTOR]
        line: dict[str, Any] = {"kind": kind, "published_pj": published, "bounds_pj": bounds}
        line |= {
            "group": next(name for name, kinds in GROUPS.items() if kind in kinds),
            "shipped_pj": shipped,
        }
        for name, (found, draws) in fits.items():
            is_known = name == "fitted" or bool(np.any(fitted.picojoules[:, n] > 0))
            line[f"{name}_pj"] = float(found[n]) if is_known else None
            line[f"{name}_interval_pj"] = np.quantile(draws[:, n], [0.025, 0.975]).tolist()
        lines.append(line)
    return lines


def draw_fits(fitted: Runs, groups: Mapping[str, tuple[str, ...]], seed: int) -> Vector:
    """Energies fitted to resampled kernels, `[resamples, kinds]`."""
    draws = resample_groups(fitted.kernel, seed, RESAMPLES)
    return np.array([fit_energies(SPEC, fitted[rows], groups) for rows in draws])


def read_pairs(data: Path, count: int, seed: int) -> tuple[Pairs, Pairs]:
    """Rows under the cap and rows over clocks, with their compiled work; of each at most `count` kernels."""
    found = []
    for recording in (LATENCY[0], CLOCKS):
        rows = read(data, recording)
        kernels = sorted({identify_kernel(row) for row in rows})
        drawn = set(np.random.default_rng(seed).permutation(kernels)[:count].tolist())
        rows = [row for row in rows if identify_kernel(row) in drawn]
        found.append(pair_rows(rows, compute_works(SPEC, rows, compile_work)))
    return found[0], found[1]


def measure(arguments: Arguments) -> dict[str, Any]:
    """Fit, score, and print the table."""
    with use_compile_cache(arguments.cache):
        pairs, sweep_pairs = read_pairs(arguments.data, arguments.rows, arguments.seed)
        beside = [score_fma(arguments.data), score_streaming(arguments.data)]
    runs, sweep = make_runs(SPEC, pairs), make_runs(SPEC, sweep_pairs)
    fitted = runs[runs.clock_mhz < CENSORED_MHZ]
    result: dict[str, Any] = {
        "rows": [len(fitted.seconds), len(sweep.seconds)],
        "kernels": [len(np.unique(fitted.kernel)), len(np.unique(sweep.kernel))],
        "pairs": int(list_equals(sweep).shape[1]),
        "lines": [
            *score_clocks(pairs, runs, arguments.seed),
            *score_equals(sweep_pairs, sweep, fitted, arguments.seed),
            *score_power(sweep, fitted, arguments.seed),
            *beside,
        ],
        "energies": measure_energies(fitted, arguments.seed),
    }
    print(text := format_result(result))
    if arguments.write_docs:
        write_docs.write({"energy": text}, {})
    return result


def _format_bar(bar: float | str | None) -> str:
    """A bar; it may be the name of another prediction."""
    return f"{bar:.2f}" if isinstance(bar, float) else bar or ""


ENERGY_COLUMNS = (
    Column("energy", "kind"),
    Column("group", "group"),
    Column("published", "published_pj", ".2f"),
    Column("bounds", "bounds_pj", ".2f"),
    Column("shipped", "shipped_pj", ".2f"),
    Column("fitted", "fitted_pj", ".2f"),
    Column("interval", "fitted_interval_pj", ".2f"),
    Column("alone", "alone_pj", ".2f"),
    Column("interval", "alone_interval_pj", ".2f"),
)
SCORE_COLUMNS = (
    Column("score", "what"),
    Column("by", "by"),
    Column("value", "score", ".3f"),
    Column("interval", "interval", ".3f"),
    Column("bar", "bar", _format_bar),
    Column("", "pass"),
)


def format_result(result: dict[str, Any]) -> str:
    """The energies and the scores as text."""
    fitted, sweep = (
        f"{r} rows of {k} kernels" for r, k in zip(result["rows"], result["kernels"], strict=True)
    )
    energies = [
        line | {"alone_interval_pj": None} if line["alone_pj"] is None else line
        for line in result["energies"]
    ]
    said = [
        f"event energies of the A100 in picojoules at 7 nm and relative voltage 1, fitted to {fitted}",
        format_lines(ENERGY_COLUMNS, energies, label_count=2),
        f"scores; sweep: {sweep}, {result['pairs']} pairs of equals",
        format_lines(SCORE_COLUMNS, result["lines"], label_count=2),
        FOOTNOTE,
    ]
    return "\n".join(said)


FOOTNOTE = (
    f"Cap {SPEC.power.tdp_w:.0f} W, at which the die has {compute_hot_temperature(SPEC):.0f} C (recorded: "
    "median 68 C).\nThe clock is free under the cap, and fixed at 330 to 1410 MHz in the sweep, where the die"
    f"\nhas {SPEC.power.ambient_c:.0f} C and {SPEC.power.kelvin_per_w:.2f} K for each watt."
)


OPTIONS = {
    "--data": DATA,
    "--rows": {"type": int, "default": 1000, "help": "kernels of each recording to compile, at most"},
    "--cache": {"type": Path, "help": "folder that keeps compiled kernels; default: none is kept"},
    "--write-docs": {
        "action": "store_true",
        "help": "write the block of this script in docs/explanation/simulated-devices.md",
    },
}
main = make_main(__doc__, measure, BARS | {"power": POWER_BAR}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
