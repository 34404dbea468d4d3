"""Estimate of the work of a CLBlast configuration, without compiling it.

Multiply-adds, barriers, loop steps and registers come from the analysis of the schedule; the
addresses of lanes from CLBlast's own index formulas, evaluated for one warp. Integer instructions and spills,
which only a compiler can count, are estimated; `simulator/fidelity.py` prints the error against ptxas.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import clblast
from benchmarks.common.clblast import WIDEST, Xgemm
from ekc.codegen.compiled import Launch, Resources
from ekc.codegen.generate import generate
from ekc.devices.simulated.data_sheet_prior import (
    DIRECT_WORDS_IN_FLIGHT,
    TILE_WORDS_IN_FLIGHT,
    estimate_exposed_share,
    estimate_load_rounds,
    estimate_path_cycles,
    unroll_trips,
)
from ekc.devices.simulated.launch_counts import AccessGroup, LaunchProfile
from ekc.emulator.counters import count_sectors, count_wavefronts
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.rules.launch import RESERVED_REGISTERS
from ekc.machine_code.warp_path import MachineCounts
from ekc.ptx.counting.counts import InstructionCounts

WARP, LINE, SECTOR_BYTES = 32, 128, 32
ACCESS_QUANTITIES = (
    *(f"total_global_{kind}_{figure}" for kind in ("load", "store") for figure in ("requests", "sectors")),
    *(f"total_shared_{kind}_{figure}" for kind in ("load", "store") for figure in ("requests", "wavefronts")),
    *(f"total_{space}_load_bytes" for space in ("global", "shared")),
    "total_global_passes",
    "total_one_pass_requests",
)
"""Quantities of the analysis that accesses add up to, of all blocks."""
INTEGER_PER_ACCESS, INTEGER_PER_STEP = 0.25, 1.0
"""Integer instructions for each memory access and each trip of a loop (fit: times of half of the rows)."""
OPERAND_COPIES, ADDRESS_REGISTERS, COPY_REGISTERS = 2.0, 6.0, 26.0
"""Registers beside the accumulators: those of the operands, two trips in flight, or those of a tile in flight
on its way to shared memory, each with what their addresses take (fitted on the compiled samples)."""
IN_FLIGHT, AT_ONCE = 16, 4
"""Rounds of a copy that are written out whole, and together where there are more (as codegen has it)."""
SPILLED_BYTES = 6.8
"""That ptxas stores, and loads, for each register too many (fitted on the compiled samples)."""


def estimate_work(one: Xgemm, side: int) -> tuple[Launch, Resources, LaunchProfile]:
    """Launch, resources and executed work of a configuration; `ScheduleError` where it breaks a rule."""
    launch, figures = _analyse_schedule(one.without_copy_shape(), side)
    accesses = tuple(access for access, _ in _make_accesses(one, side))
    warps = -(-one.threads // WARP)
    memory = {
        f"{kind}_{space}": sum(a.requests for a in accesses if (a.space, a.kind) == (space, kind)) / warps
        for kind in ("load", "store")
        for space in ("global", "shared")
    }
    steps = figures["loop_steps"] / warps
    counts = InstructionCounts(
        fma32=figures["fma"] / one.threads,
        branch=steps,
        barrier=figures["barriers"],
        bytes_load_global=_count_bytes(accesses, "load") / warps,
        **memory,
    )
    resources = _estimate_resources(one, figures)
    machine = _estimate_machine_code(one, side, counts, resources)
    return launch, resources, LaunchProfile(counts, accesses, _count_live_lines(one), machine)


def _estimate_machine_code(
    one: Xgemm, side: int, counts: InstructionCounts, resources: Resources
) -> MachineCounts:
    """Estimated counts of the machine code of the configuration."""
    warps = -(-one.threads // WARP)
    loads = [(a, t) for a, t in _make_accesses(one, side) if (a.space, a.kind) == ("global", "load")]
    shared = {"A": one.sb, "B": one.sa}
    rounds, tiles = 0.0, [trips for access, trips in loads if shared[access.tensor]]
    for is_tile, in_flight in ((0, DIRECT_WORDS_IN_FLIGHT), (1, TILE_WORDS_IN_FLIGHT)):
        words_by_trips: dict[float, float] = {}
        for access, trips in loads:
            if shared[access.tensor] == is_tile:
                together = trips if is_tile else float(unroll_trips(trips, counts.fma32))
                words = access.requests * access.bytes_per_lane / (4 * warps)
                words_by_trips[together] = words_by_trips.get(together, 0.0) + words
        waits = sum(float(estimate_load_rounds(w, t, in_flight)) for t, w in words_by_trips.items())
        share = estimate_exposed_share(min(tiles), counts.barrier, 0.0) if is_tile and tiles else 1.0
        rounds += waits * float(share)
    memory = counts.load_global + counts.store_global + counts.load_shared + counts.store_shared
    integers = INTEGER_PER_ACCESS * memory + INTEGER_PER_STEP * counts.branch
    spills = (resources.spill_store_bytes + resources.spill_load_bytes) / 4.0 * side / one.kwi
    path = estimate_path_cycles(
        registers=resources.registers,
        floats=counts.fma32,
        others=integers + 0.5 * counts.branch,
        products=0.0,
        shared_requests=counts.load_shared + counts.store_shared,
        local_requests=spills,
        load_rounds=rounds,
    )
    return MachineCounts(
        instructions=counts.fma32 + integers + memory + spills + counts.branch + counts.barrier,
        integers=integers,
        integer_products=0.0,
        bank_conflicts=0.0,
        local_requests=spills,
        path_cycles=tuple(path.tolist()),
    )


@cache
def _analyse_schedule(one: Xgemm, side: int) -> tuple[Launch, dict[str, float]]:
    """Launch and analysis of the schedule, which do not depend on the threads that copy."""
    made = clblast.build_schedule(one, side)
    (launch,) = generate(made, clblast.UNBOUNDED).launches
    return launch, {
        name: float(value[0]) for name, value in analyse_program(made.program, clblast.UNBOUNDED).items()
    }


def estimate_registers(one: Xgemm, figures: dict[str, float]) -> float:
    """Registers that a thread would like to have."""
    held = figures["accumulators"]
    operands = figures["registers"] - RESERVED_REGISTERS - held
    copied = 0
    for tile, vector, shared in ((one.mwg, one.vwm, one.sa), (one.nwg, one.vwn, one.sb)):
        width = min(vector, WIDEST)
        rounds = tile * one.kwg // (width * one.threads)
        copied += shared * width * (rounds if rounds <= IN_FLIGHT else AT_ONCE)
    return max(held + OPERAND_COPIES * operands + ADDRESS_REGISTERS, held + copied + COPY_REGISTERS)


def _estimate_resources(one: Xgemm, figures: dict[str, float]) -> Resources:
    wanted = estimate_registers(one, figures)
    most = min(255, 65536 // one.threads)
    spilled = round(SPILLED_BYTES * max(0.0, wanted - most))
    return Resources(round(min(wanted, most)), round(figures["shared_bytes"]), spilled, spilled, spilled)


@cache
def count_accesses(one: Xgemm, side: int) -> dict[str, float]:
    """Quantities of the analysis that CLBlast's own order of copying and alignment of tiles change."""
    blocks = float(side // one.mwg * (side // one.nwg))
    total = dict.fromkeys(ACCESS_QUANTITIES, 0.0)
    for access, _ in _make_accesses(one, side):
        requests, prefix = blocks * access.requests, f"total_{access.space}_{access.kind}_"
        total[prefix + "requests"] += requests
        total["total_one_pass_requests"] += requests * max(0.0, 2.0 - access.wavefronts)
        if access.space == "global":
            total[prefix + "sectors"] += requests * access.sectors
            total["total_global_passes"] += requests * access.wavefronts
        else:
            total[prefix + "wavefronts"] += requests * access.wavefronts
        if access.kind == "load":
            total[prefix + "bytes"] += requests * access.bytes_per_lane * WARP
    loaded, stored = (SECTOR_BYTES * total[f"total_global_{kind}_sectors"] for kind in ("load", "store"))
    distinct = blocks * 4.0 * side * (one.mwg + one.nwg)
    return total | {"l2_bytes": min(distinct, loaded) + stored}


def _count_bytes(accesses: tuple[AccessGroup, ...], kind: str) -> float:
    return sum(a.requests * a.bytes_per_lane for a in accesses if (a.space, a.kind) == ("global", kind))


def _count_live_lines(one: Xgemm) -> float:
    """Lines that requests of a block share: rows of an operand that is not copied, and two tiles of one that
    threads copy each for itself."""
    words = 0
    for group, across, vector, strided, shared in (
        (one.mwg, one.mdima, one.vwm, one.strm, one.sa),
        (one.nwg, one.ndimb, one.vwn, one.strn, one.sb),
    ):
        if not shared:
            words += 4 * one.kwi * group
        elif not strided and group // across > min(vector, WIDEST):
            words += 2 * one.kwg * group
    return words * 4 / LINE


def _make_accesses(one: Xgemm, side: int) -> Iterator[tuple[AccessGroup, float]]:
    """Accesses of a block, each with the trips of the loop around it."""
    warps = -(-one.threads // WARP)
    thread = np.arange(min(WARP, one.threads))
    x, y = thread % one.mdimc, thread // one.mdimc
    aligned_m, aligned_n = clblast.compute_alignments(one)
    trips = side / one.kwi
    for tensor, number, group, threads, across, vector, strided, shared, aligned in (
        ("A", y, one.nwg, one.ndimc, one.ndimb, one.vwn, one.strn, one.sb, aligned_n),
        ("B", x, one.mwg, one.mdimc, one.mdima, one.vwm, one.strm, one.sa, aligned_m),
    ):
        own, width = group // threads, min(vector, WIDEST)
        joined = width if strided or not shared else min(own, aligned // 4)
        starts = np.arange(own // joined) * joined
        if strided:
            places = [number * width + s // width * threads * width for s in starts]
        else:
            places = [number * own + s for s in starts]
        times = warps * float(side) * len(places)
        place = ("", "shared") if shared else (tensor, "global")
        yield _make_access(*place, "load", joined, places, times), trips
        if shared:
            elements = [
                clblast.compute_copied_elements(one, group, across, vector, strided, r, thread)
                for r in range(group * one.kwg // (width * one.threads))
            ]
            copies = side / one.kwg
            rows = [e // group * side + e % group for e in elements]
            times = warps * copies * len(elements)
            yield _make_access(tensor, "global", "load", width, rows, times), copies
            # Neighbours that a thread copies in turn are stored together where the tile is aligned for it.
            together = 1 if strided else min(group // across, aligned // 4) // width
            rounds_along = one.kwg * across // one.threads
            first = [e for r, e in enumerate(elements) if r // rounds_along % together == 0]
            times = warps * copies * len(first)
            yield _make_access("", "shared", "store", width * together, first, times), copies
    width = min(one.vwm, WIDEST)
    row = y * (min(one.vwn, WIDEST) if one.strn else one.nwg // one.ndimc)
    places = [row * side + x * (width if one.strm else one.mwg // one.mdimc)]
    yield _make_access("C", "global", "store", width, places, warps * float(one.thread_tile // width)), 1.0


def _make_access(
    tensor: str,
    space: str,
    kind: str,
    width: int,
    places: list[NDArray[np.int64]],
    times: float,
) -> AccessGroup:
    """An access of `width` floats at several `places` (floats, one for each lane of a warp)."""
    warp, size = np.zeros(len(places[0]), np.int64), 4 * width
    found = [4 * place.astype(np.int64) for place in places]
    passes = [count_wavefronts(place, warp, size)[0] for place in found]
    if space == "global":
        passes = [max(p, width, len(np.unique(q // LINE))) for p, q in zip(passes, found, strict=True)]
    asked = [count_sectors(place, warp, size) if space == "global" else 0 for place in found]
    return AccessGroup(tensor, space, kind, size, times, float(np.mean(asked)), float(np.mean(passes)))
