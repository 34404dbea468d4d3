"""The C++ example builds with make and CMake, runs without a GPU, and misuse of the library is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ekc
from ekc.codegen.library.build import KernelChoice, build_library
from ekc.codegen.library.function_plan import NamedOperator
from ekc.codegen.library.kernels import Bundle, KernelFigures, TargetBoard
from ekc.codegen.library.template_values import STATUS_CODES
from ekc.codegen.library.write import write_bundle
from ekc.ir.schedule.naive import make_naive_schedule
from tests.codegen import samples
from tests.codegen.helpers import must_run, needs_nvcc, run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cpp"
FILES = {path.name for path in EXAMPLE.iterdir()}
WARNINGS = "-Wall -Wextra -Wpedantic -Wconversion -Werror"
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")


def refused(what: str, name: str) -> str:
    """A line of the example about a status."""
    return f"  {what:25} {name}: {STATUS_CODES[name]}"


def selected(what: str, figures: str, function: str = "matmul_float32") -> str:
    """A line of the example about a kernel."""
    return f"  {what:25} {function:15} {figures} uJ  a100, simulated"


FAST, LEAN = "   10.000 us   2000.00", "   10.400 us   1500.00"
TABLE = [
    "Kernels of the library:",
    selected("latency", FAST),
    selected("energy", LEAN),
    selected("both", "   20.000 us       nan", "softmax_float32"),
    "Selected for a GPU:",
    selected("A100, least latency", FAST),
    selected("A100, least energy", LEAN),
    selected("H100", LEAN),
    refused("H100, tuned for it only", "not_exact"),
    refused("T4", "no_kernel_for_device"),
    "Refused:",
    refused("extents without a kernel", "unknown_shape"),
    refused("A and B swapped", "wrong_extents"),
    refused("too little memory for C", "buffer_too_small"),
    refused("null pointers", "null_pointer"),
    "On this machine:",
]
NO_GPU = refused("the product", "no_gpu")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """The library that `make kernels` makes, of other schedules and with made-up figures."""
    product, softmax = ekc.matmul(256, 128, 64), ekc.softmax((512, 512))
    choices = {
        product.digest: [
            KernelChoice(samples.matmul(256, 128, 64), KernelFigures(10e-6, 2e-3, True), "latency"),
            KernelChoice(make_naive_schedule(product), KernelFigures(10.4e-6, 1.5e-3, True), "energy"),
        ],
        softmax.digest: [KernelChoice(make_naive_schedule(softmax), KernelFigures(20e-6))],
    }
    board = TargetBoard("a100", "sm_80", True)
    return build_library("kernels", [NamedOperator(product), NamedOperator(softmax)], choices, board)


@pytest.fixture(scope="module")
def made(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the example, built by `make` with the library in it."""
    folder = tmp_path_factory.mktemp("cpp") / "cpp"
    shutil.copytree(EXAMPLE, folder)
    write_bundle(bundle, folder / "kernels", cubin=True)
    must_run("make", f"WARNINGS={WARNINGS}", folder=folder)
    return folder


def is_without_gpu(printed: str) -> bool:
    *table, last = printed.splitlines()
    return (table, last) == (TABLE, NO_GPU)


def configure(source: Path, folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    words = ("cmake", "-S", source, "-B", "build", f"-DCMAKE_CXX_FLAGS={WARNINGS}", *settings)
    return run(*words, folder=folder)


def build_and_run(source: Path, folder: Path, *settings: str) -> str:
    """Build the example with CMake and return what it prints."""
    done = configure(source, folder, *settings)
    assert done.returncode == 0, done.stderr
    must_run("cmake", "--build", "build", "-j2", folder=folder)
    return must_run("build/main", folder=folder)


def test_main_without_a_gpu(made: Path) -> None:
    printed = must_run("./main", folder=made)
    assert is_without_gpu(printed), printed


def test_kernel_is_selected_on_a_gpu(made: Path, tmp_path: Path) -> None:
    """The driver is a fake, as no kernel is launched."""
    source = ROOT / "tests" / "bundle" / "fake_gpu.cpp"
    must_run("g++", "-std=c++17", "-shared", "-fPIC", source, "-o", "libcuda.so.1", folder=tmp_path)
    facts = {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_CAPABILITY": "86", "FAKE_NAME": "NVIDIA fake"}
    environment = os.environ | facts
    done = subprocess.run(["./main"], cwd=made, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *TABLE,
        selected("the product", LEAN),
        "  built without WITH_CUDA: the product is not computed",
    ]


@needs_nvcc
def test_make_with_cuda(made: Path) -> None:
    # The headers of CUDA do not pass -Wpedantic.
    printed = must_run("make", "run_cuda", "WARNINGS=-Wall -Wextra -Wconversion -Werror", folder=made)
    assert is_without_gpu(printed[printed.index("Kernels of") :]), printed


@needs_nvcc
@needs_cmake
def test_cmake_with_the_folder_of_the_library(made: Path, tmp_path: Path) -> None:
    settings = (f"-DKERNELS={os.path.relpath(made / 'kernels', tmp_path)}", "-DWITH_CUDA=ON")
    printed = build_and_run(made, tmp_path, *settings)
    assert is_without_gpu(printed), printed


def install(library: Path, folder: Path) -> Path:
    """Install a library and move it; the place it is found at then."""
    unoptimised = "-DCMAKE_CXX_FLAGS_RELEASE=-O0"
    settings = (f"-DCMAKE_INSTALL_PREFIX={folder / 'first'}", "-DEKC_kernels_TESTS=OFF", unoptimised)
    must_run("cmake", "-S", library, "-B", "library", *settings, folder=folder)
    must_run("cmake", "--build", "library", "-j2", "--target", "install", folder=folder)
    shutil.move(folder / "first", folder / "moved")
    shutil.rmtree(folder / "library")
    return folder / "moved"


@needs_cmake
def test_cmake_with_an_installed_library(bundle: Bundle, tmp_path: Path) -> None:
    library = tmp_path / "kernels"
    write_bundle(bundle, library, cubin=True)
    prefix = install(library, tmp_path)
    shutil.rmtree(library)
    printed = build_and_run(EXAMPLE, tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    assert is_without_gpu(printed), printed


@needs_cmake
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "No library ekc_kernels is installed under CMAKE_PREFIX_PATH. Run `make kernels`, then"),
        (("-DKERNELS=missing",), "has no library `kernels` of ekc; `make kernels` makes one"),
    ],
)
def test_missing_library_is_one_message(tmp_path: Path, settings: tuple[str, ...], message: str) -> None:
    done = configure(EXAMPLE, tmp_path, *settings)
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_no_warnings(made: Path, standard: str) -> None:
    flags = (f"-std={standard}", *WARNINGS.split(), "-fsyntax-only", "-Ikernels/include")
    must_run("g++", *flags, "main.cpp", folder=made)
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        dry = run(nvcc, "--dryrun", "main.cpp", folder=made).stderr
        headers = re.findall(r'-I"?([^" ]+/include)"?', dry)
        cuda = [word for place in headers for word in ("-isystem", place)]
        must_run("g++", *flags, *cuda, "-DWITH_CUDA", "main.cpp", folder=made)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("View<float, 2> too_small{none", "View<double, 2> too_small{nullptr", "no matching function"),
        ("matmul_float32(product, b, a, c)", "matmul_float32(product, b, a)", "no matching function"),
        ("View<float, 2> too_small", "View<const float, 2> too_small", "no matching function"),
        ("View<T, 2> make_view", "View<T, 3> make_view", "no matching function"),
        ("const Status status = matmul_float32_info", "matmul_float32_info", "nodiscard"),
        ("fast.prefer = Prefer::latency", "fast.prefer = Prefer::time", "is not a member"),
        ("_info(product", "_info(softmax_float32_shape", "invalid initialization"),
    ],
)
def test_mistakes_do_not_compile(made: Path, tmp_path: Path, right: str, wrong: str, message: str) -> None:
    text = (made / "main.cpp").read_text()
    assert right in text
    (tmp_path / "main.cpp").write_text(text.replace(right, wrong))
    flags = ("-std=c++17", *WARNINGS.split(), "-fsyntax-only", f"-I{made / 'kernels' / 'include'}")
    done = run("g++", *flags, "main.cpp", folder=tmp_path)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.exhaustive
def test_make_run_makes_the_library(tmp_path: Path) -> None:
    """As a user does: `ekc` is on the PATH."""
    folder = tmp_path / "cpp"
    shutil.copytree(EXAMPLE, folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path, "OMP_NUM_THREADS": "1"}
    words = ["make", "run", "TRIALS=2", f"WARNINGS={WARNINGS}"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\n  both +softmax_float32 .* a100, simulated\n", done.stdout), done.stdout
    assert re.search(NO_GPU, done.stdout)
    must_run("make", "clean", folder=folder)
    assert {path.name for path in folder.iterdir()} == FILES


@pytest.mark.exhaustive
@needs_nvcc
@needs_cmake
@pytest.mark.parametrize("is_installed", [False, True])
def test_cmake_with_a_library_of_nvcc(bundle: Bundle, tmp_path: Path, is_installed: bool) -> None:
    library = tmp_path / "kernels"
    write_bundle(bundle, library)
    setting = f"-DCMAKE_PREFIX_PATH={install(library, tmp_path)}" if is_installed else f"-DKERNELS={library}"
    printed = build_and_run(EXAMPLE, tmp_path, setting)
    assert is_without_gpu(printed), printed
