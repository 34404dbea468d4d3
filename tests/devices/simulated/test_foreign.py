"""Kernels that ekc did not generate: what a few executed blocks say against full execution and schedules."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc.ir.operators as o
from benchmarks.simulator.block_execution import execute_blocks, trace_block_loops
from benchmarks.simulator.foreign_rows import compile_foreign_kernel, count_foreign_launch
from ekc import devices
from ekc.codegen import nvrtc
from ekc.codegen.compiled import Footprint, Launch
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated.launch_counts import (
    KernelStart,
    LaunchProfile,
    get_launch_profiles,
    profile_kernel,
)
from ekc.devices.simulated.memory_traffic import compute_compulsory_bytes
from ekc.devices.simulated.operating_point import compute_work
from ekc.devices.simulated.specs import A100
from ekc.emulator import launch
from ekc.emulator.paged_memory import BlankArray
from ekc.errors import EkcError, InvalidInput
from ekc.search.space.space import Space
from tests.search.helpers import LIMITS

SOURCE = Path(__file__).with_name("kernels").joinpath("foreign.cu").read_text("utf-8")


@cache
def compile_ptx() -> str:
    return nvrtc.compile(SOURCE).ptx


def count_launch(start: KernelStart) -> tuple[Launch, LaunchProfile]:
    output = nvrtc.compile(SOURCE)
    return count_foreign_launch(output.ptx, output.cubin, output.arch, start)


def blank(*shape: int) -> BlankArray:
    return BlankArray(4 * int(np.prod(shape)))


STRIDED = KernelStart(
    "sum_by_grid_stride", (6, 1, 1), (128, 1, 1), {"x": blank(10000), "y": blank(192), "n": 10000}
)
ROWS = KernelStart(
    "normalize_rows", (5, 1, 1), (256, 1, 1), {"x": blank(5, 1000), "y": blank(5, 1000), "columns": 1000}
)
TILES = KernelStart(
    "multiply_tiles",
    (4, 3, 1),
    (32, 32, 1),
    {"A": blank(96, 160), "B": blank(160, 128), "C": blank(96, 128), "marks": blank(384), "n": 128, "k": 160},
)
BINS = KernelStart("add_to_bins", (8, 1, 1), (256, 1, 1), {"x": blank(2000), "bins": blank(1024), "n": 2000})


def run_with_data(start: KernelStart) -> Any:
    """The counters of a full run on zeros, and bytes by array argument that all accesses together touch."""
    arrays = [
        np.zeros(value.nbytes // 4, np.float32) if isinstance(value, BlankArray) else value
        for value in start.arguments.values()
    ]
    return launch(compile_ptx(), start.kernel_name, grid=start.grid, block=start.block, args=arrays).counters


@pytest.mark.parametrize("start", [STRIDED, ROWS, TILES, BINS], ids=lambda one: one.kernel_name)
def test_runs_of_all_blocks_are_those_of_a_full_run(start: KernelStart) -> None:
    blocks = int(np.prod(start.grid))
    warps = blocks * int(np.prod(start.block)) // 32
    counted = execute_blocks(compile_ptx(), start, range(blocks))
    expected = run_with_data(start).instructions
    assert len(counted.runs) == len(expected)
    for one, runs in counted.runs:
        assert runs * warps == pytest.approx(expected[one.line].warps), one.text


def test_accesses_are_those_of_a_full_run() -> None:
    for start in (STRIDED, ROWS, TILES, BINS):
        full, blocks = run_with_data(start), int(np.prod(start.grid))
        _, profile = count_launch(start)
        on_chip = [one for one in profile.accesses if one.space == "shared"]
        off_chip = [one for one in profile.accesses if one.space == "global"]
        sectors = blocks * sum(one.requests * one.sectors for one in off_chip)
        assert sectors == pytest.approx(full.global_sectors, rel=0.03), start.kernel_name
        requests = blocks * sum(one.requests for one in on_chip)
        # Two trips stand for all: the reduction halves its warps with each.
        assert requests == pytest.approx(full.shared_requests, rel=0.3), start.kernel_name


def test_footprints_of_a_matrix_product_are_panels() -> None:
    made, _ = count_launch(TILES)
    found = {(one.tensor, one.kind): (one.block_bytes, one.block_loops) for one in made.footprints}
    assert found == {
        ("A", "load"): (4 * 32 * 160, ((4, False), (3, True))),
        ("B", "load"): (4 * 160 * 32, ((4, True), (3, False))),
        ("C", "store"): (4 * 32 * 32, ((12, True),)),
        ("marks", "store"): (4 * 32, ((12, True),)),
    }
    assert made.scalars == (("n", 128), ("k", 160))
    for one in made.footprints:
        assert compute_compulsory_bytes(one) == one.tensor_bytes


def test_block_branches_for_one_warp_are_not_counted_for_all() -> None:
    """The products of one warp of 32."""
    _, profile = count_launch(TILES)
    assert profile.counts.fma32 == pytest.approx(160 + 64 / 32)


def test_loop_of_scalar_length_costs_by_its_length() -> None:
    longer = KernelStart(
        STRIDED.kernel_name, STRIDED.grid, STRIDED.block, {"x": blank(80000), "y": blank(192), "n": 80000}
    )
    kernels = [compile_foreign_kernel(SOURCE, "sm_80", [one]) for one in (STRIDED, longer)]
    loads = [get_launch_profiles(kernel)[0].counts.load_global for kernel in kernels]
    assert loads[1] / loads[0] == pytest.approx(8.0, rel=0.05)
    device = devices.open("a100@no-residual")
    assert device.time(kernels[1]).latency_s > device.time(kernels[0]).latency_s


def test_address_from_data_needs_the_data() -> None:
    lengths = np.arange(65, dtype=np.int32) * 3
    arrays = {"begin": lengths, "column": np.arange(192, dtype=np.int32), "value": np.zeros(192, np.float32),
              "x": np.zeros(192, np.float32), "y": np.zeros(64, np.float32)}  # fmt: skip
    name, shape = "multiply_sparse_rows", ((2, 1, 1), (32, 1, 1))
    blanks = {key: BlankArray(value.nbytes) for key, value in arrays.items()}
    with pytest.raises(EkcError, match="depends on this data: give arrays with content"):
        execute_blocks(compile_ptx(), KernelStart(name, *shape, blanks), (0,))
    found = execute_blocks(compile_ptx(), KernelStart(name, *shape, arrays), (0, 1))
    assert found.touched[2, "load"].bytes == 4 * 3 * 32
    assert found.touched[4, "store"].bytes == 4 * 32
    assert trace_block_loops(compile_ptx(), KernelStart(name, *shape, arrays))[2, "load"] == ((2, True),)


def test_data_that_pass_through_shared_memory_decide_loops() -> None:
    arrays = {"length": np.full(64, 5, np.int32), "value": np.zeros(320, np.float32), "y": np.zeros(64, "f4")}
    start = KernelStart("sum_by_lengths", (1, 1, 1), (64, 1, 1), arrays)
    assert execute_blocks(compile_ptx(), start, (0,)).touched[1, "load"].bytes == 4 * 320
    blanks = {key: BlankArray(value.nbytes) for key, value in arrays.items()}
    zeros = KernelStart("sum_by_lengths", (1, 1, 1), (64, 1, 1), blanks, has_zero_data=True)
    with pytest.raises(EkcError, match="depends on this data"):
        execute_blocks(compile_ptx(), zeros, (0,))


def read_columns(width: int, columns: int = 4096, rows: int = 16384) -> KernelStart:
    blocks = columns // width
    arrays = {"x": blank(rows, columns), "y": blank(blocks, 128)}
    numbers = {"columns": columns, "rows": rows, "width": width}
    return KernelStart("read_columns", (blocks, 1, 1), (128, 1, 1), arrays | numbers)


def test_sectors_fetched_alone_cost_the_dram_twice() -> None:
    """256 MiB in all. A block of 8 columns reads single sectors, one of 16 columns pairs of them; all bytes
    of a sector cross L2 where a block needs a few of them."""
    kernels = {n: compile_foreign_kernel(SOURCE, "sm_80", [read_columns(n)]) for n in (2, 8, 16)}
    events = {
        n: compute_work(A100, kernel, get_launch_profiles(kernel)).launches[0][0]
        for n, kernel in kernels.items()
    }
    whole = 4.0 * 4096 * 16384
    assert events[16].traffic.dram_bytes == pytest.approx(whole, rel=0.05)
    assert events[8].traffic.dram_bytes == pytest.approx(2 * whole, rel=0.05)
    assert events[8].traffic.l2_bytes == pytest.approx(whole, rel=0.05)
    assert events[2].traffic.l2_bytes > 3.9 * whole


def test_unknown_kernel_is_refused_with_the_names() -> None:
    with pytest.raises(InvalidInput, match="no kernel 'other' in this text; kernels are"):
        compile_foreign_kernel(SOURCE, "sm_80", [KernelStart("other", (1, 1, 1), (32, 1, 1), {})])


def normalize(footprint: Footprint) -> tuple[float, tuple[tuple[int, bool], ...]]:
    """Bytes and loops, without loops of one trip, neighbours that both move or both stay as one."""
    loops: list[tuple[int, bool]] = []
    for extent, moves in footprint.block_loops:
        if extent > 1 and loops and loops[-1][1] == moves:
            loops[-1] = loops[-1][0] * extent, moves
        elif extent > 1:
            loops.append((extent, moves))
    return footprint.block_bytes, tuple(loops)


OPERATORS = {
    "matmul": o.matmul(64, 96, 64),
    "half": o.matmul(128, 64, 96, dtype="float16"),
    "batch": o.batch_matmul(4, 32, 64, 48),
    "matvec": o.matvec(256, 192),
    "softmax": o.softmax((64, 512)),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.exhaustive] * (x in ("matmul", "batch"))) for x in OPERATORS],
)
def test_footprints_from_addresses_are_those_of_the_schedule(name: str) -> None:
    """Holds for every kernel whose tiles divide its tensors. Elsewhere the addresses may end before the
    box of a schedule does."""
    op = OPERATORS[name]
    space, random = Space(op, LIMITS), np.random.default_rng(5)
    population, _ = space.repair(random, space.sample(random, 24))
    compared = 0
    for row in range(len(population)):
        kernel = compile_schedule(space.build_schedule(population, row), "sm_80")
        for one, static in zip(kernel.launches, profile_kernel(kernel), strict=True):
            arrays = {n: BlankArray(size) for n, size in zip(one.arguments, one.argument_bytes, strict=True)}
            start = KernelStart(one.name, one.grid, one.block, arrays, one.shared_bytes)
            made, profile = count_foreign_launch(kernel.ptx, kernel.cubin, kernel.arch, start)
            found = {(f.tensor, f.kind): f for f in made.footprints}
            for wanted in one.footprints:
                other = found[wanted.tensor, wanted.kind]
                assert other.block_bytes <= wanted.block_bytes
                if divides(wanted):
                    compared += 1
                    assert normalize(other) == normalize(wanted)
            # Both are means over the same blocks, added in another order.
            executed, counted = vars(profile.counts), vars(static.counts)
            assert executed == {
                name: value if isinstance(value, dict) else pytest.approx(value)
                for name, value in counted.items()
            }
            assert profile.machine == static.machine
        if compared >= 6:
            return
    assert compared >= 4


def divides(footprint: Footprint) -> bool:
    """Whether the blocks that differ in this tensor fill it exactly."""
    panels = np.prod([extent for extent, moves in footprint.block_loops if moves])
    return bool(panels * footprint.block_bytes == footprint.tensor_bytes)


COMPARED_OPERATORS = {
    "convolution": o.conv2d(1, 16, 28, 28, out_channels=32, kernel=3, padding=1),
    "strided": o.conv2d(2, 3, 56, 56, out_channels=16, kernel=7, padding=3, stride=2),
    "grouped": o.conv2d(2, 32, 14, 14, out_channels=32, kernel=3, padding=1, groups=4, dtype="float16"),
    "uneven": o.matmul(250, 250, 250),
    "odd": o.matmul(127, 255, 63),
    "half": o.matmul(256, 256, 256, dtype="float16"),
}


@pytest.mark.parametrize("kernels", [2, pytest.param(17, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", COMPARED_OPERATORS)
def test_kernel_costs_the_same_without_its_schedule(name: str, kernels: int) -> None:
    device = devices.open("a100@no-residual")
    space, random = Space(COMPARED_OPERATORS[name], device.limits), np.random.default_rng(0)
    population, _ = space.repair(random, space.sample(random, 4 * kernels))
    compared = 0
    for row in range(kernels):
        kernel = compile_schedule(space.build_schedule(population, row), device.arch, device.limits)
        starts = [
            KernelStart(
                one.name,
                one.grid,
                one.block,
                {x: BlankArray(size) for x, size in zip(one.arguments, one.argument_bytes, strict=True)},
                one.shared_bytes,
            )
            for one in kernel.launches
        ]
        alone = compile_foreign_kernel(kernel.cuda_source, device.arch, starts)
        if alone.cubin != kernel.cubin:
            # NVRTC makes one of several codes of a text.
            continue
        compared += 1
        # A device of its own for each, as a board warms up.
        fresh = [devices.open("a100@no-residual") for _ in range(2)]
        times = [one.time(which).latency_s for one, which in zip(fresh, (kernel, alone), strict=True)]
        joules = [one.meter(which).energy_j for one, which in zip(fresh, (kernel, alone), strict=True)]
        assert times[1] == pytest.approx(times[0], rel=0.02)
        assert joules[1] == pytest.approx(joules[0], rel=0.02)
    # Few texts have several codes: of 17 convolutions one.
    assert 2 * compared >= kernels
