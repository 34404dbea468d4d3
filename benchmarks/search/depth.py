"""Is a run of 256 trials deep enough? Held against 5,000 random schedules, and against a longer run.

    python -m benchmarks.search.depth [--json FILE] [--only TEXT] [--seeds N] [--seed N]
        [--trials N] [--random N] [--long N] [--records DIR] [--no-residual]

For each operator of `tune_table.py` on the simulated a100, objective latency, so that one figure is compared.
The random schedules are drawn legal and ranked by what the models have learned from every kernel of the
other runs; the best 100 are compiled and timed like any other (so the best of the 5,000 may be missed where
the models are wrong: the rank correlation over those 100 is printed). Every measurement is kept in a
record file per operator: a stopped benchmark goes on where it stood.

A simulated kernel carries a seeded factor on its time that is its own (half a percent), as real ones do: of
more kernels that are alike the best is luckier, however well a search goes. So both ratios are printed twice:
as measured, which the bar is held to, and with that factor taken out of everything a run timed. The larger
part of its residual (9 %) a kernel shares with those like it: that is for a search to learn, but who looks
longer finds luckier kinds too. --no-residual runs all on a device that does as its models explain: what the
two tables differ by is the residual's.
"""

from __future__ import annotations

import math
import statistics
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

import ekc
from benchmarks.common.operators import OPERATORS
from benchmarks.common.run_log import name_file
from benchmarks.common.script import ONLY, Arguments, Column, format_lines, make_main, select_names
from ekc import devices
from ekc.codegen.compiled import digest_cuda_source
from ekc.codegen.generate import generate
from ekc.devices.device import Device
from ekc.devices.simulated.latency import compute_launch_seconds
from ekc.devices.simulated.residual import OWN_TIME_SIGMA, sample_own_factor
from ekc.search.cost_model.row_weights import spearman
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import Population
from ekc.search.data.trial import Trial
from ekc.search.database.database import RecordStore
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.compile_job import open_worker_pool
from ekc.search.loop.measure import Measurer
from ekc.search.loop.task import ScheduleTask
from ekc.search.run import TuningRun
from ekc.search.space.space import Space

TARGET = "a100"
BAR = 1.01
"""The median winner is at most so many times as slow as the best of the random, and of the longer run."""
RESCORED = 100
LUCKIEST = math.exp(10 * OWN_TIME_SIGMA)
"""Ratio to the fastest above which a kernel is not the fastest by luck."""


def _make_options(trials: int, seed: int) -> TuneOptions:
    return TuneOptions(trials, "latency", 0.05, False, seed, None)


def run(
    op: ekc.Operator, device: Device, store: RecordStore, workers: Executor, wish: TuneOptions
) -> tuple[Trial, list[Candidate]]:
    """The winner, and everything that the run timed."""
    search = TuningRun(Space(op, device.limits), Measurer(device, store), workers, wish)
    return search.run(()).best, search.task.timed_candidates


def _get_latency(winner: Trial) -> float:
    assert winner.latency_s is not None
    return winner.latency_s


def compute_least_without_own_factor(timed: list[Candidate], device: Device) -> float:
    """The least latency among them, each without the factor that is its own."""
    fastest = min(c.latency_s for c in timed)
    return min(remove_own_factor(c, device) for c in timed if c.latency_s <= LUCKIEST * fastest)


def remove_own_factor(candidate: Candidate, device: Device) -> float:
    """Latency in seconds of a kernel on a simulated device, without the seeded factor of its own."""
    made = generate(candidate.schedule, device.limits)
    overhead_s = len(made.launches) * compute_launch_seconds(device.clocks().current_mhz)
    factor = sample_own_factor(device.name, "time", digest_cuda_source(made.source))
    return overhead_s + (candidate.latency_s - overhead_s) / factor


def time_random(
    op: ekc.Operator, bench: Measurer, workers: Executor, known: list[Candidate], count: int, seed: int
) -> tuple[list[Candidate], float | None]:
    """(the most promising of `count` random schedules, timed; rank correlation over these)."""
    space = Space(op, bench.device.limits)
    task = ScheduleTask(space, bench, workers, _make_options(RESCORED, seed))
    task.learner.learn_latency(known)
    drawn = _sample_genomes(Breeder(space, np.random.default_rng(seed)), count)
    expected, _, _, _ = task.learner.predict(task.input_cache.get_inputs(drawn))
    promising = np.argsort(expected, kind="stable")[:RESCORED]
    made = [(task.make_candidate(drawn, int(row), 1), expected[row]) for row in promising]
    fresh = [(c, float(e)) for c, e in made if c is not None]
    task.measure([c for c, _ in fresh], 1)
    pairs = np.array([(e, c.latency_s) for c, e in fresh if c.ok])
    return [c for c, _ in fresh if c.ok], spearman(pairs[:, 0], pairs[:, 1])


def _sample_genomes(breeder: Breeder, count: int) -> Population:
    """Legal random genomes, each once."""
    drawn = breeder.sample(count)
    while len(drawn) < count:
        more = drawn + breeder.sample(count)
        _, first = np.unique(breeder.space.compute_keys(more), return_index=True)
        drawn = more[np.sort(first)]
    return drawn[:count]


def measure_operator(name: str, arguments: Arguments) -> dict[str, Any]:
    """The line of one operator. Latencies in seconds."""
    op, file = OPERATORS[name](), name_file(arguments.records, name, "db")
    device = devices.open(f"{TARGET}@no-residual" if arguments.no_residual else TARGET)
    with RecordStore(file) as store, open_worker_pool(device, arguments.long) as workers:
        seeds = range(arguments.seed, arguments.seed + arguments.seeds)
        runs = [run(op, device, store, workers, _make_options(arguments.trials, seed)) for seed in seeds]
        longer = run(op, device, store, workers, _make_options(arguments.long, arguments.seed))
        known = {c.schedule.digest: c for _, found in (*runs, longer) for c in found}
        strangers, rank = time_random(
            op, Measurer(device, store), workers, list(known.values()), arguments.random, arguments.seed
        )
    winners, best = [_get_latency(winner) for winner, _ in runs], min(c.latency_s for c in strangers)
    median, long = statistics.median(winners), _get_latency(longer[0])
    ratios = {"random": median / best, "long": median / long}
    luckless = (
        None if arguments.no_residual else _compute_ratios_without_luck(runs, strangers, longer, device)
    )
    return {
        "operator": name,
        "winners_s": winners,
        "random_s": best,
        "random_rank_correlation": rank,
        "long_s": long,
        "ratio": ratios,
        "without_luck": luckless,
        "bar": {"random": BAR, "long": BAR},
        "pass": all(r <= BAR for r in ratios.values()),
    }


def _compute_ratios_without_luck(
    runs: list[tuple[Trial, list[Candidate]]],
    strangers: list[Candidate],
    longer: tuple[Trial, list[Candidate]],
    device: Device,
) -> dict[str, float]:
    """Both ratios once more."""
    plain = statistics.median(compute_least_without_own_factor(found, device) for _, found in runs)
    return {
        "random": plain / compute_least_without_own_factor(strangers, device),
        "long": plain / compute_least_without_own_factor(longer[1], device),
    }


def format_depths(lines: list[dict[str, Any]], arguments: Arguments) -> str:
    """Format the table."""
    columns = (
        Column("operator", "operator"),
        Column(f"median of {arguments.trials} [us]", "median_s", ".2f", 1e6),
        Column("worst", "worst_s", ".2f", 1e6),
        Column(f"best of {arguments.random:,} random", "random_s", ".2f", 1e6),
        Column("rank", "random_rank_correlation", ".2f"),
        Column(f"{arguments.long:,} trials", "long_s", ".2f", 1e6),
        Column("/ random", "random", ".3f"),
        Column("/ long", "long", ".3f"),
        Column("without luck", "random_without_luck", ".3f"),
        Column("", "long_without_luck", ".3f"),
        Column("", "pass"),
    )
    return format_lines(columns, map(_flatten_line, lines))


def _flatten_line(line: dict[str, Any]) -> dict[str, Any]:
    """The line with one figure for each column."""
    spread = {"median_s": statistics.median(line["winners_s"]), "worst_s": max(line["winners_s"])}
    luckless = {f"{of}_without_luck": ratio for of, ratio in (line["without_luck"] or {}).items()}
    return line | spread | line["ratio"] | luckless


def measure(arguments: Arguments) -> dict[str, Any]:
    """Measure each operator, and print the table."""
    names = select_names(OPERATORS, arguments.only)
    arguments.records.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in names:
        lines.append(measure_operator(name, arguments))
        print(format_depths(lines[-1:], arguments), flush=True)
    residual = ", no residual" if arguments.no_residual else ""
    print(
        f"{TARGET} (simulated{residual}), seeds {arguments.seed} to {arguments.seed + arguments.seeds - 1}, "
        f"objective latency; bar {BAR} for both ratios"
    )
    print(f"random: the {RESCORED} that the models of the other runs rank best were compiled and timed")
    print(format_depths(lines, arguments))
    return {"lines": lines}


OPTIONS = {
    "--only": ONLY,
    "--seeds": {"type": int, "default": 5, "help": "runs whose winners the median is of"},
    "--trials": {"type": int, "default": 256},
    "--random": {"type": int, "default": 5000},
    "--long": {"type": int, "default": 4096},
    "--records": {"type": Path, "default": Path("build/depth")},
    "--no-residual": {"action": "store_true", "help": "on a device without the seeded residual"},
}
main = make_main(__doc__, measure, {"random": BAR, "long": BAR}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
