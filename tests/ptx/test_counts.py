"""Counts from real NVRTC output against what each kernel is known to execute."""

from __future__ import annotations

import re

import pytest

from ekc.codegen import nvrtc
from ekc.errors import EkcError, InvalidInput
from ekc.ptx.counting.counts import InstructionCounts, count_instructions
from tests.ptx.helpers import BOTH_COMPILERS, TOUCH, count_body, make_loop

ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"]
HEADS = [
    ("int i = 0; i < 100; ++i", 100),
    ("int i = 99; i >= 0; --i", 100),
    ("int i = 50; i > 0; --i", 50),
    ("int i = 5; i < 100; i += 3", 32),
    ("int i = 0; i <= 64; i += 8", 9),
    ("int i = 0; i != 60; i += 4", 15),
    ("int i = 37; i--;", 37),
    ("unsigned i = 7; i < 77; ++i", 70),
    ("unsigned char i = 0; i < 200; ++i", 200),
    ("long long i = 0; i < 1000; i += 10", 100),
    ("unsigned long long i = 3; i < 300; i += 3", 99),
    ("int i = 1; i < 1000; i *= 2", 10),
    ("int i = -20; i < 20; ++i", 40),
]


@BOTH_COMPILERS
@pytest.mark.parametrize("unroll", ["1", "3", "4", ""])
@pytest.mark.parametrize(("head", "trips"), HEADS)
def test_loop_counts_its_trips(head: str, trips: int, unroll: str, arch: str) -> None:
    assert count_body(make_loop(head, TOUCH.format("i * t"), unroll), arch).load_global == trips


@pytest.mark.parametrize("arch", ARCHS)
def test_nested_loops_multiply_their_trips(arch: str) -> None:
    body = make_loop(
        "int i = 0; i < 7; ++i",
        make_loop(
            "int j = 5; j > 0; --j",
            make_loop("int k = 0; k < 9; k += 2", TOUCH.format("i * t + j * 77 + k * k")),
        ),
    )
    assert count_body(body, arch).load_global == 7 * 5 * 5


@BOTH_COMPILERS
def test_pointer_may_be_the_loop_counter(arch: str) -> None:
    got = count_body(
        make_loop("const float* p = a; p != a + 64; ++p", "s += *(volatile const float*)p;"), arch
    )
    assert got.load_global == 64
    assert got.bytes_load_global == 256


@BOTH_COMPILERS
def test_code_before_an_exit_in_mid_loop_runs_once_more(arch: str) -> None:
    # Unrolled by 4, 102 trips leave the loop after the second of four.
    assert (
        count_body(make_loop("int i = 0; i < 102; ++i", TOUCH.format("i * t"), "4"), arch).load_global == 102
    )


@BOTH_COMPILERS
def test_loop_bound_may_be_a_constant_expression(arch: str) -> None:
    body = "constexpr int K = 512, TILE = 8;\n" + make_loop(
        "int i = 0; i < K / TILE; ++i", TOUCH.format("i * t")
    )
    assert count_body(body, arch).load_global == 64


@BOTH_COMPILERS
@pytest.mark.parametrize(("condition", "trips"), [("a[i] > 0", 30), ("t > 4", 30), ("t > 40", 0)])
def test_guarded_code_counts_where_a_lane_may_run_it(condition: str, trips: int, arch: str) -> None:
    body = f"if ({condition}) {{ __threadfence(); c[i] = s; }} __syncthreads();"
    got = count_body(make_loop("int i = 0; i < 30; ++i", body), arch)
    assert (got.store_global, got.barrier) == (trips + 1, 30)


@BOTH_COMPILERS
@pytest.mark.parametrize("unroll", ["1", "3"])
def test_convolution_counts_every_tap(arch: str, unroll: str) -> None:
    inner = "if (t + x < 60) s = fmaf(a[(ch * 9 + y * 3 + x) * t], a[ch * 64 + t + y * 8 + x], s);"
    taps = make_loop("int y = 0; y < 3; ++y", make_loop("int x = 0; x < 3; ++x", inner, unroll), unroll)
    got = count_body(make_loop("int ch = 0; ch < 16; ++ch", taps), arch)
    assert got.fma32 == 16 * 9
    assert got.load_global == 2 * 16 * 9


GEMM = """
extern "C" __global__ void __launch_bounds__(256)
mm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C) {
  __shared__ __align__(16) float As[8][132];
  __shared__ __align__(16) float Bs[8][128];
  const int x = threadIdx.x, y = threadIdx.y, tid = y * 16 + x;
  float acc[4][4];
  #pragma unroll
  for (int i = 0; i < 4; ++i)
    #pragma unroll
    for (int j = 0; j < 4; ++j) acc[i][j] = 0.0f;
  #pragma unroll 1
  for (int k0 = 0; k0 < 64; ++k0) {
    __syncthreads();
    const float4 v = *reinterpret_cast<const float4*>(&A[tid * 512 + k0 * 8]);
    As[0][tid % 128] = v.x; As[1][tid % 128] = v.y; As[2][tid % 128] = v.z; As[3][tid % 128] = v.w;
    *reinterpret_cast<float4*>(&Bs[tid / 32][tid % 32 * 4]) =
        *reinterpret_cast<const float4*>(&B[(k0 * 8 + tid / 32) * 512 + tid % 32 * 4]);
    __syncthreads();
    #pragma unroll UNROLL
    for (int k1 = 0; k1 < 8; ++k1) {
      const float4 a = *reinterpret_cast<const float4*>(&As[k1][y * 4]);
      const float4 b = *reinterpret_cast<const float4*>(&Bs[k1][x * 4]);
      const float ar[4] = {a.x, a.y, a.z, a.w}, br[4] = {b.x, b.y, b.z, b.w};
      #pragma unroll
      for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(ar[i], br[j], acc[i][j]);
    }
  }
  #pragma unroll
  for (int i = 0; i < 4; ++i)
    #pragma unroll
    for (int j = 0; j < 4; ++j) C[(y * 4 + i) * 512 + x * 4 + j] = acc[i][j];
}
"""


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("unroll", ["", "1", "2", "4", "8"])
def test_tiled_matmul_counts_do_not_depend_on_unrolling(unroll: str, arch: str) -> None:
    got = count_instructions(nvrtc.compile(GEMM.replace("UNROLL", unroll), arch).ptx, "mm")
    assert got.fma32 == 512 * 16
    assert (got.load_global, got.bytes_load_global) == (2 * 64, 2 * 64 * 16)
    assert (got.store_global, got.bytes_store_global) == (16, 64)
    assert (got.load_shared, got.bytes_load_shared) == (2 * 512, 2 * 512 * 16)
    assert (got.store_shared, got.bytes_store_shared) == (5 * 64, 64 * 32)
    assert got.barrier == 2 * 64
    assert (got.other, got.convert, got.sfu, got.local_accesses) == (0, 0, 0, 0)


def test_nested_loops_may_share_a_header() -> None:
    # NVVM 23 (sm_100) hoists the inner counter's start, and both loops begin at one block.
    inner = make_loop(
        "unsigned char k = 0; k < 36; ++k", f"if (t > 13) {{ {TOUCH.format('i + j * t + k')} }}", "4"
    )
    middle = make_loop("int j = 27; j--;", inner, "4")
    body = make_loop("unsigned char i = 0; i < 29; ++i", f"{middle} __syncthreads();", "8")
    assert count_body(body, "sm_100").load_global == 29 * 27 * 36


KINDS = [
    ("s = a[t] + a[t + 1] * 2.0f;", {"fma32": 1}),
    ("s = fmaxf(a[t], a[t + 1]);", {"fp32": 1, "load_global": 2}),
    ("s = __expf(a[t]);", {"sfu": 1}),
    ("s = rsqrtf(a[t]) + __sinf(a[t]) + __cosf(a[t]) + __log2f(a[t]);", {"sfu": 4, "fp32": 3}),
    ("s = __fdividef(a[t], a[t + 1]);", {"sfu": 1}),
    ("s = a[t] / a[t + 1];", {"sfu": 1}),
    ("s = (float)(int)a[t];", {"convert": 2}),
    ("s = __shfl_xor_sync(~0u, a[t], 1);", {"shuffle": 1}),
    ("atomicAdd(&c[t + 64], 1.0f);", {"load_global": 0, "store_global": 2, "bytes_store_global": 8}),
    ("s = atomicAdd(&c[t + 64], 1.0f);", {"load_global": 1, "store_global": 2, "bytes_store_global": 8}),
    ("float2 v = ((const float2*)a)[t]; s = v.x + v.y;", {"load_global": 1, "bytes_load_global": 8}),
    ("double v = ((const double*)a)[t]; s = (float)v;", {"bytes_load_global": 8, "convert": 1}),
    ('unsigned h = t; asm("{ add.f16x2 %0, %0, %0; }" : "+r"(h)); s = h;', {"fp16": 1}),
    ('asm volatile("{.reg .pred p; @p bra DONE; bar.warp.sync 1; DONE: }");', {"branch": 2, "barrier": 1}),
]


CONVERSIONS = [
    ("cvt.f32.f16 %f1, %rs1", {"fp16": 1}),
    ("cvt.f32.bf16 %f1, %rs1", {"int_ops": 1}),
    ("cvt.rn.f16.f32 %rs1, %f1", {"convert": 1, "pack": 1}),
    ("cvt.rn.bf16x2.f32 %r1, %f1, %f1", {"convert": 1, "pack": 1}),
    ("cvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f1", {"convert": 1, "pack": 1}),
    ("cvt.rn.f16x2.e4m3x2 %r1, %rs1", {"convert": 1, "pack": 0}),
    ("cvt.rn.f32.s32 %f1, %r1", {"convert": 1, "pack": 0}),
    ("cvt.rzi.f32.f32 %f1, %f1", {"fp32": 1}),
]


@pytest.mark.parametrize(("text", "expected"), CONVERSIONS)
def test_conversions_count_where_machine_code_does_them(text: str, expected: dict[str, float]) -> None:
    """Machine code of these: HADD2, PRMT or a shift, F2FP.PACK, F2FP.UNPACK, I2F, FRND."""
    registers = ".reg .f32 %f<2>; .reg .b16 %rs<2>; .reg .b32 %r<2>;"
    ptx = f".version 8.0\n.target sm_90\n.address_size 64\n.entry k() {{ {registers} {text}; ret; }}"
    got = count_instructions(ptx, "k")
    fields = ("fp16", "int_ops", "convert", "pack", "fp32")
    assert {f: getattr(got, f) for f in fields} == dict.fromkeys(fields, 0) | expected


@BOTH_COMPILERS
@pytest.mark.parametrize(("body", "expected"), KINDS)
def test_instructions_count_in_their_fields(body: str, expected: dict[str, float], arch: str) -> None:
    got = count_body(body, arch)
    assert {field: getattr(got, field) for field in expected} == expected


TENSOR = """
extern "C" __global__ void t(const unsigned* a, float* c) {
  __shared__ __align__(16) unsigned s[1024];
  unsigned p = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x * 4]), r0, r1, r2, r3;
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  #pragma unroll 1
  for (int k = 0; k < 32; ++k) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(p), "l"(a + k * 4));
    asm volatile("cp.async.wait_all;");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(p));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%4,%5}, {%0,%1,%2,%3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(r0), "r"(r1), "r"(r2), "r"(r3));
  }
  c[threadIdx.x] = d0 + d1 + d2 + d3;
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_tensor_instructions_count_accesses_and_products(arch: str) -> None:
    got = count_instructions(nvrtc.compile(TENSOR, arch).ptx, "t")
    assert got.tensor == 32
    assert (got.load_shared, got.bytes_load_shared) == (32, 32 * 16)
    assert (got.load_global, got.bytes_load_global) == (32, 32 * 16)
    assert (got.store_shared, got.bytes_store_shared) == (32, 32 * 16)


@pytest.mark.parametrize(
    "body",
    [
        "for (int i = 0; i < (int)a[0]; ++i) " + TOUCH.format("i"),
        make_loop("int i = 0; i < 1000; ++i", TOUCH.format("i") + "if (s > 4) break;"),
        "while (true) __syncthreads();",
    ],
)
def test_loop_whose_trips_depend_on_data_is_refused(body: str) -> None:
    with pytest.raises(EkcError, match=r"'k'.*loop at \$L__BB0_\d+ \(line \d+\)") as caught:
        count_body(body)
    assert "\n" not in str(caught.value)


def test_refusal_names_the_line_of_the_label() -> None:
    source = 'extern "C" __global__ void k(float* a) { for (int i = 0; i < (int)a[0]; ++i) a[i + 1] += 2; }'
    ptx = nvrtc.compile(source, options=["-lineinfo"]).ptx
    with pytest.raises(EkcError) as caught:
        count_instructions(ptx, "k")
    match = re.search(r"loop at (\S+) \(line (\d+)\)", str(caught.value))
    assert match is not None
    assert ptx.splitlines()[int(match[2]) - 1].startswith(match[1] + ":")


def test_kernel_without_instructions_counts_nothing() -> None:
    text = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() {\n}\n"
    assert count_instructions(text, "k") == InstructionCounts()


def test_call_is_refused() -> None:
    source = """__device__ __noinline__ float far(float* a) { return a[3] * a[4]; }
    extern "C" __global__ void k(float* a) { a[1] = far(a); }"""
    with pytest.raises(EkcError, match=r"'k', line \d+: call.* cannot be counted"):
        count_instructions(nvrtc.compile(source).ptx, "k")


def test_missing_kernel_is_refused_with_the_names_of_others() -> None:
    ptx = nvrtc.compile('extern "C" __global__ void one() {} extern "C" __global__ void two() {}').ptx
    with pytest.raises(InvalidInput, match="kernel: no 'three' in this PTX; kernels are one, two"):
        count_instructions(ptx, "three")
    assert count_instructions(ptx, "two") == InstructionCounts(branch=1)
