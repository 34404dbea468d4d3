"""Is the period of a training job found? On generated traces whose period is known (simulated sensors).

    python benchmarks/governor_period.py [--json FILE] [--rounds N] [--seed N] [--traces FILE]

--traces takes recorded ones as well, as `python -m benchmarks.gpu traces` leaves them (docs/kit.md): a line
each, beside the generated ones and not graded with them.

Traces: `governor_traces.py` and `governor_aperiodic.py`, `--rounds` of each kind for a power sensor that
averages over 0.1 s (read 20 times a second) and one that averages over 1 s (10 times). Graded: traces with a
period of at least twice that window, up to 20 s. A trace is off where the verdict is not `periodic`, or
the period more than 10 % from the true one. Beside it the highest peak of the power's spectrum (FFT). Below
twice the window only a multiple can be told: those rows say how often that was said, and are not graded. The
detector was developed on the seeds in `DEVELOPED`; judge it on others. There are no recorded traces of GPU
power in the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from governor_aperiodic import APERIODIC, aperiodic
from governor_traces import KINDS, Trace, periodic
from gpu.trace_file import read as read_traces

from benchmarks.search.tune_table import table
from ekc.errors import EkcError
from ekc.governor import Period, detect_period
from ekc.version import __version__

DEVELOPED = {*range(100), *range(10_000, 10_040), *range(20_000, 20_040)}
WINDOWS_S = (0.1, 1.0)
FAR = 0.10
BAR = {"median_error": 0.02, "off": 0.03, "aperiodic_told": 0.95, "traces": 200}


@dataclass(frozen=True)
class Judged:
    """What was said of a trace."""

    trace: Trace
    window_s: float
    period: Period
    milliseconds: float
    peak_s: float
    """Period of the highest peak of the spectrum."""

    @property
    def error(self) -> float:
        """Of the period, as a share; infinite where none was told."""
        assert self.trace.period_s is not None
        told = self.period.verdict == "periodic"
        return abs(self.period.seconds / self.trace.period_s - 1.0) if told else float("inf")

    @property
    def peak_error(self) -> float:
        """Of the plain FFT."""
        assert self.trace.period_s is not None
        return abs(self.peak_s / self.trace.period_s - 1.0)


def judged(trace: Trace, window_s: float) -> Judged:
    begun = time.perf_counter()
    period = detect_period(trace.samples, trace.sampling_hz)
    return Judged(trace, window_s, period, 1e3 * (time.perf_counter() - begun), fft_peak(trace))


def fft_peak(trace: Trace) -> float:
    """Seconds of the highest peak of the power's spectrum that came at least twice."""
    at, hz = trace.samples.time_s, trace.sampling_hz
    even = np.arange(at[0], at[-1], 1.0 / hz)
    power = np.interp(even, at, trace.samples.power_w)
    size = np.abs(np.fft.rfft(power - power.mean()))
    size[:2] = 0.0
    return float(len(even) / hz / np.argmax(size))


def seeds(asked: argparse.Namespace) -> range:
    return range(asked.seed, asked.seed + asked.rounds)


def row(name: str, found: list[Judged]) -> dict[str, Any]:
    """A line of periodic traces."""
    errors, peaks = np.array([x.error for x in found]), np.array([x.peak_error for x in found])
    return {
        "kind": name,
        "traces": len(found),
        "median_error": float(np.median(errors)),
        "off": float(np.mean(errors > FAR)),
        "fft_median_error": float(np.median(peaks)),
        "fft_off": float(np.mean(peaks > FAR)),
    }


def by_kind(found: Iterable[Judged]) -> dict[str, list[Judged]]:
    kinds: dict[str, list[Judged]] = {}
    for one in found:
        kinds.setdefault(f"{one.trace.kind}, {one.window_s:g} s", []).append(one)
    return kinds


def verdicts(name: str, found: list[Judged]) -> dict[str, Any]:
    """A line of traces of which the verdict alone counts."""
    said = [x.period.verdict for x in found]
    shares = {v: said.count(v) / len(said) for v in ("periodic", "multiple", "aperiodic", "too_short")}
    return {"kind": name, "traces": len(found)} | shares


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Every figure."""
    drawn = [(seed, window) for seed in seeds(asked) for window in WINDOWS_S]
    known = [judged(periodic(k, s, w), w) for s, w in drawn for k in KINDS]
    none = [judged(aperiodic(k, s, w), w) for s, w in drawn for k in APERIODIC]
    fast = [judged(periodic(k, s, w, below=True), w) for s, w in drawn for k in KINDS]
    too_fast = {w: [x for x in fast if x.window_s == w] for w in WINDOWS_S}
    total = row("all", known)
    told = verdicts("all", none)["aperiodic"]
    passes = {
        "median_error": total["median_error"] <= BAR["median_error"],
        "off": total["off"] <= BAR["off"],
        "aperiodic_told": told >= BAR["aperiodic_told"],
        "traces": total["traces"] >= BAR["traces"],
    }
    return {
        "seeds": [seeds(asked)[0], seeds(asked)[-1]],
        "held_out": not set(seeds(asked)) & DEVELOPED,
        "rows": [row(k, v) for k, v in by_kind(known).items()],
        "aperiodic_rows": [verdicts(k, v) for k, v in by_kind(none).items()],
        "multiple_rows": [verdicts(f"too fast for {w:g} s", found) for w, found in too_fast.items()],
        "total": total | {"aperiodic_traces": len(none), "aperiodic_told": told},
        "milliseconds": float(np.mean([x.milliseconds for x in known])),
        "bar": BAR,
        "pass": passes,
    }


def show(figures: dict[str, Any]) -> str:
    """The table."""
    total, bar, passes = figures["total"], figures["bar"], figures["pass"]
    head = ("trace", "traces", "median error", "off", "FFT: median error", "off", "")
    lines = [head]
    lines += [_line(x, "") for x in figures["rows"]]
    verdict = "pass" if passes["median_error"] and passes["off"] and passes["traces"] else "FAIL"
    lines.append(_line(total, verdict))
    bars = (f">= {bar['traces']}", f"{bar['median_error']:.1%}", f"{bar['off']:.0%}")
    lines.append(("bar", *bars, "", "", ""))
    rest = [("trace", "traces", "periodic", "multiple", "aperiodic", "too short", "")]
    for x in figures["aperiodic_rows"] + figures["multiple_rows"]:
        shares = (f"{x[v]:.0%}" for v in ("periodic", "multiple", "aperiodic", "too_short"))
        rest.append((x["kind"], str(x["traces"]), *shares, ""))
    told = f"{total['aperiodic_told']:.1%}"
    verdict = "pass" if passes["aperiodic_told"] else "FAIL"
    rest.append(("all aperiodic", str(total["aperiodic_traces"]), "", "", told, "", verdict))
    rest.append(("bar", "", "", "", f">= {bar['aperiodic_told']:.0%}", "", ""))
    return table(lines + rest)


def _line(x: dict[str, Any], verdict: str) -> tuple[str, ...]:
    shares = (x["median_error"], x["off"], x["fft_median_error"], x["fft_off"])
    return (x["kind"], str(x["traces"]), *(f"{share:.1%}" for share in shares), verdict)


def recorded(file: Path) -> tuple[str, list[dict[str, Any]]]:
    """(whose traces, a line for each): the step that was trained and what is found of it."""
    told, found = read_traces(file)
    lines = []
    for one in found:
        period = detect_period(one.samples, one.samples.sampling_hz)
        known = len(one.step_s) > 1
        lines.append(
            {
                "trace": one.name,
                "step_s": one.period_s if known else None,
                "found_s": period.seconds,
                "verdict": period.verdict,
                "error": abs(period.seconds / one.period_s - 1.0) if known else None,
            }
        )
    return told["device"], lines


def show_recorded(device: str, lines: list[dict[str, Any]]) -> str:
    """Their table."""
    rows = [("recorded trace", "step [s]", "found [s]", "error", "verdict")]
    for line in lines:
        known = line["step_s"] is not None
        step, error = (f"{line['step_s']:.4g}", f"{line['error']:.1%}") if known else ("-", "-")
        rows.append((line["trace"], step, f"{line['found_s']:.4g}", error, line["verdict"]))
    return f"sensors of {device}\n{table(rows)}"


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=40, help="traces of each kind and sensor")
    parser.add_argument("--seed", type=int, default=30_000, help="of the first round")
    parser.add_argument("--traces", type=Path, help="recorded traces as well")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds is {asked.rounds}; at least 1")
    try:
        device, known = ("", []) if asked.traces is None else recorded(asked.traces)
    except EkcError as problem:
        parser.error(str(problem))
    figures = run(asked) | {"recorded": {"device": device, "rows": known}}
    first, last = figures["seeds"]
    held_out = "held out" if figures["held_out"] else "NOT held out: developed on some of them"
    print(
        f"ekc {__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{os.cpu_count()} cores; "
        f"generated traces (simulated), seeds {first} to {last}, {held_out}; "
        f"{figures['milliseconds']:.1f} ms a detection on this machine"
    )
    print(show(figures))
    if known:
        print(show_recorded(device, known))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
