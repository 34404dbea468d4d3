"""Counters of the PTX machine beside those that Nsight measured on an RTX 2080 Ti, ranked.

    python -m benchmarks.simulator.counters --data DIR [--json FILE] [--seed N] [--rows N]

DIR holds ktt_convolution_rtx_2080_ti_counters.csv.gz: a 15x15 convolution in 1320 designs, each with and
without PADDING and READ_ONLY. Seeded designs of every block width and tile area run in the machine as a
schedule of ekc, on a few blocks each, compiled for sm_75; every fifth also runs as CUDA text of the recorded
design. Printed is the rank correlation (Spearman) of each counter with the measured one; the bars are for
ekc's kernels. Beside it: the same for designs of small code, how far the level is off, the CUDA text, the
recording with itself (PADDING changes nothing it counts, so each kernel was measured twice), and the best
of three trivial predictors.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.ranking import spearman
from benchmarks.common.recordings import read_table
from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.simulator.counter_kernels import ARCH, BLOCKS, Design, count_schedule, count_text
from ekc.codegen import nvrtc
from ekc.errors import EkcError, InvalidInput, ScheduleError

TABLE = "ktt_convolution_rtx_2080_ti_counters.csv.gz"
WORKERS = 2
TEXT_EVERY = 5
"""One design in so many also runs as CUDA text: compiling is what takes the time."""
INSTRUCTIONS_BAR, TRAFFIC_BAR = 0.9, 0.8
COUNTERS = {
    "requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", TRAFFIC_BAR),
    "read sectors": ("lts__t_sectors_op_read.sum", TRAFFIC_BAR),
    "written sectors": ("lts__t_sectors_op_write.sum", TRAFFIC_BAR),
    "load wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", TRAFFIC_BAR),
    "store wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", TRAFFIC_BAR),
    "fp32": ("smsp__sass_thread_inst_executed_op_fp32_pred_on.sum", INSTRUCTIONS_BAR),
    "integer": ("smsp__sass_thread_inst_executed_op_integer_pred_on.sum", INSTRUCTIONS_BAR),
    "memory": ("smsp__sass_thread_inst_executed_op_memory_pred_on.sum", INSTRUCTIONS_BAR),
    "control": ("smsp__sass_thread_inst_executed_op_control_pred_on.sum", INSTRUCTIONS_BAR),
    "instructions": ("smsp__inst_executed.sum", INSTRUCTIONS_BAR),
}
"""Our counter: the measured column and the least rank correlation asked for."""
SPILLS = "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum"
INSTRUCTION_BYTES, INSTRUCTION_CACHE = 16, 46 * 1024
"""Sizes in bytes of Turing: Jia et al., Dissecting the NVIDIA Turing T4 GPU via Microbenchmarking (arXiv
1903.07486)."""
DIGITS = 7
"""Significant digits of the recording; ours are rounded to as many, so that equal counts tie."""
NO_COUNTERPART = "no counterpart (READ_ONLY=0: ekc always reads its inputs through the read-only path)"
REPEATS = "a second measurement of the same kernel (PADDING=1)"
COLUMNS = (
    Column("counter", "counter"),
    Column("ekc", "ekc", ".3f"),
    Column("small", "ekc_small", ".3f"),
    Column("level", "ekc_level", ".3f"),
    Column("text", "text", ".3f"),
    Column("level", "text_level", ".3f"),
    Column("repeat", "repeat", ".3f"),
    Column("trivial", "trivial", ".3f"),
    Column("which", "trivial_is"),
    Column("bar", "bar"),
    Column("", "pass"),
)


@dataclass(frozen=True)
class Row:
    """A recorded design and its measured counters, by our names."""

    design: Design
    measured: dict[str, float]
    again: dict[str, float]
    """The same kernel's second measurement."""
    spilled: bool
    """Whether the recorded kernel kept registers in local memory, which no PTX shows."""

    @property
    def small(self) -> bool:
        """Whether a load and an fma for each tap of a thread fit the instruction cache.

        What does not is fetched through L2, whose measured sectors hold it beside the data.
        """
        taps = self.design.side**2 * self.design.tile_x * self.design.tile_y
        return 2 * INSTRUCTION_BYTES * taps <= INSTRUCTION_CACHE


@dataclass(frozen=True)
class Counted:
    """Counts of the PTX machine for a row."""

    row: Row
    ekc: dict[str, float]
    text: dict[str, float] | None
    """Counts of the CUDA text, where that ran too."""


def read(folder: Path) -> tuple[list[Row], dict[str, int]]:
    """The designs that ekc has a counterpart for, and what became of the other recorded rows."""
    recorded = read_table(folder / TABLE)
    kept = [line for line in recorded if line["READ_ONLY"] != "0"]
    again = {_read_design(line): _read_counters(line) for line in kept if line["PADDING"] != "0"}
    plain = [line for line in kept if line["PADDING"] == "0"]
    lonely = [_read_design(line) for line in plain if _read_design(line) not in again]
    if lonely:
        raise InvalidInput(f"data: {TABLE} has no row with PADDING=1 for {lonely[0]}; it needs both")
    rows = [
        Row(_read_design(line), _read_counters(line), again[_read_design(line)], float(line[SPILLS]) > 0)
        for line in plain
    ]
    return rows, {NO_COUNTERPART: len(recorded) - len(kept), REPEATS: len(kept) - len(plain)}


def _read_design(line: dict[str, str]) -> Design:
    names = (
        "BLOCK_SIZE_X",
        "BLOCK_SIZE_Y",
        "TILE_SIZE_X",
        "TILE_SIZE_Y",
        "IMAGE_WIDTH",
        "IMAGE_HEIGHT",
        "HFS",
    )
    return Design(*(int(line[n]) for n in names))


def _read_counters(line: dict[str, str]) -> dict[str, float]:
    return {name: float(line[column]) for name, (column, _) in COUNTERS.items()}


def sample(rows: list[Row], count: int, seed: int) -> list[Row]:
    """Seeded rows, one from each of `count` equal strips of the rows by block width and tile area."""
    random = np.random.default_rng(seed)
    shuffled = [rows[i] for i in random.permutation(len(rows))]
    ordered = sorted(shuffled, key=lambda r: (r.design.block_x, r.design.tile_x * r.design.tile_y))
    strips = np.array_split(np.arange(len(ordered)), min(count, len(ordered)))
    return [ordered[int(random.choice(strip))] for strip in strips]


def execute_row(row: Row, seed: int, with_text: bool) -> Counted | str:
    """Counts of a row's kernels, or why ekc has no such schedule."""
    try:
        ours = count_schedule(row.design, seed)
    except ScheduleError as refusal:
        return str(refusal).splitlines()[0]
    return Counted(row, ours, count_text(row.design, seed) if with_text else None)


def choose_best_trivial(rows: list[Row], measured: NDArray[np.float64]) -> tuple[str, float | None]:
    """The best of three figures that need no kernel, whichever way it runs."""
    guesses = {
        "threads": [r.design.threads for r in rows],
        "tile area": [r.design.tile_x * r.design.tile_y for r in rows],
        "block width": [r.design.block_x for r in rows],
    }
    found = {name: spearman(np.array(v, float), measured) for name, v in guesses.items()}
    best = max(found, key=lambda name: abs(found[name] or 0.0))
    rho = found[best]
    return best, None if rho is None else abs(rho)


def compare_counter(name: str, done: list[Counted]) -> dict[str, Any]:
    """One counter: correlations, levels (median of counted by measured), bar and verdict."""
    column, bar = COUNTERS[name]
    rows, texts = [d.row for d in done], [d for d in done if d.text]
    measured = np.array([r.measured[name] for r in rows])
    mine = _round_counts([d.ekc[name] for d in done])
    text = _round_counts([d.text[name] for d in texts if d.text])
    beside = np.array([d.row.measured[name] for d in texts])
    small = np.array([r.small for r in rows])
    which, guess = choose_best_trivial(rows, measured)
    rho = spearman(mine, measured)
    return {
        "counter": name,
        "column": column,
        "ekc": rho,
        "ekc_small": spearman(mine[small], measured[small]),
        "ekc_level": _compute_level(mine, measured),
        "text": spearman(text, beside),
        "text_level": _compute_level(text, beside),
        "repeat": spearman(np.array([r.again[name] for r in rows]), measured),
        "trivial": guess,
        "trivial_is": which,
        "bar": bar,
        "pass": rho is not None and rho >= bar,
    }


def _round_counts(counts: list[float]) -> NDArray[np.float64]:
    return np.array([float(f"{count:.{DIGITS}g}") for count in counts])


def _compute_level(mine: NDArray[np.float64], measured: NDArray[np.float64]) -> float | None:
    there = measured > 0
    return float(np.median(mine[there] / measured[there])) if there.any() else None


def compare_counters(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Run the sample and compare every counter."""
    rows, others = read(folder)
    began = time.perf_counter()
    chosen = sample(rows, count, seed)
    found, failed = [], []
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(execute_row, row, seed, i % TEXT_EVERY == 0) for i, row in enumerate(chosen)]
        for row, job in zip(chosen, jobs, strict=True):
            try:
                found.append(job.result())
            except EkcError as problem:
                failed.append(f"{row.design}: {str(problem).splitlines()[0]}")
    done = [f for f in found if isinstance(f, Counted)]
    lines = [compare_counter(name, done) for name in COUNTERS] if done else []
    return {
        "recorded_rows": len(rows) + sum(others.values()),
        "left_out": others,
        "sampled": len(chosen),
        "refused": dict(Counter(f for f in found if isinstance(f, str))),
        "failed": failed,
        "compared": len(done),
        "texts": sum(d.text is not None for d in done),
        "small_code": sum(d.row.small for d in done),
        "spilled_in_recording": sum(d.row.spilled for d in done),
        "seconds": time.perf_counter() - began,
        "lines": lines,
        "rows": [asdict(d) for d in done],
        "pass": bool(lines) and not failed and all(line["pass"] for line in lines),
    }


def list_notes(result: dict[str, Any]) -> list[str]:
    """Which rows the table is about, and which it is not."""
    said = [
        f"{result['compared']} of {result['sampled']} sampled designs compared, {result['texts']} of them "
        f"also as CUDA text, {result['small_code']} of small code; "
        f"{result['spilled_in_recording']} spilled in the recording; {result['seconds']:.0f} s"
    ]
    total = result["recorded_rows"]
    said += [f"{number} of {total} recorded rows: {why}" for why, number in result["left_out"].items()]
    said += [f"{number} sampled rows have no counterpart: {why}" for why, number in result["refused"].items()]
    said += [f"FAILED {problem}" for problem in result["failed"]]
    said += [f"{line['counter']}: {line['column']}" for line in result["lines"]]
    return said


def measure(arguments: Arguments) -> dict[str, Any]:
    """Compare all counters, and print the table."""
    result = compare_counters(arguments.data, arguments.rows, arguments.seed)
    print(f"NVRTC {nvrtc.version()}; PTX for {ARCH}, executed in NumPy, seed {arguments.seed}")
    print(
        f"Spearman with Nsight's counters on an RTX 2080 Ti; {BLOCKS} blocks inside the image, 1 on each edge"
    )
    print("level: median of counted by measured; trivial: |Spearman| of the best of three figures")
    print("small: designs whose code fits the instruction cache; other code is read through L2")
    print(format_lines(COLUMNS, result["lines"]))
    print("\n".join(list_notes(result)))
    return result


OPTIONS = {
    "--data": {"type": Path, "required": True, "help": f"the folder of {TABLE}"},
    "--rows": {"type": int, "default": 200},
}
main = make_main(__doc__, measure, {name: bar for name, (_, bar) in COUNTERS.items()}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
