"""Generated kernels with `mma`: the description of the instruction, results, and predicted traffic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.emulator.numerics import warp
from ekc.ir.dtypes import BFLOAT16, FLOAT16, INT8, DType, parse_dtype
from ekc.ir.hardware.mma import (
    LANE_GROUPS,
    LANES_PER_GROUP,
    MMA_COLUMNS,
    MMA_INSTRUCTIONS,
    MMA_ROWS,
    SUMS_PER_LANE,
    MmaInstruction,
)
from ekc.ir.schedule import Bind, CacheWrite, Reorder, Split
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree
from tests.emulator.generated import Ran, run
from tests.emulator.predicted import check_traffic, count_traffic
from tests.ir.interpret import convert_values
from tests.ir.tensor_examples import Cut, half_matmul, tensor_matmul

PTX_TYPES = {FLOAT16: "f16", BFLOAT16: "bf16", INT8: "s8"}
COUNTED = (
    "shared_load_requests", "shared_load_wavefronts", "shared_store_requests", "shared_store_wavefronts",
    "global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors",
)  # fmt: skip


def ptx_type(dtype: DType) -> str:
    return PTX_TYPES.get(dtype, "tf32")


@pytest.mark.parametrize("product", MMA_INSTRUCTIONS, ids=lambda p: str(p.dtype))
def test_fragment_layouts_match_the_machine(product: MmaInstruction) -> None:
    """The element in each register of each lane: ekc.ir beside the PTX machine."""
    kind, depth = ptx_type(product.dtype), product.depth
    group, place = np.divmod(np.arange(LANE_GROUPS * LANES_PER_GROUP), LANES_PER_GROUP)
    a, b, c = (
        warp.compute_fragment_indices(x, depth, t) for x, t in (("a", kind), ("b", kind), ("c", "f32"))
    )
    for element in range(SUMS_PER_LANE):
        half, column = product.find_sum_element(element)
        assert np.array_equal(c.row[:, element], group + LANE_GROUPS * half)
        assert np.array_equal(c.column[:, element], 2 * place + column)
    slots = [(r, s) for r in range(product.a_registers) for s in range(product.elements_per_register)]
    assert a.row.shape == (32, len(slots))
    for element, (register, slot) in enumerate(slots):
        half, beyond = product.find_a_element(register, slot)
        assert np.array_equal(a.row[:, element], group + LANE_GROUPS * half)
        assert np.array_equal(a.column[:, element], product.elements_per_register * place + beyond)
    slots = [(r, s) for r in range(product.b_registers) for s in range(product.elements_per_register)]
    assert b.row.shape == (32, len(slots))
    for element, (register, slot) in enumerate(slots):
        assert np.array_equal(
            b.row[:, element], product.elements_per_register * place + product.find_b_element(register, slot)
        )
        assert np.array_equal(b.column[:, element], group)


@pytest.mark.parametrize("product", MMA_INSTRUCTIONS, ids=lambda p: str(p.dtype))
def test_mma_description_computes_as_the_machine(product: MmaInstruction) -> None:
    rng, kind = np.random.default_rng(7), ptx_type(product.dtype)
    acc = parse_dtype(product.dtype.default_accumulator)

    def drawn(*shape: int) -> np.ndarray:
        if product.dtype.is_integer:
            return rng.integers(-128, 128, shape).astype(np.int8)
        return rng.standard_normal(shape).astype(product.dtype.numpy_dtype)

    a, b = drawn(3, MMA_ROWS, product.depth), drawn(3, product.depth, MMA_COLUMNS)
    c = rng.integers(-9, 9, (3, MMA_ROWS, MMA_COLUMNS)).astype(acc.numpy_dtype)
    # A kernel rounds a factor of tf32 before the instruction, which cuts.
    widened = [convert_values(x, product.dtype, acc) for x in (a, b)]
    meant = np.asarray(c + np.matmul(*widened), acc.numpy_dtype)
    left, right = widened if kind == "tf32" else (a, b)
    held = [
        warp.gather_fragments(
            x.astype(np.int64 if product.dtype.is_integer else np.float64), n, product.depth, t
        )
        for x, n, t in ((left, "a", kind), (right, "b", kind), (c, "c", "s32" if kind == "s8" else "f32"))
    ]
    shape, sums = product.name.removeprefix("mma."), "s32" if kind == "s8" else "f32"
    found = warp.multiply_fragments(*held, shape, (sums, kind, kind, sums))
    machine = warp.scatter_fragments(found, "d", product.depth, sums)
    np.testing.assert_allclose(meant, machine, rtol=1e-5, atol=1e-5)
    assert f".{shape}." in product.ptx
    assert product.ptx.split()[0].endswith(f"{sums}.{kind}.{kind}.{sums}")


def test_example_is_right_with_predicted_traffic() -> None:
    """float16, 128 x 128 x 64: compiled, executed under the sanitizer, and right."""
    schedule = half_matmul()
    ran = run(schedule)
    ran.check()
    check_tree(schedule)
    products = 128 * 128 * 64 // (16 * 8 * 16)
    assert sum(r.counters.warp_instructions["mma"] for r in ran.reports) == products
    assert count_traffic(ran)["fma"] == 0
    check_traffic(ran, COUNTED, rel=1e-6)


def test_innermost_loops_may_have_any_order() -> None:
    schedule = half_matmul(32, 32, 32).reorder("k.2", "j.4", "i.3")
    check_tree(schedule)
    run(schedule).check()


def test_factors_may_be_swapped() -> None:
    """Rows of the instruction along j, columns along i: then B is the left factor."""
    swap = {"i": "j", "j": "i"}
    steps = [
        replace(s, loop=swap[s.loop]) if isinstance(s, Split) and s.loop in swap
        else replace(s, loop=swap.get(s.loop[0], s.loop[0]) + s.loop[1:]) if isinstance(s, Bind)
        else replace(s, loops=tuple(swap.get(x[0], x[0]) + x[1:] for x in s.loops)) if isinstance(s, Reorder)
        else replace(s, vector=1) if isinstance(s, CacheWrite) else s
        for s in half_matmul().steps
    ]  # fmt: skip
    schedule = Schedule(o.matmul(64, 128, 64, dtype="float16")).apply_steps(*steps)
    check_tree(schedule)
    run(schedule).check()


def matrix_loads(ran: Ran) -> list[tuple[str, float]]:
    """(text, wavefronts a request) of every ldmatrix that ran."""
    sites = [s for r in ran.reports for s in r.counters.instructions.values()]
    return [(s.instruction, s.wavefronts / s.requests) for s in sites if "ldmatrix" in s.instruction]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("dtype", "depth", "layout"),
    [
        ("float16", 4, {"swizzle": 8}),
        pytest.param("float16", 2, {"swizzle": 8}, marks=pytest.mark.exhaustive),
        ("float16", 2, {"pad": 8}),
        pytest.param("bfloat16", 4, {"swizzle": 8}, marks=pytest.mark.exhaustive),
        pytest.param("tf32", 4, {"swizzle": 8}, marks=pytest.mark.exhaustive),
        ("tf32", 4, {"pad": 4}),
        ("int8", 4, {"swizzle": 8}),
    ],
)
def test_ldmatrix_has_no_bank_conflict(dtype: str, depth: int, layout: Any, turned: bool) -> None:
    """Each takes ceil(bytes / 128) wavefronts, and no more."""
    # Only elements of two bytes can be transposed by ldmatrix.
    op = o.matmul(64, 64, 128, dtype=dtype, transpose_a=turned and dtype[-2:] == "16", transpose_b=turned)
    ran = run(tensor_matmul(op, Cut((1, 1), (4, 8), depth, **layout)))
    ran.check()
    loads = matrix_loads(ran)
    assert loads
    for text, wavefronts in loads:
        count = int(text.split(".x")[1][0])
        assert wavefronts == math.ceil(count * 8 * 16 / 128), text
