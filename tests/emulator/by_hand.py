"""CUDA kernels by hand, in `kernels/`: their arguments and results by NumPy."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator.case import Case, floats, integers, rng, zeros

HEAD = re.compile(r"^// (\w+)<<<(.*)>>>\n", re.MULTILINE)
"""Comment before each kernel of a file: its name, grid, block and bytes of dynamic shared memory."""


def read_kernels(path: Path) -> dict[str, tuple[str, tuple[Any, ...]]]:
    """(text, launch) of each kernel of a file, by name."""
    _, *parts = HEAD.split(path.read_text())
    launches = (ast.literal_eval(f"({launch},)") for launch in parts[1::3])
    return dict(zip(parts[::3], zip(parts[2::3], launches, strict=True), strict=True))


@dataclass(frozen=True)
class Run:
    """Fresh arguments of a kernel, and the value that NumPy computes of one of them, the last array if no
    other is named."""

    args: Callable[[], list[Any]]
    expected: Callable[[list[Any]], np.ndarray]
    tolerance: float = 1e-5
    output: int | None = None


def draw(dtype: Any, low: int, high: int, shape: Any) -> np.ndarray:
    return rng().integers(low, high, shape).astype(dtype)


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)


def half_warps(a: np.ndarray) -> np.ndarray:
    out = a.copy()
    for w in range(3):
        for _ in range(1 + w):
            low = out[32 * w : 32 * w + 16].copy()
            out[32 * w : 32 * w + 16] = low + low[np.arange(16) ^ 8]
        out[32 * w + 16 : 32 * w + 32] = -a[32 * w + 16 : 32 * w + 32]
    return out


def collatz(value: int) -> int:
    count = 0
    while value != 1:
        value, count = (3 * value + 1 if value & 1 else value // 2), count + 1
    return count


def murmur(values: np.ndarray) -> np.ndarray:
    out = []
    for value in values:
        v = int(value) % 2**64
        v ^= v >> 33
        v = v * 0xFF51AFD7ED558CCD % 2**64
        v ^= v >> 33
        out.append((v + (v * 12345678901 >> 64)) % 2**64)
    return np.array(out, np.uint64)


def tricks(v: int, i: int) -> int:
    full = 0xFFFFFFFF
    pool = v | ((v ^ full) << 32)
    perm = sum((pool >> (8 * (0x5140 >> (4 * k) & 7)) & 255) << (8 * k) for k in range(4))
    shifted = ((77 << 32 | v) << (i & 31)) >> 32 & full
    return int(f"{v:032b}"[::-1], 2) ^ (bin(v).count("1") << 8) ^ (32 - v.bit_length()) ^ perm ^ shifted


def divided(values: np.ndarray) -> np.ndarray:
    """In whole numbers, quotients towards zero."""
    out = []
    for x, other in zip(values.tolist(), values[::-1].tolist(), strict=True):
        y = (other >> 40) | 1
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        out.append((x * other >> 64) + quotient + (x - quotient * y))
    return np.array(out, np.int64)


def upper_19_bits(a: np.ndarray) -> np.ndarray:
    return (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def to_tf32(a: np.ndarray) -> np.ndarray:
    """Rounded to nearest, ties away from zero."""
    return upper_19_bits((a.view(np.uint32) + np.uint32(0x1000)).view(np.float32))


RUNS: dict[str, Run] = {
    # memory
    "vector_add": Run(lambda: [floats(1000), 2 * floats(1000), zeros(1000), 1000], lambda a: a[0] + a[1]),
    "saxpy_grid_stride": Run(lambda: [2.5, floats(777), floats(777), 777], lambda a: a[0] * a[1] + a[2]),
    "transpose": Run(lambda: [floats(96, 96), zeros(96, 96), 96], lambda a: a[0].T),
    "stencil": Run(
        lambda: [floats(500), zeros(500), 500],
        lambda a: np.convolve(np.pad(a[0], 1), np.ones(3, np.float32), "valid") / 3,
    ),
    "double_buffer": Run(lambda: [floats(8, 64), zeros(64)], lambda a: a[0].sum(0)[::-1]),
    "dynamic_shared": Run(lambda: [floats(96), zeros(96), 96], lambda a: 3 * a[0][::-1]),
    "float4_copy": Run(lambda: [floats(100, 4), zeros(100, 4), 100], lambda a: a[0][:, ::-1]),
    "local_array": Run(
        lambda: [draw(np.int32, 0, 16, 64), integers(64)],
        lambda a: ((np.arange(64) - a[0]) % 16) * np.arange(64),
    ),
    "constant_table": Run(
        lambda: [floats(100), zeros(100), 100],
        lambda a: np.convolve(np.pad(a[0], (0, 4)), [1, 2, 3, 2, 1], "valid"),
    ),
    "matmul_naive": Run(
        lambda: [floats(40, 40), floats(40, 40) + 1, zeros(40, 40), 40], lambda a: a[0] @ a[1], tolerance=1e-4
    ),
    "matmul_shared": Run(
        lambda: [floats(48, 48), floats(48, 48) + 1, zeros(48, 48), 48], lambda a: a[0] @ a[1], tolerance=1e-4
    ),
    "structure_argument": Run(
        lambda: [np.array([(50, 1.5, -3)], "i4,f4,i8").tobytes(), floats(64), zeros(64)],
        lambda a: np.where(np.arange(64) < 50, a[1] * np.float32(1.5) - 3, 0),
    ),
    "generic_pointers": Run(
        lambda: [floats(64), zeros(128)],
        lambda a: np.r_[
            np.where(np.arange(64) % 2, 100 + np.arange(64), a[0]),
            np.where(np.arange(64) % 2, -1, 100 + np.arange(64)),
        ],
    ),
    "three_dimensions": Run(
        lambda: [integers(6, 4, 6)],
        lambda a: np.fromfunction(lambda z, y, x: x + 10 * y + 100 * z + 1000 * (z // 2), (6, 4, 6)),
    ),
    # threads
    "reduce_shared": Run(
        lambda: [floats(1000), zeros(4), 1000],
        lambda a: np.pad(a[0], (0, 24)).reshape(4, 256).sum(1),
        tolerance=1e-4,
    ),
    "reduce_shuffle": Run(
        lambda: [floats(5 * 256), zeros(5)], lambda a: a[0].reshape(5, 256).sum(1), tolerance=1e-4
    ),
    "reduce_atomic": Run(
        lambda: [floats(800), zeros(1), 800], lambda a: a[0].sum(keepdims=True), tolerance=1e-3
    ),
    "divergent_loops": Run(
        lambda: [integers(190), 190], lambda a: np.array([collatz(i + 1) for i in range(190)])
    ),
    "early_exit": Run(
        lambda: [floats(250), zeros(250), 250], lambda a: np.where(a[0] < 0, -1, np.sqrt(np.abs(a[0])))
    ),
    "histogram_shared": Run(
        lambda: [draw(np.uint8, 0, 256, 5000), np.zeros(256, np.uint32), 5000],
        lambda a: np.bincount(a[0], minlength=256),
    ),
    "scan_hillis_steele": Run(
        lambda: [draw(np.int32, -9, 9, 384), integers(384)],
        lambda a: a[0].reshape(3, 128).cumsum(1).reshape(-1),
    ),
    "softmax_rows": Run(
        lambda: [floats(3, 300), zeros(3, 300), 300],
        lambda a: (e := np.exp(a[0] - a[0].max(1, keepdims=True))) / e.sum(1, keepdims=True),
    ),
    "ballot_compact": Run(
        lambda: [draw(np.int32, -5, 5, 32), integers(32), integers(1)],
        lambda a: np.pad(a[0][a[0] > 0], (0, int((a[0] <= 0).sum()))),
        output=1,
    ),
    "switch_table": Run(
        lambda: [draw(np.int32, 0, 9, 64), integers(64)],
        lambda a: np.array([[5, t * t, -t, t ^ 21, t % 7, 99, t + 6, -1, -1][v] for t, v in enumerate(a[0])]),
    ),
    "named_barriers": Run(
        lambda: [draw(np.int32, 0, 99, 128), integers(128)],
        lambda a: np.r_[a[0][:64][::-1], 2 * a[0][64:][::-1]],
    ),
    "sync_count": Run(
        lambda: [draw(np.int32, -5, 5, 70), integers(70)],
        lambda a: np.full(70, int((a[0] > 0).sum()) * 10 + int((a[0] > 3).any()) + 2),
    ),
    "compare_and_swap": Run(lambda: [np.abs(floats(128)), zeros(1)], lambda a: a[0].max(keepdims=True)),
    "add_by_compare_and_swap": Run(
        lambda: [floats(192), np.zeros(1)], lambda a: a[0].astype(np.float64).sum(keepdims=True)
    ),
    "greatest_if_greater": Run(
        lambda: [draw(np.int32, 1, 99, 192), integers(1)], lambda a: a[0].max(keepdims=True)
    ),
    "redux_and_match": Run(
        lambda: [draw(np.int32, 0, 6, 64), integers(64)],
        lambda a: np.concatenate([w.max() * 100 + (w[:, None] == w).sum(1) for w in a[0].reshape(2, 32)]),
    ),
    "shuffle_in_a_loop_of_some_lanes": Run(
        lambda: [draw(np.int32, 0, 9, 96), integers(96)], lambda a: half_warps(a[0])
    ),
    "short_warp_shuffle": Run(
        lambda: [np.arange(40, dtype=np.int32) * 3, integers(40)],
        lambda a: np.where(np.arange(40) % 32, a[0] - 3, a[0]),
    ),
    "producer_consumer": Run(lambda: [np.arange(32, dtype=np.int32), integers(32)], lambda a: 3 * a[0][::-1]),
    "last_block_sums": Run(
        lambda: [floats(384), zeros(6), zeros(1)], lambda a: a[0].sum(keepdims=True), tolerance=1e-4
    ),
    "exit_before_barrier": Run(
        lambda: [draw(np.int32, 0, 9, 96), integers(96)],
        lambda a: np.r_[a[0][:64][::-1], np.zeros(32, int)],
    ),
    # numbers
    "integer_division": Run(
        lambda: [draw(np.int32, -999, 999, 100), draw(np.int32, 1, 50, 100) * 3 - 80, integers(100), 100],
        lambda a: np.trunc(a[0] / a[1]).astype(int) * 1000 + np.fmod(a[0], a[1]),
    ),
    "wide_integers": Run(
        lambda: [rng().integers(-(2**62), 2**62, 64), np.zeros(64, np.uint64)], lambda a: murmur(a[0])
    ),
    "bytes_and_shorts": Run(
        lambda: [draw(np.int8, -128, 128, 50), draw(np.uint16, 0, 65536, 50), np.zeros(50, np.int16)],
        lambda a: (a[0].astype(np.int64) * 3 - (a[1].astype(np.int64) >> 2)).astype(np.int16),
    ),
    "half_arithmetic": Run(
        lambda: [half(floats(64)), half(floats(64) * 2), np.zeros(64, np.float16)],
        lambda a: a[0] * a[1] * a[0] + a[1],
        tolerance=4e-3,
    ),
    "doubles": Run(
        lambda: [np.abs(rng().standard_normal(40)), np.zeros(40)],
        lambda a: np.sqrt(a[0] ** 2 + 1) / (a[0] + 3),
        tolerance=1e-14,
    ),
    "fast_math": Run(
        lambda: [floats(64), zeros(64)],
        lambda a: (
            np.exp(a[0]) * np.sin(a[0])
            + np.cos(a[0]) / np.sqrt(a[0] ** 2 + 1)
            + a[0] / 3
            + np.log(a[0] ** 2 + 1)
        ),
        tolerance=1e-4,
    ),
    "bit_tricks": Run(
        lambda: [draw(np.uint32, 0, 2**32, 64), np.zeros(64, np.uint32)],
        lambda a: np.array([tricks(int(v), i) for i, v in enumerate(a[0])], np.uint32),
    ),
    "half2_fma": Run(
        lambda: [half(floats(64)), half(2 * floats(64)), np.zeros(64, np.float16)],
        lambda a: (a[0].astype(float) * a[1].astype(float) + a[0]).astype(np.float16),
        tolerance=0,
    ),
    "bfloat16": Run(lambda: [floats(64), zeros(64)], lambda a: a[0] * a[0] + a[0], tolerance=2e-2),
    "wide_division": Run(
        lambda: [rng().integers(-(2**62), 2**62, 64), np.zeros(64, np.int64)],
        lambda a: divided(a[0]),
        tolerance=0,
    ),
    "int8_dot": Run(
        lambda: [
            draw(np.int8, -128, 128, (32, 16)),
            draw(np.int8, -3, 4, 16),
            integers(32),
            np.zeros(32, np.int8),
        ],
        lambda a: a[0].astype(int) @ a[1].astype(int),
        tolerance=0,
        output=2,
    ),
    # tensor
    "async_copy": Run(lambda: [floats(6, 128), zeros(32)], lambda a: a[0].sum(0)[::-1].reshape(4, 32).sum(0)),
    "mma_f16": Run(
        lambda: [floats(16, 16).astype(np.float16), (floats(8, 16) + 1).astype(np.float16), zeros(16, 8)],
        lambda a: a[0].astype(np.float32) @ a[1].astype(np.float32).T,
        tolerance=1e-3,
    ),
    "ldmatrix_mma": Run(
        lambda: [floats(16, 16).astype(np.float16), (floats(8, 16) + 1).astype(np.float16), zeros(16, 8)],
        lambda a: a[0].astype(np.float32) @ a[1].astype(np.float32).T,
        tolerance=1e-3,
    ),
    "mma_int8": Run(
        lambda: [draw(np.int8, -128, 128, (16, 32)), draw(np.int8, -9, 9, (8, 32)), integers(16, 8)],
        lambda a: a[0].astype(int) @ a[1].astype(int).T,
    ),
    "mma_tf32": Run(
        lambda: [upper_19_bits(floats(16, 8)), upper_19_bits(floats(8, 8) + 1), zeros(16, 8)],
        lambda a: a[0] @ a[1].T,
        tolerance=1e-6,
    ),
    "mma_tf32_rounded": Run(
        lambda: [floats(16, 4), floats(8, 4) + 1, zeros(16, 8)],
        lambda a: to_tf32(a[0]) @ to_tf32(a[1]).T,
        tolerance=1e-6,
    ),
    "three_stages": Run(
        lambda: [floats(7, 128), zeros(32), 7],
        lambda a: (np.arange(1, 8)[:, None] * a[0]).sum(0)[::-1].reshape(4, 32).sum(0),
    ),
}
KERNELS = {
    name: kernel
    for path in sorted(Path(__file__).with_name("kernels").glob("*.cu"))
    for name, kernel in read_kernels(path).items()
}


def make_case(name: str, kernel: str, **constants: int) -> Case:
    """A kernel by hand, with constants put into its text."""
    source, (grid, block, *shared) = KERNELS[kernel]
    for word, value in constants.items():
        source = source.replace(word, str(value))
    run = RUNS[kernel]
    arrays = [i for i, given in enumerate(run.args()) if isinstance(given, np.ndarray)]
    output = arrays[-1] if run.output is None else run.output
    grid, block = (x if isinstance(x, tuple) else (x,) for x in (grid, block))
    return Case(name, source, grid, block, run.args, output, run.expected, *shared, tolerance=run.tolerance)


CASES: tuple[Case, ...] = (
    *(make_case(f"transpose_pad{pad}", "transpose", PAD=pad) for pad in (0, 1)),
    *(make_case(name, name) for name in RUNS if name != "transpose"),
)
