"""Instructions that look across the lanes of a warp."""

from __future__ import annotations

from collections.abc import Callable

from ekc.emulator.decoding.shelf import operand_items
from ekc.emulator.decoding.writer import BlockWriter
from ekc.emulator.ptx.program import Instruction, Pair


def write_shuffle(w: BlockWriter, instruction: Instruction) -> None:
    """`shfl.sync`."""
    if "sync" not in instruction.parts:
        raise w.make_error("only shfl.sync is emulated")
    dst, a, b, c, members = instruction.operands
    mode = next(p for p in instruction.parts if p in ("up", "down", "bfly", "idx"))
    args = ", ".join(w.read(x, "u32") for x in (a, b, c, members))
    value, valid = w.new_temporary(), w.new_temporary()
    number = w.context.add_site(instruction, "other", "u4")
    w.emit(f"{value}, {valid} = shuffle({number}, {mode!r}, {args}, {w.mask})")
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
    value, valid = w.new_temporary(), w.new_temporary()
    text = f"match({instruction.parts[1]!r}, {w.read(a, kind)}, {w.read(members, 'u32')}, {w.mask})"
    w.emit(f"{value}, {valid} = {text}")
    w.put_value(dst.first if isinstance(dst, Pair) else dst, "b32", value)
    if isinstance(dst, Pair):
        w.put_value(dst.second, "pred", valid)


def write_mma(w: BlockWriter, instruction: Instruction) -> None:
    """`mma.sync`: the warp's fragments, each register a row of lanes."""
    dst, a, b, c = (operand_items(x) for x in instruction.operands[:4])
    shape = next((p for p in instruction.parts if p.startswith("m") and p[1:2].isdigit()), "")
    kinds = [
        p
        for p in instruction.parts
        if p in ("f16", "bf16", "tf32", "f32", "s32", "s8", "u8", "f64", "s4", "u4")
    ]
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
