"""The library builds, installs, moves, is found, and links beside another; its headers refuse misuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.bundle import CollectedBundle, collect_bundle
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.codegen.library.function_plan import NamedOperator, describe_signature
from ekc.codegen.library.kernels import (
    Bundle,
    BundleFunction,
    BundleKernel,
    BundleShape,
    KernelFigures,
    TargetBoard,
)
from ekc.codegen.library.write import SOURCES, build_texts, write_bundle
from tests.bundle.conftest import OPERATORS
from tests.codegen.helpers import WARNINGS, must_run, needs_nvcc, run

needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("ninja") is None, reason="needs CMake and ninja"
)
CONSUMER = """
cmake_minimum_required(VERSION 3.18)
project(app CXX)
find_package(ekc_net 2.0 QUIET)
if(ekc_net_FOUND)
    message(FATAL_ERROR "version 0 was taken for version 2")
endif()
find_package(ekc_net 0.1 REQUIRED)
find_package(ekc_other REQUIRED)
add_executable(app main.cpp)
target_link_libraries(app PRIVATE ekc::net ekc::other)
"""
C_CONSUMER = """
cmake_minimum_required(VERSION 3.18)
project(app C)
find_package(ekc_net 0.1 REQUIRED)
add_executable(app main.c)
target_link_libraries(app PRIVATE ekc::net)
"""
MAIN = """
#include <cstdio>
#include <cstring>
#include <ekc/net.hpp>
#include <ekc/other.hpp>

int main()
{
    for (const ekc::net::Info& kernel : ekc::net::list()) {
        const int length = static_cast<int>(std::strlen(kernel.function_name)) - 9; // without digits
        std::printf("%.*s %s %s\\n", length, kernel.function_name, kernel.board, kernel.source);
    }
    std::printf("other: %d\\n", ekc::other::kernel_count());
    float* none = nullptr;
    const ekc::net::Status status = ekc::net::matmul_float32({64, 64, 64}, none, none, none);
    const ekc::other::Status unknown = ekc::other::head_softmax({8, 65}, none, none);
    std::printf("%d %s\\n", status.ok(), unknown.name());
}
"""
CUDA_MAIN = """
ekc::net::Status call(__half* a, cudaStream_t stream)
{
    return ekc::net::matmul_float16({32, 32, 64}, a, a, a, {}, stream);
}
int main() { return ekc::net::kernel_count() == 0 || call(nullptr, nullptr); }
"""


def build(folder: Path, *settings: str) -> None:
    """Configure and build with warnings as errors, unoptimised, which takes half the time."""
    flags = " ".join(WARNINGS)
    must_run(
        *("cmake", "-G", "Ninja", "-S", ".", "-B", "made", f"-DCMAKE_CXX_FLAGS={flags}"),
        "-DCMAKE_CUDA_FLAGS=-Werror all-warnings -Xcicc -O0 -Xptxas -O0",
        *("-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DCMAKE_CUDA_FLAGS_RELEASE=-O0", *settings),
        folder=folder,
    )
    must_run("cmake", "--build", "made", "-j", "2", folder=folder)


@pytest.fixture(scope="module")
def other(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second library, of one layer for one device."""
    found = collect_bundle(
        "other", records, operators=[NamedOperator(OPERATORS[2], "head.softmax")], targets=["a100"]
    )
    folder = tmp_path_factory.mktemp("other") / "other"
    write_bundle(found.bundle, folder)
    return folder


def install_part(other: Path, folder: Path, prefix: Path) -> None:
    """Build a project in C++ with a shared library in it, which shows its interface only, and install it."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.18)\nproject(app CXX)\nadd_subdirectory({other} other)\n"
        "add_executable(app main.cpp)\ntarget_link_libraries(app PRIVATE ekc::other)\n"
    )
    (folder / "main.cpp").write_text(
        "#include <ekc/other.hpp>\nint main() { return ekc::other::kernel_count() == 0; }\n"
    )
    build(folder, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DBUILD_SHARED_LIBS=ON")
    must_run("made/app", folder=folder)
    must_run("cmake", "--install", "made", folder=folder)
    shown = must_run("nm", "-D", "--defined-only", *prefix.rglob("libekc_other.so"), folder=folder)
    names = {line.split()[2] for line in shown.splitlines()}
    header = re.sub(r"\}.*;", "", (other / "include/ekc/other.h").read_text())
    assert names == set(re.findall(r"\bekc_other_\w+(?=\(|;\n)", header))


@needs_nvcc
@needs_cmake
def test_libraries_install_move_and_link(library: Path, other: Path, tmp_path: Path) -> None:
    """A static library, which C programs find too, and a shared one that was built within a project."""
    build(library, f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'first'}", "-DEKC_net_TESTS=ON")
    must_run("cmake", "--install", "made", folder=library)
    install_part(other, tmp_path / "whole", tmp_path / "first")
    assert "100% tests passed" in must_run("ctest", "--test-dir", "made", folder=library)
    (tmp_path / "first").rename(tmp_path / "moved")
    texts = [p.read_text() for p in (tmp_path / "moved").rglob("*.cmake")]
    assert not any(str(library) in text or str(tmp_path) in text for text in texts)

    app = tmp_path / "app"
    app.mkdir()
    (app / "CMakeLists.txt").write_text(CONSUMER)
    (app / "main.cpp").write_text(MAIN)
    places = [p for p in os.environ["PATH"].split(":") if not (Path(p) / "nvcc").exists()]
    environment = {k: v for k, v in os.environ.items() if k != "CUDACXX"} | {"PATH": ":".join(places)}
    for command in (
        ("cmake", "-G", "Ninja", "-S", ".", "-B", "made", f"-DCMAKE_PREFIX_PATH={tmp_path / 'moved'}"),
        ("cmake", "--build", "made"),
        ("made/app",),
    ):
        done = subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["other: " + str(len(read_record(other, "other")["kernels"])), "0 unknown_shape"]
    for word in (
        "matmul_float16 a100 simulated",
        "matmul_float32 h100 simulated",
        "softmax_float32 a100 simulated",
    ):
        assert word in lines

    in_c = tmp_path / "in_c"
    in_c.mkdir()
    (in_c / "CMakeLists.txt").write_text(C_CONSUMER)
    (in_c / "main.c").write_text(
        "#include <ekc/net.h>\nint main(void) { return ekc_net_kernel_count() == 0; }\n"
    )
    must_run("cmake", "-S", ".", "-B", "made", f"-DCMAKE_PREFIX_PATH={tmp_path / 'moved'}", folder=in_c)
    must_run("cmake", "--build", "made", folder=in_c)
    must_run("made/app", folder=in_c)


def read_record(folder: Path, name: str) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((folder / f"{name}.json").read_text())
    return found


STREAMS = """
#include <ekc/net.hpp>
#include <cuda_runtime_api.h>
#include <cstddef>
#include <vector>

using namespace ekc::net;

// A call is captured into a graph, after one that loads its code.
cudaError_t capture(
    cudaStream_t stream, const float* a, float* c, void* workspace, std::size_t bytes, cudaGraph_t& graph)
{
    const auto call = [&] {
        return matmul(matmul_float32_shape, a, a, c, workspace, bytes, stream, Prefer::energy);
    };
    Status status = call();
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (status && error == cudaSuccess) {
        status = call();
        error = cudaStreamEndCapture(stream, &graph);
    }
    return status ? error : static_cast<cudaError_t>(status.cuda_error());
}

// Every GPU computes on a stream and a workspace of its own.
bool compute(const std::vector<cudaStream_t>& streams, const float* a, float* c)
{
    bool right = true;
    for (std::size_t i = 0; i < streams.size() && right; ++i) {
        Workspace own;
        right = cudaSetDevice(static_cast<int>(i)) == cudaSuccess &&
                matmul_float32_workspace_bytes(matmul_float32_shape, own.bytes).ok() &&
                cudaMalloc(&own.data, own.bytes + 256) == cudaSuccess &&
                matmul(matmul_float32_shape, a, a, c, own, streams[i]).ok();
    }
    return right;
}
"""


@needs_nvcc
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_streams_graphs_and_several_gpus_compile(library: Path, tmp_path: Path, standard: str) -> None:
    (tmp_path / "streams.cpp").write_text(STREAMS)
    flags = (f"-std={standard}", "-Xcompiler", "-Wall,-Wextra,-Wconversion,-Werror", "-c")
    must_run("nvcc", *flags, f"-I{library / 'include'}", "streams.cpp", "-o", "streams.o", folder=tmp_path)


@needs_nvcc
def test_make_builds_installs_and_tests(bundle: Bundle, tmp_path: Path) -> None:
    """One function for each architecture, which nvcc compiles unoptimised in a few seconds."""
    write_bundle(replace(bundle, functions=bundle.functions[-1:]), tmp_path / "net")
    settings = (f"PREFIX={tmp_path / 'prefix'}", "NVCCFLAGS=-Xcicc -O0 -Xptxas -O0", "CXXFLAGS=-O0")
    must_run("make", "-j2", "install", *settings, folder=tmp_path / "net")
    assert "all right" in must_run("make", "test", folder=tmp_path / "net")
    (tmp_path / "main.cpp").write_text(
        "#include <ekc/net.hpp>\nint main() { return ekc::net::kernel_count() == 0; }\n"
    )
    words = ("main.cpp", "-Iprefix/include", "-Lprefix/lib", "-lekc_net", "-o", "main")
    must_run("nvcc", "-std=c++17", *words, folder=tmp_path)
    must_run("./main", folder=tmp_path)


@needs_nvcc
@pytest.mark.parametrize("order", [1, -1])
def test_types_of_the_header_are_those_of_cuda_in_either_order(
    library: Path, tmp_path: Path, order: int
) -> None:
    headers = ["<cuda_runtime.h>", "<cuda_fp16.h>", "<ekc/net.hpp>"][::order]
    (tmp_path / "main.cpp").write_text("".join(f"#include {h}\n" for h in headers) + CUDA_MAIN)
    flags = ("-std=c++17", "-Werror", "all-warnings", f"-I{library / 'include'}")
    must_run("nvcc", *flags, "-c", "main.cpp", "-o", "main.o", folder=tmp_path)


@pytest.mark.parametrize("standard", ["c++17", pytest.param("c++20", marks=pytest.mark.exhaustive)])
def test_host_test_agrees_with_a_linear_search(library: Path, tmp_path: Path, standard: str) -> None:
    """10,000 random requests and each status code; g++ alone compiles and links it."""
    must_run(
        *("g++", f"-std={standard}", *WARNINGS, "-Iinclude", "-Isrc"),
        *("tests/net_host_test.cpp", "src/net.cpp", "-o", tmp_path / "test"),
        folder=library,
    )
    assert "10000 requests" in must_run(tmp_path / "test", folder=library)


def demand_shared_memory(compiled: CompiledKernel) -> CompiledKernel:
    """The kernel with 100 kB of dynamic shared memory, more than some boards have."""
    return replace(compiled, launches=tuple(replace(x, shared_bytes=102400) for x in compiled.launches))


@pytest.fixture(scope="module")
def split(collected: CollectedBundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of one kernel with two launches, which needs a workspace of 4 sums of 64 x 64."""
    op = OPERATORS[0]
    schedule = ekc.Schedule(op).rfactor("k", 4)
    for loop in ("k_part", "i", "i_"):
        schedule = schedule.bind(loop, "block.y" if loop == "i" else "block.x")
    name = f"split_product_{schedule.digest}_sm_80"
    compiled = compile_schedule(schedule, "sm_80", name=name)
    board = collected.bundle.boards[0]
    kernel = BundleKernel("product", op, schedule, compiled, board, KernelFigures(1e-5, 1e-3))
    function = BundleFunction("product", describe_signature(op), (BundleShape(op, (kernel,)),))
    folder = tmp_path_factory.mktemp("split") / "split"
    write_bundle(Bundle("split", "0.1.0", (board,), (function,)), folder)
    return folder


def test_workspace_is_asked_for_and_checked(split: Path) -> None:
    flags = ("-std=c++17", *WARNINGS, "-Iinclude", "-Isrc")
    must_run("g++", *flags, "tests/split_host_test.cpp", "src/split.cpp", "-o", "host_test", folder=split)
    assert "1 kernels: all right" in must_run("./host_test", folder=split)
    assert f', {4 * 64 * 64 * 4}, 0, "both"' in (split / "src/tables.h").read_text()


@needs_nvcc
def test_kernel_of_two_launches_compiles(split: Path) -> None:
    flags = ("-std=c++17", "-arch=sm_80", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror")
    must_run("nvcc", *flags, "-c", "src/split_sm_80.cu", "-o", "split.o", folder=split)


def scale(figures: KernelFigures, latency: float, energy: float) -> KernelFigures:
    """Figures multiplied by factors."""
    return KernelFigures(latency * (figures.latency_s or 0), energy * (figures.energy_j or 0), True)


def test_selection_among_many_shapes_and_boards(collected: CollectedBundle, tmp_path: Path) -> None:
    """Several extents of a function, boards of one capability, one measured and simulated, one unmetered."""
    bundle = collected.bundle
    h200 = TargetBoard("h200", "sm_90a", True)
    measured = TargetBoard("NVIDIA H100 80GB HBM3", "sm_90a", False)
    unmetered = TargetBoard("NVIDIA H100 NVL", "sm_90a", False)
    functions = []
    for function in bundle.functions:
        kernels = function.shapes[0].kernels
        own = [k for k in kernels if k.board.name == "h100"]
        demanding = [replace(k, compiled=demand_shared_memory(k.compiled)) for k in own]
        kernels = (
            *kernels,
            *(replace(k, board=h200, figures=scale(k.figures, 0.9, 1.0)) for k in demanding),
            *(replace(k, board=measured, figures=scale(k.figures, 1.0, 1.1)) for k in own),
            *(replace(k, board=unmetered, figures=KernelFigures(k.figures.latency_s)) for k in own),
        )
        operators = [ekc.matmul(64 * m, 64, 64 * k) for m in (1, 3, 7) for k in (1, 2)]
        operators = [function.op] if function.name.startswith("softmax") else operators
        operators = operators if function.name.endswith("float32") else [function.op]
        shapes = [BundleShape(op, tuple(replace(k, op=op) for k in kernels)) for op in operators]
        functions.append(replace(function, shapes=tuple(shapes)))
    boards = (measured, unmetered, *bundle.boards, h200)
    write_bundle(replace(bundle, boards=boards, functions=tuple(functions)), tmp_path)
    flags = ("-std=c++17", *WARNINGS, "-Iinclude", "-Isrc", "-fsanitize=undefined")
    must_run("g++", *flags, "tests/net_host_test.cpp", "src/net.cpp", "-o", "host_test", folder=tmp_path)
    assert "10000 requests" in must_run("./host_test", folder=tmp_path)


def compile_caller(library: Path, folder: Path, body: str, standard: str = "c++17") -> tuple[int, str]:
    """Compile a function that calls the library; (exit status, messages)."""
    (folder / "caller.cpp").write_text(
        "#include <ekc/net.hpp>\nusing namespace ekc::net;\n"
        f"int call(float* a, const float* b, __half* h, double* d)\n{{\n{body}\n}}\n"
    )
    flags = (f"-std={standard}", *WARNINGS, "-Wno-unused-parameter", "-fsyntax-only")
    done = run("g++", *flags, f"-I{library / 'include'}", "caller.cpp", folder=folder)
    return done.returncode, done.stderr


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_typed_header_compiles(library: Path, tmp_path: Path, standard: str) -> None:
    body = """
    Options options;
    options.prefer = Prefer::latency;
    const View<float, 2> view{a, {64, 64}, 64 * 64 * sizeof(float)};
    const Status one = matmul_float32({64, 64, 64}, b, b, a, {}, nullptr, options);
    const Status two = matmul_float32(matmul_float32_shape, view, view, view);
    const Status three = matmul({32, 32, 64}, h, h, h);
    const Status four = matmul({64, 64, 64}, b, b, a, nullptr, 0, nullptr, Prefer::latency);
    const Status five = matmul(matmul_float32_shape, view, view, view, {}, nullptr, options);
    return one && two && three && four && five ? 0 : static_cast<int>(one.code());"""
    status, messages = compile_caller(library, tmp_path, body, standard)
    assert status == 0, messages


MISUSES = (
    ("return matmul_float32({64, 64, 64}, d, b, a).ok();", "no matching function"),
    ("return matmul_float32({64, 64, 64}, a, b, b).ok();", "invalid conversion from"),
    ("return matmul_float16({32, 32, 64}, b, h, h).ok();", "no matching function"),
    ("return matmul_float32({64, 64, 64}, a, a).ok();", "no matching function"),
    ("matmul_float32({64, 64, 64}, b, b, a); return 0;", "nodiscard"),
    ("int code = matmul_float32({64, 64, 64}, b, b, a); return code;", "cannot convert"),
)


def test_misuse_does_not_compile(library: Path, tmp_path: Path) -> None:
    lines = [f'{{\n#line 1 "misuse{n}"\n{text}\n}}' for n, (text, _) in enumerate(MISUSES)]
    status, messages = compile_caller(library, tmp_path, "\n".join([*lines, "return 0;"]))
    assert status != 0
    for number, (_, message) in enumerate(MISUSES):
        assert re.search(rf"misuse{number}:1:\d+: error: .*{message}", messages), messages


def test_c_header_is_valid_c(library: Path) -> None:
    flags = ("-std=c99", *(w for w in WARNINGS if w != "-Wold-style-cast"), "-fsyntax-only", "-x", "c")
    must_run("gcc", *flags, "include/ekc/net.h", folder=library)


def list_sources() -> list[object]:
    """Names of the C++ files that all libraries have alike; one needs the headers of CUDA."""
    names = sorted(path.name for path in SOURCES.iterdir())
    return [pytest.param(x, marks=needs_nvcc) if x == "runtime_cudart.cpp" else x for x in names]


@pytest.mark.parametrize("name", list_sources())
def test_source_of_all_libraries_compiles_as_it_is(library: Path, name: str) -> None:
    """Where it is in the package, beside the generated headers of a library. Those of the check need none."""
    folders = (
        [] if name in ("check_gpu.h", "check_values.h", "naive.h") else ["-Iinclude", "-Isrc", "-Itests"]
    )
    words = ["g++", "-std=c++17", "-fsyntax-only", *WARNINGS]
    if name == "runtime_cudart.cpp":
        words = ["nvcc", "-std=c++17", "-c", "-o", os.devnull, "-Xcompiler", ",".join(WARNINGS)]
    must_run(*words, *folders, "-x", "c++", SOURCES / name, folder=library)


def test_sources_of_all_libraries_are_written_unchanged(bundle: Bundle) -> None:
    written = {text for cubin in (False, True) for text in build_texts(bundle, cubin).values()}
    assert {path.read_text() for path in SOURCES.iterdir()} <= written


def test_files_name_their_license(library: Path, bundle: Bundle) -> None:
    files = [p for p in library.rglob("*") if p.is_file() and "made" not in p.parts]
    assert len(files) == 21
    for path in files:
        first = "".join(path.read_text().splitlines(keepends=True)[:2]).replace('"', "")
        assert "SPDX-License-Identifier: 0BSD" in first
    header = (library / "include/ekc/net.hpp").read_text() + (library / "include/ekc/net.h").read_text()
    assert not re.search(r"#include.*cuda", header)
    record = read_record(library, "net")
    assert [k["symbol"] for k in record["kernels"]] == [k.symbol for k in bundle.kernels]
