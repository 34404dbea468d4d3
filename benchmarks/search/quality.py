"""The search of ekc replayed on other people's measurements, beside Kernel Tuner and random search.

    python -m benchmarks.search.quality --data DIR [--json FILE] [--seeds N] [--only NAME] [--trials N]
                                        [--kernel-tuner PYTHON] [--strategies A,B]

DIR holds the recordings. Every run gets so many evaluations (200 for GEMM, 100 for the others) of rows that
it has not seen; a row whose figure is missing failed and counts. Printed is the best figure found over the
optimum of the table: median and 90th percentile over the seeds, after all evaluations, after half, and
after the seconds of compiling and benchmarking that half of them cost on average, as recorded (what a
search spends thinking is not charged). PYTHON has `kernel_tuner`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.recordings import RECORDINGS, Recording, read
from benchmarks.common.script import DATA, Arguments, Column, format_lines, make_main
from ekc.search.replay.replay import replay_search
from ekc.search.replay.table_space import MeasurementTable, TableSpace

WORKERS = 2
OURS, RANDOM = "ekc", "random search"
STRATEGIES = (
    *("hybrid_vndx", "adaptive_tabu_greywolf", "genetic_algorithm", "diff_evo", "greedy_ils"),
    *("simulated_annealing", "pso", "mls", "bayes_opt"),
)
COLUMNS = (
    Column("recording", "name"),
    Column("search", "search"),
    Column("median", "median", ".3f"),
    Column("p90", "p90", ".3f"),
    Column("bar", "bars"),
    Column("half", "half_median", ".3f"),
    Column("p90", "half_p90", ".3f"),
    Column("seconds", "charged_s", ".0f"),
    Column("median", "charged_median", ".3f"),
    Column("p90", "charged_p90", ".3f"),
    Column("runs", "runs"),
    Column("", "pass"),
)


def run_ours(folder: Path, recording: Recording, trials: int, seed: int) -> list[int]:
    """The rows that one run of our search tries."""
    recorded = read(folder, recording)
    return replay_search(recorded, TableSpace(recorded), trials, seed)


def run_kernel_tuner(
    python: str, recorded: MeasurementTable, strategies: list[str], trials: int, seeds: int
) -> dict[str, list[list[int]]] | str:
    """Traces by strategy, or why there are none."""
    asked = subprocess.run([python, "-c", "import kernel_tuner"], capture_output=True)
    if asked.returncode:
        return "not installed"
    whole = np.where(recorded.settings == np.round(recorded.settings), np.round(recorded.settings), np.nan)
    if np.isnan(whole).any():
        return "settings are not whole numbers"
    job = {
        "names": list(recorded.decision_names),
        "settings": whole.astype(int).tolist(),
        "figures": [f if np.isfinite(f) else None for f in recorded.figures.tolist()],
        "strategies": strategies,
        "seeds": list(range(seeds)),
        "trials": trials,
    }
    script = Path(__file__).with_name("kernel_tuner_replay.py")
    done = subprocess.run([python, str(script)], input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1]}"
    found: dict[str, list[list[int]]] = json.loads(done.stdout)
    return found


def compute_quality(recorded: MeasurementTable, rows: list[int], evaluations: int) -> float:
    """Best figure of the first evaluations over the optimum; infinite where none worked."""
    figures = recorded.figures[rows[:evaluations]]
    return float(np.nanmin(figures) / recorded.best_figure) if np.isfinite(figures).any() else float("inf")


def _compute_quantiles(prefix: str, values: list[float]) -> dict[str, float]:
    """Median and 90th percentile, each under a name with the prefix."""
    median, p90 = np.quantile(values, [0.5, 0.9], method="higher").tolist()
    return {f"{prefix}median": median, f"{prefix}p90": p90}


def make_line(
    recording: Recording, recorded: MeasurementTable, who: str, traces: list[list[int]], trials: int
) -> dict[str, Any]:
    """One line of figures."""
    said: dict[str, Any] = {
        "recording": recording.name,
        "tuned_on": recording.tuned_on,
        "search": who,
        "evaluations": trials,
        "shortest_run": min(map(len, traces)),
        "runs": len(traces),
        **_compute_quantiles("", [compute_quality(recorded, t, trials) for t in traces]),
        **_compute_quantiles("half_", [compute_quality(recorded, t, trials // 2) for t in traces]),
    }
    if recorded.trial_costs_s.any():
        seconds = float(recorded.trial_costs_s.mean()) * trials / 2
        # What was tried in the first so many charged seconds; the last try may not overrun.
        counts = [int((np.cumsum(recorded.trial_costs_s[t]) <= seconds).sum()) for t in traces]
        charged = [compute_quality(recorded, *pair) for pair in zip(traces, counts, strict=True)]
        said |= {"charged_s": seconds, **_compute_quantiles("charged_", charged)}
        said["charged_all_s"] = float(np.median([recorded.trial_costs_s[t].sum() for t in traces]))
    if who == OURS and recording.bar and trials == recording.trials:
        # Figures are quoted, and so compared, to three decimals.
        kept = round(said["median"], 3) <= recording.bar[0] and round(said["p90"], 3) <= recording.bar[1]
        said |= {"bar": list(recording.bar), "pass": kept}
    return said


def search_recording(recording: Recording, arguments: Arguments) -> tuple[list[dict[str, Any]], list[str]]:
    """All lines of one recording, and notes on it."""
    folder, seeds = arguments.data, arguments.seeds
    recorded = read(folder, recording)
    count = min(arguments.trials or recording.trials, len(recorded.figures))
    began = time.perf_counter()
    # Every worker is a process: threads of the linear algebra would only get in each other's way.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(run_ours, folder, recording, count, seed) for seed in range(seeds)]
        traces = {OURS: [job.result() for job in jobs]}
    took = (time.perf_counter() - began) * WORKERS / seeds
    orders = (np.random.default_rng(seed).permutation(len(recorded.figures)) for seed in range(seeds))
    traces[RANDOM] = [order[:count].tolist() for order in orders]
    said = [f"{recording.name}: {len(recorded.figures)} rows, {took:.1f} s of our own thinking a run"]
    strategies = arguments.strategies.split(",")
    others = run_kernel_tuner(arguments.kernel_tuner, recorded, strategies, count, seeds)
    if isinstance(others, str):
        said.append(f"{recording.name}: Kernel Tuner {others}")
    else:
        traces |= {f"KT {name}": found for name, found in others.items()}
    short = {who: min(map(len, found)) for who, found in traces.items()}
    said += [f"{recording.name}: {who} ended after {n} of {count}" for who, n in short.items() if n < count]
    return [make_line(recording, recorded, who, found, count) for who, found in traces.items()], said


def name_line(figures: dict[str, Any]) -> dict[str, Any]:
    """The line with the name of its recording and its bars as text."""
    bar, star = figures.get("bar"), " *" if figures["tuned_on"] else ""
    bars = f"{bar[0]:.3f} ({bar[1]:.3f})" if bar else ""
    return figures | {"name": figures["recording"] + star, "bars": bars}


def measure(arguments: Arguments) -> dict[str, Any]:
    """Search each recording, and print the table."""
    lines, notes = [], []
    for recording in RECORDINGS:
        if arguments.only in (None, recording.name):
            some, its_notes = search_recording(recording, arguments)
            lines, notes = lines + some, notes + its_notes
    print("Best figure found over the optimum of the recording; replays of measurements made by others")
    print(format_lines(COLUMNS, map(name_line, lines), label_count=2))
    print("* constants of the search were chosen on this recording; the others were held out")
    print("\n".join(notes))
    return {"lines": lines, "notes": notes}


BAR = {r.name: r.bar for r in RECORDINGS if r.bar}
"""Recording -> median and 90th percentile of the best figure over the optimum, at most."""
NAMES = [r.name for r in RECORDINGS]
OPTIONS = {
    "--data": DATA,
    "--seeds": {"type": int, "default": 50, "help": "runs, with the seeds 0, 1, 2 ..."},
    "--only": {"choices": NAMES, "metavar": "NAME", "help": "one recording: " + ", ".join(NAMES)},
    "--trials": {"type": int, "help": "evaluations of each run, instead of the recording's own"},
    "--kernel-tuner": {"default": sys.executable, "help": "the Python that has kernel_tuner"},
    "--strategies": {"default": ",".join(STRATEGIES)},
}
main = make_main(__doc__, measure, BAR, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
