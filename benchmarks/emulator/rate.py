"""Lane instructions per second of the PTX machine, and its memory.

    python -m benchmarks.emulator.rate [--json FILE] [--seed N] [--side N] [--large N] [--naive N]

fp32 MM 1024^3 by the hand-written schedule of tune_table.py, whole, with and without the sanitizer;
4096^3 on a few chosen blocks; a naive matmul written in CUDA, and beside it numba's CUDA simulator on
the same kernel in Python, where numba is installed. Every run has a process of its own, so that the
peak memory is its own; the time counts reading the PTX, not NVRTC. What is wrong in a result is no rate:
every output is held against NumPy.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.search.tune_table import make_hand_schedule
from ekc import emulator
from ekc.codegen import nvrtc
from ekc.codegen.generate import generate

ARCH = "sm_80"
WHOLE_BAR_S, CHOSEN_BAR_S = 4.0, 10.0
MEMORY_BAR = 2**30
"""Bytes of peak memory that the whole 1024^3, sanitizer on, must stay below."""
CHOSEN = 4
"""Blocks of the large matmul that run: the first, the last and seeded ones between."""
COLUMNS = (
    Column("kernel", "kernel"),
    Column("sanitizer", "sanitize", {True: "on", False: "off"}.__getitem__),
    Column("blocks", "blocks"),
    Column("lane instr.", "lane_instructions", ","),
    Column("s", "seconds", ".2f"),
    Column("lane instr./s", "lane_instructions_per_s", ",.0f"),
    Column("peak MiB", "peak_bytes", ".0f", 2**-20),
    Column("right", "right", {True: "yes", False: "WRONG"}.__getitem__),
)
INSTALL = "pip install numba numba-cuda"
NAIVE_CUDA = """
extern "C" __global__ void naive(const float* a, const float* b, float* c, int n) {
    const int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || j >= n) return;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[i * n + k] * b[k * n + j];
    c[i * n + j] = sum;
}
"""
NAIVE_NUMBA = """
import json, sys, time
try:
    from numba import cuda
except ImportError:
    print(json.dumps(None))
    raise SystemExit()
import numba
import numpy as np

@cuda.jit
def naive(a, b, c, n):
    j, i = cuda.grid(2)
    if i >= n or j >= n:
        return
    sum = np.float32(0)
    for k in range(n):
        sum += a[i, k] * b[k, j]
    c[i, j] = sum

n, seed = int(sys.argv[1]), int(sys.argv[2])
random = np.random.default_rng(seed)
a, b = (random.uniform(-1, 1, (n, n)).astype(np.float32) for _ in range(2))
c, blocks = np.zeros((n, n), np.float32), -(-n // 16)
began = time.perf_counter()
naive[(blocks, blocks), (16, 16)](a, b, c, n)
took = time.perf_counter() - began
far = np.abs(c - a.astype(np.float64) @ b) > n * 2.0**-23 * (np.abs(a) @ np.abs(b))
print(json.dumps({"version": numba.__version__, "seconds": took, "right": not far.any()}))
"""


def make_operands(side: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Two seeded square matrices, uniform in -1 to 1."""
    random = np.random.default_rng(seed)
    a, b = (random.uniform(-1, 1, (side, side)).astype(np.float32) for _ in range(2))
    return a, b


def matches_product(c: NDArray[np.float32], a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Whether c is a @ b within what float32 sums of any order may be off (k 2^-23 |a||b|)."""
    limit = a.shape[1] * 2.0**-23 * (np.abs(a) @ np.abs(b))
    return bool((np.abs(c - a.astype(np.float64) @ b) <= limit).all())


def time_launch(ptx: str, name: str, blocks: list[int] | None = None, **how: Any) -> dict[str, Any]:
    """Launch once; the figures of one line."""
    began = time.perf_counter()
    report = emulator.launch(ptx, name, blocks=blocks, **how)
    took = time.perf_counter() - began
    return {
        "blocks_run": report.blocks_run,
        "total_blocks": report.total_blocks,
        "lane_instructions": report.counters.lanes,
        "seconds": took,
        "lane_instructions_per_s": report.counters.lanes / took,
        "findings": [str(f) for f in report.findings],
        "sanitize": how["sanitize"],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def choose_blocks(total: int, count: int, seed: int) -> list[int]:
    """`count` of `total` blocks: the first, the last and seeded ones between; all where there are no more."""
    if total <= count:
        return list(range(total))
    between = np.random.default_rng(seed).choice(total - 2, count - 2, replace=False)
    return sorted({0, total - 1, *(1 + between).tolist()})


def run_tuned(side: int, seed: int, sanitize: bool, chosen: int | None) -> dict[str, Any]:
    """The hand-written schedule: whole, or `chosen` blocks of it."""
    made = generate(make_hand_schedule(side))
    launch, ptx = made.launches[0], nvrtc.compile(made.source, ARCH).ptx
    a, b = make_operands(side, seed)
    c = np.full((side, side), np.nan, np.float32)
    across, down = launch.grid[:2]
    blocks = choose_blocks(across * down, chosen or across * down, seed)
    grid, block = launch.grid, launch.block
    line = time_launch(ptx, launch.name, blocks, grid=grid, block=block, args=[a, b, c], sanitize=sanitize)
    tall, wide = -(-side // down), -(-side // across)
    corners = [(n // across * tall, n % across * wide) for n in blocks]
    rights = [
        matches_product(c[i : i + tall, j : j + wide], a[i : i + tall], b[:, j : j + wide])
        for i, j in corners
    ]
    return line | {"right": all(rights)}


def run_naive(side: int, seed: int, sanitize: bool) -> dict[str, Any]:
    """One thread for each output, written in CUDA."""
    ptx = nvrtc.compile(NAIVE_CUDA, ARCH).ptx
    a, b = make_operands(side, seed)
    c, blocks = np.full((side, side), np.nan, np.float32), -(-side // 16)
    grid, block = (blocks, blocks), (16, 16)
    line = time_launch(ptx, "naive", grid=grid, block=block, args=[a, b, c, side], sanitize=sanitize)
    return line | {"right": matches_product(c, a, b)}


def run_alone(job: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run a job in a fresh process, for a peak memory of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(job, *arguments).result()


def run_numba(side: int, seed: int) -> dict[str, Any] | None:
    """numba's CUDA simulator on the same naive matmul; None where numba is not installed."""
    done = subprocess.run(
        [sys.executable, "-c", NAIVE_NUMBA, str(side), str(seed)],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"numba's simulator failed:\n{done.stderr}")
    found: dict[str, Any] | None = json.loads(done.stdout)
    return found


def judge(line: dict[str, Any], seconds: float | None, peak: int | None = None) -> dict[str, Any]:
    """A line with its bars; without one, a line passes when its output is right and it found nothing."""
    is_fast = seconds is None or line["seconds"] <= seconds
    is_small = peak is None or line["peak_bytes"] < peak
    good = line["right"] and not line["findings"] and is_fast and is_small
    return line | {"bar": {"seconds": seconds, "peak_bytes": peak}, "pass": good}


def run_kernels(side: int, large: int, small: int, seed: int) -> dict[str, Any]:
    """All lines, and numba beside the last."""
    lines = [
        {"kernel": f"MM {side}^3"}
        | judge(run_alone(run_tuned, side, seed, True, None), WHOLE_BAR_S, MEMORY_BAR),
        {"kernel": f"MM {side}^3"} | judge(run_alone(run_tuned, side, seed, False, None), None),
        {"kernel": f"MM {large}^3"} | judge(run_alone(run_tuned, large, seed, True, CHOSEN), CHOSEN_BAR_S),
        {"kernel": f"naive {small}^3"} | judge(run_alone(run_naive, small, seed, True), None),
        {"kernel": f"naive {small}^3"} | judge(run_alone(run_naive, small, seed, False), None),
    ]
    return {
        "lines": lines,
        "numba": run_numba(small, seed),
    }


def compare_with_numba(result: dict[str, Any]) -> str:
    """Compare the time of numba's simulator for the naive kernel with the machine, sanitizer off."""
    found, ours = result["numba"], result["lines"][-1]
    if found is None:
        return f"numba's CUDA simulator: not installed ({INSTALL})"
    rate = ours["lane_instructions"] / found["seconds"]
    return (
        f"numba {found['version']} CUDA simulator, {ours['kernel']}: {found['seconds']:.2f} s, "
        f"{'right' if found['right'] else 'WRONG'}; it counts nothing, and for the lane instructions "
        f"that the machine counted that is {rate:,.0f} a second: the machine is "
        f"{found['seconds'] / ours['seconds']:.0f} times as fast"
    )


def list_verdicts(result: dict[str, Any]) -> list[str]:
    """Each bar and whether it holds."""
    said = []
    for line in result["lines"]:
        verdict, bar = "pass" if line["pass"] else "FAIL", line["bar"]
        if bar["seconds"] is not None:
            memory = f", below {bar['peak_bytes'] / 2**20:.0f} MiB" if bar["peak_bytes"] else ""
            how = "sanitizer on" if line["sanitize"] else "sanitizer off"
            said.append(f"{line['kernel']}, {how}: at most {bar['seconds']:.0f} s{memory}: {verdict}")
        elif not line["pass"]:
            said.append(f"{line['kernel']}: {verdict}")
        said += line["findings"]
    return said


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all kernels, and print the table."""
    result = run_kernels(arguments.side, arguments.large, arguments.naive, arguments.seed)
    print(f"NVRTC {nvrtc.version()}; PTX for {ARCH}, executed in NumPy, seed {arguments.seed}")
    shown = [x | {"blocks": f"{x['blocks_run']} of {x['total_blocks']}"} for x in result["lines"]]
    print(format_lines(COLUMNS, shown))
    print("\n".join([compare_with_numba(result), *list_verdicts(result)]))
    return result


BARS = {"whole_s": WHOLE_BAR_S, "whole_peak_bytes": MEMORY_BAR, "chosen_s": CHOSEN_BAR_S}
OPTIONS = {
    "--side": {"type": int, "default": 1024, "help": "of the matmul that runs whole"},
    "--large": {"type": int, "default": 4096, "help": "of the matmul with chosen blocks"},
    "--naive": {"type": int, "default": 64, "help": "of the naive matmul"},
}
main = make_main(__doc__, measure, BARS, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
