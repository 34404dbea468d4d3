"""Kernels written by hand: a case has a launch and the result by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import ekc.emulator as emulator
from ekc.codegen import nvrtc
from ekc.emulator import Report


@cache
def ptx(source: str, arch: str = "sm_80", options: tuple[str, ...] = ()) -> str:
    return nvrtc.compile(source, arch, options).ptx


@dataclass(frozen=True)
class Case:
    """A kernel `k`, its launch, fresh arguments, and the expected value of one of them."""

    name: str
    source: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: Callable[[], list[Any]]
    output: int
    expected: Callable[[list[Any]], np.ndarray]
    dynamic_shared: int = 0
    arch: str = "sm_80"
    tolerance: float = 1e-5

    def run(self, source: str | None = None, **options: Any) -> tuple[Report, np.ndarray, np.ndarray]:
        args = self.args()
        given = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        report = emulator.launch(
            ptx(source or self.source, self.arch), "k", grid=self.grid, block=self.block, args=args,
            dynamic_shared=self.dynamic_shared, **options,
        )  # fmt: skip
        return report, args[self.output], self.expected(given)

    def check(self) -> Report:
        report, found, expected = self.run()
        assert report.findings == (), str(report)
        np.testing.assert_allclose(found, expected, rtol=self.tolerance, atol=self.tolerance)
        return report


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return rng().standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def find_kinds(source: str, args: list[Any], threads: int, blocks: int = 1, arch: str = "sm_80") -> set[str]:
    """Kinds of the findings of a kernel `k`; a source without a kernel's head gets one."""
    text = ptx(source if "__global__" in source else 'extern "C" __global__ ' + source, arch)
    report = emulator.launch(text, "k", grid=(blocks,), block=(threads,), args=args)
    return {finding.kind for finding in report.findings}


def integers(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)
