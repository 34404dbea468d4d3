"""C names: no macro or type of a CUDA or C header has the name of a tensor, axis or generated variable."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.emit.names import to_c_name
from ekc.codegen.generate import generate
from ekc.codegen.library.function_plan import make_function_name
from ekc.codegen.library.legal_names import check_bundle_name, make_library_name
from ekc.codegen.nvrtc import disassemble
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.models.layer_file import read_layers
from tests.codegen.helpers import compile_sample, export_sample, named, needs_nvcc
from tests.ir.tensor_examples import half_matmul

HEADERS = """
cuda_runtime.h cuda.h cuda_fp16.h cuda_bf16.h cuda_fp8.h cuComplex.h cooperative_groups.h mma.h
curand_kernel.h cctype cerrno cfenv cfloat cinttypes climits clocale cmath csetjmp csignal cstdarg
cstddef cstdint cstdio cstdlib cstring ctime cwchar complex.h pthread.h termios.h unistd.h sys/stat.h
sys/socket.h netdb.h dirent.h
"""
ENDS = (
    "shared|register|fragment|acc|now|next|copy|slot|free|pointer|offset|inside|outside|base|address|start|value"
    "|vector"
)
SHORT = r"[A-Z]|[a-z]\d*(_[a-z]\d*)*"
"""Names that the text has without a prefix; `ENDS` are suffixes that it appends to names."""
CASES = [
    (("BUFSIZ", "M_PI"), "INT_MAX", ("cudaStream_t", "CUDART_CB"), "stdin"),
    (("cudaError_t", "dim3"), "EOF", ("cudaSuccess", "FLT_MAX"), "NULL"),
    (("isnan", "errno"), "offsetof", ("linux", "unix"), "cudaLaunchKernel"),
    (("size_t", "RAND_MAX"), "E", ("CUDARTAPI", "uint4"), "ekc_C"),
]


def fused() -> Schedule:
    """Axes whose joint name is a macro of math.h, and a third level of one that is `M_PI_2`."""

    def body(A: object, M: object, PI: object) -> object:
        return A[M, PI] + 1  # type: ignore[index]

    op: Operator = ekc.compute("HUGE_VAL", axes={"M": 8, "PI": 12}, inputs={"A": (8, 12)}, body=body)
    return Schedule(op).fuse("M", "PI").split("M_PI", (2, 2)).bind("M_PI.0", "block.x")


def schedules() -> list[Schedule]:
    return [*(named(*case) for case in CASES), fused()]


@needs_nvcc
def test_header_names_compile_with_nvcc(tmp_path: Path) -> None:
    """The kernels, their launchers, and callers that have included what there is."""
    parts, calls = [], []
    for number, schedule in enumerate(schedules()):
        name = f"bufsiz_{number}"
        source = export_sample(schedule, tmp_path / name, name)
        own = "".join(path.read_text() for path in source.parent.glob("*.h"))
        # The headers of libraries in one file have the same guards and macros.
        undefine = "".join(f"#undef {macro}\n" for macro in re.findall(r"#define (\w+)", own))
        parts.append(undefine + source.read_text().replace('"runtime.h"', f'"{name}/src/runtime.h"'))
        calls.append(f'#include "{name}/include/ekc/{name}.h"')
    wanted = "".join(f"#include <{header}>\n" for header in ("complex.h", "math.h", "limits.h", "stdio.h"))
    text = wanted + "\n".join(calls) + "\n"
    (tmp_path / "caller.c").write_text(text)
    (tmp_path / "caller.cpp").write_text(text.replace('.h"', '.hpp"'))
    flags = ("-Wall", "-Werror", "-fsyntax-only")
    (tmp_path / "all.cu").write_text("#include <climits>\n#include <cstdio>\n" + "\n".join(parts))
    optimise_little = ("-Xcicc", "-O0")
    for command in (
        [
            "nvcc",
            "-arch=sm_80",
            "-Werror",
            "all-warnings",
            *optimise_little,
            "-c",
            "all.cu",
            "-o",
            "all.o",
        ],
        ["gcc", "-std=gnu99", *flags, "caller.c"],
        ["g++", "-std=gnu++17", *flags, "caller.cpp"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[:4000]


@needs_nvcc
def test_header_macros_differ_from_generated_names(tmp_path: Path) -> None:
    wanted = "".join(f"#if __has_include(<{h}>)\n#include <{h}>\n#endif\n" for h in HEADERS.split())
    (tmp_path / "all.cu").write_text(wanted)
    command = ["nvcc", "-arch=sm_80", "-E", "-Xcompiler", "-dM", "all.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    macros = set(re.findall(r"#define (\w+)", done.stdout))
    assert macros > {"BUFSIZ", "M_PI", "M_E", "INT_MAX", "CUDART_CB", "linux"}, done.stderr[:2000]
    form = re.compile(rf"(ekc_\w+|{SHORT})(_\d+)*(_({ENDS}))*_*")
    # A single capital is one of <complex.h> alone, which no kernel includes.
    assert {m for m in macros if form.fullmatch(m)} <= {"I"}


def test_generated_names_are_prefixed_or_short() -> None:
    """Names of an operator that are longer than a letter get the prefix `ekc_`."""
    for schedule in schedules():
        text = "\n".join(line.split("//")[0] for line in generate(schedule).source.splitlines())
        given = {t.name for t in schedule.op.tensors.values()} | {
            a.name for c in schedule.op.computes for a in c.axes
        }
        bare = {name for name in given if not re.fullmatch(SHORT, name)}
        kernel = text.split("__launch_bounds__")[1]
        # The text moves vectors by this type.
        assert not (bare - {"uint4"}) & set(re.findall(r"\w+", kernel))
        assert all(to_c_name(name) == f"ekc_{name}" for name in bare)


def rename(op: Operator, name: str) -> Operator:
    return replace(op, name=name)


NAMED: dict[str, Callable[[Path], object]] = {
    "operator": lambda _: ekc.compute(
        "my_cutlass", axes={"i": 8}, inputs={"A": (8,)}, body=lambda A, i: A[i] + 1
    ),
    "operator renamed": lambda _: rename(ekc.matmul(8, 8, 8), "cutlass"),
    "operator of JSON": lambda _: operator_from_json(ekc.matmul(8, 8, 8).to_json() | {"name": "cutlass_mm"}),
    "operator and output": lambda _: ekc.matmul(8, 8, 8).then(
        "cutlass", axes={"p": 8, "q": 8}, body=lambda C, p, q: C[p, q] + 1
    ),
    "kernel": lambda _: ekc.compile(make_naive_schedule(ekc.matmul(8, 8, 8)), name="cutlass"),
    "library": lambda _: check_bundle_name("cutlass_kernels"),
    "layer": lambda _: make_function_name("block.cutlass.fc"),
    "layer of a file": lambda folder: read_layers(
        write(folder / "net.toml", '[[layer]]\nname = "cutlass.fc"\noperator = "matvec"\nm = 8\nk = 8\n')
    ),
}
"""Each way of a name into the name of a kernel."""


@pytest.mark.parametrize("way", NAMED)
def test_names_that_ptxas_treats_specially_are_refused(way: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"ptxas compiles a kernel with 'cutlass' in its name") as caught:
        NAMED[way](tmp_path)
    assert "\n" not in str(caught.value)
    assert re.search(r"; try '\w*cut_lass[\w.]*'$", str(caught.value))


def test_made_names_are_not_special_to_ptxas() -> None:
    assert make_library_name("CUTLASS-net.onnx") == "cut_lass_net_onnx"
    with pytest.raises(InvalidInput, match="try 'cut_lass'"):
        check_bundle_name("Cutlass")


def test_machine_code_depends_on_no_other_name() -> None:
    """A tensor may have the name: it is in the PTX, as the name of a tile, and changes no instruction."""
    schedule = half_matmul(64, 64, 64)
    text = schedule.to_json().replace('"A', '"cutlass')
    codes = [compile_sample(s, "mm") for s in (schedule, Schedule.from_json(text))]
    assert "cutlass" in codes[1].ptx
    assert codes[0].resources == codes[1].resources
    assert extract_code(codes[0]) == extract_code(codes[1])


def extract_code(kernel: CompiledKernel) -> list[str]:
    """The instructions of a kernel."""
    return [line.split("*/")[1] for line in disassemble(kernel.cubin).splitlines() if line.count("*/") > 1]


def test_name_is_a_part_of_the_digests() -> None:
    """Records are found by the digests of operator and schedule: figures belong to one name."""
    op = ekc.matmul(8, 8, 8)
    other = rename(op, "mm")
    assert other.digest != op.digest
    assert make_naive_schedule(other).digest != make_naive_schedule(op).digest


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
