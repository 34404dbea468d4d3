"""NVRTC: outputs, messages of errors, and the resources in the ptxas log."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ekc.codegen import nvrtc
from ekc.codegen.compiled import Resources
from ekc.codegen.nvrtc import find_nvdisasm
from ekc.errors import CompileError, EkcError, InvalidInput

SCALE = 'extern "C" __global__ void scale(float* a) { a[threadIdx.x] *= 2.0f; }\n'
ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"]


@pytest.mark.parametrize("arch", ARCHS)
def test_compile_gives_ptx_cubin_and_resources(arch: str) -> None:
    output = nvrtc.compile(SCALE, arch)
    assert f".target {arch}" in output.ptx
    assert "\0" not in output.ptx
    assert output.cubin.startswith(b"\x7fELF")
    assert output.resources["scale"].registers > 0
    assert output.source == SCALE
    assert output.arch == arch
    assert output.nvrtc_version == nvrtc.version()


def test_same_input_gives_an_equal_output() -> None:
    assert nvrtc.compile(SCALE) == nvrtc.compile(SCALE)


def test_options_reach_nvrtc() -> None:
    source = 'extern "C" __global__ void k(float* a) { a[0] = WIDTH; }  // 12.0f is 1094713344 as bits'
    assert "1094713344" in nvrtc.compile(source, options=["-DWIDTH=12"]).ptx


def test_supported_archs_are_listed_oldest_first() -> None:
    assert [arch for arch in nvrtc.list_supported_archs() if arch in ARCHS] == ARCHS


@pytest.mark.parametrize(
    ("arch", "nearest"),
    [("sm_79", "sm_80"), ("sm_9999", "sm_121"), ("compute_90", "sm_90"), ("80", "sm_80"), ("a100", "sm_80")],
)
def test_unknown_arch_names_the_nearest(arch: str, nearest: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        nvrtc.compile(SCALE, arch)
    message = str(caught.value)
    assert repr(arch) in message
    assert "sm_75, sm_80" in message
    if nearest in nvrtc.list_supported_archs():
        assert message.endswith(f"nearest: {nearest}")
    assert "\n" not in message


def test_arch_specific_target_compiles_from_sm_90_on() -> None:
    assert nvrtc.compile(SCALE, "sm_90a").cubin
    with pytest.raises(InvalidInput):
        nvrtc.compile(SCALE, "sm_80a")


def test_error_shows_line_caret_and_count() -> None:
    source = 'extern "C" __global__ void k(float* a) {\n  int error;\n  a[0] = b[1];\n  c = 3;\n}'
    with pytest.raises(nvrtc.NvrtcError) as caught:
        nvrtc.compile(source)
    assert str(caught.value).splitlines() == [
        'kernel.cu(3): error: identifier "b" is undefined',
        "    a[0] = b[1];",
        "           ^",
        "(2 errors in all)",
    ]
    assert 'identifier "c" is undefined' in caught.value.log


def test_ptxas_error_is_reported() -> None:
    source = """extern "C" __global__ void k(float* a) {
        __shared__ float s[20000];
        s[threadIdx.x] = a[0]; __syncthreads(); a[0] = s[9 - threadIdx.x];
    }"""
    with pytest.raises(CompileError, match=r"uses too much shared data .*\n.1 error in all"):
        nvrtc.compile(source)


def test_unknown_option_is_reported() -> None:
    with pytest.raises(CompileError, match="unrecognized option --no-such found"):
        nvrtc.compile(SCALE, options=["--no-such"])


def test_missing_cuda_header_names_the_option() -> None:
    with pytest.raises(CompileError, match=r"cuda_fp16\.h was not found.*wheel.*-I<folder") as caught:
        nvrtc.compile(f"#include <cuda_fp16.h>\n{SCALE}")
    assert "\n" not in str(caught.value)


def test_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(nvrtc.NvrtcError("short", "long")))
    assert (str(error), error.log) == ("short", "long")


HIDDEN = """
import ctypes, sys
try:
    ctypes.CDLL("libnvrtc.so.13")
except OSError:
    sys.path[:0] = sys.argv[1:]
    from ekc.codegen import nvrtc
    from ekc.errors import EkcError
    try:
        nvrtc.compile("")
    except EkcError as error:
        print(error)
else:
    print("the system has one")
"""


@pytest.mark.parametrize("binding", [True, False])
def test_missing_library_names_the_package(tmp_path: Path, binding: bool) -> None:
    import cuda.bindings

    if binding:
        # The binding alone, without the wheel that holds the shared library.
        (tmp_path / "cuda").symlink_to(Path(cuda.bindings.__file__).parents[1])
    root = Path(nvrtc.__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-S", "-c", HIDDEN, str(tmp_path), str(root)],
        env={"PATH": "/usr/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "the system has one" in answer.stdout:
        pytest.skip("libnvrtc is installed outside Python's packages")
    assert "pip install nvidia-cuda-nvrtc" in answer.stdout
    assert answer.stdout.count("\n") == 1


def test_error_destroys_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc as binding

    create, destroy = binding.nvrtcCreateProgram, binding.nvrtcDestroyProgram
    made: list[int] = []
    destroyed: list[int] = []

    def creates(*arguments: Any) -> Any:
        status, program = create(*arguments)
        made.append(int(program))
        return status, program

    def destroys(program: Any) -> Any:
        destroyed.append(int(program))
        return destroy(program)

    monkeypatch.setattr(binding, "nvrtcCreateProgram", creates)
    monkeypatch.setattr(binding, "nvrtcDestroyProgram", destroys)
    for _ in range(2):
        with pytest.raises(EkcError):
            nvrtc.compile("not CUDA")
    assert nvrtc.compile(SCALE).cubin
    assert len(made) == 3
    assert destroyed == made


TWO = """
extern "C" __global__ void shared_one(float* a) {
  __shared__ float s[256];
  s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = s[255 - threadIdx.x];
}
template <int N> __global__ void local_one(float* a) {
  float b[N];
  for (int i = 0; i < N; ++i) b[i] = a[i];
  a[0] = b[(int)a[4]] + b[(int)a[5]];
}
template __global__ void local_one<300>(float*);
"""
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* a) {
  float r[128];
  #pragma unroll
  for (int i = 0; i < 128; ++i) r[i] = a[i * 1024 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 128; ++i) a[i * 512 + threadIdx.x] = r[127 - i] * r[(i * 7) % 128];
}
"""
CALLED = """
__device__ __noinline__ float far(float* a, int n) {
  float b[32];
  for (int i = 0; i < 32; ++i) b[i] = a[i * n];
  return b[n & 31];
}
extern "C" __global__ void caller(float* a) { a[0] = far(a, threadIdx.x); }
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"])
def test_log_gives_resources_of_each_kernel(arch: str) -> None:
    found = nvrtc.compile(TWO, arch).resources
    assert set(found) == {"shared_one", "_Z9local_oneILi300EEvPf"}
    assert found["shared_one"].shared_bytes == 1024
    assert found["shared_one"].stack_bytes == 0
    assert found["_Z9local_oneILi300EEvPf"].stack_bytes == 1200
    assert found["_Z9local_oneILi300EEvPf"].shared_bytes == 0


def test_log_gives_spills() -> None:
    found = nvrtc.compile(SPILLING).resources["spilling"]
    assert found.registers == 32
    assert found.spill_store_bytes > 0
    assert found.spill_load_bytes > 0


def test_log_ignores_called_functions() -> None:
    output = nvrtc.compile(CALLED)
    assert set(output.resources) == {"caller"}


def test_log_format_is_parsed() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for called
ptxas         .     64 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 80 bytes cumulative stack size, 2048 bytes smem"""
    assert nvrtc.parse_log(log) == {"k": Resources(40, 2048, 8, 12, 80)}


def test_log_of_warnings_gives_no_resources() -> None:
    assert nvrtc.parse_log("kernel.cu(2): warning #177-D: never referenced\n") == {}


def test_packaged_nvdisasm_comes_before_one_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program on the path may be of another release, or anything at all."""
    packaged, other = tmp_path / "nvidia" / "cu13" / "bin" / "nvdisasm", tmp_path / "path" / "nvdisasm"
    for file in (packaged, other):
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert find_nvdisasm() == str(packaged)
    packaged.unlink()
    assert find_nvdisasm() == str(other)
