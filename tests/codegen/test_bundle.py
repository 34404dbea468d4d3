"""The exported files: they compile, link, say what they are, and fail in one line."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import ekc.ir.operators as o
from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.export import export
from ekc.codegen.generate import assemble_kernel, generate
from ekc.errors import InvalidInput
from ekc.ir.schedule.schedule import Schedule
from ekc.version import __version__
from tests.codegen import samples

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
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


def compiled(schedule: Schedule) -> CompiledKernel:
    made = generate(schedule)
    return assemble_kernel(schedule, made, nvrtc.compile(made.source))


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@needs_nvcc
@pytest.mark.parametrize("name", SCHEDULES)
def test_it_links_into_a_program_that_reports_a_missing_gpu(tmp_path: Path, name: str) -> None:
    schedule = SCHEDULES[name]()
    export(compiled(schedule), schedule, tmp_path)
    pointers = ", ".join(["there"] * (len(schedule.op.inputs) + 2))
    (tmp_path / "main.cpp").write_text(CALLER.format(name=name, pointers=pointers))
    # The caller needs no CUDA header.
    run("g++", "-std=c++17", "-Wall", "-Werror", "-c", "main.cpp", "-o", "main.o", folder=tmp_path)
    warnings = ("-Werror", "all-warnings", "-Xcompiler", "-Wall")
    run("nvcc", "-arch=sm_80", *warnings, "-c", f"{name}.cu", "-o", "kernel.o", folder=tmp_path)
    run("nvcc", "main.o", "kernel.o", "-o", "main", folder=tmp_path)
    assert int(run("./main", folder=tmp_path)) == (768 if name == "act_D" else 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_exported_text_still_compiles_with_nvrtc(tmp_path: Path, name: str) -> None:
    schedule = SCHEDULES[name]()
    kernel = compiled(schedule)
    text = export(kernel, schedule, tmp_path)[0].read_text()
    assert kernel.cuda_source in text
    assert nvrtc.compile(text).resources.keys() == {launch.name for launch in kernel.launches}


@needs_nvcc
def test_the_header_is_c_too(tmp_path: Path) -> None:
    schedule = samples.two_launches()
    export(compiled(schedule), schedule, tmp_path)
    run(
        "gcc",
        "-std=c99",
        "-pedantic",
        "-Wall",
        "-Werror",
        "-fsyntax-only",
        "-x",
        "c",
        "act_D.h",
        folder=tmp_path,
    )


@needs_nvcc
@needs_cmake
def test_the_cmake_function_makes_a_library(tmp_path: Path) -> None:
    bundle = tmp_path / "build"
    for name in ("matmul", "act_D"):
        schedule = SCHEDULES[name]()
        export(compiled(schedule), schedule, bundle)
    (tmp_path / "main.cpp").write_text(CALLER.format(name="matmul", pointers="there, there, there, there"))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(caller LANGUAGES CXX)\ninclude(build/ekc.cmake)\n"
        "add_ekc_library(NAME kernels SOURCES matmul.cu act_D.cu ARCHITECTURES 80)\n"
        "add_executable(main main.cpp)\ntarget_link_libraries(main kernels)\n"
    )
    run("cmake", "-S", ".", "-B", "made", folder=tmp_path)
    run("cmake", "--build", "made", folder=tmp_path)
    assert run("made/main", folder=tmp_path) == "0\n"


def test_header_and_record_say_what_the_kernel_is(tmp_path: Path) -> None:
    schedule = samples.matvec(40, 100, dtype="float16")
    kernel = compiled(schedule)
    told = {
        "device": "a100 (simulated)",
        "simulated": "true",
        "energy": "1.25 mJ */ #error",
        "latency": "12\n us",
    }
    paths = export(kernel, schedule, tmp_path, provenance=told)
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
    assert record["provenance"] == told
    assert record["launches"][0]["grid"] == [10, 1, 1]
    assert record["resources"][0]["registers"] == kernel.resources[0].registers
    assert Schedule.from_json(json.dumps(record["schedule"])) == schedule


def test_a_second_export_replaces_the_first_whole(tmp_path: Path) -> None:
    small, large = samples.copy(3, 64), samples.copy(3, 128)
    export(compiled(small), small, tmp_path / "a" / "b")
    export(compiled(large), large, tmp_path / "a" / "b")
    assert "X[3, 128]" in (tmp_path / "a" / "b" / "copy.h").read_text()
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == [
        "copy.cu",
        "copy.h",
        "copy.json",
        "ekc.cmake",
    ]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nothing"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("kept")
    schedule = samples.copy(3, 64)
    with pytest.raises(InvalidInput, match=r"export: cannot write into .*; choose another folder") as caught:
        export(compiled(schedule), schedule, tmp_path / place)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_file_in_the_way_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "copy.cu").mkdir()
    schedule = samples.copy(3, 64)
    with pytest.raises(InvalidInput, match="Is a directory"):
        export(compiled(schedule), schedule, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["copy.cu"]


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    schedule = samples.copy(3, 64)
    with pytest.raises(InvalidInput, match="was not compiled from the schedule"):
        export(compiled(schedule), samples.copy(3, 96), tmp_path)
    with pytest.raises(InvalidInput, match=r"call it 'NAME \(simulated\)'"):
        export(compiled(schedule), schedule, tmp_path, provenance={"device": "a100", "simulated": "true"})
    assert not list(tmp_path.iterdir())


def test_names_of_the_launcher_do_not_collide_with_tensors(tmp_path: Path) -> None:
    """`&room` would be the address of an error code, `&ekc_named` that of an argument."""
    shapes = {"room": (8,), "error": (8,), "error_": (8,), "workspace": (8,), "named": (8,)}
    op = o.compute(
        "named",
        axes={"i": 8},
        inputs=shapes,
        body=lambda room, error, error_, workspace, named, i: (
            room[i] + error[i] * error_[i] + workspace[i] * named[i]
        ),
    )
    schedule = Schedule(op).bind("i", "thread.x")
    export(compiled(schedule), schedule, tmp_path)
    text = (tmp_path / "named.cu").read_text()
    assert (
        "const void* ekc_error_, const void* ekc_workspace, const void* ekc_named, void* C, void* w" in text
    )
    assert "{ &ekc_room, &ekc_error, &ekc_error_, &ekc_workspace, &ekc_named, &C };" in text
    assert "(&::ekc_named)" in text
    if shutil.which("nvcc"):
        run("nvcc", "-arch=sm_80", "-c", "named.cu", "-o", "kernel.o", folder=tmp_path)
