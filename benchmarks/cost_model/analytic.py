"""The priors of devices held against recordings of real GPUs, and against compiled kernels.

    python -m benchmarks.cost_model.analytic --data DIR [--rows N] [--own N] [--seed N] [--json FILE]

DIR holds the recordings. Two priors are scored: that of a GPU whose data sheet is known (the simulator's
model on estimated counts, `ekc/devices/simulated/data_sheet_prior.py`), and the analytic one of every other
device. Nothing is compiled: both see only the analysis of a schedule, and the clock is the boost clock.

Latency: every distinct kernel of CLBlast's GEMM in each recorded space, or `--rows` of them, stratified by
time. *pick*: recorded time of the kernel expected fastest over that of the fastest; *ten*: of the best of the
ten expected fastest; *tenth*: rank correlation within the fastest tenth. CLBlast copies into shared memory in
an order of its own and aligns its tiles less than ekc does, so the analysis of ekc's schedule with the same
parameters describes another kernel. *recorded*: its requests, sectors and passes are replaced by those of
CLBlast's index formulas; *ekc's*: as analysed. Half of the kernels were never fitted on. The bar holds for
the data sheet's prior on the kernels that were recorded.

Power: the A100 at the clock of most rows, no cap in its way, each kernel at its recorded pace. *spread*:
standard deviation of the log of expected over recorded; *of rows*: of the recorded figures alone, what a
constant leaves.

Own: random legal schedules of ekc for some operators, `--own` of each. The data sheet's prior is compared
with the same model on compiled counts (a simulated device without residual). That is the error of estimated
counts, not the error of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekc
from benchmarks.common import clblast, estimated
from benchmarks.common.clblast import Xgemm
from benchmarks.common.ranking import spearman
from benchmarks.common.script import DATA, Arguments, Column, format_lines, make_main
from benchmarks.simulator.rows import (
    CLOCKS,
    LATENCY,
    SIDE,
    Recording,
    is_unfitted,
    read,
    sample_stratified,
)
from benchmarks.simulator.top import score_top
from ekc.codegen.generate import compile_schedule
from ekc.devices import analytic_prior
from ekc.devices.device import Prior, PriorFunction, Quantities
from ekc.devices.simulated import data_sheet_prior, specs
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.specs import GpuSpec
from ekc.errors import EkcError, InvalidInput
from ekc.search.cost_model.boosted_prior import BoostedPrior
from ekc.search.cost_model.features import make_model_inputs, scale_power
from ekc.search.database.measured_set import analyse_schedules
from ekc.search.space.space import Space

Array = NDArray[np.float64]

POWER_MHZ = 1050.0
"""The clock of most rows of the recording over clocks."""
MIN_ROWS = 6
MODEL, ANALYTIC, TILE, CONSTANT = "data sheet", "analytic", "thread tile", "constant"
BOOSTED = "analytic, boosted"
RECORDED, OWN = "recorded", "ekc's"
BAR = {"spearman": 0.93, "pick": 1.15}
"""Least rank correlation and largest pick of the data sheet's prior."""
OWN_DEVICE = specs.RTX3090
OPERATORS: Mapping[str, Callable[[], ekc.Operator]] = {
    "matmul 1024^3, float32": lambda: ekc.matmul(1024, 1024, 1024),
    "matmul 1024^3, float16": lambda: ekc.matmul(1024, 1024, 1024, dtype="float16"),
    "conv2d 3x3, 64 x 56 x 56": lambda: ekc.conv2d(1, 64, 56, 56, out_channels=64, kernel=3, padding=1),
    "softmax 4096 x 1024": lambda: ekc.softmax((4096, 1024)),
}
COLUMNS = (
    Column("recording", "recording"),
    Column("kernels", "half"),
    Column("accesses", "accesses"),
    Column("prior", "prior"),
    Column("n", "kernels"),
    Column("pick", "pick", ".3f"),
    Column("ten", "best_of_ten", ".3f"),
    Column("tenth", "rank_of_fastest_tenth", ".3f"),
    Column("Spearman", "spearman", ".3f"),
    Column("error", "median_error", ".1%"),
    Column("", "pass"),
)
POWER_COLUMNS = (
    Column("recording", "recording"),
    Column("figure", "figure"),
    Column("prior", "prior"),
    Column("rows", "rows"),
    Column("Spearman", "spearman", ".3f"),
    Column("spread", "spread", ".3f"),
    Column("of rows", "of_rows", ".3f"),
)
OWN_COLUMNS = (
    Column("operator", "operator"),
    Column("device", "device"),
    Column("schedules", "kernels"),
    Column("pick", "pick", ".3f"),
    Column("ten", "best_of_ten", ".3f"),
    Column("Spearman", "spearman", ".3f"),
    Column("error", "median_error", ".1%"),
)
OPTIONS = {
    "--data": DATA,
    "--rows": {"type": int, "help": "of each space; default: all"},
    "--own": {"type": int, "default": 48, "help": "schedules to compile; default %(default)s"},
}


def analyse_kernels(spec: GpuSpec, kernels: Sequence[Xgemm]) -> Quantities:
    """Analyse the schedules of recorded kernels. It does not depend on the threads that copy."""
    alike = [one.without_copy_shape() for one in kernels]
    distinct = list(dict.fromkeys(alike))
    found = analyse_schedules([clblast.build_schedule(one, SIDE) for one in distinct], spec.limits())
    number = {one: i for i, one in enumerate(distinct)}
    rows = [number[one] for one in alike]
    return {name: values[rows] for name, values in found.items()}


def replace_accesses(quantities: Quantities, kernels: Sequence[Xgemm]) -> Quantities:
    """The quantities with the accesses of the kernels that were recorded."""
    counted = [estimated.count_accesses(one, SIDE) for one in kernels]
    return {**quantities, **{name: np.array([one[name] for one in counted]) for name in counted[0]}}


def make_priors(spec: GpuSpec, clock_mhz: float) -> dict[str, PriorFunction]:
    """The priors for a GPU, by name."""
    analytic = partial(analytic_prior.predict_prior, peaks=spec.peaks(clock_mhz))
    booster = BoostedPrior(spec.peaks(clock_mhz), spec.limits().sms)
    return {
        MODEL: partial(data_sheet_prior.predict_prior, spec, clock_mhz=clock_mhz),
        ANALYTIC: analytic,
        BOOSTED: partial(predict_boosted, predict_prior=analytic, booster=booster),
    }


def predict_boosted(quantities: Quantities, predict_prior: PriorFunction, booster: BoostedPrior) -> Prior:
    """The analytic prior as the boosted models correct it."""
    inputs = make_model_inputs(quantities, predict_prior, booster)
    latency_s, factor = inputs.expect_latency_s(True), np.exp(inputs.energy_correction)
    watts = inputs.expect_power_w(np.log(latency_s), True)
    return Prior(latency_s, watts, inputs.standby_w * factor)


def compare_latencies(data: Path, recording: Recording, count: int | None, seed: int) -> list[dict[str, Any]]:
    """Compare latencies: the lines of one recorded space."""
    rows = read(data, recording)
    rows = rows if count is None else sample_stratified(rows, count, seed)
    seconds_by_kernel: dict[Xgemm, list[float]] = {}
    for row in rows:
        seconds_by_kernel.setdefault(row.one, []).append(row.seconds)
    kernels = list(seconds_by_kernel)
    seconds = np.array([np.mean(one) for one in seconds_by_kernel.values()])
    unfitted = np.array([is_unfitted(one) for one in kernels])
    spec, analysed = recording.spec, analyse_kernels(recording.spec, kernels)
    accesses = {RECORDED: replace_accesses(analysed, kernels), OWN: analysed}
    predicted = {
        (which, name): predict_prior(quantities).latency_s
        for which, quantities in accesses.items()
        for name, predict_prior in make_priors(spec, float(spec.boost_mhz)).items()
    }
    predicted[RECORDED, TILE] = np.array([-float(one.thread_tile) for one in kernels])
    predicted[RECORDED, CONSTANT] = np.full(len(kernels), np.median(seconds))
    halves = {"all": np.ones(len(kernels), np.bool_), "unfitted half": unfitted}
    return [
        _make_latency_line(recording, half, *key, values[mask], seconds[mask])
        for half, mask in halves.items()
        if mask.sum() >= MIN_ROWS
        for key, values in predicted.items()
    ]


def _make_latency_line(
    recording: Recording, half: str, accesses: str, prior: str, predicted: Array, seconds: Array
) -> dict[str, Any]:
    score = score_top(predicted, seconds, None if prior == TILE else predicted)
    line = {"recording": recording.device, "half": half, "accesses": accesses, "prior": prior, **score}
    if (accesses, prior) == (RECORDED, MODEL):
        line["pass"] = bool(score["spearman"] >= BAR["spearman"] and score["pick"] <= BAR["pick"])
    return line


def compare_powers(data: Path) -> list[dict[str, Any]]:
    """Compare powers, each kernel at its recorded pace."""
    spec, rows = CLOCKS.spec, [row for row in read(data, CLOCKS) if row.clock_mhz == POWER_MHZ]
    kernels = [row.one for row in rows]
    quantities = replace_accesses(analyse_kernels(spec, kernels), kernels)
    recorded = np.array([(row.seconds, row.power_w) for row in rows]).T
    return [
        _make_power_line(name, predict_prior(quantities), *recorded)
        for name, predict_prior in make_priors(spec, POWER_MHZ).items()
    ]


def _make_power_line(name: str, prior: Prior, seconds: Array, watts: Array) -> dict[str, Any]:
    predicted = scale_power(prior.power_w, np.log(seconds / prior.latency_s), prior.standby_w)
    return {
        "recording": CLOCKS.device,
        "figure": f"power, {POWER_MHZ:.0f} MHz",
        "prior": name,
        "rows": len(watts),
        "spearman": spearman(predicted, watts),
        "spread": float(np.log(predicted / watts).std()),
        "of_rows": float(np.log(watts).std()),
    }


def compare_compiled(name: str, op: ekc.Operator, count: int, seed: int) -> dict[str, Any]:
    """Compare the prior on estimated counts with the same model on compiled counts."""
    spec, clock = OWN_DEVICE, OWN_DEVICE.fixed_mhz
    device, random = SimulatedDevice(spec, clock, has_residual=False), np.random.default_rng(seed)
    space = Space(op, spec.limits())
    legal, _ = space.repair(random, space.sample(random, 4 * count))
    schedules = [space.build_schedule(legal, row) for row in range(min(count, len(legal)))]
    timed = list(_time_schedules(device, schedules))
    quantities = analyse_schedules([schedule for schedule, _ in timed], spec.limits())
    predicted = data_sheet_prior.predict_prior(spec, quantities, clock).latency_s
    score = score_top(predicted, np.array([seconds for _, seconds in timed]), predicted)
    return {"operator": name, "device": device.label, **score}


def _time_schedules(
    device: SimulatedDevice, schedules: Sequence[ekc.Schedule]
) -> Iterator[tuple[ekc.Schedule, float]]:
    for schedule in schedules:
        try:
            yield schedule, device.time(compile_schedule(schedule, device.arch, device.limits)).latency_s
        except EkcError:
            continue


def measure(arguments: Arguments) -> dict[str, Any]:
    """Compare the priors with each recording and with compiled kernels, and print the tables."""
    if arguments.rows is not None and arguments.rows < MIN_ROWS:
        raise InvalidInput(f"--rows: {arguments.rows} are too few to rank; at least {MIN_ROWS}")
    lines = [
        x for one in LATENCY for x in compare_latencies(arguments.data, one, arguments.rows, arguments.seed)
    ]
    print(f"recordings of real GPUs made by others, seed {arguments.seed}")
    print(format_lines(COLUMNS, lines, label_count=4))
    powers = compare_powers(arguments.data)
    print(format_lines(POWER_COLUMNS, powers, label_count=3))
    cases = OPERATORS if arguments.own else {}
    own = [compare_compiled(name, make(), arguments.own, arguments.seed) for name, make in cases.items()]
    if own:
        print("estimated against compiled counts of one model: agreement, no accuracy")
        print(format_lines(OWN_COLUMNS, own, label_count=2))
    return {"lines": lines, "powers": powers, "own": own}


main = make_main(__doc__, measure, BAR, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
