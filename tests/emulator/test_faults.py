"""Faults put into good kernels are found; the kernels without them are clean (see test_by_hand)."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.codegen import nvrtc
from ekc.codegen.generate import generate
from tests.codegen import samples
from tests.emulator.by_hand import CASES
from tests.emulator.case import find_kinds, floats, zeros

BY_NAME = {case.name: case for case in CASES}
SYNC = "__syncthreads();"
FAULTS = [
    # case, what is replaced, by what, which occurrence, kinds that may be reported
    ("transpose_pad0", SYNC, "", 0, {"race", "uninitialised"}),
    ("transpose_pad1", SYNC, "", 0, {"race", "uninitialised"}),
    ("reduce_shared", SYNC, "", 0, {"race"}),
    ("reduce_shared", SYNC, "", 1, {"race"}),
    ("reduce_shuffle", SYNC, "", 0, {"race"}),
    ("histogram_shared", SYNC, "", 0, {"race"}),
    ("histogram_shared", SYNC, "", 1, {"race"}),
    ("scan_hillis_steele", SYNC, "", 0, {"race"}),
    ("scan_hillis_steele", SYNC, "", 1, {"race"}),
    ("stencil", SYNC, "", 0, {"race"}),
    ("double_buffer", SYNC, "", 0, {"race"}),
    ("double_buffer", SYNC, "", 1, {"race"}),
    ("dynamic_shared", SYNC, "", 0, {"race"}),
    ("softmax_rows", SYNC, "", 0, {"race"}),
    ("softmax_rows", SYNC, "", 1, {"race"}),
    ("softmax_rows", SYNC, "", 2, {"race"}),
    ("matmul_shared", SYNC, "", 0, {"race"}),
    ("matmul_shared", SYNC, "", 1, {"race"}),
    ("async_copy", SYNC, "", 0, {"race", "async-copy"}),
    ("async_copy", SYNC, "", 1, {"race", "async-copy"}),
    ("async_copy", "cp.async.wait_group 1;", "cp.async.wait_group 2;", 0, {"async-copy", "uninitialised"}),
    ("async_copy", 'asm volatile("cp.async.wait_group 1;");', "", 0, {"async-copy", "uninitialised"}),
    ("async_copy", "cp.async.wait_group 0;", "", 0, {"async-copy", "uninitialised"}),
    ("async_copy", 'asm volatile("cp.async.commit_group;");', "", 0, {"async-copy", "uninitialised"}),
    ("named_barriers", "bar.sync 1, 64;", "", 0, {"race"}),
    ("named_barriers", "bar.sync 2, 64;", "bar.sync 2, 96;", 0, {"barrier"}),
    ("vector_add", "if (i < n) ", "", 0, {"out-of-bounds"}),
    ("vector_add", "b[i];", "b[i + 1];", 0, {"out-of-bounds"}),
    ("vector_add", "c[i] =", "c[i / 2] =", 0, {"block-conflict", "global-race"}),
    ("saxpy_grid_stride", "i < n", "i <= n", 0, {"out-of-bounds"}),
    ("transpose_pad1", "a[(y + j) * n + x]", "a[(y + j) * n + x + 1]", 0, {"out-of-bounds"}),
    ("transpose_pad1", "j < 32", "j < 24", 0, {"uninitialised"}),
    ("reduce_shared", "i < n ? a[i] : 0.0f", "a[i]", 0, {"out-of-bounds"}),
    ("reduce_shared", "if (t < d) s[t]", "s[t]", 0, {"out-of-bounds", "race"}),
    ("reduce_shuffle", "s[threadIdx.x / 32] = v", "s[threadIdx.x / 32 + 1] = v", 0, {"out-of-bounds", "uninitialised"}),
    ("reduce_shuffle", "threadIdx.x < 8 ?", "threadIdx.x < 9 ?", 0, {"out-of-bounds"}),
    ("reduce_shuffle", "if (threadIdx.x % 32 == 0) ", "", 0, {"race"}),
    ("early_exit", "if (i >= n) return;", "", 0, {"out-of-bounds"}),
    ("histogram_shared", "s[threadIdx.x] = 0;", "", 0, {"uninitialised"}),
    ("histogram_shared", "atomicAdd(&s[a[i]], 1u)", "s[a[i]] += 1", 0, {"race"}),
    ("histogram_shared", "atomicAdd(&h[threadIdx.x], s[threadIdx.x])", "h[threadIdx.x] += s[threadIdx.x]", 0,
     {"block-conflict"}),
    ("reduce_atomic", "atomicAdd(out, v)", "blockIdx.x ? (void)atomicAdd(out, v) : (void)(*out = v)", 0,
     {"block-conflict"}),
    ("reduce_atomic", "atomicAdd(out, v)", "blockIdx.x < 6 ? (void)atomicAdd(out, v) : (void)(*out += v)", 0,
     {"block-conflict"}),
    ("reduce_atomic", "atomicAdd(out, v)", "atomicAdd(out, v + 0 * *out)", 0, {"block-conflict"}),
    ("greatest_if_greater", "atomicMax(most, v)", "*most = v", 0, {"block-conflict"}),
    ("greatest_if_greater", "atomicMax(most, v)", "blockIdx.x ? (void)atomicMax(most, v) : (void)(*most = v)", 0,
     {"block-conflict"}),
    ("greatest_if_greater", "atomicMax(most, v)", "blockIdx.x < 2 ? (void)atomicMax(most, v) : (void)(*most = 99)", 0,
     {"block-conflict"}),
    ("stencil", "s[0] = i ? a[i - 1] : 0", "s[0] = a[i - 1]", 0, {"out-of-bounds"}),
    ("stencil", "if (t == 1) s[0] = i ? a[i - 1] : 0;", "", 0, {"uninitialised"}),
    ("stencil", "s[130]", "s[129]", 0, {"out-of-bounds"}),
    ("stencil", "if (i < n) b[i]", "b[i]", 0, {"out-of-bounds"}),
    ("double_buffer", "if (i < 7) ", "", 0, {"out-of-bounds"}),
    ("double_buffer", "s[0][t] = a[t];", "", 0, {"uninitialised"}),
    ("dynamic_shared", "s[n + t] =", "s[n + t + 1] =", 0, {"out-of-bounds", "uninitialised"}),
    ("float4_copy", "if (i < n) {", "{", 0, {"out-of-bounds"}),
    ("float4_copy", "a[i];", "*(const float4*)((const float*)a + i);", 0, {"misaligned"}),
    ("softmax_rows", "s[t / 32] = m;", "s[t / 32 + 1] = m;", 0, {"out-of-bounds", "uninitialised"}),
    ("bytes_and_shorts", "c[i]", "c[i + 1]", 0, {"out-of-bounds"}),
    ("local_array", "i < 16; ++i) v[(a[t] + i) & 15]", "i < 15; ++i) v[(a[t] + i) & 15]", 0, {"uninitialised"}),
    ("local_array", "v[(a[t] + i) & 15]", "v[(a[t] + i) & 31]", 0, {"out-of-bounds"}),
    ("constant_table", "if (i + j < n) ", "", 0, {"out-of-bounds"}),
    ("matmul_naive", "if (x >= n || y >= n) return;", "", 0, {"out-of-bounds"}),
    ("matmul_shared", "p[ty][tx] = a[y * n + i + tx];", "if (tx) p[ty][tx] = a[y * n + i + tx];", 0, {"uninitialised"}),
    ("matmul_shared", "b[(i + ty) * n + x]", "b[(i + ty + 1) * n + x]", 0, {"out-of-bounds"}),
    ("matmul_shared", "j < 16", "j <= 16", 0, {"out-of-bounds", "uninitialised"}),
    ("matmul_naive", "float s = 0;", "float s;", 0, {"uninitialised"}),
    ("matmul_shared", "float s = 0;", "float s;", 0, {"uninitialised"}),
    ("softmax_rows", "float z = 0;", "float z;", 0, {"uninitialised"}),
    ("ballot_compact", "out[at] = v", "out[at + 30] = v", 0, {"out-of-bounds"}),
    ("mma_f16", "a[(g + 8) * 8 + q + 4]", "a[(g + 9) * 8 + q + 4]", 0, {"out-of-bounds"}),
    ("three_stages", SYNC, "", 0, {"race", "async-copy"}),
    ("three_stages", "cp.async.wait_group 1;", "cp.async.wait_group 2;", 0, {"async-copy", "uninitialised"}),
    ("three_stages", "copy(i + 2);", "copy(i + 3);", 0, {"race", "async-copy", "uninitialised"}),
    ("three_stages", "if (i < n) asm", "asm", 0, {"out-of-bounds"}),
]  # fmt: skip


def replace_text(text: str, old: str, new: str, which: int) -> str:
    parts = text.split(old)
    assert len(parts) > which + 1, f"{old} is not there {which + 1} times"
    return old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :])


@pytest.mark.parametrize(
    ("name", "old", "new", "which", "kinds"), FAULTS, ids=[f"{i}-{f[0]}" for i, f in enumerate(FAULTS)]
)
def test_fault_is_found(name: str, old: str, new: str, which: int, kinds: set[str]) -> None:
    case = BY_NAME[name]
    report, _, _ = case.run(replace_text(case.source, old, new, which))
    found = {finding.kind for finding in report.findings}
    assert found & kinds, f"{report}"


def test_barriers_of_a_generated_kernel_are_all_needed() -> None:
    made = generate(samples.small_matmul(33, 34, 12, vector=2, pipeline=False))
    (launch,) = made.launches
    count = made.source.count(SYNC)
    assert count
    for which in range(count):
        ptx = nvrtc.compile(replace_text(made.source, SYNC, "", which), "sm_80").ptx
        args = [floats(33, 12), floats(12, 34), zeros(33, 34)]
        report = emulator.launch(ptx, launch.name, grid=launch.grid, block=launch.block, args=args)
        assert {f.kind for f in report.findings} & {"race", "uninitialised"}, str(report)


def test_barrier_in_each_arm_of_a_condition_is_found() -> None:
    source = """extern "C" __global__ void k(int* a) { __shared__ int s[64]; int t = threadIdx.x; s[t] = t;
        if (t < 40) { __syncthreads(); a[t] = s[t]; } else {
        a[t] = 1; __syncthreads(); a[t] += s[t - 40]; } }"""
    ptx = nvrtc.compile(source, "sm_80", ("-lineinfo",)).ptx
    report = emulator.launch(ptx, "k", grid=(1,), block=(64,), args=[zeros(64).astype("i4")])
    assert {f.kind for f in report.findings} == {"barrier"}
    assert {f.source_line for f in report.findings} == {2, 3}
    assert [f.thread[0] for f in report.findings] == [0, 40]
    one, other = (f"PTX line {f.line} (source line {f.source_line})" for f in report.findings)
    assert [f.message for f in report.findings] == [
        f"thread 0 waits at the barrier of {one}, others of its block at that of {other}",
        f"thread 40 waits at the barrier of {other}, others of its block at that of {one}",
    ]


def test_barrier_that_other_lanes_never_reach_is_found() -> None:
    """Threads that neither arrive nor leave: here they wait at a barrier of their own."""
    source = """extern "C" __global__ void k(int* a) { int t = threadIdx.x;
        if (t < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;"); a[t] = t; }"""
    ptx = nvrtc.compile(source, "sm_80").ptx
    report = emulator.launch(ptx, "k", grid=(1,), block=(64,), args=[zeros(64).astype("i4")])
    assert {f.kind for f in report.findings} == {"barrier"}
    assert "never reaches this barrier (32 of 64 threads of the block)" in report.findings[0].message


SKIPPED = """
extern "C" __global__ void k(int* a) { __shared__ int s[96]; int t = threadIdx.x; s[t] = t;
  BODY
}"""
SKIPPING = {
    "lanes at the end": ("if (t < 8) __syncthreads();", 8, "88 of 96 threads"),
    "warps at the end": ("if (t >= 32) __syncthreads();", 0, "32 of 96 threads"),
    "one thread": ("if (t == 0) __syncthreads(); a[t] = t;", 1, "95 of 96 threads"),
    "odd lanes": ("if (t & 1) { __syncthreads(); a[t] = s[t]; }", 0, "48 of 96 threads"),
    "early return": ("if (t >= 50) return; __syncthreads(); a[t] = s[49 - t]; __syncthreads(); a[t] += 1;", 50,
                     "46 of 96 threads"),
    "last trip of a loop": ("for (int i = t; i < 200; i += 96) { s[t] += i; __syncthreads(); } a[t] = s[t];", 8,
                            "88 of 96 threads"),
    "count of votes": ("if (t != 70) a[t] = __syncthreads_count(t > 3);", 70, "1 of 96 threads"),
    "in the second block": ("if (blockIdx.x == 0 || t < 95) __syncthreads(); a[t] = 1;", 95, "1 of 96 threads"),
    "named, of all threads": ('if (t < 64) asm volatile("bar.sync 3;");', 64, "32 of 96 threads"),
    "named, lanes of its warps": ('if (t < 64) { if (t == 40) return; asm volatile("bar.sync 1, 64;"); }', 40,
                                  "1 of 96 threads"),
    "not aligned": ('if (t < 90) asm volatile("barrier.sync 0;");', 90, "6 of 96 threads"),
}  # fmt: skip


@pytest.mark.parametrize("name", SKIPPING)
def test_barrier_that_threads_skip_is_found(name: str) -> None:
    body, thread, count = SKIPPING[name]
    ptx = nvrtc.compile(SKIPPED.replace("BODY", body), "sm_80", ("-lineinfo",)).ptx
    report = emulator.launch(ptx, "k", grid=(2,), block=(96,), args=[zeros(192).astype("i4")])
    (found,) = (f for f in report.findings if f.kind == "barrier")
    assert found.thread == (thread, 0, 0)
    assert found.block == ((1, 0, 0) if "second" in name else (0, 0, 0))
    assert count in found.message, found
    assert found.source_line == 3
    assert "bar" in found.instruction


def test_skipped_barrier_that_meets_a_later_one_is_found() -> None:
    """Whole warps at two barriers of one block: PTX matches them, `__syncthreads()` must not be split."""
    for first in ("if (t < 32) __syncthreads();", "if (t >= 64) { s[t] = 1; __syncthreads(); a[t] = s[t]; }"):
        source = SKIPPED.replace("BODY", f"{first} __syncthreads(); a[t] += s[95 - t];")
        assert find_kinds(source, [np.zeros(96, np.int32)], 96) >= {"barrier"}


LEGAL = {
    "condition of the block": "if (blockIdx.x) { __syncthreads(); a[t] = s[95 - t]; }",
    "block that returns": "if (blockIdx.x) return; __syncthreads(); a[t] = s[95 - t];",
    "exit behind the last": "__syncthreads(); a[t] = s[95 - t]; if (t > 40) return; a[t] += 1;",
    "some warps": 'if (t < 64) { asm volatile("bar.sync 1, 64;" ::: "memory"); a[t] = s[63 - t]; }',
    "short last warp": 'asm volatile("bar.sync 1, 96;" ::: "memory"); a[t] = 1;',
    "producers leave": 'if (t < 32) asm volatile("bar.arrive 2, 96;" ::: "memory");'
    ' else { asm volatile("bar.sync 2, 96;" ::: "memory"); a[t] = s[t - 32]; }',
    "other instructions": 'if (t < 32) asm volatile("bar.sync 2, 96;" ::: "memory");'
    ' else { a[t] = 3; asm volatile("bar.sync 2, 96;" ::: "memory"); }',
    "not aligned, other instructions": 'if (t & 1) { asm volatile("barrier.sync 0;" ::: "memory"); a[t] = 1; }'
    ' else { a[t] = 7; asm volatile("barrier.sync 0;" ::: "memory"); }',
    "loops of other lengths": "for (int i = 0; i < t % 7; ++i) a[t] += i; __syncthreads(); a[t] += s[95 - t];",
}


@pytest.mark.parametrize("name", LEGAL)
@pytest.mark.parametrize("threads", [96, 90])
def test_legal_barrier_is_clean(name: str, threads: int) -> None:
    """Also with a short last warp, whose missing lanes a GPU counts as arrived."""
    source = SKIPPED.replace("BODY", LEGAL[name]).replace("s[95", f"s[{threads - 1}")
    assert find_kinds(source, [np.zeros(96, np.int32)], threads, blocks=2) <= {"block-conflict"}


def test_thread_that_stops_by_trap_misses_no_barrier() -> None:
    source = SKIPPED.replace("BODY", "if (t == 5) __trap(); __syncthreads(); a[t] = s[t];")
    assert find_kinds(source, [np.zeros(96, np.int32)], 96) == {"trap"}


def test_findings_name_arrays_as_the_cuda_text_does() -> None:
    source = """extern "C" __global__ void k(int* a, int* b) { __shared__ int B_shared[16]; B_shared[threadIdx.x % 16] = 1;
        __syncthreads(); a[threadIdx.x] = B_shared[threadIdx.x]; b[threadIdx.x] = 1; }"""
    ptx, arrays = nvrtc.compile(source, "sm_80").ptx, [zeros(32).astype("i4"), zeros(31).astype("i4")]
    assert "_ZZ1kE8B_shared" in ptx
    for names, shown in (((), "argument 1"), (("A", "B"), "B (argument 1)")):
        report = emulator.launch(ptx, "k", grid=(1,), block=(32,), args=arrays, argument_names=names)
        text = str(report)
        assert "after the end of shared array B_shared (64 bytes), by 16 lanes" in text
        assert f"after the end of {shown} (124 bytes), by 1 lane " in text


WIDENED = """
extern "C" __global__ void k(float* b) {
  __shared__ __align__(16) float s[3];
  if (threadIdx.x < 3) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  float x, y, z, w;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "r"((unsigned)__cvta_generic_to_shared(s)));
  b[threadIdx.x] = READ;
}
"""


@pytest.mark.parametrize(
    ("read", "kinds"), [("x + y + z", set()), ("x + w", {"out-of-bounds"}), ("1.0f", {"out-of-bounds"})]
)
def test_load_wider_than_its_array_is_clean_where_unread(read: str, kinds: set[str]) -> None:
    """The compiler makes such loads; an element beyond the end that is used is a fault all the same."""
    assert find_kinds(WIDENED.replace("READ", read), [zeros(32)], 32) == kinds


JOINED = """
extern "C" __global__ void k(unsigned* b) {
  __shared__ __align__(16) unsigned short s[8];
  if (threadIdx.x < WRITTEN) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  unsigned x, y, z, w;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "r"((unsigned)__cvta_generic_to_shared(s)));
  b[threadIdx.x] = x + y + z + USED;
}
"""


@pytest.mark.parametrize(
    ("written", "used", "kinds"),
    [
        ("8", "w", set()),
        ("7", "w", set()),
        ("6", "w", {"uninitialised"}),
        ("6", "0", set()),
        ("4", "0", {"uninitialised"}),
    ],
)
def test_joined_halves_are_checked_by_word(written: str, used: str, kinds: set[str]) -> None:
    """If only half of a word was written, the machine does not see which half is used later."""
    source = JOINED.replace("WRITTEN", written).replace("USED", used)
    assert find_kinds(source, [np.zeros(32, np.uint32)], 32) == kinds


HALVES = """
extern "C" __global__ void k(uint4* b)
{
    __shared__ alignas(16) unsigned short t[COUNT];
    for (int i = threadIdx.x; i < COUNT; i += 32) t[i] = threadIdx.x;
    __syncthreads();
    b[threadIdx.x] = *reinterpret_cast<const uint4*>(&t[8 * (threadIdx.x % 2)]);
}
"""


@pytest.mark.parametrize(("count", "clean"), [(16, True), (15, False)])
def test_vector_of_halves_over_the_end_is_found(count: int, clean: bool) -> None:
    """The last word begins inside and all of it is used."""
    kinds = find_kinds(HALVES.replace("COUNT", str(count)), [np.zeros(128, np.uint32)], 32)
    assert kinds == (set() if clean else {"out-of-bounds"})


SHIFTED = """extern "C" __global__ void k(const float* A, float* C) {
    __shared__ float tile[32];
    tile[threadIdx.x] = A[threadIdx.x + FIRST];
    __syncthreads();
    C[threadIdx.x] = tile[threadIdx.x + SECOND];
}"""


@pytest.mark.parametrize(
    ("first", "second", "names", "word"),
    [
        (0, 32, (), "shared array tile"),
        (32, 0, ("A", "C"), "A (argument 0)"),
        (32, 0, (), "argument 0"),
        (32, 0, ("A",), "A (argument 0)"),
    ],
)
def test_finding_names_the_array_as_the_source_does(
    first: int, second: int, names: tuple[str, ...], word: str
) -> None:
    text = SHIFTED.replace("FIRST", str(first)).replace("SECOND", str(second))
    report = emulator.launch(
        nvrtc.compile(text, "sm_80").ptx,
        "k",
        grid=(1, 1, 1),
        block=(32, 1, 1),
        args=[floats(32), zeros(32)],
        argument_names=names,
    )
    assert word in str(report)
    assert "_ZZ" not in str(report)
    assert names or "A (" not in str(report)
