"""Rows of measured kernels that ekc did not generate: read, sorted into kinds and halves, compiled by NVRTC.

Such a kernel runs on a simulated device, counted from its PTX and machine code alone:

    source = "extern \"C\" __global__ void scale(float* x, int n) { ... }"
    start = KernelStart("scale", (512, 1, 1), (256, 1, 1), {"x": BlankArray(4 << 20), "n": 1 << 20})
    kernel = compile_foreign_kernel(source, "sm_80", [start])
    devices.open("a100").time(kernel)

A schedule says which part of a tensor a block touches. Of a foreign kernel the PTX machine finds that: it
follows the addresses of a few blocks (`block_execution.py`).
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulator.block_execution import BlockExecution, execute_blocks, trace_block_loops
from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel, Footprint, Launch
from ekc.devices.simulated.launch_counts import (
    LAUNCH_PROFILES,
    KernelStart,
    LaunchProfile,
    get_launch_profiles,
    profile_launch,
    sample_blocks,
)
from ekc.devices.simulated.memory_traffic import compute_compulsory_bytes
from ekc.emulator.paged_memory import BlankArray, PagedSource
from ekc.errors import EkcError, InvalidInput
from ekc.machine_code.decode import decode_functions
from ekc.ptx.counting.counts import InstructionCounts

LISTS = Path(__file__).with_name("foreign_rows.json")
"""JSON file with row numbers by card: rows left out ("flagged", "stale"), the half that fits, and the half
that scores."""
STALE_RATIO = 3.0
"""Two rows that print one CUDA text and differ by more than this factor: one was measured on another text."""
FITTED, SCORED = "fitted", "scored"
CP_ASYNC = ", cp.async for TMA"
"""Ending of the card of rows that were measured with TMA and printed with cp.async."""


@dataclass(frozen=True)
class Card:
    """A GPU whose rows were recorded, and the simulated device that stands for it."""

    device: str
    arch: str


CARDS: Mapping[str, Card] = {
    "a100_sm80": Card("a100-sxm", "sm_80"),
    "h100_sm90": Card("h100", "sm_90a"),
    "rtx4090_sm89": Card("rtx4090", "sm_89"),
}


@dataclass(frozen=True)
class ForeignRow:
    """One measured kernel."""

    card: str
    number: int
    group: str
    """Name of the kernel, its sizes and pins: rows of one group compute the same."""
    seconds: float
    """Measured time of one call."""
    flag: str
    """Reason for which the printed text may not be what was measured; "" without one."""
    by_cp_async: bool
    """Whether cp.async was printed in the place of TMA."""
    knobs: Mapping[str, str]
    source: str
    launches: tuple[dict[str, Any], ...]
    symbols: Mapping[str, int]

    @property
    def has_tma(self) -> bool:
        """Whether the text copies by TMA, which the PTX machine does not execute."""
        return any(launch["tma"] for launch in self.launches)

    @property
    def half(self) -> str:
        """The half of the group: by the parity of a hash of its name, the same on all cards."""
        return (FITTED, SCORED)[hashlib.sha256(self.group.encode()).digest()[0] & 1]


def read_rows(folder: Path) -> list[ForeignRow]:
    """The printed rows in a folder, `*.jsonl` as `print_foreign.py` writes them."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise InvalidInput(f"--data: no *.jsonl in {folder}; print rows with print_foreign.py")
    lines = [json.loads(line) for file in files for line in file.open()]
    rows = [_make_row(line) for line in lines if "error" not in line and line["card"] in CARDS]
    by_tma = {(row.card, row.number) for row in rows if row.has_tma}
    return [row for row in rows if not row.by_cp_async or (row.card, row.number) in by_tma]


def _make_row(line: dict[str, Any]) -> ForeignRow:
    key = (line["kernel"], sorted(line["bindings"].items()), sorted(line["pins"].items()))
    return ForeignRow(
        card=line["card"],
        number=line["row"],
        group=json.dumps(key),
        seconds=line["us"] * 1e-6,
        flag=line["flag"] or "",
        by_cp_async=line["tma_as_cp_async"],
        knobs=line["knobs"],
        source="\n".join(line["sources"].values()),
        launches=tuple(line["launches"]),
        symbols=line["symbols"],
    )


def list_rows(rows: Iterable[ForeignRow]) -> dict[str, dict[str, list[int]]]:
    """Numbers of the rows by card: "flagged", "stale" (left out), "fitted" and "scored"."""
    by_card: dict[str, list[ForeignRow]] = {}
    for row in rows:
        if not row.by_cp_async:
            by_card.setdefault(row.card, []).append(row)
    lists = {}
    for card, own in by_card.items():
        stale = _find_stale(own)
        flagged = {row.number for row in own if row.flag} - stale
        kept = [row for row in own if row.number not in flagged | stale]
        halves = {half: [row.number for row in kept if row.half == half] for half in (FITTED, SCORED)}
        lists[card] = {"flagged": sorted(flagged), "stale": sorted(stale), **halves}
    return lists


def _find_stale(rows: Sequence[ForeignRow]) -> set[int]:
    """Both rows of each pair with one text and one launch whose times cannot both be right."""
    by_text: dict[str, list[ForeignRow]] = {}
    for row in rows:
        by_text.setdefault(_format_without_names(row), []).append(row)
    pairs = [pair for same in by_text.values() for pair in combinations(same, 2)]
    return {
        row.number
        for one, other in pairs
        if max(one.seconds, other.seconds) > STALE_RATIO * min(one.seconds, other.seconds)
        for row in (one, other)
    }


def _format_without_names(row: ForeignRow) -> str:
    """Text and launches of a row, with numbers in the place of the names of kernels and arguments."""
    text = f"{row.source}\n{json.dumps(row.launches)}"
    names = [name for launch in row.launches for name in (launch["name"], *launch["arguments"])]
    for number, name in enumerate(dict.fromkeys(names)):
        text = re.sub(rf"\b{re.escape(name)}\b", f"name{number}", text)
    return text


def derive_kind(row: ForeignRow, kernel: CompiledKernel) -> str:
    """The work that decides the time of a row: the type of its products, or "reduction"."""
    profiles = get_launch_profiles(kernel)
    if any(profile.counts.group_flops for profile in profiles):
        return "wgmma"
    types = sorted({name for profile in profiles for name in profile.counts.tensor_flops})
    if types:
        return f"mma {', '.join(types)}"
    tiles = [value for name, value in row.knobs.items() if name.startswith("TILE") and value]
    return "fp32 tiles" if tiles else "reduction"


def compile_row(row: ForeignRow, options: Sequence[str], cache: Path | None) -> CompiledKernel:
    """Compile a row and count it, or read that from the cache. Raises `EkcError`."""
    counted = [field.name for field in fields(InstructionCounts)]
    key = json.dumps([nvrtc.version(), counted, row.card, row.source, row.launches, row.symbols])
    file = cache / f"{hashlib.sha256(key.encode()).hexdigest()}.pickle" if cache else None
    if file is not None and file.exists():
        stored: CompiledKernel | str = pickle.loads(file.read_bytes())
    else:
        stored = _compile_row(row, options)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(pickle.dumps(stored))
    if isinstance(stored, str):
        raise EkcError(stored)
    return stored


def _compile_row(row: ForeignRow, options: Sequence[str]) -> CompiledKernel | str:
    """The compiled kernel, or the reason why it cannot be counted."""
    try:
        return compile_foreign_kernel(
            row.source,
            CARDS[row.card].arch,
            [_make_launch(row, launch) for launch in row.launches],
            name=f"{row.card} row {row.number}",
            options=options,
        )
    except EkcError as problem:
        return str(problem)


def _make_launch(row: ForeignRow, launch: Mapping[str, Any]) -> KernelStart:
    sizes = launch["argument_bytes"]
    names = (*launch["arguments"], *launch["runtime"])
    arguments = {name: BlankArray(sizes[name]) if name in sizes else row.symbols[name] for name in names}
    grid, block = launch["grid"], launch["block"]
    return KernelStart(
        launch["name"],
        (grid[0], grid[1], grid[2]),
        (block[0], block[1], block[2]),
        arguments,
        launch["shared_bytes"],
        # Software conversions of float8 loop over the bits of subnormal numbers.
        has_zero_data=True,
    )


def compile_foreign_kernel(
    source: str,
    arch: str,
    launches: Sequence[KernelStart],
    *,
    name: str = "",
    flops: float = 0.0,
    options: Sequence[str] = (),
) -> CompiledKernel:
    """Compile CUDA C++ text and count its launches, which run one after another.

    `flops`: useful operations, for rates that are printed only. Raises `NvrtcError` for text that NVRTC
    refuses, and `EkcError` for a kernel that cannot be counted: the message names the instruction.
    """
    output = nvrtc.compile(source, arch, options)
    for one in launches:
        if one.kernel_name not in output.resources:
            names = ", ".join(output.resources) or "none"
            raise InvalidInput(f"launches: no kernel {one.kernel_name!r} in this text; kernels are {names}")
    counted = [count_foreign_launch(output.ptx, output.cubin, arch, one) for one in launches]
    footprints = [footprint for launch, _ in counted for footprint in launch.footprints]
    return CompiledKernel(
        name=name or launches[0].kernel_name,
        cuda_source=source,
        ptx=output.ptx,
        cubin=output.cubin,
        arch=arch,
        log=output.log,
        nvrtc_version=output.nvrtc_version,
        launches=tuple(launch for launch, _ in counted),
        resources=tuple(output.resources[one.kernel_name] for one in launches),
        workspace_bytes=0,
        flops=flops,
        min_bytes=sum(compute_compulsory_bytes(footprint) for footprint in footprints),
        facts={LAUNCH_PROFILES: tuple(profile for _, profile in counted)},
    )


def count_foreign_launch(
    ptx: str, cubin: bytes, arch: str, start: KernelStart
) -> tuple[Launch, LaunchProfile]:
    """A launch with the footprints of its blocks, and what it executes, from a few executed blocks."""
    execution = execute_blocks(ptx, start, sample_blocks(start))
    sizes = {name: _count_bytes(value) for name, value in start.arguments.items()}
    launch = Launch(
        name=start.kernel_name,
        grid=start.grid,
        block=start.block,
        shared_bytes=start.shared_bytes,
        arguments=tuple(sizes),
        argument_bytes=tuple(sizes.values()),
        footprints=_find_footprints(ptx, start, execution, sizes),
        scalars=tuple((name, value) for name, value in start.arguments.items() if not sizes[name]),
    )
    code = decode_functions(cubin, arch)[start.kernel_name]
    return launch, profile_launch(ptx, code, start, execution.runs)


def _find_footprints(
    ptx: str, start: KernelStart, execution: BlockExecution, sizes: Mapping[str, int]
) -> tuple[Footprint, ...]:
    """The part of each array that a block touches, and the digits of its number on which that depends."""
    loops, names = trace_block_loops(ptx, start), tuple(sizes)
    return tuple(
        Footprint(
            names[number],
            kind,
            sizes[names[number]],
            touched.bytes,
            loops[number, kind],
            block_sectors=touched.sectors,
            block_pairs=touched.pairs,
        )
        for (number, kind), touched in execution.touched.items()
    )


def _count_bytes(value: Any) -> int:
    """Bytes of an array; 0 for a number."""
    return int(value.nbytes) if isinstance(value, PagedSource | np.ndarray) else 0
