"""The decoder of machine code beside nvdisasm: names, widths, guards and branches of every instruction."""

from __future__ import annotations

import re
from functools import cache

import pytest

from ekc.codegen import nvrtc
from ekc.codegen.generate import compile_schedule
from ekc.codegen.nvrtc import NvrtcOutput, disassemble, find_nvdisasm
from ekc.errors import EkcError
from ekc.machine_code.decode import NAMES, decode_functions
from ekc.machine_code.executed import ACCESSES
from tests.devices import samples
from tests.ir.warpgroup_examples import half_group_matmul

pytestmark = pytest.mark.skipif(find_nvdisasm() is None, reason="nvdisasm is not installed")

# Accesses of all widths, guards, nested loops, copies past the registers, matrix loads and products.
SOURCE = r"""
extern "C" __global__ void accesses(const char* in, float* out, const int n) {
    __shared__ __align__(16) char tile[4096];
    const int lane = threadIdx.x;
    float sum = 0.0f;
    #pragma unroll 1
    for (int i = 0; i < n; ++i) {
        const char* from = in + 4096 * i;
        tile[lane] = from[lane];
        reinterpret_cast<unsigned short*>(tile)[64 + lane] = reinterpret_cast<const short*>(from)[lane];
        reinterpret_cast<float*>(tile)[64 + lane] = reinterpret_cast<const float*>(from)[lane];
        reinterpret_cast<float2*>(tile)[64 + lane] = reinterpret_cast<const float2*>(from)[lane];
        reinterpret_cast<float4*>(tile)[64 + lane] = reinterpret_cast<const float4*>(from)[lane];
        __syncthreads();
        #pragma unroll 1
        for (int j = 0; j < n; ++j) {
            const float4 wide = reinterpret_cast<float4*>(tile)[(lane + j) % 128];
            const float2 half = reinterpret_cast<float2*>(tile)[(lane + 3 * j) % 128];
            if (lane + j < 17) sum += wide.x * half.y + __shfl_xor_sync(0xffffffff, wide.w, 1);
            else sum += exp2f(wide.y) + tile[j];
        }
        __syncthreads();
    }
    if (lane < n) out[lane] = sum;
    if (lane < 8) reinterpret_cast<float4*>(out)[lane] = make_float4(sum, sum, sum, sum);
}
"""
COPIES = r"""
extern "C" __global__ void copies(const char* in, float* out) {
    __shared__ __align__(16) char tile[4096];
    const unsigned int to = static_cast<unsigned int>(__cvta_generic_to_shared(tile + 16 * threadIdx.x));
    const char* from = in + 16 * threadIdx.x;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(from));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" : : "r"(to + 1024), "l"(from + 4096));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to + 2048), "l"(from + 8192));
    asm volatile("cp.async.wait_all;");
    __syncthreads();
    unsigned int a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(to));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(c), "=r"(d) : "r"(to));
    float x = 0.0f, y = 0.0f, z = 0.0f, w = 0.0f;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%4, %5}, {%0, %1, %2, %3};"
                 : "+f"(x), "+f"(y), "+f"(z), "+f"(w) : "r"(a), "r"(b), "r"(c), "r"(d));
    out[threadIdx.x] = x + y + z + w;
}
"""
ATOMICS = r"""
extern "C" __global__ void atomics(float* a, int* b, float* out) {
    __shared__ float tile[64];
    tile[threadIdx.x] = 0.0f;
    __syncthreads();
    atomicAdd(a + threadIdx.x, 1.0f);
    b[atomicAdd(b, 1)] = atomicCAS(b + 3, 1, 2);
    atomicAdd(tile + b[0], 1.0f);
    __syncthreads();
    float* either = b[1] ? tile : out;
    either[b[3]] = either[b[2]] + tile[threadIdx.x];
}
"""
PRODUCT = r"""
extern "C" __global__ void product(const unsigned int* in, TYPE* out) {
    TYPE x = 0, y = 0, z = 0, w = 0;
    asm volatile("mma.sync.aligned.m16n8k32.row.col.KIND {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%4, %5}, "
                 "{%0, %1, %2, %3};" : "+LETTER"(x), "+LETTER"(y), "+LETTER"(z), "+LETTER"(w)
                 : "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3]));
    out[threadIdx.x] = x + y + z + w;
}
"""
GROUP_PRODUCT = r"""
extern "C" __global__ void product(const unsigned long long* in, TYPE* out) {
    TYPE x = 0, y = 0, z = 0, w = 0;
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.KIND {%0, %1, %2, %3}, %4, %5, 1SCALES;"
                 : "+LETTER"(x), "+LETTER"(y), "+LETTER"(z), "+LETTER"(w) : "l"(in[0]), "l"(in[1]));
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;");
    out[threadIdx.x] = x + y + z + w;
}
"""
SUFFIX_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)$")


@cache
def compile_text(source: str, arch: str) -> NvrtcOutput:
    return nvrtc.compile(source, arch)


def _count_bytes(name: str) -> int:
    """Bytes of a lane, of the name of an access as nvdisasm prints it."""
    root, *suffixes = name.split(".")
    if root == "LDSM":
        return 4 * int(suffixes[-1] if suffixes[-1] in "24" else 1)
    return next((SUFFIX_BYTES[one] for one in suffixes if one in SUFFIX_BYTES), 4)


def check_function(output: NvrtcOutput, name: str) -> set[str]:
    """Compare one function with what nvdisasm prints; the names that were compared."""
    code = decode_functions(output.cubin, output.arch)[name]
    text = disassemble(output.cubin)
    begin = text.index(f"\n{name}:")
    labels: dict[str, int] = {}
    branches: dict[int, str] = {}
    seen, number, waiting = set(), 0, []
    for line in text[begin:].splitlines()[1:]:
        if label := re.match(r"^(\.L_\w+):", line):
            waiting.append(label[1])
            continue
        if line.startswith("//---") or not (found := _LINE.match(line)):
            if line.startswith("//---"):
                break
            continue
        labels |= dict.fromkeys(waiting, number)
        waiting = []
        guard, full, rest = found[2], found[3], found[4]
        root = {"IADD": "IADD3"}.get(full.split(".")[0], full.split(".")[0])
        expected = root if root in NAMES.values() else None
        assert NAMES.get(int(code.opcodes[number])) == expected, line
        if expected:
            seen.add(root)
            if not guard or ("PT" not in guard and "UP" not in guard):
                assert code.is_guarded[number] == bool(guard), line
            if root in ACCESSES:
                assert code.bytes_per_lane[number] == _count_bytes(full), line
            if root == "BRA":
                branches[number] = re.findall(r"\.L_\w+", rest)[-1]
        number += 1
    assert number == len(code.opcodes)
    assert code.targets == {at: labels[label] for at, label in branches.items()}
    return seen


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"])
def test_instructions_are_those_of_nvdisasm(arch: str) -> None:
    seen = check_function(compile_text(SOURCE, arch), "accesses")
    assert {"LDG", "STG", "LDS", "STS", "SHFL", "MUFU", "FFMA", "BAR", "BRA"} <= seen
    if arch != "sm_75":
        assert {"LDGSTS", "LDSM", "HMMA"} <= check_function(compile_text(COPIES, arch), "copies")


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_spills_are_those_of_nvdisasm(arch: str) -> None:
    kernel = samples.sgemm(1024, arch, blocks_per_sm=4)
    output = compile_text(kernel.cuda_source.partition("\n")[2], arch)
    assert {"LDL", "STL"} <= check_function(output, "sgemm")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_atomics_and_generic_pointers_are_those_of_nvdisasm(arch: str) -> None:
    seen = check_function(compile_text(ATOMICS, arch), "atomics")
    assert {"ATOMG", "ATOMS", "LD", "ST"} <= seen
    assert seen & {"RED", "REDG"}


@pytest.mark.parametrize(
    ("source", "arch", "kind", "name"),
    [
        (PRODUCT, "sm_80", "s32.s8.s8.s32", "IMMA"),
        (PRODUCT, "sm_89", "f32.e4m3.e4m3.f32", "QMMA"),
        (PRODUCT, "sm_120", "f32.e4m3.e4m3.f32", "QMMA"),
        (GROUP_PRODUCT, "sm_90a", "s32.s8.s8", "IGMMA"),
        (GROUP_PRODUCT, "sm_90a", "f32.e4m3.e4m3", "QGMMA"),
    ],
)
def test_products_of_bytes_are_those_of_nvdisasm(source: str, arch: str, kind: str, name: str) -> None:
    is_integer = kind.startswith("s32")
    text = source.replace("TYPE", "int" if is_integer else "float").replace("KIND", kind)
    text = text.replace("LETTER", "r" if is_integer else "f").replace(
        "SCALES", "" if is_integer else ", 1, 1"
    )
    assert name in check_function(compile_text(text, arch), "product")


def test_products_of_warpgroups_are_those_of_nvdisasm() -> None:
    kernel = compile_schedule(half_group_matmul(), "sm_90a")
    output = compile_text(kernel.cuda_source, "sm_90a")
    assert "HGMMA" in check_function(output, kernel.launches[0].name)


@pytest.mark.parametrize("damage", [lambda b: b"text", lambda b: b[:100], lambda b: b[:-9000], lambda b: b""])
def test_bytes_that_are_no_cubin_are_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(EkcError, match="machine code cannot be read"):
        decode_functions(damage(compile_text(SOURCE, "sm_80").cubin), "sm_80")
