"""Libraries of one name in one program: a stale object does not link, and plugins do not share a library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ekc
from ekc.codegen.library.build import KernelChoice, build_library
from ekc.codegen.library.function_plan import NamedOperator
from ekc.codegen.library.kernels import Bundle, KernelFigures, TargetBoard
from ekc.codegen.library.write import write_bundle
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from tests.bundle.fakes import build_driver
from tests.codegen.helpers import WARNINGS, must_run, run

needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
A100 = TargetBoard("a100", "sm_80", True, 108)
FLAGS = ("-std=c++17", "-O0", "-fPIC", *WARNINGS)


def make_library(name: str, *operators: Operator | NamedOperator, latency_s: float = 1e-5) -> Bundle:
    """A library of naive kernels, with a figure of each."""
    named = [x if isinstance(x, NamedOperator) else NamedOperator(x) for x in operators]
    figures = KernelFigures(latency_s, 1e-3, True)
    choices = {x.op.digest: [KernelChoice(make_naive_schedule(x.op), figures)] for x in named}
    return build_library(name, named, choices, A100)


def build_static(bundle: Bundle, folder: Path) -> None:
    """Write a library with embedded code, and build its archive of all sources in one translation unit, which
    takes a third of the time of `make`."""
    write_bundle(bundle, folder, cubin=True)
    sources = sorted(path.name for path in (folder / "src").glob("*.cpp"))
    (folder / "all.cpp").write_text("".join(f'#include "src/{name}"\n' for name in sources))
    must_run("g++", *FLAGS, "-fvisibility=hidden", "-Iinclude", "-Isrc", "-c", "all.cpp", folder=folder)
    must_run("ar", "rcs", "libekc_net.a", "all.o", folder=folder)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libraries `net` of one layer with other epilogues, in `relu` and `scaled`; `wide` has the
    first layer with other extents, `slow` with another figure, `more` with another layer beside it."""
    folder = tmp_path_factory.mktemp("linking")
    plain = ekc.matmul(16, 16, 16)
    relu = plain.epilogue(lambda c: ekc.relu(c))
    build_static(make_library("net", NamedOperator(relu, "layer")), folder / "relu")
    build_static(
        make_library("net", NamedOperator(plain.epilogue(lambda c: c * 2.0), "layer")), folder / "scaled"
    )
    wide = ekc.matmul(16, 16, 32).epilogue(lambda c: ekc.relu(c))
    build_static(make_library("net", NamedOperator(wide, "layer")), folder / "wide")
    build_static(make_library("net", NamedOperator(relu, "layer"), latency_s=3e-5), folder / "slow")
    more = make_library("net", NamedOperator(relu, "layer"), NamedOperator(ekc.softmax((8, 8)), "head"))
    build_static(more, folder / "more")
    return folder


CALLER = """
#include <ekc/net.hpp>

int NAME(float* a);
int NAME(float* a)
{
    const auto status = ekc::net::layer(ekc::net::layer_shape, a, a, a);
    const auto count = static_cast<int>(ekc::net::list().size());
    return static_cast<int>(ekc::net::layer_shape.k) * 1000 + count * 100 + static_cast<int>(status.code());
}
"""


@pytest.fixture(scope="module")
def callers(libraries: Path) -> Path:
    """The folder with objects `relu.o`, `scaled.o`, `wide.o` and `more.o`, each compiled against the library
    of its name: it has a function `call_relu`, which calls the layer."""
    (libraries / "caller.cpp").write_text(CALLER)
    for name in ("relu", "scaled", "wide", "more"):
        flags = (*FLAGS, f"-DNAME=call_{name}", f"-I{name}/include")
        must_run("g++", *flags, "-c", "caller.cpp", "-o", f"{name}.o", folder=libraries)
    return libraries


def test_stale_object_of_another_operator_does_not_link(callers: Path) -> None:
    """The object was compiled with another epilogue; alone, and beside an object of the present header."""
    (callers / "main.cpp").write_text(
        "int call_relu(float*);\nint main() { return call_relu(nullptr) == 0; }\n"
    )
    for objects in (("relu.o",), ("relu.o", "scaled.o"), ("scaled.o", "relu.o")):
        words = ("main.cpp", *objects, "scaled/libekc_net.a", "-ldl", "-o", "main")
        done = run("g++", "-O0", *words, folder=callers)
        assert done.returncode != 0
        assert "undefined reference to `ekc_net_layer_" in done.stderr
    # The library that it was compiled for links.
    must_run("g++", "main.cpp", "relu.o", "relu/libekc_net.a", "-ldl", "-o", "main", folder=callers)


def test_objects_of_two_headers_keep_their_own_code(callers: Path) -> None:
    """Extents and number of kernels are those of the header of each object, also where both are in a program:
    the operator is the same, and another layer or other extents were added since."""
    (callers / "print.cpp").write_text(
        "#include <cstdio>\nint call_relu(float*);\nint call_more(float*);\nint call_wide(float*);\n"
        "int main()\n{\n"
        'std::printf("%d %d %d", call_relu(nullptr), call_more(nullptr), call_wide(nullptr));\n}\n'
    )
    for order in (("relu.o", "more.o", "wide.o"), ("wide.o", "more.o", "relu.o")):
        words = ("print.cpp", *order, "more/libekc_net.a", "-ldl", "-o", "print")
        must_run("g++", "-O0", *words, folder=callers)
        assert must_run("./print", folder=callers) == "16101 16201 32104"


PLUGINS = ("relu", "scaled", "wide", "slow")
PLUGIN = """
#include <ekc/net.hpp>

extern "C" double describe(float* a, float* c, int* code)
{
    const ekc::net::Status status = ekc::net::layer(ekc::net::layer_shape, a, a, c);
    *code = static_cast<int>(status.code());
    return ekc::net::list()[0].latency_s * 1e6 + static_cast<double>(ekc::net::layer_shape.k);
}
extern "C" int unload() { return static_cast<int>(ekc::net::unload().code()); }
"""
HOST = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

int main(int count, char** words)
{
    const int mode = std::strcmp(words[1], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL;
    void* plugins[8];
    for (int i = 2; i < count; ++i) {
        plugins[i] = dlopen(words[i], RTLD_NOW | mode);
        if (plugins[i] == nullptr) {
            std::fprintf(stderr, "%s\\n", dlerror());
            return 1;
        }
    }
    for (int i = 2; i < count; ++i) {
        double (*describe)(float*, float*, int*);
        *reinterpret_cast<void**>(&describe) = dlsym(plugins[i], "describe");
        int code = 0;
        float* const a = reinterpret_cast<float*>(0x7f0000000000);
        const double figure = describe(a, a + 1024, &code);
        std::printf("%.0f %d\\n", figure, code);
    }
    for (int i = 2; i < count; ++i) {
        int (*unload)();
        *reinterpret_cast<void**>(&unload) = dlsym(plugins[i], "unload");
        const int unloaded = unload();
        std::printf("%d %d\\n", unloaded, dlclose(plugins[i]));
    }
}
"""


@pytest.fixture(scope="module")
def plugins(libraries: Path) -> Path:
    """The folder with plugins `relu.so`, `scaled.so`, `wide.so` and `slow.so`, each of which holds the static
    library of its name, a program `host` that loads them, and a driver in `driver/`."""
    (libraries / "plugin.cpp").write_text(PLUGIN)
    for name in PLUGINS:
        flags = (*FLAGS, "-Wno-missing-declarations", "-shared", f"-I{name}/include")
        words = ("plugin.cpp", f"{name}/libekc_net.a", "-ldl", "-o", f"{name}.so")
        must_run("g++", *flags, *words, folder=libraries)
        shown = must_run("nm", "-D", "--defined-only", f"{name}.so", folder=libraries)
        assert " ekc_net" not in shown
    (libraries / "host.cpp").write_text(HOST)
    must_run("g++", "-std=c++17", "host.cpp", "-ldl", "-o", "host", folder=libraries)
    build_driver(libraries)
    return libraries


@pytest.mark.parametrize("mode", ["global", "local"])
def test_plugins_have_libraries_of_their_own(plugins: Path, tmp_path: Path, mode: str) -> None:
    """Plugins that hold static libraries of one name, with other operators, extents and figures."""
    log = tmp_path / "calls.txt"
    facts = {"FAKE_CAPABILITY": "80", "FAKE_NAME": "NVIDIA A100", "FAKE_LOG": str(log)}
    environment = os.environ | facts | {"LD_LIBRARY_PATH": str(plugins / "driver")}
    words = ["./host", mode, *(f"./{name}.so" for name in PLUGINS)]
    done = subprocess.run(
        words, cwd=plugins, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["26 0", "26 0", "42 0", "46 0", *["0 0"] * 4]
    calls = log.read_text().splitlines()
    launched = [line.split()[1] for line in calls if line.startswith("cuLaunchKernel")]
    loaded = [line for line in calls if line.startswith("cuLibraryLoadData")]
    # Each launched a kernel of its own code, and unloaded it.
    assert len(set(launched)) == len(loaded) == sum(line.startswith("cuLibraryUnload") for line in calls) == 4


C_MAIN = """
#include <ekc/net.h>

int main(void)
{
    const int64_t extents[] = {16, 16, 16};
    const ekc_net_options options = EKC_net_OPTIONS_INIT;
    size_t bytes;
    const ekc_net_status status = ekc_net_workspace_bytes(VARIABLE, extents, 3, &options, &bytes);
    return status.code == EKC_net_NO_GPU && ekc_net_kernel_count() == 1 ? 0 : 1;
}
"""


def run_cmake(folder: Path, *settings: str | Path, source: Path | str = ".", target: str = "all") -> None:
    """Configure a project in the folder `made`, and build it unoptimised."""
    flags = ("-DCMAKE_C_FLAGS_RELEASE=-O0", "-DCMAKE_CXX_FLAGS_RELEASE=-O0", "--no-warn-unused-cli")
    must_run("cmake", "-S", source, "-B", "made", *flags, *settings, folder=folder)
    must_run("cmake", "--build", "made", "-j", "2", "--target", target, folder=folder)


def write_project(folder: Path, lists: str, **sources: str) -> Path:
    """Write a project for CMake, whose sources are named by ending."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.18)\n{lists}")
    for ending, text in sources.items():
        (folder / f"main.{ending}").write_text(text)
    return folder


@needs_cmake
def test_project_in_c_finds_the_library(libraries: Path, tmp_path: Path) -> None:
    """No C++ compiler is named by projects that find the library, static or shared, or that hold it."""
    found = re.search(r"extern const uint64_t (\w+);", (libraries / "relu/include/ekc/net.h").read_text())
    assert found
    text = C_MAIN.replace("VARIABLE", found[1])
    start = "project(x LANGUAGES C)\n"
    end = "add_executable(app main.c)\ntarget_link_libraries(app ekc::net)\n"
    app = write_project(tmp_path / "app", f"{start}find_package(ekc_net REQUIRED)\n{end}", c=text)
    own = f"{start}add_subdirectory({libraries / 'relu'} net)\n{end}"
    inside = write_project(tmp_path / "inside", own, c=text)
    for shared in ("OFF", "ON"):
        option, prefix = f"-DBUILD_SHARED_LIBS={shared}", tmp_path / shared
        settings = (option, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DEKC_net_TESTS=OFF")
        run_cmake(tmp_path, *settings, source=libraries / "relu", target="install")
        run_cmake(app, "-Uekc_net_DIR", f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_COMPILER=/nonexistent")
        must_run("made/app", folder=app)
        run_cmake(inside, option)
        must_run("made/app", folder=inside)


EMBEDDER = """
project(product VERSION 1.0 LANGUAGES CXX)
add_subdirectory({library} net)
add_library(product STATIC main.cpp)
target_link_libraries(product PRIVATE ekc::net)
install(TARGETS product EXPORT product-targets ARCHIVE DESTINATION lib)
install(EXPORT product-targets NAMESPACE product:: DESTINATION lib/cmake/product)
file(WRITE ${{CMAKE_CURRENT_BINARY_DIR}}/product-config.cmake "include(CMakeFindDependencyMacro)
find_dependency(ekc_net)
include(\\${{CMAKE_CURRENT_LIST_DIR}}/product-targets.cmake)
")
install(FILES ${{CMAKE_CURRENT_BINARY_DIR}}/product-config.cmake DESTINATION lib/cmake/product)
"""


@needs_cmake
def test_product_that_has_the_library_in_it_exports_its_targets(libraries: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    text = "#include <ekc/net.hpp>\nint count();\nint count() { return ekc::net::kernel_count(); }\n"
    product = write_project(tmp_path / "product", EMBEDDER.format(library=libraries / "relu"), cpp=text)
    run_cmake(product, f"-DCMAKE_INSTALL_PREFIX={prefix}", target="install")
    lists = (
        "project(app LANGUAGES CXX)\nfind_package(product REQUIRED)\n"
        "add_executable(app main.cpp)\ntarget_link_libraries(app product::product)\n"
    )
    app = write_project(
        tmp_path / "app", lists, cpp="int count();\nint main() { return count() == 1 ? 0 : 1; }\n"
    )
    run_cmake(app, f"-DCMAKE_PREFIX_PATH={prefix}")
    must_run("made/app", folder=app)
