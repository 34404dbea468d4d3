"""Which objective takes less energy when time is short and metering takes as long as on a GPU.

    python -m benchmarks.search.time_budget [--json FILE] [--seeds N] [--budget S ...] [--only TEXT]

Each operator is tuned on the simulated a100 under a time budget, once for latency and once for energy. The
device takes its time: 0.09 s for a timing and 2.2 s beside each metering window, as an H100 did
(recordings/h100). Trials cost what compiling and breeding cost here. Energies are those of the model without
noise; "energy" is that of the energy objective over that of the latency objective: above 1 the search for
energy wastes some. The bar: at most 1 in the median.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.common.operators import PAPER_OPERATORS
from benchmarks.common.script import Arguments, Column, format_figure, format_lines, make_main, select_names
from benchmarks.search.runs import MAX_SLOWDOWN
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Metering, Timing
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.specs import A100
from ekc.search.data.options import DEFAULT_METHOD, TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space

TIMING_S, METERING_S = 0.09, 2.2
"""Seconds of a timing, and of a metering beside its window."""
WORKERS = 2
TRIALS = 4096
"""More than there is time for."""
OBJECTIVES = ("latency", "energy")
BAR = 1.0
COLUMNS = (
    Column("operator", "operator"),
    Column("seed", "seed"),
    Column("budget [s]", "budget_s", "g"),
    Column("trials", "both_trials"),
    Column("metered", "metered"),
    Column("latency", "latency_ratio", ".4f"),
    Column("energy", "energy_ratio", ".4f"),
)
OPTIONS = {
    "--seeds": {"type": int, "default": 2, "help": "pairs of runs of each operator"},
    "--budget": {"type": float, "nargs": "+", "default": [25.0, 60.0], "metavar": "S", "help": "seconds"},
    "--only": {"metavar": "TEXT", "default": "", "help": 'operators with this in "MM 1024^3"'},
}


class PacedDevice(SimulatedDevice):
    """A simulated device that takes as long to measure as a GPU."""

    def time(self, kernel: CompiledKernel, *, repeat: int = 0) -> Timing:
        """See `SimulatedDevice`."""
        time.sleep(TIMING_S)
        return super().time(kernel, repeat=repeat)

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """See `SimulatedDevice`."""
        time.sleep(METERING_S + seconds)
        return super().meter(kernel, seconds=seconds, repeat=repeat)


def tune(operator: str, objective: str, budget_s: float, seed: int) -> dict[str, Any]:
    """One run; energy in joules without noise."""
    device = PacedDevice(A100)
    options = TuneOptions(TRIALS, objective, MAX_SLOWDOWN, False, seed, budget_s)
    with RecordStore(None) as store, ThreadPoolExecutor(WORKERS) as workers:
        space = Space(PAPER_OPERATORS[operator](), device.limits)
        result = TuningRun(space, Measurer(device, store), workers, options, None, DEFAULT_METHOD).run(())
    kernel = compile_schedule(result.best.schedule, device.arch, device.limits)
    breakdown = device.break_down_energy(kernel)
    return {
        "operator": operator,
        "objective": objective,
        "seed": seed,
        "budget_s": budget_s,
        "trials": result.trial_count,
        "metered": result.metered_count,
        "latency_s": breakdown.latency_s,
        "energy_j": breakdown.energy_j,
    }


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run both objectives in turn, and print the table."""
    runs, pairs, lines = [], [], []
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    for budget_s in arguments.budget:
        ratios = []
        for operator in select_names(PAPER_OPERATORS, arguments.only):
            for seed in seeds:
                fast, lean = (tune(operator, objective, budget_s, seed) for objective in OBJECTIVES)
                runs += [fast, lean]
                pairs.append(_compare_pair(fast, lean))
                ratios.append(pairs[-1]["energy_ratio"])
                cells = (format_figure(pairs[-1], column) for column in COLUMNS)
                print(" ".join(cells), file=sys.stderr, flush=True)
        median = float(np.median(ratios))
        line = {"budget_s": budget_s, "pairs": len(ratios), "energy_median": median}
        lines.append(line | {"energy_worst": max(ratios), "pass": median <= BAR})
    print("the energy objective, and its latency and energy over those of the latency objective")
    print(format_lines(COLUMNS, pairs))
    for line in lines:
        print(
            f"{line['budget_s']:g} s: energy {line['energy_median']:.4f} in the median of {line['pairs']} "
            f"pairs, at worst {line['energy_worst']:.3f}"
        )
    return {"lines": lines, "runs": runs}


def _compare_pair(fast: dict[str, Any], lean: dict[str, Any]) -> dict[str, Any]:
    """The run for energy, with its figures over those of the run for latency."""
    return lean | {
        "both_trials": f"{lean['trials']} / {fast['trials']}",
        "latency_ratio": lean["latency_s"] / fast["latency_s"],
        "energy_ratio": lean["energy_j"] / fast["energy_j"],
    }


main = make_main(__doc__, measure, {"energy_median": BAR}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
