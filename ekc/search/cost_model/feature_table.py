"""The features of a schedule: one table of their names, units, meanings and places in the IR.

A feature is a quantity of the analysis (`ekc.ir.analysis`), or the ratio of two. None comes from a compiled
kernel or from the model of a simulated device. Counts of instructions are of warps: one instruction that 32
lanes execute together counts once. Counts are of a whole call, unless the meaning says "of a block" or "of a
thread". With several launches, counts are sums; shape and occupancy are of the launch with most arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scale(Enum):
    """How the models see a feature."""

    LOG = "log2(1 + value)"
    AS_IS = "the value"


@dataclass(frozen=True)
class Feature:
    """A feature of a schedule."""

    name: str
    unit: str
    meaning: str
    source: str
    """Where in the IR it comes from."""
    quantity: str
    """Quantity of the analysis."""
    divisor: str = ""
    """Quantity that it is divided by, which counts as 1 at least; "": none."""
    scale: Scale = Scale.LOG


def _count(name: str, unit: str, meaning: str, source: str, quantity: str = "") -> Feature:
    return Feature(name, unit, meaning, source, quantity or f"total_{name}")


def _own(name: str, unit: str, meaning: str, source: str) -> Feature:
    return _count(name, unit, meaning, source, name)


def _share(name: str, meaning: str, source: str) -> Feature:
    return Feature(name, "1", meaning, source, name, scale=Scale.AS_IS)


def _ratio(name: str, unit: str, meaning: str, quantity: str, divisor: str) -> Feature:
    return Feature(name, unit, meaning, "ratio of two features", quantity, divisor)


_REQUEST, _WAVEFRONT, _SECTOR, _INSTRUCTION = "requests", "wavefronts", "sectors of 32 bytes", "instructions"
_NODES = "compute nodes"

FEATURES = (
    _count("operations", _INSTRUCTION, "arithmetic on lanes, without tensor cores", _NODES),
    _count("loop_steps", "trips", "trips of loops that are not unrolled", "loop nodes"),
    _count("barriers", _INSTRUCTION, "barriers of a block", "barrier nodes"),
    _count("shuffles", _INSTRUCTION, "exchanges between lanes of a warp", "reduce nodes"),
    _count("conversions", _INSTRUCTION, "conversions between element types", "accesses and their types"),
    _count("guards", _INSTRUCTION, "bounds checks", "guards of accesses and computes"),
    _count("global_load_requests", _REQUEST, "loads from global memory", "stages and accesses"),
    _count("global_load_sectors", _SECTOR, "sectors that these loads touch", "address strides of lanes"),
    _count("global_store_requests", _REQUEST, "stores to global memory", "write nodes"),
    _count("global_store_sectors", _SECTOR, "sectors that these stores touch", "address strides of lanes"),
    _count("shared_load_requests", _REQUEST, "loads from shared memory", "stages and accesses"),
    _count(
        "shared_load_wavefronts",
        _WAVEFRONT,
        "passes through the banks of these loads",
        "bank conflicts",
    ),
    _count("shared_store_requests", _REQUEST, "stores to shared memory", "copies of tiles"),
    _count(
        "shared_store_wavefronts",
        _WAVEFRONT,
        "passes through the banks of these stores",
        "bank conflicts",
    ),
    _count("global_load_bytes", "bytes", "bytes that all lanes load from global memory", "accesses"),
    _count("shared_load_bytes", "bytes", "bytes that all lanes load from shared memory", "accesses"),
    _own("l2_bytes", "bytes", "traffic of L2 if L1 holds what a block reads again", "regions of stages"),
    _own("dram_bytes", "bytes", "traffic of DRAM if the blocks of a wave share L2", "regions of stages"),
    _own("block_bytes", "bytes", "distinct bytes that a block accesses", "regions of stages"),
    _own("shared_bytes", "bytes", "shared memory of a block", "buffers"),
    _own("threads", "threads", "threads of a block", "bound loops"),
    _own("blocks", "blocks", "blocks of the grid", "bound loops"),
    _own("registers", "registers", "registers of a thread, estimated", "buffers, prefetched tiles"),
    _own(
        "prefetched",
        "registers",
        "registers of a thread that hold the next tiles",
        "pipelined loops",
    ),
    _own("accumulators", "elements", "accumulators of a thread", "cache_write"),
    _own("statements", "statements", "statements of the text, unrolled loops included", "all nodes"),
    _own(
        "waves",
        "waves",
        "times that the grid fills all multiprocessors, rounded up",
        "grid and occupancy",
    ),
    _own("resident_blocks", "blocks", "blocks that fit on a multiprocessor at once", "occupancy"),
    _own(
        "active_warps",
        "warps",
        "warps of a multiprocessor that has most blocks",
        "grid and occupancy",
    ),
    _share("occupancy", "resident threads over those that a multiprocessor can hold", "occupancy"),
    _share("wave_use", "blocks over the places of all waves", "grid and occupancy"),
    _share("balance", "mean over largest number of blocks of the multiprocessors", "grid"),
    _share("lane_use", "threads over lanes of their warps", "bound loops"),
    _share("useful_share", "multiply-adds of the operator over those executed", "guards and padding"),
    Feature(
        "pipeline",
        "stages",
        "copies of a tile that are under way, at most",
        "pipeline",
        "pipeline",
        scale=Scale.AS_IS,
    ),
    _ratio(
        "operations_per_shared_load",
        "1",
        "reuse of a load from shared memory",
        "total_operations",
        "total_shared_load_requests",
    ),
    _ratio(
        "operations_per_global_load",
        "1",
        "reuse of a load from global memory",
        "total_operations",
        "total_global_load_requests",
    ),
    _ratio(
        "sectors_per_global_load",
        "1",
        "coalescing: 4 where 32 lanes load neighbours of 4 bytes",
        "total_global_load_sectors",
        "total_global_load_requests",
    ),
    _ratio(
        "wavefronts_per_shared_load",
        "1",
        "bank conflicts of loads; 1: none",
        "total_shared_load_wavefronts",
        "total_shared_load_requests",
    ),
    _ratio(
        "wavefronts_per_shared_store",
        "1",
        "bank conflicts of stores; 1: none",
        "total_shared_store_wavefronts",
        "total_shared_store_requests",
    ),
    _ratio(
        "operations_per_barrier",
        "1",
        "arithmetic between two barriers",
        "total_operations",
        "total_barriers",
    ),
)
"""The features, in the order of the models' inputs."""
FEATURE_NAMES = tuple(f.name for f in FEATURES)


@dataclass(frozen=True)
class DeviceFact:
    """A fact of a device beside the features."""

    name: str
    unit: str
    meaning: str


DEVICE_FACTS = (
    DeviceFact("device_fp32_flops", "flop/s", "peak rate of float32 on lanes"),
    DeviceFact("device_fp16_flops", "flop/s", "peak rate of float16, on tensor cores where it has them"),
    DeviceFact("device_dram_bytes_per_s", "byte/s", "peak rate of DRAM"),
    DeviceFact("device_board_power_w", "W", "power cap of the board"),
    DeviceFact("device_sms", "multiprocessors", "multiprocessors"),
)
"""The facts of a device, in the order of the models' inputs."""
