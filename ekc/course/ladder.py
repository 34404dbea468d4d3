"""The ladder: kernels for one matrix product, each with one change, and a table of their figures.

Latency and energy are those of the model of a simulated device, without the noise of a meter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ekc import devices
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.launch_counts import Occupancy, compute_launch_occupancy
from ekc.devices.simulated.specs import SPECS, Capability
from ekc.emulator import Counters
from ekc.emulator.launch import launch
from ekc.errors import InvalidInput
from ekc.ir.drawing.ownership import compute_block_tile
from ekc.ir.dtypes import parse_dtype
from ekc.ir.hardware.memory import WARP
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.operators import matmul
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.kernel import compile
from ekc.search.data.result import compute_roofline_bound
from ekc.search.explain.by_event import explain
from ekc.tables import format_table

DEVICE = "a100@no-residual"
"""Device of the course: a simulated A100 that follows its model exactly."""
SIZE = 512
"""Rows and columns of the matrices of the ladder."""


@dataclass(frozen=True)
class Figures:
    """Simulated figures of one call of a kernel."""

    us: float
    """Latency in microseconds."""
    mj: float
    """Energy in millijoules, of the whole board."""
    roofline: float
    """Least time on the roofline divided by the latency."""
    label: str
    """The device."""

    @property
    def watts(self) -> float:
        """Mean power in watts."""
        return self.mj / self.us * 1e3

    def __repr__(self) -> str:
        return (
            f"{self.label}: {self.us:.1f} us, {self.mj:.2f} mJ, {self.watts:.0f} W, "
            f"{100 * self.roofline:.1f}% of the roofline"
        )


def open_device(name: str = DEVICE) -> SimulatedDevice:
    """Open a simulated device. Raises `InvalidInput` for any other."""
    device = devices.open(name)
    if not isinstance(device, SimulatedDevice):
        raise InvalidInput(f"the course measures on simulated devices, and {name} is none; try {DEVICE}")
    return device


@cache
def measure(schedule: Schedule, target: str = DEVICE) -> Figures:
    """Compile a schedule and ask the model of a simulated device for its time and energy."""
    device = open_device(target)
    found = device.break_down_energy(compile(schedule, device=device).compiled)
    latency_s = float(found.latency_s)
    share = compute_roofline_bound(schedule.op, device.peaks).least_s / latency_s
    return Figures(latency_s * 1e6, float(found.energy_j) * 1e3, share, device.label)


@dataclass(frozen=True)
class BlockCounts:
    """Memory accesses of the first block of a kernel, counted by executing it on the CPU."""

    counters: Counters
    """All counts of the block."""

    @property
    def conflicts(self) -> int:
        """Bank conflicts: passes through shared memory beyond those that are needed."""
        return self.counters.bank_conflicts

    @property
    def barriers(self) -> int:
        """Barriers that the block passes."""
        return self.counters.barriers

    def sectors_of_loads(self) -> tuple[float, ...]:
        """Mean sectors of a request, for each load from global memory, in the order of the PTX."""
        sites = self.counters.instructions.values()
        return tuple(x.sectors / x.requests for x in sites if x.kind == "load.global")

    def __repr__(self) -> str:
        headers = ("instruction", "requests", "sectors a request", "passes a request", "bank conflicts")
        rows = [
            (
                site.instruction.partition(" ")[0],
                str(site.requests),
                f"{site.sectors / site.requests:.1f}" if site.sectors else "",
                f"{site.wavefronts / site.requests:.1f}" if site.wavefronts else "",
                str(site.conflicts) if site.wavefronts else "",
            )
            for site in self.counters.instructions.values()
            if site.requests and not site.kind.endswith((".const", ".param"))
        ]
        title = f"First block, executed on the CPU; it passes {self.barriers} barriers"
        return format_table(headers, rows, f"{title}\n")


def measure_warp_shape(schedule: Schedule) -> tuple[int, int]:
    """Rows and columns of C that the first warp of a block computes."""
    tile = compute_block_tile(derive_launches(schedule.program)[0])
    index = tile.index[tile.thread < WARP]
    return len(np.unique(index[:, 0])), len(np.unique(index[:, 1]))


def occupancy(schedule: Schedule) -> Occupancy:
    """Blocks and warps of a kernel that an SM of the simulated A100 holds at a time, and what limits them."""
    kernel = compile(schedule, device=open_device())
    return compute_launch_occupancy(find_capability(), kernel.launches[0], kernel.resources[0])


@cache
def find_capability() -> Capability:
    """Resources of an SM of the device of the course."""
    return SPECS[DEVICE.partition("@")[0]].capability


@cache
def count(schedule: Schedule) -> BlockCounts:
    """Execute the first block of a kernel on the CPU, and count. `InvalidInput` for several launches."""
    kernel = compile(schedule, arch=open_device().arch)
    if len(kernel.launches) > 1:
        raise InvalidInput(f"count: this schedule makes {len(kernel.launches)} launches; take one with one")
    (start,) = kernel.launches
    random = np.random.default_rng(0)
    # Values do not matter to the counts; those of the result are written.
    arrays = [
        random.standard_normal(tensor.shape).astype(parse_dtype(tensor.dtype).numpy_dtype)
        for tensor in (*schedule.op.inputs, *schedule.op.outputs)
    ]
    report = launch(
        kernel.ptx,
        start.name,
        grid=start.grid,
        block=start.block,
        args=arrays,
        dynamic_shared=start.shared_bytes,
        blocks=[0],
    )
    return BlockCounts(report.counters)


@dataclass(frozen=True)
class EnergyCauses:
    """Simulated energy of two kernels by cause, in millijoules of one call, largest difference first."""

    rows: tuple[tuple[str, float, float], ...]
    """Cause, energy of the first kernel, energy of the second."""
    label: str
    """The device."""

    def __repr__(self) -> str:
        total = ("all", sum(a for _, a, _ in self.rows), sum(b for _, _, b in self.rows))
        lines = [(name, f"{a:.3f}", f"{b:.3f}", f"{b - a:+z.3f}") for name, a, b in (*self.rows, total)]
        headers = ("cause", "first [mJ]", "second [mJ]", "difference [mJ]")
        return format_table(headers, lines, f"{self.label}: energy of one call by cause, by the model\n")


@cache
def measure_clocks(schedule: Schedule) -> dict[int, Figures]:
    """Simulated figures at every clock of the device, by clock in MHz."""
    device = open_device()
    kernel = compile(schedule, device=device).compiled
    figures = {}
    for mhz in device.clocks().mhz:
        found = device.at_clock(mhz).break_down_energy(kernel)
        figures[mhz] = Figures(float(found.latency_s) * 1e6, float(found.energy_j) * 1e3, 0.0, device.label)
    return figures


def compare_energy(first: Schedule, second: Schedule) -> EnergyCauses:
    """Compare two schedules by the causes of their energy. Raises `InvalidInput` for different operators."""
    device = open_device()
    found = explain(first, second, device)
    rows = ((x.cause, float(x.energy_a_j) * 1e3, float(x.energy_b_j) * 1e3) for x in found.lines)
    return EnergyCauses(tuple(row for row in rows if row[1] or row[2]), device.label)


def make_naive(size: int) -> Schedule:
    """One element a thread; neighbouring threads in neighbouring rows."""
    return _cut_blocks(size).bind("i.1", "thread.x").bind("j.1", "thread.y").cache_write("C")


def make_coalesced(size: int) -> Schedule:
    """One element a thread; neighbouring threads in neighbouring columns."""
    return _cut_blocks(size).bind("i.1", "thread.y").bind("j.1", "thread.x").cache_write("C")


def make_shared(size: int) -> Schedule:
    """Tiles of 16 x 16 of both factors in shared memory."""
    tiles = _cut_blocks(size, depth=16).bind("i.1", "thread.y").bind("j.1", "thread.x").cache_write("C")
    return tiles.cache_read("A", "shared", at="k.0").cache_read("B", "shared", at="k.0")


def _cut_blocks(size: int, depth: int | None = None) -> Schedule:
    """Tiles of 16 x 16 on blocks, and k cut by `depth`."""
    cut = Schedule(matmul(size, size, size)).split("i", (16,)).split("j", (16,))
    cut = cut if depth is None else cut.split("k", (depth,))
    cut = cut.reorder("i.0", "j.0", "i.1", "j.1", *(["k"] if depth is None else ["k.0", "k.1"]))
    return cut.bind("i.0", "block.y").bind("j.0", "block.x")


def tiled(
    threads: tuple[int, int] = (16, 16),
    tile: tuple[int, int] = (4, 4),
    depth: int = 16,
    vector: int = 4,
    stages: int = 2,
    size: int = SIZE,
) -> Schedule:
    """A product with tiles in shared memory and in registers; lesson 4 writes it step by step.

    threads, tile: rows x columns of threads in a block, and of elements in a thread. depth: elements of k in
    a tile of shared memory. vector: elements that one load moves; above 1 the tile of A is transposed.
    stages: tiles in flight. size: rows and columns of the matrices. Raises `ScheduleError` where that is not
    legal.
    """
    layout: dict[str, Any] = {"order": (1, 0), "pad": 4} if vector > 1 else {}
    schedule = (
        Schedule(matmul(size, size, size))
        .split("i", (threads[0], tile[0]))
        .split("j", (threads[1], tile[1]))
        .split("k", (depth,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C", vector=min(vector, tile[1]))
        .cache_read("A", "shared", at="k.0", vector=vector, **layout)
        .cache_read("B", "shared", at="k.0", vector=vector)
        .cache_read("A.shared", "register", at="k.1", vector=min(vector, tile[0]))
        .cache_read("B.shared", "register", at="k.1", vector=min(vector, tile[1]))
    )
    return schedule.pipeline("k.0", stages=stages) if stages > 1 else schedule


def make_tensor_product(
    size: int = SIZE, warps: int = 2, tiles: tuple[int, int] = (2, 4), depth: int = 2, stages: int = 2
) -> Schedule:
    """A product of float16 on tensor cores; lesson 7 explains the arguments."""
    return (
        Schedule(matmul(size, size, size, dtype="float16"))
        .split("i", (warps, tiles[0], 2, 8))
        .split("j", (warps, tiles[1], 4, 2))
        .split("k", (depth, 16))
        .reorder("i.0", "j.0", "i.1", "j.1", "i.4", "j.3", "k.0", "k.1", "i.2", "j.2", "i.3", "j.4", "k.2")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.y")
        .bind("i.4", "thread.x")
        .bind("j.3", "thread.x")
        .cache_write("C", vector=2)
        .cache_read("A", "shared", at="k.0", vector=8, pad=8)
        .cache_read("B", "shared", at="k.0", vector=8, pad=8)
        .cache_read("A.shared", "fragment", at="k.1")
        .cache_read("B.shared", "fragment", at="k.1")
        .pipeline("k.0", stages=stages, copy="async")
        .tensorize("k.2", "mma.m16n8k16")
    )


RUNGS: dict[str, Callable[[int], Schedule]] = {
    "naive": make_naive,
    "coalesced": make_coalesced,
    "shared memory": make_shared,
    "register tile": lambda size: tiled(vector=1, stages=1, size=size),
    "vector loads": lambda size: tiled(stages=1, size=size),
    "smaller blocks": lambda size: tiled(threads=(8, 8), stages=1, size=size),
    "pipelined": lambda size: tiled(size=size),
}
"""Name of each rung -> the function that makes its schedule from the size of the matrices."""


def rung(name: str, size: int = SIZE) -> Schedule:
    """The schedule of a rung, for a product of size x size matrices of float32.

    Raises `InvalidInput` for an unknown name; the message lists the rungs.
    """
    if name not in RUNGS:
        raise InvalidInput(f"no rung {name!r}; rungs are {', '.join(RUNGS)}")
    return RUNGS[name](size)


@dataclass(frozen=True)
class Ladder:
    """A table of kernels and their simulated figures. `add` returns a new ladder with one more row."""

    rows: tuple[tuple[str, Figures], ...] = ()

    @classmethod
    def up_to(cls, last: str, target: str = DEVICE) -> Ladder:
        """All rungs from the first to a named one. Raises `InvalidInput` for an unknown name."""
        rung(last)
        names = list(RUNGS)[: list(RUNGS).index(last) + 1]
        return cls(tuple((name, measure(rung(name), target)) for name in names))

    def add(self, name: str, schedule: Schedule, target: str = DEVICE) -> Ladder:
        """Measure a schedule and add it as the last row."""
        return Ladder((*self.rows, (name, measure(schedule, target))))

    def __repr__(self) -> str:
        if not self.rows:
            return "a ladder without a rung"
        first = self.rows[0][1]
        headers = ("rung", "time [us]", "power [W]", "energy [mJ]", "of roofline", "faster", "less energy")
        rows = [
            (
                name,
                f"{f.us:.1f}",
                f"{f.watts:.0f}",
                f"{f.mj:.2f}",
                f"{100 * f.roofline:.1f}%",
                f"{first.us / f.us:.1f}x",
                f"{first.mj / f.mj:.1f}x",
            )
            for name, f in self.rows
        ]
        labels = " and ".join(dict.fromkeys(f.label for _, f in self.rows))
        return format_table(headers, rows, f"{labels}: figures of a model, nothing ran on a GPU\n")
