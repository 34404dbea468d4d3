"""Registers and spills as the rules estimate them, compared with ptxas.

    python -m benchmarks.cost_model.registers [--json FILE] [--only TEXT] [--draws N] [--seed N] [--a-round N]

Legal schedules as in the first round of a run: bred by the analytic prior, then sampled from the better half.
Each is compiled for sm_80. *spill*: share of the kernels whose stack is larger than 64 bytes by ptxas;
*median*: median of estimated over allocated registers, of the other kernels; *spread*: standard deviation of
the log of that ratio. --a-round sets the registers that the estimate adds for each round of the copy of a
pipelined tile (`REGISTERS_PER_ROUND` of `ekc/ir/analysis/occupancy.py`); 0 is the rule before that. No bar:
the figures describe an estimate that the search corrects by what it measures.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import ekc
from benchmarks.common.operators import OPERATORS
from benchmarks.common.script import ONLY, Arguments, Column, format_lines, make_main, select_names
from benchmarks.search.ablation_variants import apply_changes
from benchmarks.search.tune_table import TARGET
from ekc import devices
from ekc.codegen.generate import compile_schedule, describe_toolchain
from ekc.ir.analysis import occupancy
from ekc.ir.lowering.lower import derive_launches
from ekc.processes.pool import count_cores
from ekc.search.data.defaults import SPILLS
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder
from ekc.search.space.space import Space

BRED = 2048
MORE: dict[str, Callable[[], ekc.Operator]] = {
    "fp16 conv 16x256x14x14 3x3 -> 256": lambda: ekc.conv2d(
        16, 256, 14, 14, out_channels=256, kernel=3, padding=1, dtype="float16", layout="NHWC"
    ),
}
COLUMNS = (
    Column("operator", "operator"),
    Column("compiled", "compiled"),
    Column("spill", "spill", ".1%"),
    Column("median", "median", ".2f"),
    Column("spread", "spread", ".2f"),
)
OPTIONS = {
    "--only": ONLY,
    "--draws": {"type": int, "default": 100},
    "--a-round": {"type": int, "default": occupancy.REGISTERS_PER_ROUND},
}


def breed_schedules(space: Space, seed: int, count: int) -> list[ekc.Schedule]:
    """Breed a population by the prior, and sample schedules of the better half."""
    device = devices.open(TARGET)
    breeder = Breeder(space, np.random.default_rng(seed), BRED)

    def expected(population: Population) -> np.ndarray[Any, np.dtype[np.float64]]:
        return space.extract_inputs(population, device.prior).expected_latency_s

    population, _ = breeder.evolve(None, expected)
    rows = breeder.random.permutation(len(population) // 2)[:count]
    return [space.build_schedule(population, int(row)) for row in rows]


def count_registers(schedule: ekc.Schedule) -> tuple[float, float, float]:
    """(registers expected, registers allocated, bytes of stack) of the launch with most of them."""
    compiled = compile_schedule(schedule, "sm_80")
    most = int(np.argmax([r.registers for r in compiled.resources]))
    needed = (
        occupancy.estimate_registers(derive_launches(schedule.program)[most]) + occupancy.RESERVED_REGISTERS
    )
    found = compiled.resources[most]
    return float(needed), float(found.registers), float(found.stack_bytes)


def measure_operator(name: str, op: ekc.Operator, draws: int, seed: int) -> dict[str, Any]:
    """The row of one operator."""
    schedules = breed_schedules(Space(op, devices.open(TARGET).limits), seed, draws)
    with ThreadPoolExecutor(count_cores()) as workers:
        expected, allocated, stack = np.array(list(workers.map(count_registers, schedules))).T
    spilled = stack > SPILLS.stack_bytes
    off = np.log(expected / allocated)[~spilled]
    return {
        "operator": name,
        "compiled": len(schedules),
        "spill": float(spilled.mean()),
        "median": float(np.exp(np.median(off))) if len(off) else None,
        "spread": float(off.std()) if len(off) else None,
    }


def measure(arguments: Arguments) -> dict[str, Any]:
    """Compile schedules of each operator, and print the table."""
    every = OPERATORS | MORE
    names = select_names(every, arguments.only)
    with apply_changes({"ekc.ir.analysis.occupancy:REGISTERS_PER_ROUND": arguments.a_round}):
        lines = [measure_operator(name, every[name](), arguments.draws, arguments.seed) for name in names]
    print(f"NVRTC {describe_toolchain()}, seed {arguments.seed}, {arguments.a_round} registers a round")
    print(format_lines(COLUMNS, lines))
    return {"a_round": arguments.a_round, "lines": lines}


main = make_main(__doc__, measure, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
