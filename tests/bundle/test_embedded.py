"""A library with embedded machine code: built by g++ alone, it gives a driver the code that was measured."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from ekc.codegen.library.kernels import Bundle, BundleKernel
from ekc.codegen.library.write import write_bundle
from ekc.codegen.render import format_words
from tests.bundle.fakes import build_driver
from tests.codegen.helpers import WARNINGS, must_run

MAIN = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <ekc/net.hpp>

// The arguments: the index of a kernel, how often it is launched, and the address of the first tensor.
int main(int, char** words)
{
    ekc::net::Info info;
    const int index = std::atoi(words[1]);
    ekc_net_options options EKC_net_OPTIONS_INIT;
    options.kernel = index;
    void* tensors[3];
    std::uintptr_t address = std::stoul(words[3], nullptr, 16);
    for (auto& tensor : tensors) {
        tensor = reinterpret_cast<void*>(address);
        address += std::uintptr_t{1} << 30;
    }
    if (!ekc::net::kernel_at(index, info)) {
        return 1;
    }
    ekc_net_call call{};
    call.size = sizeof call;
    call.version = EKC_net_ABI_VERSION;
    call.function = info.function;
    call.extents = info.extents;
    call.extent_count = info.extent_count;
    call.tensor_count = std::strncmp(info.function_name, "softmax", 7) == 0 ? 2 : 3;
    call.tensors = tensors;
    call.options = &options;
    for (int i = 0; i < std::atoi(words[2]); ++i) {
        const ekc::net::Status status = ekc_net_launch(&call);
        std::printf("%s %d\\n", status.name(), status.cuda_error());
    }
}
"""


@pytest.fixture(scope="module")
def embedded(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the program `main`, linked with the library, and of a driver in `driver/`."""
    folder = tmp_path_factory.mktemp("embedded")
    write_bundle(bundle, folder / "net", cubin=True)
    must_run("make", "-j2", "CXXFLAGS=" + " ".join(WARNINGS), folder=folder / "net")
    (folder / "main.cpp").write_text(MAIN)
    libraries = ("-Lnet/build", "-lekc_net", "-ldl")
    flags = ("-std=c++17", *WARNINGS, "-Inet/include")
    must_run("g++", *flags, "main.cpp", *libraries, "-o", "main", folder=folder)
    build_driver(folder)
    return folder


def launch(
    folder: Path, kernel: int, capability: int, count: int = 1, address: str = "7f0000000000", error: str = ""
) -> tuple[list[str], list[str]]:
    """Lines of the program, and calls that the driver received."""
    log = folder / "calls.txt"
    log.unlink(missing_ok=True)
    facts = {"FAKE_CAPABILITY": str(capability), "FAKE_NAME": "NVIDIA board", "FAKE_LOG": str(log)}
    environment = os.environ | facts | {"LD_LIBRARY_PATH": str(folder / "driver"), "FAKE_ERROR": error}
    words = [str(folder / "main"), str(kernel), str(count), address]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines(), log.read_text().splitlines() if log.exists() else []


def hash_code(code: bytes) -> str:
    """FNV-1a, as the driver of the test has it."""
    value = 14695981039346656037
    for byte in code:
        value = (value ^ byte) * 1099511628211 % 2**64
    return f"{len(code)} {value:016x}"


def test_driver_receives_the_code_that_was_compiled(embedded: Path, bundle: Bundle) -> None:
    for number, kernel in enumerate(bundle.kernels):
        lines, calls = launch(embedded, number, kernel.board.capability, count=2)
        assert lines == ["ok 0", "ok 0"]
        assert calls[0] == "cuDevicePrimaryCtxRetain 0"
        assert calls[1] == f"cuLibraryLoadData cubin {hash_code(kernel.compiled.cubin)}"
        assert calls[2] == f"cuLibraryGetKernel {kernel.compiled.launches[0].name}"
        assert [c for c in calls if c.startswith("cuLaunchKernel")] == 2 * list_launches(kernel)
        assert sum(c.startswith("cuLibraryLoadData") for c in calls) == 1


def list_launches(kernel: BundleKernel) -> list[str]:
    return [
        f"cuLaunchKernel 0x1 {' '.join(map(str, (*x.grid, *x.block, x.shared_bytes)))} (nil) 0x7f0000000000"
        for x in kernel.compiled.launches
    ]


@pytest.mark.parametrize(
    ("arch", "capability", "expected"),
    [
        ("sm_80", 86, "cubin"),
        ("sm_80", 89, "cubin"),
        ("sm_80", 90, "ptx"),
        ("sm_80", 75, "wrong_capability 0"),
        ("sm_89", 89, "cubin"),
        ("sm_89", 90, "ptx"),
        ("sm_89", 120, "ptx"),
        ("sm_89", 86, "wrong_capability 0"),
        ("sm_90a", 90, "cubin"),
        ("sm_90a", 100, "wrong_capability 0"),
        ("sm_90a", 120, "wrong_capability 0"),
    ],
)
def test_code_by_capability(
    embedded: Path, bundle: Bundle, arch: str, capability: int, expected: str
) -> None:
    number, kernel = next((i, k) for i, k in enumerate(bundle.kernels) if k.arch == arch)
    if arch == "sm_80":
        # The last operator is there for sm_89 too, and has PTX for that alone.
        last = max(i for i, k in enumerate(bundle.kernels) if k.arch == arch)
        assert launch(embedded, last, 90)[0] == ["wrong_capability 0"]
    lines, calls = launch(embedded, number, capability)
    loaded = [c.split()[1:] for c in calls if c.startswith("cuLibraryLoadData")]
    if expected in ("cubin", "ptx"):
        code = kernel.compiled.cubin if expected == "cubin" else kernel.compiled.ptx.encode()
        assert (lines, loaded) == (["ok 0"], [[expected, *hash_code(code).split()]])
    else:
        assert (lines, loaded) == ([expected], [])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("cuInit 100", "no_gpu 100"),
        ("cuDevicePrimaryCtxRetain 2", "no_gpu 2"),
        ("cuLibraryLoadData 200", "launch_failed 200"),
        ("cuLibraryGetKernel 500", "launch_failed 500"),
        ("cuLaunchKernel 701", "launch_failed 701"),
        ("cuPointerGetAttribute 700", "cuda_failed 700"),
    ],
)
def test_errors_of_the_driver_are_returned(embedded: Path, error: str, line: str) -> None:
    assert launch(embedded, 0, 80, error=error)[0] == [line]


THREADS = """
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#include <ekc/net.hpp>

using namespace ekc::net;

// Words: "threads", "preload", "unload". Each prints the codes of its calls.
int main(int count, char** words)
{
    float* const a = reinterpret_cast<float*>(std::uintptr_t{0x7f0000000000});
    float* const c = a + 65536;
    const auto call = [&] { return matmul_float32(matmul_float32_shape, a, a, c, nullptr, 0, nullptr); };
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        if (word == "threads") {
            std::atomic<int> right{0};
            std::vector<std::thread> threads;
            for (int j = 0; j < 8; ++j) {
                threads.emplace_back([&] { right += call().ok() ? 1 : 0; });
            }
            for (std::thread& thread : threads) {
                thread.join();
            }
            std::printf("threads %d\\n", right.load());
        } else {
            const Status status = word == "preload" ? preload() : word == "unload" ? unload() : call();
            std::printf("%s %s %d\\n", word.c_str(), status.name(), status.cuda_error());
        }
    }
}
"""


@pytest.fixture(scope="module")
def threads(embedded: Path) -> Path:
    """The folder with a program that calls from several threads."""
    (embedded / "threads.cpp").write_text(THREADS)
    flags = ("-std=c++17", "-pthread", *WARNINGS, "-Inet/include")
    must_run(
        *("g++", *flags, "threads.cpp", "-Lnet/build", "-lekc_net", "-ldl", "-o", "threads"), folder=embedded
    )
    return embedded


def run_words(folder: Path, words: str, error: str = "") -> tuple[list[str], dict[str, int]]:
    """Lines of the program, and how often the driver received each call."""
    log = folder / "calls.txt"
    log.unlink(missing_ok=True)
    facts = {
        "FAKE_CAPABILITY": "80",
        "FAKE_NAME": "NVIDIA A100",
        "FAKE_LOG": str(log),
        "FAKE_LOAD_US": "20000",
    }
    environment = os.environ | facts | {"LD_LIBRARY_PATH": str(folder / "driver"), "FAKE_ERROR": error}
    done = subprocess.run(
        [str(folder / "threads"), *words.split()], env=environment, capture_output=True, text=True, check=True
    )
    calls = Counter(line.split()[0] for line in log.read_text().splitlines())
    return done.stdout.splitlines(), calls


def test_threads_load_the_code_once(threads: Path) -> None:
    lines, calls = run_words(threads, "threads threads")
    assert lines == ["threads 8", "threads 8"]
    assert (calls["cuLibraryLoadData"], calls["cuLibraryGetKernel"]) == (1, 1)
    assert calls["cuLaunchKernel"] == 16


def test_preload_loads_what_calls_need_and_unload_ends_it(threads: Path, bundle: Bundle) -> None:
    lines, calls = run_words(threads, "preload call unload unload call unload")
    assert lines == [f"{word} ok 0" for word in ("preload", "call", "unload", "unload", "call", "unload")]
    here = {k.symbol for k in bundle.kernels if k.board.name == "a100"}
    # The second call loads one kernel again.
    assert calls["cuLibraryLoadData"] == calls["cuLibraryUnload"] == len(here) + 1


def test_failing_unload_fails_no_call(threads: Path) -> None:
    lines, calls = run_words(threads, "threads unload call", error="cuLibraryUnload 4")
    assert lines == ["threads 8", "unload cuda_failed 4", "call ok 0"]
    assert calls["cuLibraryLoadData"] == 2


def test_failing_load_is_tried_again(threads: Path) -> None:
    lines, calls = run_words(threads, "preload call call", error="cuLibraryLoadData 2")
    assert lines == ["preload cuda_failed 2", "call launch_failed 2", "call launch_failed 2"]
    assert calls["cuLibraryLoadData"] == 3


def test_memory_that_the_driver_does_not_know_is_refused(embedded: Path) -> None:
    assert launch(embedded, 0, 80, address="100")[0] == ["wrong_device 0"]


def test_no_driver_is_an_error_and_not_a_crash(embedded: Path, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    words = [str(embedded / "main"), "0", "1", "7f0000000000"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout in ("no_gpu 35\n", "no_gpu 100\n")  # No driver, or no GPU.


def test_host_test_of_embedded_code(embedded: Path) -> None:
    assert "10000 requests" in must_run("make", "test", folder=embedded / "net")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
def test_cmake_without_a_cuda_compiler(embedded: Path, tmp_path: Path) -> None:
    """The project of the library and one that finds it name no CUDA; PATH has no nvcc."""
    places = [p for p in os.environ["PATH"].split(":") if not (Path(p) / "nvcc").exists()]
    environment = {k: v for k, v in os.environ.items() if k != "CUDACXX"} | {"PATH": ":".join(places)}
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(app CXX)\nfind_package(ekc_net REQUIRED)\n"
        "add_executable(app main.cpp)\ntarget_link_libraries(app PRIVATE ekc::net)\n"
    )
    shutil.copy(embedded / "main.cpp", tmp_path)
    prefix = tmp_path / "prefix"
    options = (f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DBUILD_SHARED_LIBS=ON", "-DCMAKE_CXX_FLAGS_RELEASE=-O0")
    for words in (
        ("-S", str(embedded / "net"), "-B", "net", *options),
        ("--build", "net", "-j", "2", "--target", "install"),
        ("-S", ".", "-B", "app", f"-DCMAKE_PREFIX_PATH={prefix}"),
        ("--build", "app"),
    ):
        done = subprocess.run(
            ["cmake", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
    needed = must_run("readelf", "-d", "app/app", folder=tmp_path)
    assert "libekc_net.so.0" in needed
    assert "libcuda" not in needed


@pytest.mark.parametrize(
    ("data", "text"), [(b"", ""), (b"\x01", "    0x1,"), (bytes(range(9)), "    0x706050403020100, 0x8,")]
)
def test_words(data: bytes, text: str) -> None:
    assert format_words(data) == text


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_clang_builds_and_tests(embedded: Path, tmp_path: Path, standard: str) -> None:
    shutil.copytree(embedded / "net", tmp_path / "net", ignore=shutil.ignore_patterns("build"))
    flags = ("CXX=clang++", "CXXFLAGS=" + " ".join(WARNINGS))
    must_run("make", "-j2", *flags, folder=tmp_path / "net")
    assert "10000 requests" in must_run("make", "test", *flags, folder=tmp_path / "net")
    assert "skipped" in must_run("make", "check", *flags, folder=tmp_path / "net")
    (tmp_path / "main.cpp").write_text(MAIN)
    libraries = ("-Lnet/build", "-lekc_net", "-ldl")
    flags = (f"-std={standard}", *WARNINGS, "-Inet/include")
    must_run("clang++", *flags, "main.cpp", *libraries, "-o", "main", folder=tmp_path)
