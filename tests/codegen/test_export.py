"""Exported files: they compile, link to the kernel of their header only, describe it, and fail in one
line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ekc.codegen.export import export, make_kernel_name

import ekc
import ekc.ir.operators as o
from ekc.codegen import nvrtc
from ekc.errors import InvalidInput
from ekc.ir.schedule.schedule import Schedule
from ekc.version import __version__
from tests.codegen import samples
from tests.codegen.helpers import compile_sample, must_run, needs_nvcc, run

needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
SCHEDULES = {
    "matmul": lambda: samples.matmul(256, 256, 64),
    "matvec": lambda: samples.matvec(40, 100, dtype="float16"),
    "act_D": samples.two_launches,
}
CALLER = """
#include "{name}.h"
#include <cstdio>
int main()
{{
    static char bytes[1024];
    char* there = bytes;
    std::printf("%zu\\n", ekc_{name}_workspace_bytes());
    return ekc_{name}_launch({pointers}, nullptr) == 0 ? 1 : 0;
}}
"""


@needs_nvcc
@pytest.mark.parametrize("name", SCHEDULES)
def test_bundle_links_into_a_program(tmp_path: Path, name: str) -> None:
    schedule = SCHEDULES[name]()
    export(compile_sample(schedule), schedule, tmp_path)
    pointers = ", ".join(["there"] * (len(schedule.op.inputs) + 2))
    (tmp_path / "main.cpp").write_text(CALLER.format(name=name, pointers=pointers))
    # The caller needs no CUDA header.
    must_run("g++", "-std=c++17", "-Wall", "-Werror", "-c", "main.cpp", "-o", "main.o", folder=tmp_path)
    warnings = ("-Werror", "all-warnings", "-Xcompiler", "-Wall")
    must_run("nvcc", "-arch=sm_80", *warnings, "-c", f"{name}.cu", "-o", "kernel.o", folder=tmp_path)
    must_run("nvcc", "main.o", "kernel.o", "-o", "main", folder=tmp_path)
    assert int(must_run("./main", folder=tmp_path)) == (768 if name == "act_D" else 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_exported_text_compiles_with_nvrtc(tmp_path: Path, name: str) -> None:
    schedule = SCHEDULES[name]()
    kernel = compile_sample(schedule)
    text = export(kernel, schedule, tmp_path)[0].read_text()
    assert kernel.cuda_source in text
    assert nvrtc.compile(text).resources.keys() == {launch.name for launch in kernel.launches}


@needs_nvcc
def test_header_is_valid_c(tmp_path: Path) -> None:
    schedule = samples.two_launches()
    export(compile_sample(schedule), schedule, tmp_path)
    flags = ("-std=c99", "-pedantic", "-Wall", "-Werror", "-fsyntax-only")
    must_run("gcc", *flags, "-x", "c", "act_D.h", folder=tmp_path)


@needs_nvcc
@needs_cmake
def test_cmake_function_builds_a_library(tmp_path: Path) -> None:
    bundle = tmp_path / "build"
    for name in ("matmul", "act_D"):
        schedule = SCHEDULES[name]()
        export(compile_sample(schedule), schedule, bundle)
    (tmp_path / "main.cpp").write_text(CALLER.format(name="matmul", pointers="there, there, there, there"))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(caller LANGUAGES CXX)\ninclude(build/ekc.cmake)\n"
        "add_ekc_library(NAME kernels SOURCES matmul.cu act_D.cu ARCHITECTURES 80)\n"
        "add_executable(main main.cpp)\ntarget_link_libraries(main kernels)\n"
    )
    must_run("cmake", "-S", ".", "-B", "made", folder=tmp_path)
    must_run("cmake", "--build", "made", folder=tmp_path)
    assert must_run("made/main", folder=tmp_path) == "0\n"


def test_header_and_record_describe_the_kernel(tmp_path: Path) -> None:
    schedule = samples.matvec(40, 100, dtype="float16")
    kernel = compile_sample(schedule)
    provenance = {
        "device": "a100 (simulated)",
        "simulated": "true",
        "energy": "1.25 mJ */ #error",
        "latency": "12\n us",
    }
    paths = export(kernel, schedule, tmp_path, provenance=provenance)
    assert [path.name for path in paths] == ["matvec.cu", "matvec.h", "matvec.json", "ekc.cmake"]
    header = (tmp_path / "matvec.h").read_text()
    for line in (
        "A: A[40, 100] float16, read",
        "y: y[40] float16, written",
        "ekc_matvec: grid 10 x 1 x 1, block 8 x 4 x 1",
        "device: a100 (simulated)",
        "energy: 1.25 mJ * / #error",
        "latency: 12 us",
        f"Written by ekc {__version__} from the schedule {schedule.digest}, compiled for sm_80.",
    ):
        assert f" * {line}" in header
    record = json.loads((tmp_path / "matvec.json").read_text())
    assert record["provenance"] == provenance
    assert record["launches"][0]["grid"] == [10, 1, 1]
    assert record["resources"][0]["registers"] == kernel.resources[0].registers
    assert Schedule.from_json(json.dumps(record["schedule"])) == schedule


def test_second_export_replaces_the_first(tmp_path: Path) -> None:
    small, large = samples.copy(3, 64), samples.copy(3, 128)
    export(compile_sample(small), small, tmp_path / "a" / "b")
    export(compile_sample(large), large, tmp_path / "a" / "b")
    assert "X[3, 128]" in (tmp_path / "a" / "b" / "copy.h").read_text()
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == [
        "copy.cu",
        "copy.h",
        "copy.json",
        "ekc.cmake",
    ]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nothing"])
def test_unwritable_folder_is_refused_in_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("kept")
    schedule = samples.copy(3, 64)
    with pytest.raises(InvalidInput, match=r"export: cannot write into .*; choose another folder") as caught:
        export(compile_sample(schedule), schedule, tmp_path / place)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "kept"


def test_failed_export_leaves_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "copy.cu").mkdir()
    schedule = samples.copy(3, 64)
    with pytest.raises(InvalidInput, match="Is a directory"):
        export(compile_sample(schedule), schedule, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["copy.cu"]


def test_wrong_schedule_or_unmarked_simulation_is_refused(tmp_path: Path) -> None:
    schedule = samples.copy(3, 64)
    with pytest.raises(InvalidInput, match="was not compiled from the schedule"):
        export(compile_sample(schedule), samples.copy(3, 96), tmp_path)
    with pytest.raises(InvalidInput, match=r"call it 'NAME \(simulated\)'"):
        export(
            compile_sample(schedule), schedule, tmp_path, provenance={"device": "a100", "simulated": "true"}
        )
    assert not list(tmp_path.iterdir())


def test_launcher_names_do_not_collide_with_tensors(tmp_path: Path) -> None:
    """`&status` would be the address of an error code, `&ekc_named` that of an argument."""
    shapes = {"status": (8,), "error": (8,), "error_": (8,), "workspace": (8,), "named": (8,)}
    op = o.compute(
        "named",
        axes={"i": 8},
        inputs=shapes,
        body=lambda status, error, error_, workspace, named, i: (
            status[i] + error[i] * error_[i] + workspace[i] * named[i]
        ),
    )
    schedule = Schedule(op).bind("i", "thread.x")
    export(compile_sample(schedule), schedule, tmp_path)
    text = (tmp_path / "named.cu").read_text()
    assert (
        "const void* ekc_error_, const void* ekc_workspace, const void* ekc_named, void* C, void* w" in text
    )
    assert "{ &ekc_status, &ekc_error, &ekc_error_, &ekc_workspace, &ekc_named, &C };" in text
    assert "(&::ekc_named)" in text
    if shutil.which("nvcc"):
        must_run("nvcc", "-arch=sm_80", "-c", "named.cu", "-o", "kernel.o", folder=tmp_path)


NAME = "net"
NAMESAKES = {"one": samples.two_launches(), "two": samples.copy(3, 64)}
WORKSPACE = {"one": "768\n", "two": "0\n"}
"""Output of a program, by the kernel that was linked: bytes of its workspace."""
USER = """
#include "{kernel}/net.h"
#ifdef __cplusplus
extern "C"
#endif
int {user}(void) {{ return (int)ekc_net_workspace_bytes(); }}
"""
MAIN = """
#include <stdio.h>
{declarations}
int main(void) {{ printf("%d\\n", {calls}); return 0; }}
"""
LINKED = [("static", ("one", "two")), ("static", ("two", "one"))]
LINKED += [("shared", order) for _, order in LINKED]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both kernels as a static and a shared library, and two callers of each, one in C and one in C++."""
    folder = tmp_path_factory.mktemp("libraries")
    # Toolkits before 13 export kernels from every library.
    seen = "--device-entity-has-hidden-visibility"
    older = (f"{seen}=false",) if seen in must_run("nvcc", "--help", folder=folder) else ()
    for kernel, schedule in NAMESAKES.items():
        export(compile_sample(schedule, NAME), schedule, folder / kernel)
        source, made = f"{kernel}/net.cu", f"{kernel}.o"
        must_run(
            "nvcc", "-arch=sm_80", *older, "-Xcompiler", "-fPIC", "-c", source, "-o", made, folder=folder
        )
        must_run("ar", "rcs", f"libstatic_{kernel}.a", made, folder=folder)
        must_run("nvcc", "-shared", made, "-o", f"libshared_{kernel}.so", folder=folder)
        for user, compiler in ((f"{kernel}_c", ("gcc", "-std=c99")), (f"{kernel}_cc", ("g++", "-xc++"))):
            (folder / f"{user}.c").write_text(USER.format(kernel=kernel, user=user))
            must_run(*compiler, "-Wall", "-Werror", "-c", f"{user}.c", "-o", f"{user}.o", folder=folder)
    return folder


def link(
    folder: Path, users: tuple[str, ...], way: str, order: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Link a program of some callers, with libraries in a given order."""
    declarations = "\n".join(f"int {user}(void);" for user in users)
    calls = " | ".join(f"{user}()" for user in users)
    text = MAIN.format(declarations=declarations, calls=calls)
    (folder / "main.c").write_text(text)
    objects = [f"{user}.o" for user in users]
    wanted = [f"-l{way}_{kernel}" for kernel in order]
    return run(
        *("nvcc", "main.c", *objects, "-L.", *wanted, "-Xlinker", "--no-undefined", "-Xlinker", "-rpath=."),
        *("-o", "main"),
        folder=folder,
    )


@needs_nvcc
@pytest.mark.parametrize(("way", "order"), LINKED)
def test_kernels_of_one_name_do_not_link(libraries: Path, way: str, order: tuple[str, str]) -> None:
    language = "c" if order[0] == "one" else "cc"
    done = link(libraries, (f"one_{language}", f"two_{language}"), way, order)
    assert done.returncode != 0
    assert re.search("multiple definition of .ekc_net_is_one_kernel", done.stderr)


@needs_nvcc
@pytest.mark.parametrize(("way", "order"), LINKED)
@pytest.mark.parametrize("kernel", NAMESAKES)
def test_program_links_the_kernel_of_its_header(
    libraries: Path, way: str, order: tuple[str, str], kernel: str
) -> None:
    """Both libraries have the name; two callers of one kernel are linked."""
    done = link(libraries, (f"{kernel}_c", f"{kernel}_cc"), way, order)
    assert done.returncode == 0, done.stderr
    assert must_run("./main", folder=libraries) == WORKSPACE[kernel]


@needs_nvcc
@pytest.mark.parametrize("way", ["static", "shared"])
@pytest.mark.parametrize("kernel", NAMESAKES)
def test_other_kernel_of_the_name_does_not_link(libraries: Path, way: str, kernel: str) -> None:
    (other,) = NAMESAKES.keys() - {kernel}
    done = link(libraries, (f"{kernel}_c",), way, (other,))
    assert done.returncode != 0
    assert re.search("undefined reference to .ekc_net_workspace_bytes", done.stderr)


@needs_nvcc
def test_shared_library_exports_launchers_only(libraries: Path) -> None:
    """An exported kernel could be replaced by one of another library when it is loaded."""
    shown = must_run("nm", "-D", "--defined-only", "libshared_two.so", folder=libraries)
    names = {line.split()[2] for line in shown.splitlines() if "net" in line}
    assert {re.sub("_[0-9a-f]{12}$", "_DIGEST", name) for name in names} == {
        *("ekc_net_launch", "ekc_net_launch_DIGEST"),
        *("ekc_net_workspace_bytes", "ekc_net_workspace_bytes_DIGEST"),
    }


@needs_nvcc
@pytest.mark.parametrize("compiler", [("gcc", "-std=c99", "-pedantic"), ("g++", "-xc++")])
def test_kernels_of_one_name_in_one_source_do_not_compile(libraries: Path, compiler: tuple[str, ...]) -> None:
    flags = ("-Wall", "-Wextra", "-Wundef", "-Werror", "-fsyntax-only")
    (libraries / "same.c").write_text('#include "one/net.h"\n#include "one/net.h"\n')
    must_run(*compiler, *flags, "same.c", folder=libraries)
    (libraries / "both.c").write_text('#include "one/net.h"\n#include "two/net.h"\n')
    done = run(*compiler, *flags, "both.c", folder=libraries)
    assert done.returncode != 0
    assert "two kernels are called net: export one of them under another name" in done.stderr


@needs_nvcc
def test_cuda_caller_links_the_kernel_of_its_header(libraries: Path) -> None:
    (libraries / "user.cu").write_text(USER.format(kernel="one", user="user"))
    flags = ("-Werror", "all-warnings", "-Xcompiler", "-Wall")
    must_run("nvcc", "-arch=sm_80", *flags, "-c", "user.cu", "-o", "user.o", folder=libraries)
    assert link(libraries, ("user",), "shared", ("two", "one")).returncode == 0
    assert link(libraries, ("user", "two_c"), "shared", ("two", "one")).returncode != 0


def test_kernel_names_are_unique() -> None:
    plain = ekc.matmul(64, 128, 32)
    biased = plain.epilogue(lambda c, bias: c + bias, bias=(128,))
    operators = [
        *(plain, biased, ekc.matmul(64, 128, 32, dtype="float16"), ekc.matmul(64, 128, 32, transpose_b=True)),
        *(ekc.matmul(64, 32, 128), ekc.conv2d(1, 3, 8, 8, out_channels=4, kernel=3), ekc.softmax((4, 9))),
    ]
    names = [make_kernel_name(op) for op in operators]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
    assert names[0] == f"matmul_64x128x32_{plain.digest[:8]}"
    assert make_kernel_name(biased, "bert") == f"bert_matmul_epilogue_64x128x32_{biased.digest[:8]}"
    assert names[-2].startswith("conv2d_1x4x6x6x3x3x3_")
