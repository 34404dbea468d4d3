"""Operators whose spaces the tests of this room walk through, and how they draw from them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc import devices
from ekc.ir.operator import Operator
from ekc.search.space.constraints import RuleViolation
from ekc.search.space.space import Population, Space

LIMITS = devices.open("a100").limits


def band(n: int = 64, m: int = 48, width: int = 5) -> Operator:
    """A banded matrix product, which the package has no name for."""
    return o.compute(
        "band",
        axes={"i": n, "j": m},
        reduce={"b": width},
        inputs={"A": (n, width), "B": (n, m)},
        body=lambda A, B, i, j, b: A[i, b] * B[i + b - width // 2, j],
    )


def _elementwise() -> Operator:
    return o.compute(
        "soft", axes={"i": 100, "j": 96}, inputs={"x": (100, 96)}, body=lambda x, i, j: ex.relu(x[i, j]) + 1
    )


def _two_computes() -> Operator:
    return o.matmul(64, 96, 32).then(
        "D",
        axes={"p": 64, "q": 96},
        inputs={"bias": (96,)},
        body=lambda C, bias, p, q: ex.relu(C[p, q] + bias[q]),
    )


def _epilogues() -> Operator:
    """A bias, an activation, a gate, written wider than summed: vectors of one tensor, scalars of another."""
    op = o.matmul(96, 64, 48, dtype="float16").epilogue(
        lambda c, bias, gate: ex.gelu(c + bias) * gate, bias=(64,), gate=(96, 1), out_dtype="float32"
    )
    return op.epilogue(lambda c, before: c + before, before=(96, 64))


def _diverging_reads() -> Operator:
    """Two reads of one tensor that no staging can serve together."""
    return o.compute(
        "diverging_reads",
        axes={"i": 24},
        reduce={"k": 12},
        inputs={"x": (48, 13)},
        body=lambda x, i, k: x[2 * i, k] - x[i, k + 1],
    )


OPERATORS = {
    "matmul": o.matmul(256, 192, 128),
    "transposed": o.matmul(96, 64, 128, transpose_a=True, transpose_b=True),
    "batch": o.batch_matmul(3, 32, 64, 48),
    "matvec": o.matvec(512, 384),
    "conv stride 2": o.conv2d(1, 8, 28, 28, out_channels=16, kernel=3, stride=2, padding=1),
    "conv groups": o.conv2d(2, 8, 14, 14, out_channels=16, kernel=3, padding=1, groups=4),
    "conv depthwise": o.conv2d(1, 32, 14, 14, out_channels=32, kernel=3, padding=1, groups=32),
    "fp16": o.matmul(128, 128, 64, dtype="float16"),
    "bf16": o.matmul(128, 96, 64, dtype="bfloat16"),
    "int8": o.matmul(96, 128, 64, dtype="int8"),
    "primes": o.matmul(127, 61, 31),
    "rows of the tape": o.matmul(97, 64, 64),
    "band": band(),
    "elementwise": _elementwise(),
    "two computes": _two_computes(),
    "epilogues": _epilogues(),
    "diverging reads": _diverging_reads(),
    "conv 3d": o.conv3d(1, 4, 6, 7, 8, out_channels=8, kernel=3, padding=1),
    "conv NHWC": o.conv2d(1, 16, 14, 14, out_channels=32, kernel=3, padding=1, layout="NHWC"),
    "conv transposed": o.conv_transpose2d(1, 8, 7, 7, out_channels=16, kernel=4, stride=2, padding=1),
    "columns": o.reduce((300, 40), 0, "max"),
    "softmax": o.softmax((48, 200), dtype="float16"),
    "layer norm": o.layer_norm((40, 96)),
}
ISSUE = {
    "MM 1024": o.matmul(1024, 1024, 1024),
    "MV 4096": o.matvec(4096, 4096),
    "conv 64": o.conv2d(1, 64, 56, 56, out_channels=64, kernel=3, padding=1),
    "conv 256": o.conv2d(16, 256, 14, 14, out_channels=256, kernel=3, padding=1),
    "MM 127": o.matmul(127, 255, 63),
    "fp16 512": o.matmul(512, 512, 512, dtype="float16"),
}
"""The six operators of the main job."""


@cache
def space(name: str) -> Space:
    """The space of a named operator on the a100."""
    return Space((OPERATORS | ISSUE)[name], LIMITS)


def drawn(name: str, count: int, seed: int = 0) -> Population:
    """Random genomes, legal or not."""
    return space(name).sample(np.random.default_rng(seed), count)


def legal(name: str, count: int, seed: int = 0) -> Population:
    """Random genomes, mended."""
    random = np.random.default_rng(seed)
    return space(name).repair(random, space(name).sample(random, count))[0]


def rules_broken(name: str, population: Population) -> Iterator[RuleViolation]:
    """Every rule that some genomes of a space break, and which."""
    yield from space(name).evaluator.find_violations(population)
