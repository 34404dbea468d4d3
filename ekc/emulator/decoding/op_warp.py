"""Instructions that look across the lanes of a warp."""

from __future__ import annotations

from collections.abc import Callable

from ekc.emulator.decoding.shelf import items
from ekc.emulator.decoding.writer import Writer
from ekc.emulator.ptx.program import Instruction, Pair


def shuffle(w: Writer, one: Instruction) -> None:
    """`shfl.sync`."""
    if "sync" not in one.parts:
        raise w.fail("only shfl.sync is emulated")
    dst, a, b, c, members = one.operands
    mode = next(p for p in one.parts if p in ("up", "down", "bfly", "idx"))
    args = ", ".join(w.src(x, "u32") for x in (a, b, c, members))
    value, valid = w.temporary(), w.temporary()
    number = w.shelf.site(one, "other", "u4")
    w.line(f"{value}, {valid} = shuffle({number}, {mode!r}, {args}, {w.mask})")
    w.put_value(dst.first if isinstance(dst, Pair) else dst, "b32", value)
    if isinstance(dst, Pair):
        w.put_value(dst.second, "pred", valid)


def vote(w: Writer, one: Instruction) -> None:
    """`vote.sync`."""
    mode = next(p for p in one.parts if p in ("all", "any", "uni", "ballot"))
    dst, a, *members = one.operands
    given = w.src(members[0], "u32") if members else "ALL32"
    kind = "b32" if mode == "ballot" else "pred"
    w.put_value(dst, kind, f"vote({mode!r}, {w.src(a, 'pred')}, {given}, {w.mask})")


def active(w: Writer, one: Instruction) -> None:
    """`activemask`."""
    w.put_value(one.operands[0], "b32", f"vote('ballot', TRUE, ALL32, {w.mask})")


def reduce(w: Writer, one: Instruction) -> None:
    """`redux.sync`."""
    kind = one.parts[-1]
    if kind[0] == "f":
        raise w.fail("redux of floats is not emulated")
    dst, a, members = one.operands
    text = f"redux({one.parts[2]!r}, {w.src(a, kind)}, {w.src(members, 'u32')}, {w.mask})"
    w.put_value(dst, kind, text)


def match(w: Writer, one: Instruction) -> None:
    """`match.sync`."""
    kind = one.parts[-1]
    dst, a, members = one.operands
    value, valid = w.temporary(), w.temporary()
    text = f"match({one.parts[1]!r}, {w.src(a, kind)}, {w.src(members, 'u32')}, {w.mask})"
    w.line(f"{value}, {valid} = {text}")
    w.put_value(dst.first if isinstance(dst, Pair) else dst, "b32", value)
    if isinstance(dst, Pair):
        w.put_value(dst.second, "pred", valid)


def tensor(w: Writer, one: Instruction) -> None:
    """`mma.sync`: the warp's fragments, each register a row of lanes."""
    dst, a, b, c = (items(x) for x in one.operands[:4])
    shape = next((p for p in one.parts if p.startswith("m") and p[1:2].isdigit()), "")
    kinds = [
        p for p in one.parts if p in ("f16", "bf16", "tf32", "f32", "s32", "s8", "u8", "f64", "s4", "u4")
    ]
    if len(kinds) != 4 or ".row.col." not in one.opcode:
        raise w.fail("this mma is not emulated")
    sat = "satfinite" in one.parts
    rows = [f"({', '.join(w.src(x, 'b32') for x in group)},)" for group in (a, b, c)]
    name = w.temporary()
    number = w.shelf.site(one, "other", "u4")
    w.line(f"{name} = tensor({number}, {shape!r}, {kinds!r}, {', '.join(rows)}, {w.mask}, {sat})")
    for i, item in enumerate(dst):
        w.put_value(item, "b32", f"{name}[{i}]")


def sync_warp(w: Writer, one: Instruction) -> None:
    """`bar.warp.sync`: orders the memory accesses of the lanes that meet."""
    w.line(f"warp_epoch({w.src(one.operands[0], 'u32')}, {w.mask})")


WARP: dict[str, Callable[[Writer, Instruction], None]] = {
    "shfl": shuffle,
    "vote": vote,
    "activemask": active,
    "redux": reduce,
    "match": match,
    "mma": tensor,
    "bar": sync_warp,
}
