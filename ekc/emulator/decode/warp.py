"""Instructions across the lanes of a warp (shuffles, votes, `mma`) and of a warpgroup (`wgmma`)."""

from __future__ import annotations

import re

from ekc.emulator.decode.block_writer import BlockWriter, Writer
from ekc.emulator.decode.context import operand_items
from ekc.emulator.decode.memory import read_group_count
from ekc.ptx.module import Immediate, Operand, Pair, Register

_FRAGMENT_TYPES = ("f16", "bf16", "tf32", "f32", "s32", "s8", "u8", "f64", "s4", "u4")


def write_shuffle(w: BlockWriter) -> None:
    """`shfl.sync`."""
    if "sync" not in w.parts:
        raise w.make_error("only shfl.sync is emulated")
    a, b, c, _ = w.read_sources("u32", "u32", "u32", "u32")
    mode = next(p for p in w.parts if p in ("up", "down", "bfly", "idx"))
    number = w.context.add_site(w.instruction, "other", "u4")
    _put_pair(w, f"shuffle({number}, {mode!r}, {a}, {b}, {c}, {w.mask})")


def _put_pair(w: BlockWriter, text: str) -> None:
    """Store a word, and the predicate beside it where the result is a pair."""
    value, valid = w.new_temporary(), w.new_temporary()
    w.emit(f"{value}, {valid} = {text}")
    w.put_value(w.dst.first if isinstance(w.dst, Pair) else w.dst, "b32", value)
    if isinstance(w.dst, Pair):
        w.put_value(w.dst.second, "pred", valid)


def write_vote(w: BlockWriter) -> None:
    """`vote.sync`."""
    mode = next(p for p in w.parts if p in ("all", "any", "uni", "ballot"))
    predicate, *members = w.read_sources("pred", "u32")
    args = ", ".join([predicate, *(members or ["ALL32"])])
    w.put_value(w.dst, "b32" if mode == "ballot" else "pred", f"vote({mode!r}, {args}, {w.mask})")


def write_redux(w: BlockWriter) -> None:
    """`redux.sync`."""
    if w.kind[0] == "f":
        raise w.make_error("redux of floats is not emulated")
    a, members = w.read_sources("", "u32")
    w.put_value(w.dst, w.kind, f"redux({w.parts[2]!r}, {a}, {members}, {w.mask})")


def write_match(w: BlockWriter) -> None:
    """`match.sync`."""
    a, members = w.read_sources("", "u32")
    _put_pair(w, f"match({w.parts[1]!r}, {a}, {members}, {w.mask})")


def write_mma(w: BlockWriter) -> None:
    """`mma.sync`: the warp's fragments, each register a row of lanes."""
    shape = next((p for p in w.parts if p.startswith("m") and p[1:2].isdigit()), "")
    kinds = [p for p in w.parts if p in _FRAGMENT_TYPES]
    if len(kinds) != 4 or ".row.col." not in w.instruction.opcode:
        raise w.make_error("this mma is not emulated")
    fragments = [operand_items(x) for x in w.sources[:3]]
    rows = [f"({', '.join(w.read(x, 'b32') for x in group)},)" for group in fragments]
    name, number = w.new_temporary(), w.context.add_site(w.instruction, "other", "u4")
    sat = "satfinite" in w.parts
    w.emit(f"{name} = tensor({number}, {shape!r}, {kinds!r}, {', '.join(rows)}, {w.mask}, {sat})")
    for i, item in enumerate(operand_items(w.dst)):
        w.put_value(item, "b32", f"{name}[{i}]")


def write_warp_sync(w: BlockWriter) -> None:
    """`bar.warp.sync`: orders the memory accesses of the lanes that meet."""
    w.emit(f"warp_epoch({w.read(w.dst, 'u32')}, {w.mask})")


_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32}


def write_wgmma(w: BlockWriter) -> None:
    """`wgmma` of every kind."""
    operation = w.parts[1]
    if operation == "mma_async":
        _write_multiply(w)
    elif operation in ("fence", "commit_group", "wait_group"):
        left = f", {read_group_count(w)}" if operation == "wait_group" else ""
        number = w.context.add_site(w.instruction, "other", "u4")
        w.emit(f"products.synchronize({number}, {w.mask}{left})")
    else:
        raise w.make_error("this wgmma is not emulated")


def _write_multiply(w: BlockWriter) -> None:
    columns, kind = _parse_shape(w)
    a, b, keep, *more = w.sources
    if not isinstance(a, Register):
        raise w.make_error("wgmma with a in registers is not emulated")
    rows = [w.target_row(item, "b32") or "None" for item in operand_items(w.dst)]
    if len(rows) != columns // 2:
        raise w.make_error(f"d of {columns} columns has {columns // 2} registers")
    scales, transposed = _parse_immediates(w, kind, more)
    form_arguments = (columns, kind, scales[0] != scales[1], transposed, "satfinite" in w.parts)
    site = w.context.add_site(w.instruction, "product", "u8", 2)
    sources = f"{w.read(a, 'b64')}, {w.read(b, 'b64')}, {w.read(keep, 'pred')}"
    w.emit(f"products.multiply({site}, {form_arguments!r}, {sources}, ({', '.join(rows)},), {w.mask})")


def _parse_shape(w: BlockWriter) -> tuple[int, str]:
    """Columns of b, and the type of both factors."""
    sums, *kinds = [p for p in w.parts if p in (*_DEPTHS, "f32", "s32", "u8", "e4m3", "e5m2", "b1")]
    columns, depth = (int(n) for n in _SHAPE.fullmatch(w.parts[4]).groups())  # type: ignore[union-attr]
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


WARP_WRITERS: dict[str, Writer] = {
    "shfl": write_shuffle,
    "vote": write_vote,
    "redux": write_redux,
    "match": write_match,
    "mma": write_mma,
    "bar": write_warp_sync,
    "wgmma": write_wgmma,
}
