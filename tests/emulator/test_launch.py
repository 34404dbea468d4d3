"""`launch`: arguments, limits, budget, sampled blocks, counters, malformed text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.emulator import Report
from ekc.errors import EkcError
from tests.emulator.by_hand import CASES
from tests.emulator.case import floats, ptx, zeros

ADD = next(case for case in CASES if case.name == "vector_add")


def run_add(text: str | None = None, name: str = "k", **changes: Any) -> Report:
    options: dict[str, Any] = {
        "grid": (8,), "block": (128,), "args": [floats(1000), floats(1000), zeros(1000), 1000], **changes
    }  # fmt: skip
    return emulator.launch(ptx(ADD.source) if text is None else text, name, **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "other"}, "no 'other' in this PTX; kernels are k"),
        ({"args": [zeros(3)]}, "takes 4 arguments, 1 given"),
        ({"args": [1.5, zeros(1), zeros(1), 1]}, "argument 0"),
        ({"args": [zeros(1), zeros(1), zeros(1), zeros(1)]}, "argument 3"),
        ({"args": [zeros(1), zeros(1), zeros(1), 2.5]}, "argument 3"),
        ({"args": [zeros(1), zeros(1), zeros(1), 2**40]}, "does not fit"),
        ({"args": [zeros(1), zeros(1), zeros(1), "1"]}, "argument 3"),
        ({"grid": (0,)}, "grid.x: 0, at least 1; use 1 to 2147483647"),
        ({"grid": (1, 70000)}, "grid.y: 70000, at most 65535; use 1 to 65535"),
        ({"grid": (2**31,)}, "grid.x"),
        ({"grid": (1, 1, 1, 1)}, "up to three"),
        ({"block": (2048,)}, "block.x: 2048, at most 1024; use 1 to 1024"),
        ({"block": (64, 32)}, "threads per block: 2048, at most 1024; use 1024 or fewer"),
        ({"dynamic_shared": 10**6}, "shared memory"),
        ({"blocks": [8]}, "blocks: 8 to 8, at most 7; use 0 to 7"),
    ],
)
def test_wrong_arguments_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EkcError, match=words):
        run_add(**changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "not PTX"), ("int main() {}", "not PTX"), (".version 9.5", "target"), ("\x01", "cannot read")],
)
def test_text_that_is_no_ptx_is_refused(text: str, words: str) -> None:
    with pytest.raises(EkcError, match=words):
        run_add(text)


CUT = r"^(not PTX: |PTX (line|ends at line) \d+|kernel: no 'k' in this PTX)"


def test_truncated_ptx_is_refused_in_one_line() -> None:
    text = ptx(ADD.source).rstrip("\0 \n}")
    for end in range(0, len(text), 7):
        with pytest.raises(EkcError, match=CUT) as problem:
            run_add(text[:end])
        assert "\n" not in str(problem.value)


def test_unknown_instruction_is_refused_with_its_line() -> None:
    text = ptx(ADD.source).replace("add.f32", "frobnicate.f32")
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "frobnicate" in row)
    with pytest.raises(EkcError, match=rf"line {line}: unknown instruction 'frobnicate.f32' \(PTX "):
        run_add(text)


def test_unknown_register_and_label_are_refused() -> None:
    for old, new in (("%f3", "%q3"), ("bra \t$L__BB0_2", "bra \t$L__nowhere"), ("bra \t", "bra \t%r")):
        text = ptx(ADD.source)
        if old in text:
            with pytest.raises(EkcError, match="PTX line"):
                run_add(text.replace(old, new))


def test_endless_loop_exceeds_the_budget() -> None:
    text = ptx('extern "C" __global__ void k(volatile int* a) { while (a[0] == 0) a[1] = 3; }')
    with pytest.raises(EkcError, match="more than 1000 instructions per thread"):
        emulator.launch(
            text, "k", grid=(1,), block=(32,), args=[np.zeros(2, np.int32)], max_instructions=1000
        )


def test_sampled_blocks_run_alone() -> None:
    out = zeros(1000)
    report = run_add(args=[floats(1000), floats(1000), out, 1000], blocks=[0, 7, 7])
    assert (report.blocks_run, report.total_blocks, report.sampled) == (2, 8, True)
    assert "sampled" in str(report)
    assert out[:128].all()
    assert out[896:].all()
    assert not out[128:896].any()


def test_same_array_twice_is_one_memory() -> None:
    a = np.arange(64, dtype=np.float32)
    run_add(args=[a, a, a, 64], grid=(1,))
    assert (a == 2 * np.arange(64)).all()


def test_masked_elements_are_refused_and_a_mask_of_nothing_is_not() -> None:
    with pytest.raises(EkcError, match=r"argument 1 of \w+ is a masked array .*filled\(0\)"):
        run_add(args=[floats(64), np.ma.masked_less(floats(64), 0), zeros(64), 64], grid=(1,))
    out = zeros(64)
    run_add(args=[floats(64), np.ma.masked_invalid(floats(64)), out, 64], grid=(1,))
    assert out.any()


def test_counters_of_a_vector_add() -> None:
    counters = run_add().counters
    assert counters.global_requests == 3 * 32
    assert counters.global_sectors == 3 * 1000 // 8
    assert counters.bytes_by_space == {"load.global": 8000, "store.global": 4000}
    assert counters.divergent_branches == 1
    assert counters.barriers == 0
    added = next(c for c in counters.instructions.values() if c.instruction.startswith("add.f32"))
    assert (added.warps, added.lanes) == (32, 1000)


def test_bank_conflicts_of_a_transpose() -> None:
    plain, padded = (
        next(c for c in CASES if c.name == f"transpose_pad{pad}").check().counters for pad in (0, 1)
    )
    # 9 blocks of 8 warps, 4 rows each: the store is free, the column load takes 32 passes.
    assert plain.shared_requests == padded.shared_requests == 2 * 9 * 8 * 4
    assert padded.bank_conflicts == 0
    assert padded.shared_wavefronts == padded.shared_requests
    assert plain.bank_conflicts == 9 * 8 * 4 * 31
    assert plain.barriers == 9


def test_fma_rounds_once_for_any_bits() -> None:
    from ekc.emulator.numerics.fma import fma32

    text = ptx(
        'extern "C" __global__ void k(const float* a, const float* b, const float* c, float* d, int n) {'
        " int i = blockIdx.x * 256 + threadIdx.x; if (i < n) d[i] = fmaf(a[i], b[i], c[i]); }"
    )
    rng = np.random.default_rng(5)
    count = 100_096
    kinds = [
        rng.integers(0, 2**32, (3, count), dtype=np.uint32).view(np.float32),
        rng.integers(0, 2**24, (3, count), dtype=np.uint32).view(np.float32),
        rng.integers(-9, 9, (3, count)).astype(np.float32),
        rng.standard_normal((3, count)).astype(np.float32),
        np.ldexp(rng.integers(1, 2**12, (3, count)).astype(np.float32), [[-70], [-70], [-140]]).astype("f4"),
    ]
    for a, b, c in kinds:
        d = zeros(count)
        emulator.launch(text, "k", grid=(391,), block=(256,), args=[a, b, c, d, count])
        assert (d.view(np.uint32) == fma32(a, b, c).view(np.uint32)).all()


def test_call_is_refused() -> None:
    text = ptx(
        "__device__ __noinline__ float f(float x) { return x * x + 1; }"
        'extern "C" __global__ void k(float* a) { a[threadIdx.x] = f(a[threadIdx.x]); }'
    )
    with pytest.raises(EkcError, match=r"unknown instruction 'call\.uni'"):
        emulator.launch(text, "k", grid=(1,), block=(32,), args=[floats(32)])


def test_trap_is_a_finding() -> None:
    text = ptx('extern "C" __global__ void k(int* a) { if (a[0] == 7) __trap(); a[1] = 2; }')
    for first, kinds in ((0, []), (7, ["trap"])):
        report = emulator.launch(text, "k", grid=(1,), block=(32,), args=[np.array([first, 0], np.int32)])
        assert [f.kind for f in report.findings] == kinds


def test_lanes_that_wait_for_each_other_make_progress() -> None:
    text = ptx(
        'extern "C" __global__ void k(int* a) { bool done = false; while (!done) {'
        " if (atomicCAS(a, 0, 1) == 0) { a[1] += 1; __threadfence(); atomicExch(a, 0); done = true; } } }"
    )
    a = np.zeros(2, np.int32)
    emulator.launch(text, "k", grid=(1,), block=(32,), args=[a])
    assert a.tolist() == [0, 32]


def test_constant_loads_are_no_global_loads() -> None:
    source = """
__constant__ float w[4];
extern "C" __global__ void k(float* y) { y[threadIdx.x] = w[blockIdx.x]; }
"""
    y = np.ones(32, np.float32)
    counters = emulator.launch(ptx(source), "k", grid=(1,), block=(32,), args=[y]).counters
    assert counters.global_load_sectors == 0
    assert counters.global_requests == 1
    assert counters.bytes_by_space["load.const"] == 128
    assert not y.any()
