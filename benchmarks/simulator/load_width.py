"""Gain of wider loads on real GPUs, and on simulated ones.

    python -m benchmarks.simulator.load_width --data DIR [--json FILE] [--pairs N] [--seed N] [--cache DIR]

Pairs of recorded CLBlast kernels that differ in one vector width alone (VWM, VWN: 1 to 2 or 2 to 4 floats),
by whether that operand comes through shared memory or from global memory. `faster`: share of the pairs in
which the wider was; `ratio`: median of narrow over wide time. Both are recorded. With --pairs, so many of
each recording's fastest fifth are compiled for the simulated GPU too, and both ratios are printed. No bar:
the recordings show an effect, and the comparison describes how far the simulation has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.clblast import Xgemm
from benchmarks.common.script import DATA, Arguments, Column, format_lines, make_main
from benchmarks.simulator.rows import LATENCY, Recording, compile_work, read
from ekc.devices.simulated.latency import estimate_latency

FAST = 0.2
"""Share of the configurations, fastest first, of which pairs are compiled."""
WIDTHS = {"vwm": "sa", "vwn": "sb"}
"""The width of an operand's loads, and whether it goes through shared memory."""


@dataclass(frozen=True)
class Pair:
    """Two configurations that differ in one width."""

    narrow: Xgemm
    wide: Xgemm
    shared: bool


def list_pairs(seconds: dict[Xgemm, float]) -> Iterator[Pair]:
    """Yield all pairs of a recording."""
    for one in seconds:
        for width, shared in WIDTHS.items():
            wide = replace(one, **{width: 2 * getattr(one, width)})
            if getattr(one, width) < 4 and wide in seconds:
                yield Pair(one, wide, bool(getattr(one, shared)))


def make_line(
    recording: Recording, found: list[Pair], real: dict[Xgemm, float], shared: bool
) -> dict[str, Any]:
    """A line of the recorded pairs, through shared memory or not."""
    ratios = np.array([real[p.narrow] / real[p.wide] for p in found if p.shared == shared])
    return {
        "device": recording.device,
        "way": "shared" if shared else "global",
        "pairs": len(ratios),
        "faster": float(np.mean(ratios > 1)),
        "ratio": float(np.median(ratios)),
    }


def simulate_pairs(recording: Recording, found: list[Pair], real: dict[Xgemm, float]) -> dict[str, Any]:
    """Recorded and simulated ratios of pairs, those left out that our kernels cannot be or do not fit."""
    spec, ratios = recording.spec, []
    clock = spec.boost_mhz * (recording.clock_share or 1.0)
    for p in found:
        works = [compile_work(spec, one) for one in (p.narrow, p.wide)]
        narrow, wide = (
            estimate_latency(spec, w.events, w.resident, clock).seconds if w else np.nan for w in works
        )
        ratios.append((real[p.narrow] / real[p.wide], narrow / wide))
    both = np.array([r for r in ratios if np.isfinite(r).all()])
    return {
        "compiled": len(both),
        "recorded_ratio": float(np.median(both[:, 0])),
        "simulated_ratio": float(np.median(both[:, 1])),
        "same_side": float(np.mean((both > 1)[:, 0] == (both > 1)[:, 1])),
    }


def compare_pairs(recording: Recording, data: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Compare the pairs of one recording."""
    real: dict[Xgemm, float] = {}
    for row in read(data, recording):
        real[row.one] = min(row.seconds, real.get(row.one, np.inf))
    every, random = list(list_pairs(real)), np.random.default_rng(seed)
    limit = float(np.quantile(list(real.values()), FAST))
    lines = []
    for shared in (True, False):
        fast = [p for p in every if p.shared == shared and min(real[p.narrow], real[p.wide]) <= limit]
        picked = [fast[i] for i in random.permutation(len(fast))[: count // 2]]
        simulated = simulate_pairs(recording, picked, real) if picked else {}
        lines.append({**make_line(recording, every, real, shared), **simulated})
    return lines


COLUMNS = (
    Column("recording", "device"),
    Column("operand from", "way"),
    Column("pairs", "pairs"),
    Column("faster", "faster", ".0%"),
    Column("ratio", "ratio", ".3f"),
    Column("compiled", "compiled"),
    Column("recorded", "recorded_ratio", ".3f"),
    Column("simulated", "simulated_ratio", ".3f"),
)


def measure(arguments: Arguments) -> dict[str, Any]:
    """Compare the pairs of each recording, and print the table."""
    if arguments.cache:
        os.environ["EKC_CACHE_DIR"] = str(arguments.cache)
    lines = [
        x
        for recording in LATENCY
        for x in compare_pairs(recording, arguments.data, arguments.pairs, arguments.seed)
    ]
    print(format_lines(COLUMNS, lines))
    total = sum(x["pairs"] for x in lines)
    faster = sum(x["faster"] * x["pairs"] for x in lines) / total
    print(f"of {total:,} pairs the wider was faster in {faster:.0%}")
    return {"lines": lines, "pairs": total, "faster": faster}


OPTIONS = {
    "--data": DATA,
    "--pairs": {"type": int, "default": 0},
    "--cache": {"type": Path, "help": "folder of compiled kernels"},
}
main = make_main(__doc__, measure, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
