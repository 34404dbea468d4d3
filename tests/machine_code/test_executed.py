"""Executed machine instructions beside counts by hand: a loop of the listing, times the trips that the source
gives it."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
from ekc.codegen import nvrtc
from ekc.codegen.generate import compile_schedule
from ekc.emulator import launch
from ekc.errors import EkcError
from ekc.machine_code.decode import MachineCode, decode_functions
from ekc.machine_code.executed import count_runs, list_machine_accesses
from ekc.ptx.counting.branch_slice import ONE_WARP, Threads
from ekc.ptx.counting.counts import list_instruction_runs
from ekc.ptx.parser import parse_module
from ekc.search.space.space import Space
from tests.devices import samples
from tests.search.helpers import LIMITS

# Three loops that stay, around shared loads of neighbouring words: the innermost loop is written out before
# ptxas runs, so that it can join the loads.
NEST = """
extern "C" __global__ void nest(const float* in, float* out) {
    __shared__ __align__(16) float tile[2048];
    float sum = 0.0f;
    #pragma unroll 1
    for (int a = 0; a < OUTER; ++a) {
        tile[threadIdx.x] = in[a * 64 + threadIdx.x];
        __syncthreads();
        #pragma unroll 1
        for (int b = 0; b < MIDDLE; ++b) {
            #pragma unroll
            for (int c = 0; c < 8; ++c) sum += tile[threadIdx.x * ALIGNED + b * 16 + c] * tile[b * 16 + c];
        }
        __syncthreads();
    }
    #pragma unroll 1
    for (int d = 0; d < LAST; ++d) sum += tile[d + threadIdx.x];
    out[threadIdx.x] = sum;
}
"""


def count(source: str, name: str, arch: str) -> tuple[MachineCode, np.ndarray]:
    output = nvrtc.compile(source, arch)
    kernel = parse_module(output.ptx).find_kernel(name)
    code = decode_functions(output.cubin, arch)[name]
    runs = {one.line: times for one, times in list_instruction_runs(kernel, ONE_WARP)}
    return code, count_runs(code, kernel, runs)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize(("outer", "middle", "last", "aligned"), [(7, 5, 40, 4), (3, 64, 33, 1)])
def test_loads_of_nested_loops(arch: str, outer: int, middle: int, last: int, aligned: int) -> None:
    source = NEST.replace("OUTER", str(outer)).replace("MIDDLE", str(middle))
    source = source.replace("LAST", str(last)).replace("ALIGNED", str(aligned))
    code, runs = count(source, "nest", arch)
    loads = {one.name: one for one in list_machine_accesses(code, runs)}
    words = sum(int(name[4:]) / 32 * one.per_warp for name, one in loads.items() if name.startswith("LDS"))
    assert words == pytest.approx(outer * middle * 16 + last)
    assert loads["STS.32"].per_warp == outer
    assert sum(one.per_warp for name, one in loads.items() if name.startswith("LDG")) == outer
    # Eight words that all lanes read are two loads of 16 bytes in each trip, whatever the PTX has.
    assert loads["LDS.128"].per_warp >= 2 * outer * middle


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("blocks", [3, 4, 5])
def test_spills_in_and_around_a_loop(arch: str, blocks: int) -> None:
    kernel = samples.sgemm(1024, arch, blocks_per_sm=blocks)
    code = decode_functions(kernel.cubin, arch)["sgemm"]
    parsed = parse_module(kernel.ptx).find_kernel("sgemm")
    runs = count_runs(code, parsed, {one.line: n for one, n in list_instruction_runs(parsed, ONE_WARP)})
    spills = np.flatnonzero(code.find("LDL", "STL"))
    ((first, last),) = code.loops
    inside = np.count_nonzero((first <= spills) & (spills <= last))
    outside = len(spills) - inside
    # The loop of a tile runs 1024 / 8 times.
    assert runs[spills].sum() == inside * 128 + outside
    assert runs[code.find("FFMA")].sum() == 64 * 1024
    assert inside > 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_loop_that_ptxas_unrolls_runs_less_often(arch: str) -> None:
    text = """extern "C" __global__ void k(const float* in, float* out) { float s = 0.0f;
        for (int i = 0; i < 300; ++i) s += in[i * 32 + threadIdx.x] * s;
        out[threadIdx.x] = s; }"""
    code, runs = count(text, "k", arch)
    in_ptx = nvrtc.compile(text, arch).ptx.count("ld.global")
    loads = code.find("LDG")
    assert loads.sum() > in_ptx
    assert runs[loads].sum() == runs[code.find("FFMA")].sum() == pytest.approx(300)


def test_only_padding_at_the_end_never_runs() -> None:
    """A loop without an end is a branch to itself as well."""
    text = """extern "C" __global__ void k(const float* in, float* out, int n) {
        if (n == 7) for (;;) asm volatile("");
        out[threadIdx.x] = in[threadIdx.x] + in[threadIdx.x + 32] * n; }"""
    code, runs = count(text, "k", "sm_80")
    assert sum(branch == target for branch, target in code.targets.items()) == 2
    assert runs[code.find("LDG")].tolist() == [1, 1]
    assert runs[code.find("STG")].tolist() == [1]
    assert (runs[-1], code.opcodes[-1]) == (0, 0x118)


def test_atomics_are_listed() -> None:
    text = """extern "C" __global__ void k(const float* in, float* out, int* n) {
        #pragma unroll 1
        for (int i = 0; i < 9; ++i) atomicAdd(out + threadIdx.x, in[i]);
        out[64 + atomicAdd(n, 1)] = 1.0f; }"""
    for arch, name in (("sm_80", "RED"), ("sm_90", "REDG")):
        found = {one.name: one.per_warp for one in list_machine_accesses(*count(text, "k", arch))}
        assert (found[name], found["ATOMG"]) == (9.0, 1.0)


def test_guards_are_true_as_often_as_branches_of_the_ptx() -> None:
    """Half of the warps load; ptxas makes guards of the branches."""
    text = """extern "C" __global__ void k(const float* in, float* out) { float s = 1.0f;
        #pragma unroll 1
        for (int i = 0; i < 10; ++i) { if (threadIdx.x < 64) s += in[i * 64 + threadIdx.x]; s *= 1.5f; }
        out[threadIdx.x] = s; }"""
    output = nvrtc.compile(text, "sm_80")
    arrays = [np.ones(640, np.float32), np.zeros(128, np.float32)]
    report = launch(output.ptx, "k", grid=(1, 1, 1), block=(128, 1, 1), args=arrays)
    by_line = {one.line: one.warps / 4 for one in report.counters.instructions.values()}
    code = decode_functions(output.cubin, "sm_80")["k"]
    runs = count_runs(code, parse_module(output.ptx).find_kernel("k"), by_line)
    loads = {one.name: one.per_warp for one in list_machine_accesses(code, runs)}
    assert code.is_guarded[code.find("LDG")].any()
    assert loads == {"LDG.32": pytest.approx(5.0), "STG.32": 1.0}


def test_products_of_drawn_schedules_are_those_of_the_ptx() -> None:
    """Whatever ptxas unrolls, it makes no product twice and leaves none out."""
    space, random = Space(ekc.matmul(128, 128, 64), LIMITS), np.random.default_rng(0)
    drawn = space.repair(random, space.sample(random, 24))[0]
    compared = 0
    for row in range(len(drawn)):
        try:
            kernel = compile_schedule(space.build_schedule(drawn, row), "sm_80")
        except EkcError:
            continue
        codes = decode_functions(kernel.cubin, "sm_80")
        for one_launch in kernel.launches:
            parsed = parse_module(kernel.ptx).find_kernel(one_launch.name)
            listed = list_instruction_runs(parsed, Threads(one_launch.grid, one_launch.block))
            runs = count_runs(codes[one_launch.name], parsed, {one.line: n for one, n in listed})
            products = sum(n for one, n in listed if one.parts[0] == "fma")
            assert runs[codes[one_launch.name].find("FFMA")].sum() == pytest.approx(products, rel=0.01)
            compared += products > 0
    assert compared >= 16
