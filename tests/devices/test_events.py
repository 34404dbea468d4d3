from dataclasses import replace

import pytest

from ekc.codegen.compiled import AccessSite, CompiledKernel, Resources
from ekc.devices.events import Events, events
from ekc.devices.occupancy import occupancy
from ekc.devices.ptx.counts import Counts, count
from ekc.devices.specs import A100
from ekc.devices.traffic import lines
from tests.devices import samples


def counted(kernel: CompiledKernel, resources: Resources | None = None) -> Events:
    launch, found = kernel.launches[0], resources or kernel.resources[0]
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    resident = occupancy(A100.capability, threads, found.registers, found.shared_bytes)
    return events(A100, launch, found, count(kernel.ptx, launch.name), resident)


def test_a_product_multiplies_as_often_as_it_must() -> None:
    kernel = samples.sgemm(1024)
    assert counted(kernel).fma32 * 32 * 2 == kernel.flops


def test_a_copy_moves_every_byte_once() -> None:
    moved = counted(samples.copy(1 << 26)).traffic
    assert moved.sectors * 32 == moved.l2_bytes == moved.dram_bytes == 8 * (1 << 26)


def test_dram_stays_between_what_must_and_what_was_asked() -> None:
    for kernel in (samples.sgemm(4096), samples.naive(4096), samples.matvec(2048)):
        moved = counted(kernel).traffic
        assert 0.999 * kernel.min_bytes <= moved.dram_bytes <= moved.l2_bytes <= moved.sectors * 32


def test_neighbours_find_each_other_in_l1() -> None:
    scattered, dense = (counted(samples.naive(4096, coalesced=dense)).traffic for dense in (False, True))
    assert scattered.l2_bytes > 4 * dense.l2_bytes
    assert scattered.l2_bytes < scattered.sectors * 32


def test_spills_cost_local_accesses_on_every_round() -> None:
    kernel = samples.sgemm(1024)
    clean = counted(kernel)
    spilled = counted(kernel, replace(kernel.resources[0], spill_store_bytes=64, spill_load_bytes=64))
    assert clean.local_requests == 0
    assert spilled.local_requests == clean.warps * 32 * clean.rounds
    assert spilled.traffic.l2_bytes > clean.traffic.l2_bytes


def test_without_sites_accesses_count_as_dense() -> None:
    kernel = samples.copy(1 << 20)
    bare = replace(kernel, launches=(replace(kernel.launches[0], sites=(), footprints=()),))
    assert counted(bare).traffic == counted(kernel).traffic


@pytest.mark.parametrize(
    ("size", "sectors", "expected"),
    [(4, 4.0, 1.0), (4, 1.0, 1.0), (4, 32.0, 29.0), (16, 16.0, 4.0), (16, 2.0, 1.0)],
)
def test_lines_of_a_request(size: int, sectors: float, expected: float) -> None:
    assert lines(AccessSite("x", "x", "global", "load", size, 1.0, sectors, 0.0)) == expected


def test_issue_slots_hold_every_instruction() -> None:
    kernel = samples.copy(1 << 20)
    launch = kernel.launches[0]
    resident = occupancy(A100.capability, 256, 16, 0)
    counts = Counts(fma32=8.0, int_ops=2.0, branch=1.0, barrier=1.0)
    found = events(A100, launch, kernel.resources[0], counts, resident)
    assert found.issued == found.warps * (8 + 2 + 1 + 1 + 2)
