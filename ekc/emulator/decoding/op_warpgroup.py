"""`wgmma`: products of four warps on shared memory, with their fence, commit and wait."""

from __future__ import annotations

import re
from collections.abc import Callable

from ekc.emulator.decoding.shelf import items
from ekc.emulator.decoding.writer import Writer
from ekc.emulator.ptx.program import Immediate, Instruction, Operand, Register

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32}


def warpgroup(w: Writer, one: Instruction) -> None:
    """`wgmma` of every kind."""
    what = one.parts[1]
    if what == "mma_async":
        _multiply(w, one)
    elif what == "wait_group":
        left = one.operands[0]
        if not isinstance(left, Immediate):
            raise w.fail("the number of groups must be a number")
        w.line(f"products.wait({w.shelf.site(one, 'other', 'u4')}, {int(left.value)}, {w.mask})")
    elif what in ("fence", "commit_group"):
        w.line(f"products.{what.removesuffix('_group')}({w.shelf.site(one, 'other', 'u4')}, {w.mask})")
    else:
        raise w.fail("this wgmma is not emulated")


def _multiply(w: Writer, one: Instruction) -> None:
    columns, kind = _shape(w, one)
    d, a, b, keep, *more = one.operands
    if not isinstance(a, Register):
        raise w.fail("wgmma whose a lies in registers is not emulated")
    rows = [w.target(item, "b32") or "None" for item in items(d)]
    if len(rows) != columns // 2:
        raise w.fail(f"d of {columns} columns has {columns // 2} registers")
    scales, transposed = _signs(w, kind, more)
    what = (columns, kind, scales[0] != scales[1], transposed, "satfinite" in one.parts)
    site = w.shelf.site(one, "product", "u8", 2)
    sources = f"{w.src(a, 'b64')}, {w.src(b, 'b64')}, {w.src(keep, 'pred')}"
    w.line(f"products.multiply({site}, {what!r}, {sources}, ({', '.join(rows)},), {w.mask})")


def _shape(w: Writer, one: Instruction) -> tuple[int, str]:
    """Columns of b, and the type of both factors."""
    sums, *kinds = [p for p in one.parts if p in (*_DEPTHS, "f32", "s32", "u8", "e4m3", "e5m2", "b1")]
    columns, depth = (int(n) for n in _SHAPE.fullmatch(one.parts[4]).groups())  # type: ignore[union-attr]
    known = kinds in ([k, k] for k in _DEPTHS) and sums == ("s32" if kinds[0] == "s8" else "f32")
    if not known or depth != _DEPTHS[kinds[0]]:
        raise w.fail("this wgmma is not emulated: f32 from f16, bf16 or tf32, and s32 from s8 are")
    step = 16 if kinds[0] == "s8" and columns > 32 else 8
    if columns % step or not 8 <= columns <= 256:
        raise w.fail(f"wgmma has no shape of {columns} columns")
    return columns, kinds[0]


def _signs(w: Writer, kind: str, more: list[Operand]) -> tuple[list[int], tuple[bool, bool]]:
    """What stands behind scale-d: two factors of 1 or -1 (not of integers), and which sides are MN-major
    (of 16-bit types)."""
    numbers = [int(x.value) for x in more if isinstance(x, Immediate)]
    if len(numbers) != len(more) or len(more) != {"s8": 0, "tf32": 2}.get(kind, 4):
        raise w.fail("wgmma with another number of operands than the ISA gives")
    scales, sides = numbers[:2] or [1, 1], numbers[2:] or [0, 0]
    if not {*scales} <= {1, -1} or not {*sides} <= {0, 1}:
        raise w.fail("imm-scale is 1 or -1, imm-trans 0 or 1")
    return scales, (sides[0] == 1, sides[1] == 1)


WARPGROUP: dict[str, Callable[[Writer, Instruction], None]] = {"wgmma": warpgroup}
