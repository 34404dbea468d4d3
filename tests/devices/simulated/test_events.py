from dataclasses import replace

import numpy as np

import ekc
from ekc.codegen.compiled import CompiledKernel, Resources
from ekc.devices.simulated.events import Events, count_events
from ekc.devices.simulated.launch_counts import compute_occupancy, profile_kernel
from ekc.devices.simulated.specs import A100, RTX2080TI, RTX3090
from ekc.machine_code.decode import decode_functions
from tests.devices import samples

EXIT = 0x14D
"""Lowest nine bits of the instruction that ends a warp."""


def counted(kernel: CompiledKernel, resources: Resources | None = None) -> Events:
    launch, found = kernel.launches[0], resources or kernel.resources[0]
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    resident = compute_occupancy(A100.capability, threads, found.registers, found.shared_bytes)
    return count_events(A100, launch, found, profile_kernel(kernel)[0], resident, kept_share=0.0)


def test_matmul_multiplies_m_n_k_times() -> None:
    kernel = samples.sgemm(1024)
    assert counted(kernel).fma32 * 32 * 2 == kernel.flops


def test_copy_moves_every_byte_once() -> None:
    moved = counted(samples.copy(1 << 26)).traffic
    assert moved.sectors * 32 == moved.l2_bytes == moved.dram_bytes == 8 * (1 << 26)


def test_dram_bytes_are_between_touched_and_requested() -> None:
    for kernel in (samples.sgemm(4096), samples.naive(4096), samples.matvec(2048)):
        moved = counted(kernel).traffic
        assert 0.999 * kernel.min_bytes <= moved.dram_bytes <= moved.l2_bytes <= moved.sectors * 32


def test_neighbours_find_each_other_in_l1() -> None:
    scattered, dense = (counted(samples.naive(4096, coalesced=way)) for way in (False, True))
    # Lanes with a distance of rows take a pass each, but the lines they share with the next trips stay:
    # recorded GEMMs whose lanes are strided (RTX 3090, RTX 2080 Ti) are as fast as that allows and no slower.
    assert scattered.lsu_cycles > 8 * dense.lsu_cycles
    assert scattered.traffic.l2_bytes < 0.1 * scattered.traffic.sectors * 32


def _compile_rows(extent: int) -> CompiledKernel:
    """A product of 65536 rows in blocks of 16 rows: every block reads the whole of B."""
    schedule = (
        ekc.Schedule(ekc.matmul(65536, extent, extent))
        .split("i", (16,))
        .split("j", (16,))
        .reorder("i.0", "i.1", "j.1", "j.0", "k")
        .bind("i.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
    )
    return ekc.compile(schedule, arch="sm_80").compiled


def test_data_of_all_blocks_stay_in_l1_if_they_fit() -> None:
    blocks, moved = 4096, {n: counted(_compile_rows(n)).traffic.l2_bytes for n in (64, 1024)}
    own = {n: 2 * 4 * 65536 * n for n in moved}
    shared = {n: blocks * 4 * n * n for n in moved}
    # 16 KiB come to each SM once, but for what is lost between reads; 4 MiB come to each block.
    assert moved[64] - own[64] < 0.5 * shared[64]
    assert moved[1024] - own[1024] > 0.9 * shared[1024]


def test_addresses_and_data_both_take_the_load_store_unit() -> None:
    kernel = samples.copy(1 << 20)
    requests = counted(kernel).traffic.requests
    assert counted(kernel).lsu_cycles == 4 * requests
    launch, found = kernel.launches[0], kernel.resources[0]
    (ran,) = profile_kernel(kernel)
    narrow = replace(ran, accesses=tuple(replace(one, wavefronts=1.0) for one in ran.accesses))
    for spec, cycles in ((A100, 1), (RTX3090, 3), (RTX2080TI, 2)):
        resident = compute_occupancy(spec.capability, 256, 16, 0)
        assert count_events(spec, launch, found, narrow, resident).lsu_cycles == cycles * requests


def test_spills_cost_local_accesses_where_ptxas_put_them() -> None:
    """Four blocks on an SM leave 64 registers: ptxas spills in the loop of 128 tiles and around it."""
    clean, spilled = (counted(samples.sgemm(1024, blocks_per_sm=n)) for n in (1, 4))
    assert clean.local_requests == 0
    code = decode_functions(samples.sgemm(1024, blocks_per_sm=4).cubin, "sm_80")["sgemm"]
    ((first, last),) = code.loops
    spills = np.flatnonzero(code.find("LDL", "STL"))
    inside = np.count_nonzero((first <= spills) & (spills <= last))
    assert 0 < inside < len(spills)
    assert spilled.local_requests == spilled.warps * (128 * inside + len(spills) - inside)
    assert spilled.traffic.l2_bytes > clean.traffic.l2_bytes


def test_accesses_include_those_of_the_machine_code() -> None:
    """By hand: 8 tiles of K; copies of float4, transposed stores of A, reads of 64 + 64 columns."""
    (found,) = profile_kernel(samples.sgemm(64 * 2))
    trips = 128 / 8
    table = {
        (a.tensor, a.space, a.kind, a.bytes_per_lane, a.sectors, a.wavefronts): a for a in found.accesses
    }
    requests = {key: a.requests for key, a in table.items()}
    assert requests == {
        # The first tile is loaded ahead of the loop, every other one in the trip before its use.
        ("A", "global", "load", 16, 16.0, 16.0): 8 * trips,  # 16 rows: 16 lines
        ("B", "global", "load", 16, 16.0, 4.0): 8 * trips,
        # Two rows of a lane pair have a distance of 4 x 132 words: 16 banks.
        ("", "shared", "store", 4, 0.0, 1.0): 32 * trips,
        ("", "shared", "store", 16, 0.0, 4.0): 8 * trips,
        # Four registers a lane take four passes; two where neighbours read the same.
        ("", "shared", "load", 16, 0.0, 2.0): 128 * trips,
        ("", "shared", "load", 16, 0.0, 4.0): 128 * trips,
        ("C", "global", "store", 16, 16.0, 4.0): 128.0,
    }


def test_copy_issues_the_instructions_of_its_listing() -> None:
    kernel = samples.copy(1 << 20)
    found, code = counted(kernel), decode_functions(kernel.cubin, "sm_80")["copy"]
    # Without a loop a warp executes all up to its EXIT; a branch to itself and padding follow.
    (end,) = np.flatnonzero(code.opcodes == EXIT)
    assert found.issued_instructions == found.warps * (end + 1)
