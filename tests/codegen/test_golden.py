"""Golden CUDA text of some kernels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import ekc.ir.operators as o
from ekc.codegen.generate import GENERATOR, generate
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.ir.async_examples import async_matmul
from tests.ir.examples import column_lanes
from tests.ir.tensor_examples import half_matmul, swizzled_matmul
from tests.ir.view_examples import half_conv2d
from tests.ir.warpgroup_examples import HOPPER, half_group_matmul

FOLDER = Path(__file__).with_name("golden")
KERNELS: dict[str, Callable[[], Schedule]] = {
    "matmul": lambda: samples.matmul(4096, 4096, 4096),
    "matmul_async": lambda: async_matmul(33, 44, 36, turned=True),
    "matmul_swizzled": lambda: async_matmul(32, 64, 32, dtype="float16", vector=8, swizzle=8),
    "matmul_tensor": half_matmul,
    "matmul_tensor_swizzled": swizzled_matmul,
    "matmul_warpgroup": half_group_matmul,
    "matmul_atomic": lambda: samples.shared_sum(100, 60, 4096),
    "conv2d": samples.conv2d,
    "conv2d_view": half_conv2d,
    "matvec_float16": lambda: samples.matvec(4096, 4096, dtype="float16", lanes=32, rows=8),
    "column_lanes": column_lanes,
    "softmax": lambda: samples.softmax(1000, 1000, dtype="float16"),
    "relu_matmul": samples.relu_matmul,
    "matmul_bfloat16": lambda: samples.small_matmul(33, 34, 12, dtype="bfloat16", vector=2),
    "matvec_int8": lambda: samples.matvec(4096, 4096, dtype="int8", lanes=32, rows=8),
    "matmul_int8_pairs": lambda: samples.int8_pairs(vector=2),
    "matmul_int32": lambda: samples.small_matmul(33, 34, 12, dtype="int32", vector=2),
    "matmul_gelu": samples.matmul_gelu,
    "batch_matmul_transposed": samples.batch_matmul_transposed,
    "conv2d_same": samples.conv2d_same,
    "einsum_three": lambda: make_naive_schedule(
        o.einsum("...ij,...jk,kl", (2, 1, 40, 12), (3, 12, 33), (33, 6))
    ),
    "reduce_argmax": samples.argmax_over_lanes,
    "reduce_prod": samples.product_over_lanes,
    "layer_norm_axes": lambda: make_naive_schedule(o.layer_norm((2, 6, 5, 9), axes=(1, 2))),
}
LIMITS = {"matmul_warpgroup": HOPPER}
"""Limits of the target, where a kernel needs a certain one."""


def test_generator_number_follows_the_text() -> None:
    """Records of measurements name their text by this number only. `golden/generators.txt` has, for each
    number, a digest of the golden files: where they change, raise GENERATOR and add a line."""
    texts = "".join((FOLDER / f"{name}.cu").read_text() for name in sorted(KERNELS))
    last = (FOLDER / "generators.txt").read_text().splitlines()[-1]
    assert f"{GENERATOR} {hashlib.sha256(texts.encode()).hexdigest()[:16]}" == last


@pytest.mark.parametrize("name", KERNELS)
def test_text_equals_the_golden_file(name: str, golden: Callable[[Path, str], None]) -> None:
    text = generate(KERNELS[name](), LIMITS.get(name)).source
    golden(FOLDER / f"{name}.cu", re.sub(r"(?m)^(// Written by ekc) \S+", r"\1 VERSION", text).rstrip("\n"))
