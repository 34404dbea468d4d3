"""Asynchronous copies on a simulated device: latency is hidden only as far as the PTX shows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import ekc.ir.operators as o
from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated.events import Events
from ekc.devices.simulated.latency import estimate_latency
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import compute_work
from ekc.devices.simulated.specs import A100
from ekc.ir.schedule.schedule import Schedule
from ekc.ptx.counting.counts import count_instructions

TILES = 1024 // 8


@cache
def product(stages: int, copy: str, vector: int = 2) -> CompiledKernel:
    """A block of 64 x 64 on each of few SMs, so that a block waits for its loads."""
    return compile_schedule(
        Schedule(o.matmul(256, 256, 1024))
        .split("i", (16, 4))
        .split("j", (16, 4))
        .split("k", (8,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C", vector=4)
        .cache_read("A", "shared", at="k.0", vector=vector, pad=4)
        .cache_read("B", "shared", at="k.0", vector=vector)
        .cache_read("B.shared", "register", at="k.1", vector=4)
        .pipeline("k.0", stages=stages, copy=copy)
    )


def events_of(kernel: CompiledKernel) -> Events:
    return compute_work(A100, kernel, profile_kernel(kernel)).launches[0][0]


def seconds(kernel: CompiledKernel) -> float:
    """With the same number of registers each time: ptxas takes one more or less by chance, which changes the
    model."""
    alike = replace(kernel, resources=(replace(kernel.resources[0], registers=42),))
    return estimate_latency(
        A100, *compute_work(A100, alike, profile_kernel(kernel)).launches[0], 1410.0
    ).seconds


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_groups_and_waits_are_counted_from_the_text(stages: int) -> None:
    counts = count_instructions(product(stages, "async").ptx, "ekc_matmul")
    assert counts.async_waits == TILES
    assert counts.async_groups == TILES + stages - 1
    assert counts.async_left == TILES * (stages - 2)
    assert counts.bytes_async == counts.bytes_load_global == TILES * 2 * 64 * 8 * 4 / 256
    assert counts.barrier == TILES
    assert events_of(product(stages, "async")).tiles_ahead == stages - 1


def test_copy_reads_and_writes_but_passes_no_register() -> None:
    through, past = events_of(product(2, "register")), events_of(product(2, "async"))
    assert past.traffic.sectors == through.traffic.sectors
    assert past.traffic.requests == through.traffic.requests
    assert past.shared_wavefronts == through.shared_wavefronts
    blocks, warps, tensors, lane_bytes = 16, 8, 2, 8
    stores = blocks * TILES * warps * tensors
    assert past.shared_requests == pytest.approx(through.shared_requests - stores)
    assert past.shared_bytes == pytest.approx(through.shared_bytes)
    assert past.global_lane_bytes == pytest.approx(through.global_lane_bytes - stores * 32 * lane_bytes)


@pytest.mark.parametrize("vector", [4, 2])
def test_copies_past_l1_pass_the_banks_once(vector: int) -> None:
    """A copy of 16 bytes a lane only makes addresses where it reads; a narrower one goes through L1."""
    kernel = product(3, "async", vector)
    (ran,) = profile_kernel(kernel)
    reading, writing = (
        [a for a in ran.accesses if a.is_async and a.space == space] for space in ("global", "shared")
    )
    assert {a.bytes_per_lane for a in reading} == {4 * vector}
    rest = [a for a in ran.accesses if not a.is_async]
    cycles = sum(a.requests * (1.0 if vector == 4 else a.wavefronts) for a in reading)
    cycles += sum(a.requests * max(a.wavefronts, 1.0) for a in (*writing, *rest))
    assert events_of(kernel).lsu_cycles == pytest.approx(16 * cycles)


def test_tiles_in_flight_hide_latency_with_diminishing_returns() -> None:
    events, resident = compute_work(A100, (kernel := product(2, "async")), profile_kernel(kernel)).launches[0]
    two, three, five = (
        estimate_latency(A100, replace(events, tiles_ahead=ahead), resident, 1410.0).seconds
        for ahead in (1.0, 2.0, 4.0)
    )
    assert two > three > five
    assert two - three > 1.5 * (three - five)
    # One tile ahead is one tile ahead, whichever way it comes.
    assert two == pytest.approx(seconds(product(2, "register")), rel=0.15)


def test_shallow_waits_hide_no_more() -> None:
    """Three copies of each tile, but a wait that leaves none of them in flight."""
    kernel = product(3, "async")
    wait = nvrtc.compile(kernel.cuda_source.replace("wait_copies<1>", "wait_copies<0>"), "sm_80")
    assert seconds(replace(kernel, ptx=wait.ptx, cubin=wait.cubin)) > seconds(kernel)


def test_wait_for_copies_just_issued_hides_nothing() -> None:
    text = """extern "C" __global__ void k(const float* a, float* b) {
        __shared__ __align__(16) float s[128]; const int t = threadIdx.x; float v = 0;
        const unsigned int to = static_cast<unsigned int>(__cvta_generic_to_shared(s + 4 * t));
        #pragma unroll 1
        for (int i = 0; i < 64; ++i) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
              : : "r"(to), "l"(a + 128 * i + 4 * t));
            asm volatile("cp.async.commit_group;"); asm volatile("cp.async.wait_group 0;" : : : "memory");
            __syncthreads(); v += s[127 - t]; __syncthreads(); }
        b[t] = v; }"""
    kernel = product(2, "async")
    launch = replace(
        kernel.launches[0], name="k", grid=(1, 1, 1), block=(32, 1, 1), arguments=("A", "C"), footprints=(),
        argument_bytes=(64 * 128 * 4, 128),
    )  # fmt: skip
    out = nvrtc.compile(text, "sm_80")
    alone = replace(kernel, ptx=out.ptx, cubin=out.cubin, launches=(launch,), resources=(out.resources["k"],))
    found = events_of(alone)
    assert (found.tile_waits, found.tiles_ahead) == (64, 0)
    # 64 round trips to memory or L2, one after another.
    assert seconds(alone) > 64 * 220 / 1410e6
