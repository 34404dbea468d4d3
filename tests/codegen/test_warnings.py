"""nvcc compiles the generated text without warnings, for every structure and element type."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.codegen.generate import generate
from ekc.codegen.render import drop_unused_constants
from ekc.ir.operator import Operator
from ekc.search.space.space import Space
from tests.codegen.test_golden import KERNELS, LIMITS

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
OPERATORS: dict[str, tuple[Operator, str]] = {
    "float32": (ekc.matmul(31, 48, 23).epilogue(lambda c, bias: ekc.gelu(c + bias), bias=(48,)), "a100"),
    "float16": (ekc.matmul(256, 192, 128, dtype="float16"), "h100"),
    "bfloat16": (ekc.matmul(96, 64, 48, dtype="bfloat16", out_dtype="float32"), "rtx2080ti"),
    "tf32": (ekc.matmul(64, 40, 48, dtype="tf32"), "a100"),
    "int8": (ekc.matmul(48, 32, 64, dtype="int8", transpose_b=True, out_dtype="int8"), "a100"),
    "view": (
        ekc.conv2d(2, 32, 9, 9, out_channels=64, kernel=3, padding=1, layout="NHWC", dtype="float16"),
        "h100",
    ),
    "groups": (ekc.conv2d(2, 8, 7, 7, out_channels=8, kernel=3, padding=1, groups=4, stride=2), "a100"),
    "parts": (ekc.matmul(16, 16, 4096), "a100"),
    "lanes": (ekc.matvec(64, 96, dtype="float16"), "a100"),
    "columns": (ekc.reduce((61, 37), 0, "max"), "a100"),
    "rows": (ekc.layer_norm((40, 96)), "a100"),
}
"""(operator, device whose structures it gets) by name."""
DRAWN = 48
LAST = 'extern "C" __global__ void last(int* a)\n{\n    const int drawn_up = 3;\n    *a = 1;\n}\n'
"""A kernel with one expected warning, which ends nvcc before it optimises, as warnings are errors here."""


def members() -> Iterator[str]:
    """A kernel of each structure in a random population of every operator, and the golden kernels."""
    for name, make in KERNELS.items():
        yield generate(make(), LIMITS.get(name)).source
    for op, device in OPERATORS.values():
        limits = devices.open(device).limits
        space, random = Space(op, limits), np.random.default_rng(0)
        population = space.repair(random, space.sample(random, DRAWN))[0]
        for row in np.unique(population.structure, return_index=True)[1]:
            yield generate(space.build_schedule(population, int(row)), limits).source


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(members())


@pytest.mark.slow
@needs_nvcc
def test_members_of_all_structures_compile_without_warnings(texts: list[str], tmp_path: Path) -> None:
    """One run of nvcc's front end over all of them, each in a namespace of its own."""
    spaces = [f"namespace member_{i} {{\n{text}}}\n" for i, text in enumerate(texts)]
    unique = [re.sub(r"\bekc_(\w+)\(", rf"ekc_\1_{i}(", text) for i, text in enumerate(spaces)]
    (tmp_path / "all.cu").write_text("".join(unique) + LAST)
    architecture = ("-gencode", "arch=compute_90a,code=sm_90a")
    command = ["nvcc", *architecture, "-Werror", "all-warnings", "-cuda", "all.cu", "-o", "all.ii"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    found = re.findall(r"\b(?:error|warning)\b.*: (.*)", done.stderr + done.stdout)
    assert found == ['variable "drawn_up" was declared but never referenced'], done.stderr[:4000]


@pytest.mark.slow
def test_members_use_every_device_function(texts: list[str]) -> None:
    """Otherwise the test above would not cover unused functions."""
    emitted = set(re.findall(r"__forceinline__ [\w ]+[&\w] (\w+)\(", "".join(texts)))
    assert emitted >= {
        *(
            "shared_address",
            "shared_element",
            "keep_in_register",
            "out_of_bounds_mask",
            "swizzle_index",
            "panel_index",
        ),
        *("copy_async_4", "copy_async_8", "copy_async_16", "copy_async_4_or_zeros", "copy_async_16_or_zeros"),
        *("from_half", "to_half", "from_bf16", "to_tf32", "to_int8", "load_matrices_4_transposed"),
        *(
            "mma_m16n8k16_float16",
            "mma_m16n8k8_tf32",
            "mma_m16n8k32_int8",
            "fence_async_proxy",
            "make_descriptor",
        ),
    }
    assert all(word in "".join(texts) for word in ("atomicAdd(", "__shfl_xor_sync(", "shared_memory_1024"))


@pytest.mark.slow
def test_device_functions_of_a_text_are_used(texts: list[str]) -> None:
    for text in texts:
        for name in re.findall(r"__forceinline__ [\w ]+[&\w] (\w+)\(", text):
            assert len(re.findall(rf"\b{name}\b", text)) > 1, name


def test_unused_constants_are_dropped() -> None:
    text = """\
void f(int* a)
{
    const int i = 1;
    const int j = 2;
    const int k = i; // j
    const int n = 4;
    for (int j = 0; j < 8; ++j) {
        const int i = j;
        const int k = 3;
        a[k] = n;
    }
    {
        const long long n = k;
    }
    a[1] = n;
}
"""
    left = """\
void f(int* a)
{
    const int n = 4;
    for (int j = 0; j < 8; ++j) {
        const int k = 3;
        a[k] = n;
    }
    {
    }
    a[1] = n;
}
"""
    assert drop_unused_constants(text) == left
