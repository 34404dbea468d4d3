"""Products of a warpgroup by hand: tiles written element by element where the PTX ISA draws them."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tests.emulator.case import Case, rng

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8}
HOLDERS = {8: "unsigned char", 16: "unsigned short", 32: "unsigned"}
WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}
"""Bytes of a line of a tile, by the swizzle as the descriptor says it; without one a line is a chunk."""


@dataclass(frozen=True)
class Factor:
    """One factor in shared memory: (lines, depth) elements of a, or of b with columns for lines."""

    lines: int
    depth: int
    bits: int
    swizzle: int
    transposed: bool = False
    """Neighbours in memory are lines (MN-major) instead of k."""
    gap_chunks: int = 0
    """Chunks left free between blocks of a tile that is not swizzled."""

    @property
    def width(self) -> int:
        return WIDTHS[self.swizzle]

    @property
    def core(self) -> int:
        """Bytes of 8 lines of 16 bytes, and what is left free behind them."""
        return 128 + 16 * self.gap_chunks

    @property
    def across(self) -> int:
        """The extent that crosses the lines of a tile: lines of K-major, k of MN-major."""
        return self.depth if self.transposed else self.lines

    @property
    def along(self) -> int:
        """Bytes of the other."""
        return (self.lines if self.transposed else self.depth) * self.bits // 8

    @property
    def size(self) -> int:
        if not self.swizzle:
            return self.across // 8 * self.core * (self.along // 16)
        return self.across * -(-self.along // self.width) * self.width

    def place(self, line: str, k: str) -> str:
        """C text: the byte of element (line, k)."""
        row, byte = (k, line) if self.transposed else (line, k)
        byte = f"({byte} * {self.bits // 8})"
        if not self.swizzle:
            # Blocks of 8 x 16 bytes, those along the line first.
            return f"({row} / 8 * {self.along // 16 * self.core} + {byte} / 16 * {self.core} + {row} % 8 * 16 + {byte} % 16)"
        turned = {1: f"{row} % 8", 2: f"{row} / 2 % 4", 3: f"{row} / 4 % 2"}[self.swizzle]
        chunk = f"({byte} % {self.width} / 16 ^ {turned})"
        return f"({byte} / {self.width} * {self.across * self.width} + {row} * {self.width} + {chunk} * 16 + {byte} % 16)"

    @property
    def strides(self) -> tuple[int, int]:
        """Leading and stride byte offset."""
        if self.swizzle:
            return (self.across * self.width if self.transposed else 16, 8 * self.width)
        line, block = self.along // 16 * self.core, self.core
        return (line, block) if self.transposed else (block, line)

    def start(self, step: str) -> str:
        """C text: where the k that an instruction takes begins."""
        k = f"({step} * {256 // self.bits})"
        return f"({k} * {self.width})" if self.transposed and self.swizzle else self.place("0", k)


@dataclass(frozen=True)
class Product:
    """c = a b, 64 rows of it for each warpgroup."""

    kind: str = "f16"
    columns: int = 64
    steps: int = 2
    groups: int = 1
    a_swizzle: int = 1
    b_swizzle: int = 1
    a_transposed: bool = False
    b_transposed: bool = False
    gap_chunks: int = 0
    scales: tuple[int, int] = (1, 1)
    keep: str = "1"
    """C text of scale-d at step i."""
    first: float = 0
    """Value of d before the first product."""
    satfinite: bool = False

    @property
    def depth(self) -> int:
        return self.steps * 256 // BITS[self.kind]

    @cached_property
    def a(self) -> Factor:
        return Factor(64, self.depth, BITS[self.kind], self.a_swizzle, self.a_transposed, self.gap_chunks)

    @cached_property
    def b(self) -> Factor:
        return Factor(
            self.columns, self.depth, BITS[self.kind], self.b_swizzle, self.b_transposed, self.gap_chunks
        )

    @property
    def name(self) -> str:
        sides = f"{'mn' if self.a_transposed else 'k'}{self.a_swizzle}{'mn' if self.b_transposed else 'k'}{self.b_swizzle}"
        return f"{self.kind}-n{self.columns}-{sides}-{self.steps}x{self.groups}-{self.keep}-{self.scales[0]}{self.scales[1]}"

    @property
    def instruction(self) -> str:
        count, sums = self.columns // 2, "s32" if self.kind == "s8" else "f32"
        shape = f"m64n{self.columns}k{256 // BITS[self.kind]}.{sums}.{self.kind}.{self.kind}"
        more = [str(x) for x in self.scales] if sums == "f32" else []
        more += [str(int(x)) for x in (self.a_transposed, self.b_transposed)] if BITS[self.kind] == 16 else []
        sat = ".satfinite" if self.satfinite else ""
        registers = ", ".join(f"%{i}" for i in range(count))
        bound = ", ".join(f'"+{"r" if sums == "s32" else "f"}"(d[{i}])' for i in range(count))
        tail = ", ".join(["p", *more])
        return f"""asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; wgmma.mma_async.sync.aligned.{shape}{sat} {{{registers}}}, %{count}, %{count + 1}, {tail}; }}"
          : {bound} : "l"(x), "l"(y), "r"(keep));"""

    @property
    def source(self) -> str:
        holder, sums = HOLDERS[BITS[self.kind]], "int" if self.kind == "s8" else "float"
        rows, (a_lead, a_stride), (b_lead, b_stride) = 64 * self.groups, self.a.strides, self.b.strides
        return f"""
__device__ unsigned long long tile(unsigned at, unsigned lead, unsigned stride, unsigned long long swizzle) {{
  return (at & 0x3FFFF) >> 4 | (unsigned long long)(lead >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | swizzle << 62; }}
__device__ __forceinline__ void multiply({sums} (&d)[{self.columns // 2}], unsigned long long x, unsigned long long y, int keep) {{
  {self.instruction} }}
extern "C" __global__ void k(const {holder}* a, const {holder}* b, {sums}* c) {{
  __shared__ __align__(1024) unsigned char s[{self.groups}][{-(-self.a.size // 1024) * 1024}];
  __shared__ __align__(1024) unsigned char u[{self.b.size}];
  const int t = threadIdx.x, g = t / 128;
  for (int i = t; i < {rows * self.depth}; i += {128 * self.groups}) {{ const int r = i / {self.depth}, k = i % {self.depth};
    *({holder}*)&s[r / 64][{self.a.place("(r % 64)", "k")}] = a[i]; }}
  for (int i = t; i < {self.columns * self.depth}; i += {128 * self.groups}) {{ const int k = i / {self.columns}, n = i % {self.columns};
    *({holder}*)&u[{self.b.place("n", "k")}] = b[i]; }}
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  {sums} d[{self.columns // 2}];
  for (int i = 0; i < {self.columns // 2}; ++i) d[i] = {self.first};
  const unsigned x = (unsigned)__cvta_generic_to_shared(s[g]), y = (unsigned)__cvta_generic_to_shared(u);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int i = 0; i < {self.steps}; ++i)
    multiply(d, tile(x + {self.a.start("i")}, {a_lead}, {a_stride}, {self.a_swizzle}), tile(y + {self.b.start("i")}, {b_lead}, {b_stride}, {self.b_swizzle}), {self.keep});
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < {self.columns // 2}; ++i)
    c[(t / 32 * 16 + i / 2 % 2 * 8 + t % 32 / 4) * {self.columns} + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i]; }}
"""

    def arguments(self) -> list[Any]:
        rows, random = 64 * self.groups, rng()
        if self.kind == "s8":
            a, b = (
                random.integers(-128, 128, s).astype(np.int8)
                for s in ((rows, self.depth), (self.depth, self.columns))
            )
            return [a, b, np.zeros((rows, self.columns), np.int32)]
        a, b = (
            random.standard_normal(s).astype(np.float32)
            for s in ((rows, self.depth), (self.depth, self.columns))
        )
        held = [
            x.astype(np.float16)
            if self.kind == "f16"
            else (x.view(np.uint32) >> 16).astype(np.uint16)
            if self.kind == "bf16"
            else x
            for x in (a, b)
        ]
        return [*held, np.zeros((rows, self.columns), np.float32)]

    def expected(self, arguments: list[Any]) -> np.ndarray:
        """By the product of whole matrices, in float64."""
        a, b = (self.numbers(x) for x in arguments[:2])
        each = self.depth // self.steps
        total = np.full((len(a), self.columns), self.first, np.float64)
        for i in range(self.steps):
            part = (
                self.scales[0]
                * self.scales[1]
                * (a[:, i * each : (i + 1) * each] @ b[i * each : (i + 1) * each])
            )
            total = part + total * bool(eval(self.keep, {"i": i}))
            if self.satfinite:
                total = total.clip(-(2**31), 2**31 - 1)
        return total

    def numbers(self, held: np.ndarray) -> np.ndarray:
        if self.kind == "bf16":
            return (held.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if self.kind == "tf32":
            return (held.view(np.uint32) >> 13 << 13).view(np.float32).astype(np.float64)
        return held.astype(np.float64)

    def case(self) -> Case:
        return Case(
            self.name,
            self.source,
            (2,),
            (128 * self.groups,),
            self.arguments,
            2,
            self.expected,
            arch="sm_90a",
            tolerance=1e-4,
        )


PRODUCTS = [
    *(Product("f16", 64, a_swizzle=s, b_swizzle=s, steps=4, groups=2) for s in WIDTHS),
    *(Product("f16", 72, a_swizzle=1, b_swizzle=s, gap_chunks=s == 0) for s in WIDTHS),
    *(Product("bf16", 128, a_swizzle=s, b_swizzle=3 - s, b_transposed=True, steps=4) for s in WIDTHS),
    *(
        Product(
            "f16",
            128,
            a_swizzle=s,
            b_swizzle=s,
            a_transposed=True,
            b_transposed=True,
            gap_chunks=s == 0,
            steps=3,
        )
        for s in WIDTHS
    ),
    *(Product("tf32", 24, a_swizzle=s, b_swizzle=s, steps=4) for s in WIDTHS),
    *(Product("s8", 96, a_swizzle=s, b_swizzle=3 - s, steps=4) for s in WIDTHS),
    Product("f16", 8, steps=1),
    Product("bf16", 256, b_transposed=True, groups=2),
    Product("s8", 8, steps=4, satfinite=True, first=2**31 - 3),
    Product("s8", 8, steps=4, keep="i != 0", first=5),
    Product("f16", 16, steps=4, keep="i % 2", first=3),
    Product("f16", 16, steps=4, keep="i > 0", first=3, scales=(-1, 1)),
    Product("tf32", 16, steps=4, scales=(1, -1), first=1),
    Product("bf16", 16, steps=4, scales=(-1, -1)),
]
