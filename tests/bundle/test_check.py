"""The check program of a library finds each kind of fault, measures, skips without a GPU, and refuses misuse.

No GPU is here: fakes of driver and NVML hold memory, write numbers that depend on the inputs, and one kernel
can be made wrong. So these tests are of the check program, not of the kernels.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.bundle import CollectedBundle
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.codegen.library.function_plan import describe_signature
from ekc.codegen.library.kernels import (
    Bundle,
    BundleFunction,
    BundleKernel,
    BundleShape,
    KernelFigures,
    TargetBoard,
)
from ekc.codegen.library.naive_kernels import compile_naive_kernels
from ekc.codegen.library.write import SOURCES, write_bundle
from ekc.ir.compute import TensorSpec
from ekc.ir.dtypes import parse_dtype
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import make_random_inputs, make_random_tensors
from ekc.ir.schedule.schedule import Schedule
from tests.bundle.conftest import cut_digits
from tests.bundle.fakes import build_fakes, describe_kernels
from tests.codegen import samples
from tests.codegen.helpers import WARNINGS, must_run, needs_nvcc
from tests.codegen.host_cuda import SHIM, translate_text

COUNTER_MJ, LAUNCH_S, NAIVE_LAUNCH_S = 5, 1e-5, 4e-5
"""Growth of the energy counter from reading to reading and seconds of launches, in the fakes."""


@dataclass(frozen=True)
class Checked:
    """A run of the check program."""

    status: int
    output: str
    messages: str

    def find_row(self, kernel: BundleKernel) -> str:
        """The line of a kernel."""
        pattern = rf"^{kernel.function} .* {kernel.board.name} +{kernel.role} .*$"
        (row,) = re.findall(pattern, self.output, re.MULTILINE)
        return str(row)


@dataclass(frozen=True)
class Program:
    """The check program with the fakes, in a folder."""

    folder: Path
    bundle: Bundle

    def run(
        self, *options: str, capability: int = 80, gpu: bool = True, nvml: bool = True, **facts: str
    ) -> Checked:
        """Run it on a fake GPU, without energy if no options are given."""
        places = [str(self.folder / name) for name, wanted in (("driver", gpu), ("nvml", nvml)) if wanted]
        environment = os.environ | {
            "LD_LIBRARY_PATH": ":".join(places),
            "FAKE_KERNELS": str(self.folder / "kernels.txt"),
            "FAKE_CAPABILITY": str(capability),
            "FAKE_NAME": "NVIDIA fake",
            **{f"FAKE_{name.upper()}": value for name, value in facts.items()},
        }
        words = [str(self.folder / "check"), *(options or ("--seconds", "0", "--seeds", "2"))]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, timeout=60, cwd=self.folder
        )
        return Checked(done.returncode, done.stdout, done.stderr)

    def list_kernels(self, arch: str = "sm_80") -> list[BundleKernel]:
        """Kernels of an architecture."""
        return [k for k in self.bundle.kernels if k.arch == arch]


def make_program(bundle: Bundle, folder: Path) -> Program:
    """Build library, check program and fakes."""
    (folder / "kernels.txt").write_text(describe_kernels(bundle))
    write_bundle(bundle, folder / "library", cubin=True)
    make = ("make", "-j2", f"CXXFLAGS=-O0 {' '.join(WARNINGS)}", f"build/{bundle.name}_check")
    must_run(*make, folder=folder / "library")
    shutil.copy(folder / "library" / "build" / f"{bundle.name}_check", folder / "check")
    build_fakes(folder)
    return Program(folder, bundle)


@pytest.fixture(scope="module")
def program(collected: CollectedBundle, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return make_program(collected.bundle, tmp_path_factory.mktemp("check"))


def make_schedules() -> dict[str, Schedule]:
    """Schedules that a CPU can run too, by the name of their function. `parts` has two launches and a
    workspace."""
    parts = Schedule(ekc.matmul(64, 64, 64)).rfactor("k", 4)
    for loop in ("k_part", "i", "i_"):
        parts = parts.bind(loop, "block.y" if loop == "i" else "block.x")
    return {
        "parts": parts,
        "bytes": samples.small_matmul(18, 36, 8, dtype="int8", vector=2),
        "halves": samples.small_matmul(18, 36, 8, dtype="float16", vector=2),
        "brains": samples.small_matmul(18, 36, 8, dtype="bfloat16", vector=2),
        "tensors": samples.small_matmul(17, 33, 9, dtype="tf32"),
        "shares": samples.softmax(6, 200, dtype="float16", warps=1),
        "fused": samples.relu_matmul("float16"),
    }


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A library of these schedules."""
    functions, board = [], TargetBoard("a100", "sm_80", True)
    for name, schedule in make_schedules().items():
        compiled = compile_schedule(schedule, "sm_80", name=f"own_{name}_{schedule.digest}_sm_80")
        op = schedule.op
        kernel = BundleKernel(name, op, schedule, compiled, board, KernelFigures(1e-5, 1e-3))
        functions.append(BundleFunction(name, describe_signature(op), (BundleShape(op, (kernel,)),)))
    return make_program(Bundle("own", "0.1.0", (board,), tuple(functions)), tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def code(own: Program) -> str:
    """The kernels of the library and the naive ones as C++ code, which the fake driver executes."""
    texts = ['#include "host_shim.h"']
    for one in (*own.bundle.kernels, *compile_naive_kernels(own.bundle)):
        texts += translate_launches(one.compiled, one.schedule.program.op)
    (own.folder / "code.cpp").write_text("\n".join(texts))
    flags = ("-std=c++20", "-O1", "-w", "-pthread", "-shared", "-fPIC", f"-I{SHIM.parent}")
    must_run("g++", *flags, "code.cpp", "-o", "code.so", folder=own.folder)
    return str(own.folder / "code.so")


def translate_launches(compiled: CompiledKernel, op: Operator) -> list[str]:
    """C++ text of a kernel, with a function for each launch that takes what a driver takes."""
    space = f"text_{compiled.name}"
    texts = [f"namespace {space} {{\n{translate_text(compiled.cuda_source)}"]
    for launch in compiled.launches:
        grid, block = (f"{{{', '.join(map(str, shape))}}}" for shape in (launch.grid, launch.block))
        pointers = ", ".join(
            f"*static_cast<{op.tensors[t].dtype.cuda_name}**>(given[{i}])"
            for i, t in enumerate(launch.arguments)
        )
        texts.append(
            f'extern "C" void run_{launch.name}(void** given)\n'
            f"{{ shim::launch({grid}, {block}, [&] {{ {launch.name}({pointers}); }}); }}"
        )
    return [*texts, "}"]


@pytest.mark.parametrize("capability", [80, 86, 90])
def test_right_kernels(program: Program, capability: int) -> None:
    """All that run on the GPU are in the table and the file, and others are counted."""
    done = program.run("--seconds", "0.02", "--json", "check.json", capability=capability)
    assert done.status == 0, done.output + done.messages
    kernels = [k for k in program.bundle.kernels if k.arch == "sm_80" or capability == 90]
    others = len(program.bundle.kernels) - len(kernels)
    assert f"{len(kernels)} kernels with 3 seeds, 0 wrong or failed; {others} of " in done.output
    found = json.loads((program.folder / "check.json").read_text())
    assert found["gpu"] == "NVIDIA fake"
    assert (found["capability"], found["driver_version"]) == (capability, 13000)
    assert (found["seeds"], found["metering_s"], found["kernels_not_for_this_gpu"]) == (3, 0.02, others)
    naive = {n.op.digest: n for n in compile_naive_kernels(program.bundle)}
    assert {row["kernel"] for row in found["kernels"]} == {program.bundle.kernels.index(k) for k in kernels}
    for row in found["kernels"]:
        check_row(row, program.bundle.kernels[row["kernel"]])
        own = naive[program.bundle.kernels[row["kernel"]].op.digest]
        assert row["naive_latency_s"] == pytest.approx(NAIVE_LAUNCH_S * len(own.compiled.launches), rel=1e-3)


def check_row(row: dict[str, Any], kernel: BundleKernel) -> None:
    """Check the row of a kernel that is right."""
    assert (row["function"], row["board"], row["source"]) == (kernel.function, kernel.board.name, "simulated")
    assert (row["role"], row["digest"], row["right"]) == (kernel.role, kernel.schedule.digest, True)
    assert row["max_error"] == 0
    assert row["fault"] is None
    assert row["tolerance"] > 0
    latency_s = LAUNCH_S * len(kernel.compiled.launches)
    assert row["latency_s"] == pytest.approx(latency_s, rel=1e-3)
    assert row["claimed_latency_s"] == pytest.approx(kernel.figures.latency_s)
    assert row["claimed_energy_j"] == pytest.approx(kernel.figures.energy_j)
    # One reading of the counter for each 10 ms of calls, about.
    assert row["energy_j"] == pytest.approx(1e-3 * COUNTER_MJ * latency_s / 10e-3, rel=0.2)
    assert row["no_energy_reason"] is None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong", r"wrong: 1 elements differ, the first is (\d+): (16|32) instead of [1248]$"),
        ("nan", r"wrong: 1 elements are NaN or infinite, the first is (\d+): -?nan instead of [1248]$"),
        ("unwritten", r"wrong: 1 elements were not written, the first is (\d+)$"),
        ("beyond", r"wrong: [1-4] bytes were written outside the output or workspace$"),
    ],
)
@pytest.mark.parametrize("function", ["matmul_float16", "matmul_float32", "softmax_float32"])
def test_each_fault_is_found(program: Program, fault: str, words: str, function: str) -> None:
    kernel = next(k for k in program.list_kernels() if cut_digits(k.function) == function)
    done = program.run(fault=f"{kernel.compiled.launches[-1].name} {fault}")
    assert done.status == 1
    found = re.search(words, done.find_row(kernel))
    assert found, done.output
    if found.groups():
        assert int(found[1]) == kernel.op.outputs[0].elements - 1
    assert "1 wrong or failed" in done.output
    others = [k for k in program.list_kernels() if k is not kernel]
    assert all(done.find_row(k).endswith(" right") for k in others)


def test_result_without_tolerance_is_not_called_right(
    collected: CollectedBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products have more terms than the limit, the softmax has not."""
    monkeypatch.setattr("ekc.codegen.library.naive_kernels._MAX_TERMS", 63)
    function = collected.bundle.functions[0]
    shape = function.shapes[0]
    unknown = tuple(replace(k, figures=KernelFigures()) for k in shape.kernels if k.arch == "sm_80")
    functions = (replace(function, shapes=(replace(shape, kernels=unknown),)),)
    program = make_program(
        replace(collected.bundle, boards=collected.bundle.boards[:1], functions=functions), tmp_path
    )
    done = program.run()
    assert done.status == 0
    rows = [line for line in done.output.splitlines() if line.startswith(function.name)]
    assert len(rows) == len(unknown)
    assert all(row.endswith(" not compared") and " / inf " in row and " nan " not in row for row in rows)
    assert f"not compared: {len(unknown)} kernels" in done.output
    assert program.run(fault=f"{unknown[0].compiled.launches[-1].name} nan").status == 1


def test_kernels_of_several_launches_and_integers(own: Program) -> None:
    done = own.run()
    assert done.status == 0, done.output
    kernels = {kernel.function: kernel for kernel in own.bundle.kernels}
    assert " 0 / 0 " in done.find_row(kernels["bytes"])
    wrong = own.run(fault=f"{kernels['parts'].compiled.launches[0].name} beyond")
    assert wrong.status == 1
    assert "written outside the output or workspace" in wrong.find_row(kernels["parts"])
    for fault in ("wrong", "unwritten"):
        wrong = own.run(fault=f"{kernels['bytes'].compiled.launches[0].name} {fault}")
        assert (wrong.status, wrong.output.count(" right\n")) == (1, len(kernels) - 1)
        assert "wrong: 1 elements" in wrong.find_row(kernels["bytes"])


@pytest.mark.exhaustive
def test_executed_kernels_agree_within_the_tolerance(own: Program, code: str) -> None:
    """Inputs, arguments and tolerances are right for real results of each type; one wrong element is found
    in each."""
    done = own.run("--seconds", "0", "--json", "own.json", code=code)
    assert done.status == 0, done.output
    rows = {row["function"]: row for row in json.loads((own.folder / "own.json").read_text())["kernels"]}
    assert rows.keys() == make_schedules().keys()
    assert [name for name, row in rows.items() if row["tolerance"] == 0] == ["bytes"]
    # Its sums are in another order than those of the naive kernel.
    assert 0 < rows["parts"]["max_error"] < rows["parts"]["tolerance"] < 1e-3
    for kernel in own.bundle.kernels:
        wrong = own.run(code=code, fault=f"{kernel.compiled.launches[-1].name} wrong")
        assert (wrong.status, wrong.output.count(" right\n")) == (1, len(rows) - 1)
        assert "wrong: 1 elements differ" in wrong.find_row(kernel)


def test_naive_kernel_that_fails_is_no_right_kernel(program: Program) -> None:
    naive = compile_naive_kernels(program.bundle)[0].compiled.launches[-1].name
    for fault in ("unwritten", "beyond", "wrong"):
        assert program.run(fault=f"{naive} {fault}").status == 1
    done = program.run(error="cuLaunchKernel_naive 700")
    assert done.status == 1
    assert "failed: cuLaunchKernel of a naive kernel gave CUDA error 700" in done.output


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        ("cuLaunchKernel 701", 1, "failed: launch_failed, CUDA error 701"),
        ("cuLibraryLoadData 200", 1, "failed: launch_failed, CUDA error 200"),
        ("cuMemAlloc 2", 1, "failed: cuMemAlloc gave CUDA error 2"),
        ("cuCtxSynchronize 700", 1, "not run: the GPU did not recover from a failure before"),
        ("cuDevicePrimaryCtxRetain 2", 1, "failed: cuDevicePrimaryCtxRetain gave CUDA error 2"),
        ("cuModuleLoadData 222", 77, "skipped: the driver is older than the PTX of the naive kernels"),
        ("cuInit 100", 77, "skipped: the CUDA driver finds no GPU, CUDA error 100"),
    ],
)
def test_errors_of_the_driver(program: Program, error: str, status: int, words: str) -> None:
    done = program.run(error=error)
    assert (done.status, words in done.output) == (status, True), done.output


@pytest.mark.parametrize(
    ("counter", "nvml", "words"),
    [
        ("absent", True, "no energy: the GPU has no energy counter, NVML error 3"),
        ("unknown", True, "no energy: NVML does not know the GPU, error 6"),
        ("", False, "no energy: libnvidia-ml.so.1 is missing"),
    ],
)
def test_energy_that_cannot_be_read(program: Program, counter: str, nvml: bool, words: str) -> None:
    options = ("--seconds", "0.02", "--json", "energy.json")
    done = program.run(*options, nvml=nvml, counter=counter)
    assert (done.status, words in done.output) == (0, True), done.output
    rows = json.loads((program.folder / "energy.json").read_text())["kernels"]
    assert {row["energy_j"] for row in rows} == {None}
    assert {row["no_energy_reason"] for row in rows} == {words.removeprefix("no energy: ")}


@pytest.mark.exhaustive
def test_counter_that_does_not_change(own: Program) -> None:
    done = own.run("--seconds", "0.01", counter="still")
    assert (done.status, "no energy: the energy counter did not change" in done.output) == (0, True)


def test_no_driver_or_kernel_is_a_skipped_check(program: Program) -> None:
    done = program.run(gpu=False)
    assert done.status == 77
    assert re.fullmatch(r"ekc_net_check: skipped: .*(no CUDA driver|finds no GPU).*\n", done.output)
    old = program.run(capability=75)
    assert (old.status, "no kernel of the table runs on this GPU" in old.output) == (77, True)
    assert "make check: skipped" in must_run("make", "check", folder=program.folder / "library")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seeds", "0"), "--seeds: '0' is not a whole number from 1 to 1000"),
        (("--seeds", "2.5"), "--seeds: '2.5' is not a whole number"),
        (("--seeds", "nan"), "--seeds: 'nan' is not a whole number"),
        (("--seconds", "-1"), "--seconds: '-1' is not a number from 0 to 600"),
        (("--seconds", "1e999"), "--seconds: '1e999' is not a number"),
        (("--seconds", ""), "--seconds: '' is not a number"),
        (("--seconds",), "--seconds needs a value"),
        (("--json", ""), "--json: the name of the file is empty"),
        (("--json", "none/check.json"), "--json: 'none/check.json' cannot be written"),
        (("--device", "1"), "there is no option '--device'"),
        (("file",), "there is no option 'file'"),
    ],
)
def test_misuse_is_one_line(program: Program, options: tuple[str, ...], words: str) -> None:
    done = program.run(*options)
    assert (done.status, done.output) == (2, "")
    assert done.messages.startswith(f"ekc_net_check: {words}")
    assert done.messages.count("\n") == 1


def test_help(program: Program) -> None:
    done = program.run("--help", gpu=False)
    assert (done.status, done.output.startswith("usage: ekc_net_check ")) == (0, True)


VALUES = """
#include <cstdio>
#include "check_values.h"
using namespace ekc::check;

int main()
{
    const auto quantiles = compute_quantiles(0), near = compute_quantiles(50);
    std::printf("%.9g %.9g %.9g %.9g\\n", quantiles[0], quantiles[32768], quantiles[65535], near[65535]);
    for (int bits = 0; bits < 65536; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        const bool finite = (bits >> 10 & 31) != 31;
        if (finite && to_half(from_half(half)) != half) {
            return 1;
        }
    }
    for (const Type type : {Type::float32, Type::float16, Type::bfloat16, Type::int8, Type::int32}) {
        for (const bool product : {false, true}) {
            const Tensor tensor{type, 4001};
            const Bytes values = draw_values(tensor, product ? near : quantiles, product, 7);
            for (std::size_t i = 0; i < tensor.elements; ++i) {
                std::printf("%.9g ", read_value(type, &values[i * count_bytes(type)]));
            }
            std::printf("\\n");
        }
    }
}
"""


def test_inputs_have_the_distributions_of_ekc(tmp_path: Path) -> None:
    """Limits, mean and spread of each type, as of the random inputs of `ekc.runtime.verify`."""
    (tmp_path / "values.cpp").write_text(VALUES)
    flags = ("-std=c++17", *WARNINGS[:3], "-Werror", f"-I{SOURCES}")
    must_run("g++", *flags, "values.cpp", "-o", "values", folder=tmp_path)
    first, *rows = [np.array(x.split(), float) for x in must_run("./values", folder=tmp_path).splitlines()]
    for number, dtype in enumerate(("float32", "float16", "bfloat16", "int8", "int32")):
        for is_product in (False, True):
            spec = TensorSpec("x", (4001,), parse_dtype(dtype))
            expected = make_random_tensors([spec], 0, 50 * is_product)[0].to_array().astype(float)
            drawn = rows[2 * number + is_product]
            assert drawn.std() == pytest.approx(expected.std(), rel=0.05)
            assert drawn.mean() == pytest.approx(expected.mean(), abs=0.08 * expected.std())
            assert abs(drawn).max() == pytest.approx(abs(expected).max(), rel=0.25)
            assert set(drawn % 2) == {1.0} or not (is_product and spec.dtype.is_integer)
    quantiles = np.sort(make_random_inputs(ekc.matmul(4096, 1, 4096), 0)[0].to_array().ravel())
    assert first[0] == -first[2] == pytest.approx(quantiles[0])
    assert first[1] == pytest.approx(abs(quantiles).min())


UNFIT = ("-Wpedantic", "-Wold-style-cast")
"""Warnings that the headers of CUDA give."""


@needs_nvcc
@pytest.mark.exhaustive
def test_check_of_a_library_of_nvcc(library: Path, tmp_path: Path) -> None:
    """Without a driver it compiles with warnings as errors and is skipped, by make and by CTest."""
    folder = tmp_path / "net"
    shutil.copytree(library, folder, ignore=shutil.ignore_patterns("made"))
    flags = f"NVCCFLAGS=-Werror all-warnings -Xcompiler {','.join(w for w in WARNINGS if w not in UNFIT)}"
    assert "make check: skipped" in must_run("make", "-j2", flags, "check", folder=folder)
    must_run("cmake", "-S", ".", "-B", "made", f"-DCMAKE_CXX_FLAGS={' '.join(WARNINGS)}", folder=folder)
    must_run("cmake", "--build", "made", "-j", "2", folder=folder)
    assert re.search(r"ekc_net_check \.+\*+Skipped", must_run("ctest", "--test-dir", "made", folder=folder))
