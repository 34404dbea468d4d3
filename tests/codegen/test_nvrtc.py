"""NVRTC for real: what a compile gives, and what its refusals say."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ekc.codegen import nvrtc
from ekc.errors import CompileError, EkcError, InvalidInput

SCALE = 'extern "C" __global__ void scale(float* a) { a[threadIdx.x] *= 2.0f; }\n'
ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"]


@pytest.mark.parametrize("arch", ARCHS)
def test_one_compile_gives_ptx_cubin_and_resources(arch: str) -> None:
    output = nvrtc.compile(SCALE, arch)
    assert f".target {arch}" in output.ptx
    assert "\0" not in output.ptx
    assert output.cubin.startswith(b"\x7fELF")
    assert output.resources["scale"].registers > 0
    assert output.source == SCALE
    assert output.arch == arch
    assert output.nvrtc_version == nvrtc.version()


def test_the_same_input_gives_an_equal_output() -> None:
    assert nvrtc.compile(SCALE) == nvrtc.compile(SCALE)


def test_options_reach_nvrtc() -> None:
    source = 'extern "C" __global__ void k(float* a) { a[0] = WIDTH; }  // 12.0f is 1094713344 as bits'
    assert "1094713344" in nvrtc.compile(source, options=["-DWIDTH=12"]).ptx


def test_supported_archs_are_named_oldest_first() -> None:
    assert [arch for arch in nvrtc.list_supported_archs() if arch in ARCHS] == ARCHS


@pytest.mark.parametrize(
    ("arch", "nearest"),
    [("sm_79", "sm_80"), ("sm_9999", "sm_121"), ("compute_90", "sm_90"), ("80", "sm_80"), ("a100", "sm_80")],
)
def test_an_unknown_arch_names_the_nearest(arch: str, nearest: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        nvrtc.compile(SCALE, arch)
    message = str(caught.value)
    assert repr(arch) in message
    assert "sm_75, sm_80" in message
    if nearest in nvrtc.list_supported_archs():
        assert message.endswith(f"nearest: {nearest}")
    assert "\n" not in message


def test_an_arch_specific_target_compiles_from_sm_90_on() -> None:
    assert nvrtc.compile(SCALE, "sm_90a").cubin
    with pytest.raises(InvalidInput):
        nvrtc.compile(SCALE, "sm_80a")


def test_a_refusal_shows_the_line_the_caret_and_the_number_of_errors() -> None:
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


def test_a_refusal_by_ptxas_is_told_too() -> None:
    source = """extern "C" __global__ void k(float* a) {
        __shared__ float s[20000];
        s[threadIdx.x] = a[0]; __syncthreads(); a[0] = s[9 - threadIdx.x];
    }"""
    with pytest.raises(CompileError, match=r"uses too much shared data .*\n.1 error in all"):
        nvrtc.compile(source)


def test_a_refused_option_is_told() -> None:
    with pytest.raises(CompileError, match="unrecognized option --no-such found"):
        nvrtc.compile(SCALE, options=["--no-such"])


def test_a_missing_cuda_header_names_the_way_out() -> None:
    with pytest.raises(CompileError, match=r"cuda_fp16\.h was not found.*wheel.*-I<folder") as caught:
        nvrtc.compile(f"#include <cuda_fp16.h>\n{SCALE}")
    assert "\n" not in str(caught.value)


def test_a_refusal_survives_the_way_between_processes() -> None:
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
def test_without_the_library_the_message_says_what_to_install(tmp_path: Path, binding: bool) -> None:
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


def test_no_program_is_left_behind_by_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
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
