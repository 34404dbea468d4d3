"""Instructions across the lanes of a warp (shuffles, votes, `mma`) and of a warpgroup (`wgmma`)."""

from __future__ import annotations

import re
from collections.abc import Callable

from ekc.emulator.decode.block_writer import BlockWriter
from ekc.emulator.decode.context import operand_items
from ekc.ptx.module import Immediate, Instruction, Operand, Pair, Register

_FRAGMENT_TYPES = ("f16", "bf16", "tf32", "f32", "s32", "s8", "u8", "f64", "s4", "u4")


def write_shuffle(w: BlockWriter, instruction: Instruction) -> None:
    """`shfl.sync`."""
    if "sync" not in instruction.parts:
        raise w.make_error("only shfl.sync is emulated")
    dst, a, b, c, _ = instruction.operands
    mode = next(p for p in instruction.parts if p in ("up", "down", "bfly", "idx"))
    args = ", ".join(w.read(x, "u32") for x in (a, b, c))
    number = w.context.add_site(instruction, "other", "u4")
    _put_pair(w, dst, f"shuffle({number}, {mode!r}, {args}, {w.mask})")


def _put_pair(w: BlockWriter, dst: Operand, text: str) -> None:
    """Store a word, and the predicate beside it where `dst` is a pair."""
    value, valid = w.new_temporary(), w.new_temporary()
    w.emit(f"{value}, {valid} = {text}")
    w.put_value(dst.first if isinstance(dst, Pair) else dst, "b32", value)
    if isinstance(dst, Pair):
        w.put_value(dst.second, "pred", valid)


def write_vote(w: BlockWriter, instruction: Instruction) -> None:
    """`vote.sync`."""
    mode = next(p for p in instruction.parts if p in ("all", "any", "uni", "ballot"))
    dst, a, *members = instruction.operands
    given = w.read(members[0], "u32") if members else "ALL32"
    kind = "b32" if mode == "ballot" else "pred"
    w.put_value(dst, kind, f"vote({mode!r}, {w.read(a, 'pred')}, {given}, {w.mask})")


def write_activemask(w: BlockWriter, instruction: Instruction) -> None:
    """`activemask`."""
    w.put_value(instruction.operands[0], "b32", f"vote('ballot', TRUE, ALL32, {w.mask})")


def write_redux(w: BlockWriter, instruction: Instruction) -> None:
    """`redux.sync`."""
    kind = instruction.parts[-1]
    if kind[0] == "f":
        raise w.make_error("redux of floats is not emulated")
    dst, a, members = instruction.operands
    text = f"redux({instruction.parts[2]!r}, {w.read(a, kind)}, {w.read(members, 'u32')}, {w.mask})"
    w.put_value(dst, kind, text)


def write_match(w: BlockWriter, instruction: Instruction) -> None:
    """`match.sync`."""
    kind = instruction.parts[-1]
    dst, a, members = instruction.operands
    args = f"{w.read(a, kind)}, {w.read(members, 'u32')}"
    _put_pair(w, dst, f"match({instruction.parts[1]!r}, {args}, {w.mask})")


def write_mma(w: BlockWriter, instruction: Instruction) -> None:
    """`mma.sync`: the warp's fragments, each register a row of lanes."""
    dst, a, b, c = (operand_items(x) for x in instruction.operands[:4])
    shape = next((p for p in instruction.parts if p.startswith("m") and p[1:2].isdigit()), "")
    kinds = [p for p in instruction.parts if p in _FRAGMENT_TYPES]
    if len(kinds) != 4 or ".row.col." not in instruction.opcode:
        raise w.make_error("this mma is not emulated")
    sat = "satfinite" in instruction.parts
    rows = [f"({', '.join(w.read(x, 'b32') for x in group)},)" for group in (a, b, c)]
    name = w.new_temporary()
    number = w.context.add_site(instruction, "other", "u4")
    w.emit(f"{name} = tensor({number}, {shape!r}, {kinds!r}, {', '.join(rows)}, {w.mask}, {sat})")
    for i, item in enumerate(dst):
        w.put_value(item, "b32", f"{name}[{i}]")


def write_warp_sync(w: BlockWriter, instruction: Instruction) -> None:
    """`bar.warp.sync`: orders the memory accesses of the lanes that meet."""
    w.emit(f"warp_epoch({w.read(instruction.operands[0], 'u32')}, {w.mask})")


WARP_WRITERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    "shfl": write_shuffle,
    "vote": write_vote,
    "activemask": write_activemask,
    "redux": write_redux,
    "match": write_match,
    "mma": write_mma,
    "bar": write_warp_sync,
}


_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32}


def write_wgmma(w: BlockWriter, instruction: Instruction) -> None:
    """`wgmma` of every kind."""
    operation = instruction.parts[1]
    if operation == "mma_async":
        _write_multiply(w, instruction)
    elif operation == "wait_group":
        left = instruction.operands[0]
        if not isinstance(left, Immediate):
            raise w.make_error("the number of groups must be a number")
        number = w.context.add_site(instruction, "other", "u4")
        w.emit(f"products.wait({number}, {int(left.value)}, {w.mask})")
    elif operation in ("fence", "commit_group"):
        number = w.context.add_site(instruction, "other", "u4")
        w.emit(f"products.{operation.removesuffix('_group')}({number}, {w.mask})")
    else:
        raise w.make_error("this wgmma is not emulated")


def _write_multiply(w: BlockWriter, instruction: Instruction) -> None:
    columns, kind = _parse_shape(w, instruction)
    d, a, b, keep, *more = instruction.operands
    if not isinstance(a, Register):
        raise w.make_error("wgmma with a in registers is not emulated")
    rows = [w.target_row(item, "b32") or "None" for item in operand_items(d)]
    if len(rows) != columns // 2:
        raise w.make_error(f"d of {columns} columns has {columns // 2} registers")
    scales, transposed = _parse_immediates(w, kind, more)
    form_arguments = (columns, kind, scales[0] != scales[1], transposed, "satfinite" in instruction.parts)
    site = w.context.add_site(instruction, "product", "u8", 2)
    sources = f"{w.read(a, 'b64')}, {w.read(b, 'b64')}, {w.read(keep, 'pred')}"
    w.emit(f"products.multiply({site}, {form_arguments!r}, {sources}, ({', '.join(rows)},), {w.mask})")


def _parse_shape(w: BlockWriter, instruction: Instruction) -> tuple[int, str]:
    """Columns of b, and the type of both factors."""
    sums, *kinds = [p for p in instruction.parts if p in (*_DEPTHS, "f32", "s32", "u8", "e4m3", "e5m2", "b1")]
    columns, depth = (int(n) for n in _SHAPE.fullmatch(instruction.parts[4]).groups())  # type: ignore[union-attr]
    is_supported = kinds in ([k, k] for k in _DEPTHS) and sums == ("s32" if kinds[0] == "s8" else "f32")
    if not is_supported or depth != _DEPTHS[kinds[0]]:
        raise w.make_error("this wgmma is not emulated: f32 from f16, bf16 or tf32, and s32 from s8 are")
    step = 16 if kinds[0] == "s8" and columns > 32 else 8
    if columns % step or not 8 <= columns <= 256:
        raise w.make_error(f"wgmma has no shape of {columns} columns")
    return columns, kinds[0]


def _parse_immediates(
    w: BlockWriter, kind: str, operands: list[Operand]
) -> tuple[list[int], tuple[bool, bool]]:
    """The operands after scale-d: two signs (not of integers), and which 16-bit factors are MN-major."""
    numbers = [int(x.value) for x in operands if isinstance(x, Immediate)]
    if len(numbers) != len(operands) or len(operands) != {"s8": 0, "tf32": 2}.get(kind, 4):
        raise w.make_error("wgmma with a number of operands that the ISA does not have")
    scales, sides = numbers[:2] or [1, 1], numbers[2:] or [0, 0]
    if not {*scales} <= {1, -1} or not {*sides} <= {0, 1}:
        raise w.make_error("imm-scale is 1 or -1, imm-trans 0 or 1")
    return scales, (sides[0] == 1, sides[1] == 1)


WARPGROUP_WRITERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {"wgmma": write_wgmma}
