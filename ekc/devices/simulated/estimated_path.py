"""The path of a warp before its kernel is compiled, from the counts of an analysis.

A compiled kernel has its machine code for that (`ekc/machine_code/warp_path.py`). All arguments may be arrays
with one entry per schedule. The constants were fitted when the latency model had no other path: CLBlast rows
of three cards and recordings/h100, fitted halves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.devices.simulated.latency import PIPELINED_EXPOSURE, TENSOR_LATENCY_CYCLES, WARP_PATH_FACTOR
from ekc.machine_code.warp_path import L1_CYCLES, LOAD_CYCLES

Number = Any
"""A number, or an array with one entry per schedule."""

UNROLLED_OPERATIONS, MAX_UNROLLED_TRIPS = 150.0, 16.0
"""Operations on floats in a loop body up to which ptxas unrolls a loop, by powers of two, and issues the
loads of these trips together; most trips of one body."""
DIRECT_WORDS_IN_FLIGHT, TILE_WORDS_IN_FLIGHT = 32.0, 16.0
"""Registers of one thread that wait for loads at the same time, of operands and of tiles; other loads of a
trip wait for these."""
ARITHMETIC_LATENCY_CYCLES, SHARED_LATENCY_CYCLES = 4.5, 29.0
CHAIN_CYCLES = 2.5
"""Cycles from one instruction that computes no float to the next of its warp: addresses and conditions wait
for each other, however many registers there are."""


def estimate_path_cycles(
    *,
    registers: Number,
    floats: Number,
    others: Number,
    products: Number,
    shared_requests: Number,
    local_requests: Number,
    load_rounds: Number,
) -> Any:
    """Cycles of a warp that has an SM for itself, [..., 4], from what it executes: operations on floats,
    other instructions, products on tensor cores, requests, and the times that it waits for global loads."""
    parallel = _estimate_parallelism(registers)
    cycles = floats * np.maximum(1.0, ARITHMETIC_LATENCY_CYCLES / parallel)
    cycles = cycles + others * np.maximum(CHAIN_CYCLES, ARITHMETIC_LATENCY_CYCLES / parallel)
    cycles = cycles + products * TENSOR_LATENCY_CYCLES / parallel
    cycles = cycles + shared_requests * SHARED_LATENCY_CYCLES / parallel
    cycles = cycles + (local_requests / parallel + load_rounds) * L1_CYCLES
    beyond_l1 = np.array(LOAD_CYCLES) - L1_CYCLES
    path, rounds = np.broadcast_arrays(np.asarray(cycles, np.float64) / WARP_PATH_FACTOR, load_rounds)
    return path[..., np.newaxis] + rounds[..., np.newaxis] * beyond_l1


def estimate_load_rounds(words: Number, trips: Number, words_in_flight: float) -> Number:
    """Times that one warp waits for loads: once a trip, or more often where the loads of a trip have more
    words than are in flight at a time."""
    return np.where(words > 0, trips * np.ceil(words / trips / words_in_flight), 0.0)


def unroll_trips(trips: Number, operations: Number) -> Number:
    """Trips of a loop with so many operations on floats in all, as they are once ptxas has unrolled it."""
    together = np.minimum(UNROLLED_OPERATIONS / np.maximum(operations / trips, 1.0), MAX_UNROLLED_TRIPS)
    return trips / 2.0 ** np.floor(np.log2(np.clip(together, 1.0, trips)))


def estimate_exposed_share(tile_trips: Number, barriers: Number, tile_waits: Number) -> Number:
    """Share of the latency of loads that fill tiles which the warp waits for. One barrier per tile means two
    buffers: the next tile loads while this one computes. Where the warp waits for copies, barriers belong to
    the copies. The first tile has nothing to hide behind."""
    is_pipelined = (tile_waits == 0) & (barriers <= 1.3 * tile_trips + 1.0)
    first_share = 1.0 / np.maximum(tile_trips, 1.0)
    return np.where(is_pipelined, first_share + (1.0 - first_share) * PIPELINED_EXPOSURE, 1.0)


def _estimate_parallelism(registers: Number) -> Number:
    """Independent instructions in flight per warp: their results need registers (estimate)."""
    return np.clip((registers - 20) / 10.0, 1.0, 8.0)
