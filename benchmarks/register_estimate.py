"""Registers and spills as the rules expect them, held against ptxas.

    python benchmarks/register_estimate.py [--json FILE] [--only TEXT] [--draws N] [--seed N] [--a-round N]

Legal schedules as a run first meets them: bred on what physics alone expects, then drawn from the better
half. Each is compiled for sm_80. *spill*: share that ptxas gives a stack of more than 64 bytes; *median*: of
expected over allocated registers, of those without; *spread*: of the log of that. --a-round sets what the
estimate takes a copy of a pipelined tile to keep for each of its rounds
(`ekc.ir.rules.launch.REGISTERS_PER_ROUND`); 0 is the rule of before.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tune_table import OPERATORS, TARGET, table

import ekc
from ekc import devices
from ekc.codegen.generate import compile_schedule, describe_toolchain
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.rules import launch as rules
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
HEADERS = ("operator", "compiled", "spill", "median", "spread")


def bred(space: Space, seed: int, count: int) -> list[ekc.Schedule]:
    """Of a population bred on the prior, some of the better half."""
    device = devices.open(TARGET)
    breeder = Breeder(space, np.random.default_rng(seed), BRED)

    def expected(population: Population) -> np.ndarray[Any, np.dtype[np.float64]]:
        return space.extract_inputs(population, device.peaks).expected_latency_s

    population, _ = breeder.evolve(None, expected)
    rows = breeder.random.permutation(len(population) // 2)[:count]
    return [space.build_schedule(population, int(row)) for row in rows]


def one(schedule: ekc.Schedule) -> tuple[float, float, float]:
    """(registers expected, registers allocated, bytes of stack) of the launch with most of them."""
    compiled = compile_schedule(schedule, "sm_80")
    most = int(np.argmax([r.registers for r in compiled.resources]))
    needed = rules.estimate_registers(derive_launches(schedule.program)[most]) + rules.RESERVED_REGISTERS
    found = compiled.resources[most]
    return float(needed), float(found.registers), float(found.stack_bytes)


def line(name: str, op: ekc.Operator, draws: int, seed: int) -> dict[str, Any]:
    """The row of one operator."""
    schedules = bred(Space(op, devices.open(TARGET).limits), seed, draws)
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        expected, allocated, stack = np.array(list(workers.map(one, schedules))).T
    spilled = stack > SPILLS.stack_bytes
    off = np.log(expected / allocated)[~spilled]
    return {
        "operator": name,
        "compiled": len(schedules),
        "spill": float(spilled.mean()),
        "median": float(np.exp(np.median(off))) if len(off) else None,
        "spread": float(off.std()) if len(off) else None,
    }


def _row(x: dict[str, Any]) -> tuple[str, ...]:
    figures = ("-" if x[name] is None else f"{x[name]:.2f}" for name in ("median", "spread"))
    return x["operator"], str(x["compiled"]), f"{x['spill']:.1%}", *figures


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", metavar="TEXT", help="operators with this in their name")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--a-round", type=int, default=rules.REGISTERS_PER_ROUND)
    asked = parser.parse_args()
    every = OPERATORS | MORE
    names = [name for name in every if asked.only is None or asked.only in name]
    if not names:
        parser.error(f"--only: nothing contains {asked.only!r}; there are {', '.join(every)}")
    rules.REGISTERS_PER_ROUND = asked.a_round
    lines = [line(name, every[name](), asked.draws, asked.seed) for name in names]
    print(
        f"ekc {ekc.__version__}, NVRTC {describe_toolchain()}, seed {asked.seed}, {asked.a_round} registers a round"
    )
    print(table([HEADERS, *map(_row, lines)]))
    if asked.json:
        asked.json.write_text(json.dumps({"a_round": asked.a_round, "lines": lines}, indent=1))


if __name__ == "__main__":
    main()
