"""Tuning runs, spaces, measured kernels, tables and recordings that the tests of the search share."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ekc
import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc import devices
from ekc.devices.device import POWER_CAP, MeasurementConditions, Metering, Peaks, PriorFunction, Timing
from ekc.devices.recording import RecordingWriter
from ekc.devices.statistics import Interval
from ekc.errors import Refusal
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import DEFAULT_METHOD, SearchMethod, TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from ekc.search.replay.table_space import MeasurementTable
from ekc.search.run import TuningRun
from ekc.search.space.constraints import RuleViolation
from ekc.search.space.space import Population, Space
from ekc.search.tuning_result import TuningResult
from tests.emulator.generated import run

# Tuning runs

MV = ekc.matvec(256, 256)
TRIALS = 9
THREADS = ThreadPoolExecutor(2)
"""Threads, as a run of a second ends before worker processes have started."""


def tune(op: Operator = MV, **options: Any) -> TuningResult:
    options = {"trials": TRIALS, "progress": False, "target": "a100", "executor": THREADS} | options
    return ekc.tune(op, **options)


def make_options(trials: int = 8, objective: str = "energy", **changes: Any) -> TuneOptions:
    options = {"max_slowdown": 0.05, "search_clocks": False, "seed": 0, "time_budget_s": None} | changes
    return TuneOptions(trials, objective, **options)


def run_search(
    op: Operator = MV, method: SearchMethod = DEFAULT_METHOD, **options: Any
) -> tuple[TuningResult, TuningRun]:
    """(result, run) of a search on the a100, without records."""
    with RecordStore(None) as store:
        measurer = Measurer(devices.open("a100"), store)
        space = Space(op, measurer.device.limits)
        run = TuningRun(space, measurer, THREADS, make_options(**options), None, method)
        return run.run(()), run


def winner(result: TuningResult) -> tuple[str, float | None, float | None]:
    return result.best.schedule.digest, result.best.energy_j, result.best.latency_s


def rows(file: Path) -> int:
    with sqlite3.connect(file) as connection:
        return int(connection.execute("select count(*) from trials").fetchone()[0])


def change_rows(file: Path, assignment: str, *values: object) -> Path:
    """Change all rows of a record file: `nvrtc = ?`, or with a condition behind it."""
    with sqlite3.connect(file) as connection:
        connection.execute(f"update trials set {assignment}", values)
    connection.close()
    return file


def add_rows(records: Path, file: Path, only: str | None = None, **changed: Any) -> Path:
    """Add the rows of a record file, or only those of a device, to another file, with other keys."""
    with RecordStore(records, create=False) as old, RecordStore(file) as new:
        for row in old.read_rows(device=only):
            new.add(replace(row, key=replace(row.key, **changed)))
    return file


# Spaces

A100 = devices.open("a100")
LIMITS = A100.limits


def band(n: int = 64, m: int = 48, width: int = 5) -> Operator:
    """A banded matrix product, which the package has no name for."""
    return o.compute(
        "band",
        axes={"i": n, "j": m},
        reduce={"b": width},
        inputs={"A": (n, width), "B": (n, m)},
        body=lambda A, B, i, j, b: A[i, b] * B[i + b - width // 2, j],
    )


def _epilogues() -> Operator:
    """A bias, an activation, a gate, written wider than summed: vectors of one tensor, scalars of another."""
    op = o.matmul(96, 64, 48, dtype="float16").epilogue(
        lambda c, bias, gate: ex.gelu(c + bias) * gate, bias=(64,), gate=(96, 1), out_dtype="float32"
    )
    return op.epilogue(lambda c, before: c + before, before=(96, 64))


OPERATORS = {
    "matmul": o.matmul(256, 192, 128),
    "transposed": o.matmul(96, 64, 128, transpose_a=True, transpose_b=True),
    "batch": o.batch_matmul(3, 32, 64, 48),
    "matvec": o.matvec(512, 384),
    "conv stride 2": o.conv2d(1, 8, 28, 28, out_channels=16, kernel=3, stride=2, padding=1),
    "conv groups": o.conv2d(2, 8, 14, 14, out_channels=16, kernel=3, padding=1, groups=4),
    "conv depthwise": o.conv2d(1, 32, 14, 14, out_channels=32, kernel=3, padding=1, groups=32),
    "fp16": o.matmul(128, 128, 64, dtype="float16"),
    "bf16": o.matmul(128, 96, 64, dtype="bfloat16"),
    "int8": o.matmul(96, 128, 64, dtype="int8"),
    "primes": o.matmul(127, 61, 31),
    "rows of the tape": o.matmul(97, 64, 64),
    "band": band(),
    "elementwise": o.compute(
        "soft", axes={"i": 100, "j": 96}, inputs={"x": (100, 96)}, body=lambda x, i, j: ex.relu(x[i, j]) + 1
    ),
    "two computes": o.matmul(64, 96, 32).then(
        "D",
        axes={"p": 64, "q": 96},
        inputs={"bias": (96,)},
        body=lambda C, bias, p, q: ex.relu(C[p, q] + bias[q]),
    ),
    "epilogues": _epilogues(),
    # Two reads of one tensor that no staging can serve together.
    "diverging reads": o.compute(
        "diverging_reads",
        axes={"i": 24},
        reduce={"k": 12},
        inputs={"x": (48, 13)},
        body=lambda x, i, k: x[2 * i, k] - x[i, k + 1],
    ),
    "conv 3d": o.conv3d(1, 4, 6, 7, 8, out_channels=8, kernel=3, padding=1),
    "conv NHWC": o.conv2d(1, 16, 14, 14, out_channels=32, kernel=3, padding=1, layout="NHWC"),
    "conv transposed": o.conv_transpose2d(1, 8, 7, 7, out_channels=16, kernel=4, stride=2, padding=1),
    "columns": o.reduce((300, 40), 0, "max"),
    "softmax": o.softmax((48, 200), dtype="float16"),
    "layer norm": o.layer_norm((40, 96)),
}
SIMILAR = {
    "transposed", "conv groups", "bf16", "int8", "rows of the tape", "conv 3d", "conv NHWC", "layer norm",
}  # fmt: skip
"""Operators whose structures and rules are those of others above."""
EACH = [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in SIMILAR)) for name in OPERATORS]
"""Names of the operators, as parameters of a test that is long for each."""
ISSUE = {
    "MM 1024": o.matmul(1024, 1024, 1024),
    "MV 4096": o.matvec(4096, 4096),
    "conv 64": o.conv2d(1, 64, 56, 56, out_channels=64, kernel=3, padding=1),
    "conv 256": o.conv2d(16, 256, 14, 14, out_channels=256, kernel=3, padding=1),
    "MM 127": o.matmul(127, 255, 63),
    "fp16 512": o.matmul(512, 512, 512, dtype="float16"),
}
"""Six operators of usual sizes."""


@cache
def space(name: str) -> Space:
    """The space of a named operator on the a100."""
    return Space((OPERATORS | ISSUE)[name], LIMITS)


def drawn(name: str, count: int, seed: int = 0) -> Population:
    """Random genomes, legal or not."""
    return space(name).sample(np.random.default_rng(seed), count)


def legal(name: str, count: int, seed: int = 0) -> Population:
    """Random genomes, mended."""
    random = np.random.default_rng(seed)
    return space(name).repair(random, space(name).sample(random, count))[0]


def sample_legal(
    space: Space, count: int, seed: int = 0, among: Sequence[int] | None = None, most: int | None = None
) -> Population:
    """At most `most` of so many random genomes, those of some structures, repaired: 95 % or more stay."""
    random = np.random.default_rng(seed)
    genomes = space.sample(random, count)
    if among is not None:
        genomes = genomes[np.flatnonzero(np.isin(genomes.structure, among))[:most]]
    repaired, dropped = space.repair(random, genomes)
    assert len(repaired) >= 0.95 * len(genomes) > 0, dropped
    return repaired


def check_results(space: Space, population: Population, most: int) -> None:
    """About `most` schedules, each of another structure, match the reference when compiled and executed."""
    _, first = np.unique(population.structure, return_index=True)
    for row in first[:: -(-len(first) // most)]:
        run(space.build_schedule(population, int(row))).check()


def find_refusals(space: Space, population: Population, row: int) -> list[Refusal]:
    """The refusals of the rules that one genome breaks."""
    values = space.get_hole_values(population, row)
    program = space.evaluator.build_program(int(population.structure[row]), values)
    explained = (check.explain() for check in iterate_checks(program, space.limits))
    return [refusal for refusal in explained if refusal is not None]


def check_quantities(space: Space, population: Population) -> None:
    """The analysis of a population equals that of its schedules."""
    figures = space.compute_quantities(population)
    for row in range(len(population)):
        alone = analyse_program(space.build_schedule(population, row).program, LIMITS)
        for name, values in figures.items():
            np.testing.assert_allclose(values[row], alone[name][0], rtol=1e-9, err_msg=name)


def rules_broken(name: str, population: Population) -> Iterator[RuleViolation]:
    """Every rule that some genomes of a space break, and which."""
    yield from space(name).find_violations(population)


# Measured kernels

CAP_W, STANDBY_W = 300.0, 100.0
MS = 1e-3
PEAKS, LARGE = (Peaks(1e13, {"float16": 1e14}, 1e12, watts) for watts in (CAP_W, 1000.0))
CONDITIONS = MeasurementConditions(
    "Made-up GPU", False, "none", "none", "free", 1000.0, 50.0, (), "none", "0"
)


def make_measurements(
    latency_s: float, power_w: float, error: float = 0.0, throttle: Sequence[str] = ()
) -> tuple[Timing, Metering]:
    """A timing and a metering with intervals of this relative error."""
    conditions, joules = replace(CONDITIONS, throttle=tuple(throttle)), latency_s * power_w
    seconds, watts, energy = (
        Interval((1 - error) * x, (1 + error) * x) for x in (latency_s, power_w, joules)
    )
    metering = Metering(power_w, watts, joules, energy, joules, joules, 50.0, 1.0, 10, conditions)
    return Timing(latency_s, seconds, 5, conditions), metering


def kernels(watts: Any, prior_w: Any, rows: NDArray[np.float32], capped: Any = None) -> list[Candidate]:
    """Timed and metered kernels of one millisecond."""
    capped = np.zeros(len(rows), bool) if capped is None else capped
    schedule, candidates = make_naive_schedule(ekc.matvec(8, 8)), []
    for row, w, prior, cap in zip(rows, watts, prior_w, capped, strict=True):
        timing, metering = make_measurements(MS, float(w), throttle=(POWER_CAP,) if cap else ())
        timings, meterings = [timing], [metering]
        expected = MS, float(prior), STANDBY_W
        candidates.append(Candidate(schedule, "", row, *expected, 1, timings=timings, meterings=meterings))
    return candidates


def bumps(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows[count, 4], figures[count]): a smooth function of two of the columns."""
    rows = np.random.default_rng(seed).uniform(-2, 2, (count, 4))
    return rows, np.sin(2 * rows[:, 0]) + 0.5 * rows[:, 1] ** 2


# A table of figures with a known optimum


def make_known_table(failing: bool = False) -> MeasurementTable:
    """Legal are tiles that fit; the least figure is at block 64, tile 4, unroll 6, staged."""
    settings = np.array(
        [
            (block, tile, unroll, staged)
            for block, tile in itertools.product((16, 32, 64, 128, 256), (1, 2, 4, 8))
            for unroll, staged in itertools.product(range(1, 9), (0, 1))
            if block * tile <= 1024 and (staged or unroll != 5)
        ],
        dtype=np.float64,
    )
    block, tile, unroll, staged = settings.T
    figures = (
        1 + np.abs(np.log2(block / 64)) + np.abs(np.log2(tile / 4)) + 0.1 * np.abs(unroll - 6) + (1 - staged)
    )
    if failing:
        figures[block == 256] = np.nan
    return MeasurementTable(
        ("block", "tile", "unroll", "staged"), settings, figures, np.full(len(settings), 2.0)
    )


# A recording of a GPU that does not exist, whose figures follow a law: what costs its energy is known

LAW_OP = ekc.matmul(128, 128, 128)
LAW_COUNT = 40
Law = Callable[[dict[str, float]], tuple[float, float]]
"""Figures of the analysis -> (seconds, watts)."""


@dataclass
class MadeUpDevice:
    """The attributes of a device that a recording has."""

    name: str = "Made-up GPU"
    label: str = "Made-up GPU (cuda:0)"
    simulated: bool = False
    arch: str = "sm_80"
    driver: str = "none"
    clock_regime: str = "free"
    data_policy: str = "none"
    memory_bytes: int | None = None
    limits: LaunchLimits = LIMITS
    peaks: Peaks = field(default_factory=lambda: A100.peaks)
    prior: PriorFunction = A100.prior


@cache
def law_schedules() -> list[ekc.Schedule]:
    """The naive schedule, and random legal ones."""
    space, random = Space(LAW_OP, LIMITS), np.random.default_rng(0)
    population, _ = space.repair(random, space.sample(random, 4 * LAW_COUNT))
    sampled = (space.build_schedule(population, row) for row in range(len(population)))
    by_digest = {s.digest: s for s in (make_naive_schedule(LAW_OP), *sampled)}
    return list(by_digest.values())[:LAW_COUNT]


def by_global_memory(figures: dict[str, float]) -> tuple[float, float]:
    """Time goes by sectors of global memory alone; power is always the same."""
    sectors = figures["total_global_load_sectors"] + figures["total_global_store_sectors"]
    return 1e-6 + 1e-10 * sectors, 200.0


def by_barriers(figures: dict[str, float]) -> tuple[float, float]:
    """A barrier costs more than anything; power is always the same."""
    return 1e-5 + 1e-8 * figures["total_barriers"], 200.0


def record_law(
    path: Path, law: Law = by_global_memory, count: int = LAW_COUNT, metered: int = LAW_COUNT, failed: int = 0
) -> Path:
    """Record so many timed schedules, the first of them metered; then some that failed. Timings have noise
    of 1 %."""
    random = np.random.default_rng(1)
    with RecordingWriter(path, MadeUpDevice()) as writer:  # type: ignore[arg-type]
        for number, schedule in enumerate(law_schedules()[: count + failed]):
            figures = analyse_program(schedule.program, LIMITS)
            writer.add_schedule(schedule, "drawn", figures, None)
            if number >= count:
                writer.add_failure(schedule, "device: made up for the test")
                continue
            seconds, watts = law({name: float(value[0]) for name, value in figures.items()})
            timing, metering = make_measurements(
                seconds * np.exp(0.01 * random.standard_normal()), watts, error=0.01
            )
            writer.add_timing(schedule, timing)
            if number < metered:
                writer.add_metering(schedule, metering)
    return path
