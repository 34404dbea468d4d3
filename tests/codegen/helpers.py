"""Helpers of the tests of ekc.codegen: schedules with odd shapes or names, compiled kernels, commands."""

from __future__ import annotations

import inspect
import shutil
import subprocess
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import ekc.ir.operators as o
from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import assemble_kernel, generate
from ekc.codegen.library.build import KernelChoice, export
from ekc.codegen.library.kernels import KernelFigures, TargetBoard
from ekc.errors import ScheduleError
from ekc.ir import expr as ex
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.drawn.features import breed_schedule
from tests.drawn.operators import biased_matmul
from tests.drawn.schedules import seeded_schedule
from tests.ir.async_examples import async_conv2d, async_matmul, async_twice
from tests.ir.tilings import bind_loops
from tests.ir.view_examples import plain_conv2d

WARNINGS = (
    *("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wold-style-cast", "-Wconversion", "-Wsign-conversion"),
    "-Werror",
)
"""Warnings of C++ compilers that generated code does not give."""
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def compile_sample(schedule: Schedule, name: str | None = None) -> CompiledKernel:
    """A schedule compiled by NVRTC, under a name if one is given; the cache is not used."""
    generated = generate(schedule, name=name)
    kernel = assemble_kernel(schedule, generated, nvrtc.compile(generated.source))
    return replace(kernel, name=name) if name else kernel


def export_sample(schedule: Schedule, folder: Path, name: str | None = None) -> Path:
    """The CUDA source of a library of one schedule, for a board of sm_80 without figures."""
    board = TargetBoard("a100", "sm_80", True)
    return export([KernelChoice(schedule, KernelFigures())], board, folder, name=name)[0]


def features() -> list[Schedule]:
    return [
        samples.matmul(129, 64, 16),
        samples.small_matmul(33, 34, 12, vector=2),
        samples.small_matmul(33, 35, 13),
        samples.small_matmul(33, 35, 13, pipeline=False),
        samples.small_matmul(18, 36, 8, dtype="float16", vector=2),
        samples.small_matmul(17, 33, 9, dtype="float16", pipeline=False),
        samples.small_matmul(18, 36, 8, dtype="bfloat16", vector=2),
        samples.small_matmul(17, 33, 9, dtype="tf32"),
        samples.small_matmul(18, 36, 8, dtype="int8", vector=2),
        samples.shared_sum(17, 35, 600),
        samples.shared_sum(16, 64, 500, dtype="int8", out_dtype="int32"),
        samples.conv2d(),
        samples.conv2d(stride=2, padding=2),
        samples.conv2d(padding=0, dtype="float16"),
        plain_conv2d(o.conv2d(2, 6, 5, 6, out_channels=9, padding=1, stride=2, layout="NHWC")),
        plain_conv2d(o.conv2d(2, 6, 5, 6, out_channels=9, padding=1)).pipeline("c.0"),
        samples.matvec(41, 100),
        samples.matvec(40, 100, dtype="float16"),
        samples.matvec(40, 100, dtype="int8"),
        samples.matvec(6, 64, lanes=32, rows=2),
        samples.two_launches(),
        samples.two_launches("float16").cache_write("D"),
        samples.relu_matmul(),
        samples.relu_matmul("float16"),
        samples.softmax(6, 200),
        samples.softmax(6, 200, dtype="float16", warps=1),
        samples.copy(3, 70),
        samples.copy(3, 264, vector=4),
        bound_biased_matmul(),
        samples.conv2d_bias(),
        largest(),
        grouped_conv2d(),
        fused(),
        async_matmul(33, 36, 20),
        async_matmul(17, 32, 24, stages=2, turned=True, vector=2),
        async_matmul(18, 32, 24, stages=6, dtype="float16", vector=8),
        async_matmul(17, 32, 24, stages=4, turned=True, vector=2, swizzle=4),
        async_conv2d(2),
        async_twice("async"),
    ]


def corners() -> list[Schedule]:
    """Schedules that went wrong once, or might."""
    return [
        backwards(),
        padded_vector(),
        padded_vector().cache_read("x.shared", "register", at="k.1", vector=4),
        named(("round", "lane"), "packed", ("xor", "float4"), "fmaxf"),
        named(("i", "i_0"), "k_0_now", ("A_shared", "A"), "A_shared_next"),
        named(("d0", "element_"), "k", ("k_0", "i_2"), "k_0_now"),
        named(("i", "i_"), "k", ("A", "B"), "C"),
    ]


SEARCHED = ("matmul", "transposed", "fp16 primes", "conv", "conv groups", "matvec odd", "matvec fp16")
"""Operators whose search spaces usual tilings are drawn from."""


def drawn(each: int = 14) -> list[Schedule]:
    """Random schedules, usual tilings and arbitrary legal steps; no products of warps, as no CPU has them."""
    usual = (breed_schedule(SEARCHED[seed % len(SEARCHED)], seed) for seed in range(60))
    usual = (s for s in usual if not any(step.kind == "tensorize" for step in s.steps))
    steps = (s for seed in range(1000) if is_legal(s := seeded_schedule(seed)))
    return [*islice(usual, each), *islice(steps, each)]


def is_legal(schedule: Schedule) -> bool:
    try:
        generate(schedule)
    except ScheduleError:
        return False
    return True


def bound_biased_matmul() -> Schedule:
    """A product and relu of it, each a launch of its own."""
    s = Schedule(biased_matmul(9, 10, 7)).cache_write("C")
    return bind_loops(s, {"i": "block.x", "j": "thread.x", "p": "block.x", "q": "thread.x"})


def largest() -> Schedule:
    """A maximum over an axis with a tail: iterations beyond its end must not count as 0."""
    body = lambda x, i, k: x[i, k] - 9  # noqa: E731
    inputs = {"x": (11, 37)}
    op = o.compute("largest", axes={"i": 11}, reduce={"k": 37}, inputs=inputs, body=body, combine="max")
    s = Schedule(op).split("k", (32, 2)).reorder("i", "k.1", "k.0", "k.2")
    return bind_loops(s, {"i": "block.x", "k.1": "thread.x"}).cache_write("C")


def grouped_conv2d() -> Schedule:
    s = Schedule(o.conv2d(1, 4, 7, 7, out_channels=6, kernel=3, padding=1, groups=2)).split("o", (4,))
    return bind_loops(s, {"n": "block.y", "o.0": "block.x", "o.1": "thread.x"}).cache_write("Y")


def fused() -> Schedule:
    s = Schedule(o.batch_matmul(3, 5, 7, 6)).fuse("b", "i").fuse("b_i", "j").split("b_i_j", (32,))
    return bind_loops(s, {"b_i_j.0": "block.x", "b_i_j.1": "thread.x"}).cache_write("C")


def backwards() -> Schedule:
    """Quotients and remainders of numbers below 0: the IR rounds down, C towards 0."""
    body = lambda X, i, j: X[(i - 1) // 2, (j - 3) % 4] + X[(i - 5) // 3 + 2, j]  # noqa: E731
    op = o.compute("backwards", axes={"i": 9, "j": 7}, inputs={"X": (9, 7)}, body=body)
    return Schedule(op).split("i", (2,)).bind("i.0", "block.x").bind("j", "thread.x")


def padded_vector() -> Schedule:
    """Two copies of one padded row, the second of which must stay aligned."""
    s = Schedule(o.matvec(16, 64)).split("i", (8,)).split("k", (8, 4))
    s = s.reorder("i.0", "i.1", "k.0", "k.1", "k.2").bind("i.0", "block.x").bind("i.1", "thread.x")
    return s.cache_write("y").cache_read("x", "shared", at="k.0", vector=4, pad=1).pipeline("k.0")


def named(axes: tuple[str, str], k: str, inputs: tuple[str, str], output: str) -> Schedule:
    """A tiled matmul with given names."""
    i, j = axes
    a, b = inputs
    s = Schedule(named_operator(axes, k, inputs, output)).split(i, (2, 2)).split(k, (4,))
    s = s.reorder(f"{i}.0", j, f"{i}.1", f"{k}.0", f"{k}.1", f"{i}.2")
    s = bind_loops(s, {f"{i}.0": "block.x", j: "thread.x", f"{i}.1": "thread.y"}).cache_write(output)
    s = s.cache_read(a, "shared", at=f"{k}.0", vector=4).cache_read(b, "shared", at=f"{k}.0")
    return s.cache_read(f"{a}.shared", "register", at=f"{k}.1").pipeline(f"{k}.0")


def named_operator(axes: tuple[str, str], k: str, inputs: tuple[str, str], output: str) -> Operator:
    i, j = axes
    a, b = inputs

    def body(**names: Any) -> ex.Expr:
        product: ex.Expr = names[a][names[i], names[k]] * names[b][names[k], names[j]]
        return product

    parameters = [inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY) for x in (a, b, i, j, k)]
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    shapes = {a: (8, 12), b: (12, 6)}
    return o.compute("named", axes={i: 8, j: 6}, reduce={k: 12}, inputs=shapes, body=body, output=output)


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def must_run(*command: str | Path, folder: Path) -> str:
    done = run(*command, folder=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout
