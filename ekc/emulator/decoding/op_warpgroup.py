"""`wgmma`: products of four warps on shared memory, with their fence, commit and wait."""

from __future__ import annotations

import re
from collections.abc import Callable

from ekc.emulator.decoding.shelf import operand_items
from ekc.emulator.decoding.writer import BlockWriter
from ekc.emulator.ptx.program import Immediate, Instruction, Operand, Register

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32}


def write_wgmma(w: BlockWriter, instruction: Instruction) -> None:
    """`wgmma` of every kind."""
    what = instruction.parts[1]
    if what == "mma_async":
        _write_multiply(w, instruction)
    elif what == "wait_group":
        left = instruction.operands[0]
        if not isinstance(left, Immediate):
            raise w.make_error("the number of groups must be a number")
        w.emit(
            f"products.wait({w.context.add_site(instruction, 'other', 'u4')}, {int(left.value)}, {w.mask})"
        )
    elif what in ("fence", "commit_group"):
        w.emit(
            f"products.{what.removesuffix('_group')}({w.context.add_site(instruction, 'other', 'u4')}, {w.mask})"
        )
    else:
        raise w.make_error("this wgmma is not emulated")


def _write_multiply(w: BlockWriter, instruction: Instruction) -> None:
    columns, kind = _parse_shape(w, instruction)
    d, a, b, keep, *more = instruction.operands
    if not isinstance(a, Register):
        raise w.make_error("wgmma whose a lies in registers is not emulated")
    rows = [w.target_row(item, "b32") or "None" for item in operand_items(d)]
    if len(rows) != columns // 2:
        raise w.make_error(f"d of {columns} columns has {columns // 2} registers")
    scales, transposed = _parse_immediates(w, kind, more)
    what = (columns, kind, scales[0] != scales[1], transposed, "satfinite" in instruction.parts)
    site = w.context.add_site(instruction, "product", "u8", 2)
    sources = f"{w.read(a, 'b64')}, {w.read(b, 'b64')}, {w.read(keep, 'pred')}"
    w.emit(f"products.multiply({site}, {what!r}, {sources}, ({', '.join(rows)},), {w.mask})")


def _parse_shape(w: BlockWriter, instruction: Instruction) -> tuple[int, str]:
    """Columns of b, and the type of both factors."""
    sums, *kinds = [p for p in instruction.parts if p in (*_DEPTHS, "f32", "s32", "u8", "e4m3", "e5m2", "b1")]
    columns, depth = (int(n) for n in _SHAPE.fullmatch(instruction.parts[4]).groups())  # type: ignore[union-attr]
    known = kinds in ([k, k] for k in _DEPTHS) and sums == ("s32" if kinds[0] == "s8" else "f32")
    if not known or depth != _DEPTHS[kinds[0]]:
        raise w.make_error("this wgmma is not emulated: f32 from f16, bf16 or tf32, and s32 from s8 are")
    step = 16 if kinds[0] == "s8" and columns > 32 else 8
    if columns % step or not 8 <= columns <= 256:
        raise w.make_error(f"wgmma has no shape of {columns} columns")
    return columns, kinds[0]


def _parse_immediates(
    w: BlockWriter, kind: str, operands: list[Operand]
) -> tuple[list[int], tuple[bool, bool]]:
    """What stands behind scale-d: two factors of 1 or -1 (not of integers), and which sides are MN-major
    (of 16-bit types)."""
    numbers = [int(x.value) for x in operands if isinstance(x, Immediate)]
    if len(numbers) != len(operands) or len(operands) != {"s8": 0, "tf32": 2}.get(kind, 4):
        raise w.make_error("wgmma with another number of operands than the ISA gives")
    scales, sides = numbers[:2] or [1, 1], numbers[2:] or [0, 0]
    if not {*scales} <= {1, -1} or not {*sides} <= {0, 1}:
        raise w.make_error("imm-scale is 1 or -1, imm-trans 0 or 1")
    return scales, (sides[0] == 1, sides[1] == 1)


WARPGROUP_WRITERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {"wgmma": write_wgmma}
