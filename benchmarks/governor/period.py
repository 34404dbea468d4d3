"""Accuracy of the period detector on generated traces of known period (simulated sensors).

    python -m benchmarks.governor.period [--json FILE] [--rounds N] [--seed N] [--points N]
        [--traces FILE]

`--traces` adds recorded traces, as `python -m benchmarks.gpu traces` writes them (docs/how-to/kit.md): one
line each, without a bar. The repository holds no recorded traces of GPU power.

Traces come from `traces.py`: `--rounds` of each kind for a power sensor that averages over 0.1 s (read 20
times a second) and one that averages over 1 s (10 times). Judged are traces with a period of at least twice
that window, up to 20 s. A trace is off where the verdict is not `periodic`, or the period differs by more
than 10 % from the true one. For comparison: the highest peak of the power's spectrum (FFT). Below twice the
window only a multiple of the period can be found; those rows say how often it was, and have no bar. The
detector was developed on the seeds in `DEVELOPED`; judge it on others. There is no verdict on fewer traces
than the bar asks for.

Sensors of A100 and H100 show 25 ms of each 100 ms. The same kinds of traces read by such a sensor are rows
without a bar: 1 % of jitter is more than such readings resolve of a short iteration. Rows with a bar are
made traces of iterations of 0.8 to 1.6 s, all of one length, with sharp changes, `--points` of each of
`POINT_CASES` for each of three seeds. A sensor that shows moments, or 25 ms of each 100, shows a pattern
exactly again only after a whole number of readings.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.governor.traces import (
    APERIODIC,
    KINDS,
    Trace,
    make_aperiodic_trace,
    make_periodic_trace,
)
from benchmarks.gpu.traces import read_traces
from ekc.errors import InvalidInput
from ekc.governor import Period, detect_period
from ekc.governor.samples import Values

DEVELOPED = {*range(100), *range(10_000, 10_040), *range(20_000, 20_040), *range(50_000, 50_040)}
WINDOWS_S = (0.1, 1.0)
PARTIAL_WINDOW_S = 0.025
"""Seconds of each 0.1 s that the sensors of A100 and H100 show (arXiv 2312.02741)."""
MAX_ERROR = 0.10
"""Relative error of the period above which a trace is off."""
BAR = {"median_error": 0.02, "off": 0.03, "aperiodic_told": 0.95, "traces": 200}
POINT_SECONDS, POINT_HZ = 45.0, 10.0
POINT_PERIOD_RANGE_S = (0.8, 1.6)
POWER_RANGE_W, MIN_SPREAD_W = (100.0, 400.0), 80.0
"""Range of the power levels, and the least difference of the highest and the lowest."""
POINT_CASES = {(5, 6.0): 0.95, (2, 6.0): 0.88, (5, 20.0): 0.90, (2, 20.0): 0.85}
"""Least share of traces whose period is found, by (number of power levels, noise in watts)."""
MAX_POINT_ERROR = 0.02
"""Relative error up to which a period is found."""
POINT_SEED_COUNT = 3
VERDICTS = ("periodic", "multiple", "aperiodic", "too_short")


@dataclass(frozen=True)
class JudgedTrace:
    """The detector's result for one trace."""

    trace: Trace
    window_s: float
    period: Period
    milliseconds: float
    peak_s: float
    """Period of the highest peak of the spectrum in seconds."""

    @property
    def error(self) -> float:
        """Relative error of the period; infinite where none was found."""
        assert self.trace.period_s is not None
        if self.period.verdict != "periodic":
            return float("inf")
        return abs(self.period.seconds / self.trace.period_s - 1.0)

    @property
    def peak_error(self) -> float:
        """Relative error of the highest peak of the spectrum."""
        assert self.trace.period_s is not None
        return abs(self.peak_s / self.trace.period_s - 1.0)


def judge_trace(trace: Trace, window_s: float) -> JudgedTrace:
    begun = time.perf_counter()
    period = detect_period(trace.samples, trace.sampling_hz)
    return JudgedTrace(trace, window_s, period, 1e3 * (time.perf_counter() - begun), compute_fft_peak(trace))


def compute_fft_peak(trace: Trace) -> float:
    """Period in seconds of the highest peak of the power's spectrum that fits at least twice into the
    trace."""
    at, hz = trace.samples.time_s, trace.sampling_hz
    even = np.arange(at[0], at[-1], 1.0 / hz)
    power = np.interp(even, at, trace.samples.power_w)
    size = np.abs(np.fft.rfft(power - power.mean()))
    size[:2] = 0.0
    return float(len(even) / hz / np.argmax(size))


def make_row(name: str, found: list[JudgedTrace]) -> dict[str, Any]:
    """The row of one kind of periodic traces."""
    errors, peaks = np.array([x.error for x in found]), np.array([x.peak_error for x in found])
    return {
        "kind": name,
        "traces": len(found),
        "median_error": float(np.median(errors)),
        "off": float(np.mean(errors > MAX_ERROR)),
        "fft_median_error": float(np.median(peaks)),
        "fft_off": float(np.mean(peaks > MAX_ERROR)),
    }


def group_by_kind(found: Iterable[JudgedTrace]) -> dict[str, list[JudgedTrace]]:
    kinds: dict[str, list[JudgedTrace]] = {}
    for one in found:
        kinds.setdefault(f"{one.trace.kind}, {one.window_s:g} s", []).append(one)
    return kinds


def make_verdict_row(name: str, found: list[JudgedTrace]) -> dict[str, Any]:
    """The row of one kind of traces without a period that could be found: shares of verdicts."""
    verdicts = [x.period.verdict for x in found]
    shares = {v: verdicts.count(v) / len(verdicts) for v in VERDICTS}
    return {"kind": name, "traces": len(found)} | shares


def run(options: Arguments) -> dict[str, Any]:
    """All figures, as JSON has them."""
    seeds = range(options.seed, options.seed + options.rounds)
    cases = [(seed, window) for seed in seeds for window in WINDOWS_S]
    periodic = [judge_trace(make_periodic_trace(k, s, w), w) for s, w in cases for k in KINDS]
    aperiodic = [judge_trace(make_aperiodic_trace(k, s, w), w) for s, w in cases for k in APERIODIC]
    partial = [
        judge_trace(make_periodic_trace(k, s, PARTIAL_WINDOW_S), PARTIAL_WINDOW_S)
        for s in seeds
        for k in KINDS
    ]
    fast = [judge_trace(make_periodic_trace(k, s, w, below=True), w) for s, w in cases for k in KINDS]
    too_fast = {w: [x for x in fast if x.window_s == w] for w in WINDOWS_S}
    total = make_row("all", periodic)
    aperiodic_share = make_verdict_row("all", aperiodic)["aperiodic"]
    passes = {
        "median_error": total["median_error"] <= BAR["median_error"],
        "off": total["off"] <= BAR["off"],
        "aperiodic_told": aperiodic_share >= BAR["aperiodic_told"],
        "traces": total["traces"] >= BAR["traces"],
    }
    points = judge_point_traces(options.seed, options.points) if options.points else []
    passes["points"] = all(row["pass"] for row in points)
    return {
        "seeds": [seeds[0], seeds[-1]],
        "held_out": not set(seeds) & DEVELOPED,
        "point_rows": points,
        "partial_rows": [make_row(k, v) for k, v in group_by_kind(partial).items()]
        + [make_row(f"all, {PARTIAL_WINDOW_S:g} s of 0.1 s", partial)],
        "rows": [make_row(k, v) for k, v in group_by_kind(periodic).items()],
        "aperiodic_rows": [make_verdict_row(k, v) for k, v in group_by_kind(aperiodic).items()],
        "multiple_rows": [make_verdict_row(f"too fast for {w:g} s", x) for w, x in too_fast.items()],
        "total": total | {"aperiodic_traces": len(aperiodic), "aperiodic_told": aperiodic_share},
        "milliseconds": float(np.mean([x.milliseconds for x in periodic])),
        "verdicts": passes,
        "pass": all(passes.values()) if passes["traces"] else None,
    }


TRACE_COLUMNS = (
    Column("trace", "kind"),
    Column("traces", "traces"),
    Column("median error", "median_error", ".1%"),
    Column("off", "off", ".1%"),
    Column("FFT: median error", "fft_median_error", ".1%"),
    Column("off", "fft_off", ".1%"),
    Column("", "pass"),
)
VERDICT_COLUMNS = (
    Column("trace", "kind"),
    Column("traces", "traces"),
    *(Column(v.replace("_", " "), v, ".0%") for v in VERDICTS),
    Column("", "pass"),
)


def format_figures(figures: dict[str, Any]) -> str:
    """The two tables of generated traces."""
    total, passes = figures["total"], figures["verdicts"]
    is_good = passes["median_error"] and passes["off"]
    judged = total | {"pass": is_good if passes["traces"] else None}
    told = {"kind": "all aperiodic", "traces": total["aperiodic_traces"], "pass": passes["aperiodic_told"]}
    told["aperiodic"] = total["aperiodic_told"]
    lines = [*figures["rows"], judged, *figures["partial_rows"]]
    others = [*figures["aperiodic_rows"], *figures["multiple_rows"], told]
    bars = f"bars over {BAR['traces']} traces: median error {BAR['median_error']:.1%}, {BAR['off']:.0%} off"
    title = f"traces without a period that can be found; bar: {BAR['aperiodic_told']:.0%} aperiodic"
    return "\n".join([format_lines(TRACE_COLUMNS, lines, bars), format_lines(VERDICT_COLUMNS, others, title)])


def make_point_trace(level_count: int, noise_w: float, seed: int, number: int) -> tuple[Values, float]:
    """(power in watts, (450,), its true period in seconds); levels and edges are uniform."""
    rng = np.random.default_rng([seed, number, level_count, int(noise_w)])
    period_s = float(rng.uniform(*POINT_PERIOD_RANGE_S))
    levels = rng.uniform(*POWER_RANGE_W, level_count)
    while np.ptp(levels) < MIN_SPREAD_W:
        levels = rng.uniform(*POWER_RANGE_W, level_count)
    edges = np.sort(rng.uniform(0.0, 1.0, level_count - 1))
    time_s = rng.uniform(0.0, period_s) + np.arange(round(POINT_SECONDS * POINT_HZ)) / POINT_HZ
    watts = levels[np.searchsorted(edges, time_s / period_s % 1.0, side="right")]
    return watts + noise_w * rng.standard_normal(len(watts)), period_s


def judge_point_traces(first_seed: int, count: int) -> list[dict[str, Any]]:
    """One row for each case: the share of `count` traces of each seed that is found, the share told as
    a multiple, and the mean milliseconds of a detection."""
    seeds = range(first_seed, first_seed + POINT_SEED_COUNT)
    rows = []
    for (level_count, noise_w), least in POINT_CASES.items():
        begun, ratios = time.process_time(), []
        for seed, number in product(seeds, range(count)):
            watts, period_s = make_point_trace(level_count, noise_w, seed, number)
            period = detect_period(watts, POINT_HZ)
            ratios.append(period.seconds / period_s if period.verdict == "periodic" else np.nan)
        ratio = np.array(ratios)
        is_multiple = (ratio > 1.5) & (np.abs(ratio - np.round(ratio)) < MAX_POINT_ERROR * ratio)
        found = float(np.mean(np.abs(ratio - 1.0) <= MAX_POINT_ERROR))
        rows.append(
            {
                "levels": level_count,
                "noise_w": noise_w,
                "traces": len(ratio),
                "found": found,
                "multiple": float(np.mean(is_multiple)),
                "not_periodic": float(np.mean(np.isnan(ratio))),
                "milliseconds": 1e3 * (time.process_time() - begun) / len(ratio),
                "least": least,
                "pass": found >= least,
            }
        )
    return rows


POINT_COLUMNS = (
    Column("levels", "levels"),
    Column("noise [W]", "noise_w", "g"),
    Column("traces", "traces"),
    Column("within 2 %", "found", ".1%"),
    Column("multiple", "multiple", ".1%"),
    Column("not periodic", "not_periodic", ".1%"),
    Column("CPU [ms]", "milliseconds", ".1f"),
    Column("bar", "least", ".0%"),
    Column("", "pass"),
)


def judge_recordings(file: Path) -> tuple[str, list[dict[str, Any]]]:
    """(device, one line for each recorded trace): the true step time and the period that is found."""
    header, traces = read_traces(file)
    lines = []
    for trace in traces:
        period = detect_period(trace.samples, trace.samples.sampling_hz)
        has_steps = len(trace.step_s) > 1
        lines.append(
            {
                "trace": trace.name,
                "step_s": trace.period_s if has_steps else None,
                "found_s": period.seconds,
                "verdict": period.verdict,
                "error": abs(period.seconds / trace.period_s - 1.0) if has_steps else None,
            }
        )
    return header["device"], lines


RECORDED_COLUMNS = (
    Column("recorded trace", "trace"),
    Column("step [s]", "step_s", ".4g"),
    Column("found [s]", "found_s", "{:.4g}".format),
    Column("error", "error", ".1%"),
    Column("verdict", "verdict"),
)


def measure(arguments: Arguments) -> dict[str, Any]:
    """Judge all traces and print the tables."""
    if arguments.rounds < 1:
        raise InvalidInput(f"--rounds is {arguments.rounds}; at least 1")
    if arguments.points < 0:
        raise InvalidInput(f"--points is {arguments.points}; at least 0")
    device, recordings = ("", []) if arguments.traces is None else judge_recordings(arguments.traces)
    figures = run(arguments)
    first, last = figures["seeds"]
    held_out = "held out" if figures["held_out"] else "NOT held out: developed on some of them"
    print(
        f"generated traces (simulated), seeds {first} to {last}, {held_out}; "
        f"{figures['milliseconds']:.1f} ms a detection on this machine"
    )
    print(format_figures(figures))
    if figures["point_rows"]:
        print(f"sensors that show points, seeds {first} to {first + POINT_SEED_COUNT - 1}")
        print(format_lines(POINT_COLUMNS, figures["point_rows"]))
    if recordings:
        print(format_lines(RECORDED_COLUMNS, recordings, f"sensors of {device}"))
    return figures | {"recorded": {"device": device, "rows": recordings}}


OPTIONS = {
    "--rounds": {"type": int, "default": 40, "help": "traces of each kind and sensor"},
    "--points": {
        "type": int,
        "default": 300,
        "help": "point-sampled traces of each case and seed; 0 for none",
    },
    "--traces": {"type": Path, "help": "recorded traces as well"},
}
main = make_main(__doc__, measure, BAR, options=OPTIONS, seed=30_000)

if __name__ == "__main__":
    raise SystemExit(main())
