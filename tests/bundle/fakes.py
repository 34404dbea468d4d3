"""Fakes of driver and NVML for check programs: how they are built, and what they need to know of kernels."""

from __future__ import annotations

from pathlib import Path

from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.library.kernels import Bundle
from ekc.codegen.library.naive_kernels import compile_naive_kernels
from ekc.ir.operator import Operator
from tests.codegen.helpers import must_run


def build_fakes(folder: Path) -> None:
    """Build the driver in `driver/` and NVML in `nvml/`: places for LD_LIBRARY_PATH."""
    for source, name in (("fake_gpu", "driver/libcuda.so.1"), ("fake_nvml", "nvml/libnvidia-ml.so.1")):
        (folder / name).parent.mkdir()
        path = Path(__file__).parent / f"{source}.cpp"
        must_run("g++", "-std=c++17", "-shared", "-fPIC", path, "-o", name, folder=folder)


def build_driver(folder: Path) -> None:
    """Build the driver that writes its calls to a file, in `driver/`."""
    (folder / "driver").mkdir()
    source = Path(__file__).parent / "fake_driver.cpp"
    must_run("g++", "-shared", "-fPIC", "-pthread", source, "-o", "driver/libcuda.so.1", folder=folder)


def describe_kernels(bundle: Bundle) -> str:
    """Text of the file `FAKE_KERNELS` of the fake driver."""
    naive = compile_naive_kernels(bundle)
    launches = {n.op.digest: [n.compiled.launches] for n in naive}
    for kernel in bundle.kernels:
        launches[kernel.op.digest].append(kernel.compiled.launches)
    lines = []
    for one in (*naive, *bundle.kernels):
        plain = all(len(launch) == 1 for launch in launches[one.op.digest])
        lines += describe_launches(one.compiled, one.op, one.schedule.program.op, plain)
    return "\n".join(lines) + "\n"


def describe_launches(compiled: CompiledKernel, op: Operator, program: Operator, plain: bool) -> list[str]:
    """Lines for the fake driver. `plain`: the output depends on the inputs, as no kernel of the operator has
    tensors between."""
    lines = []
    for launch in compiled.launches:
        output = len(launch.arguments) - 1
        inputs = [launch.arguments.index(t.name) for t in op.inputs] if plain else []
        facts = [x for i in inputs for x in (i, launch.argument_bytes[i])]
        kind = program.tensors[launch.arguments[output]].dtype.name
        words = (launch.name, kind, output, launch.argument_bytes[output], len(inputs), *facts)
        lines.append(" ".join(map(str, words)))
    return lines
