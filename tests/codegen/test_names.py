"""C names: no macro or type of a CUDA or C header has the name of a tensor, axis or generated variable."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import ekc
from ekc.codegen.emit.names import to_c_name
from ekc.codegen.generate import generate
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.codegen.helpers import export_sample, named, needs_nvcc

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
        parts.append(export_sample(schedule, tmp_path / name, name).read_text())
        calls.append(f'#include "{name}/include/ekc/{name}.h"')
    headers = "".join(f"#include <{header}>\n" for header in ("complex.h", "math.h", "limits.h", "stdio.h"))
    text = headers + "\n".join(calls) + "\n"
    (tmp_path / "caller.c").write_text(text)
    (tmp_path / "caller.cpp").write_text(text.replace('.h"', '.hpp"'))
    flags = ("-Wall", "-Werror", "-fsyntax-only")
    (tmp_path / "all.cu").write_text("#include <climits>\n#include <cstdio>\n" + "\n".join(parts))
    for command in (
        ["nvcc", "-arch=sm_80", "-Werror", "all-warnings", "-Xcicc", "-O0", "-c", "all.cu", "-o", "all.o"],
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
