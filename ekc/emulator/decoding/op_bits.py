"""Moves, logic, shifts, comparisons, selections and conversions as NumPy calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import dtype_of
from ekc.emulator.decoding.writer import Writer
from ekc.emulator.ptx.program import TYPE_BYTES, Immediate, Instruction, Pair, Register, Symbol, Vector

_LOGIC = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_COMPARE = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "lo": "less", "ls": "less_equal", "hi": "greater", "hs": "greater_equal",
}  # fmt: skip
_UNORDERED = {f"{name}u": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def move(w: Writer, one: Instruction) -> None:
    """`mov`, and packing and unpacking by vectors."""
    kind = one.parts[-1]
    dst, a = one.operands
    if isinstance(a, Vector):
        _pack(w, one, kind, a)
    elif isinstance(dst, Vector):
        _unpack(w, one, kind, dst)
    elif isinstance(a, Symbol) and a.name.startswith("%clock"):
        w.put_value(dst, kind, f"clock({dtype_of(kind)!r})")
    else:
        w.put_value(dst, kind, w.src(a, kind))


def _pack(w: Writer, one: Instruction, kind: str, a: Vector) -> None:
    part = 8 * TYPE_BYTES[kind] // len(a.items)
    code = dtype_of(f"b{8 * TYPE_BYTES[kind]}")
    terms = []
    for i, item in enumerate(a.items):
        text = f"{w.src(item, f'b{part}')}.astype('{code}')"
        terms.append(f"({text} << {w.shelf.constant(_scalar(part * i, code))})" if i else text)
    w.put_value(one.operands[0], f"b{8 * TYPE_BYTES[kind]}", f"({' | '.join(terms)})")


def _unpack(w: Writer, one: Instruction, kind: str, dst: Vector) -> None:
    part = 8 * TYPE_BYTES[kind] // len(dst.items)
    code = dtype_of(f"b{8 * TYPE_BYTES[kind]}")
    whole = w.temporary()
    w.line(f"{whole} = {w.src(one.operands[1], f'b{8 * TYPE_BYTES[kind]}')}")
    for i, item in enumerate(dst.items):
        shifted = f"({whole} >> {w.shelf.constant(_scalar(part * i, code))})" if i else whole
        if not (isinstance(item, Register) and item.name == "_"):
            w.put_value(item, f"b{part}", f"{shifted}.astype('u{part // 8}')")


def _scalar(value: int, code: str) -> Any:
    return np.dtype(code).type(value)


def logic(w: Writer, one: Instruction) -> None:
    """`and`, `or`, `xor`, `not`, `cnot`."""
    root, kind = one.parts[0], one.parts[-1]
    dst, *sources = one.operands
    args = [w.src(s, kind) for s in sources]
    if root == "not":
        w.put(dst, kind, "logical_not" if kind == "pred" else "invert", *args)
    elif root == "cnot":
        w.put_value(dst, kind, f"({args[0]} == 0).astype('{dtype_of(kind)}')")
    else:
        w.put(dst, kind, _LOGIC[root], *args)


def shift(w: Writer, one: Instruction) -> None:
    """`shl` and `shr`: the amount is an unsigned 32-bit number and clamps."""
    root, kind = one.parts[0], one.parts[-1]
    dst, a, b = one.operands
    if isinstance(b, Immediate) and 0 <= int(b.value) < 8 * TYPE_BYTES[kind]:
        amount = w.shelf.constant(_scalar(int(b.value), dtype_of(kind)))
        w.put(dst, kind, "left_shift" if root == "shl" else "right_shift", w.src(a, kind), amount)
    else:
        w.put_value(dst, kind, f"bits.{root}({w.src(a, kind)}, {w.src(b, 'u32')})")


def funnel(w: Writer, one: Instruction) -> None:
    """`shf`."""
    dst, a, b, c = one.operands
    args = ", ".join(w.src(x, "u32") for x in (a, b, c))
    w.put_value(dst, "u32", f"bits.shf_{one.parts[1]}({args}, {one.parts[2]!r})")


def by_bits(w: Writer, one: Instruction) -> None:
    """`bfe`, `bfi`, `popc`, `clz`, `brev`, `prmt`, `lop3`, `bfind`, `sad`, `mul24`, `mad24`, `dp4a`."""
    root, kind = one.parts[0], one.parts[-1]
    dst, *sources = one.operands
    if root == "bfe":
        args = [w.src(sources[0], kind), *(w.src(s, "u32") for s in sources[1:])]
    elif root == "bfi":
        args = [*(w.src(s, kind) for s in sources[:2]), *(w.src(s, "u32") for s in sources[2:])]
    elif root == "lop3":
        if isinstance(dst, Pair) or len(sources) > 4:
            raise w.fail("lop3 with a predicate is not emulated")
        table = sources[3]
        if not isinstance(table, Immediate) or not 0 <= table.value <= 255:
            raise w.fail("the table of lop3 is a number from 0 to 255")
        args = [*(w.src(s, kind) for s in sources[:3]), str(int(table.value))]
    elif root == "prmt":
        mode = one.parts[2] if len(one.parts) > 2 else None
        args = [*(w.src(s, "u32") for s in sources), repr(mode)]
    elif root in ("mul24", "mad24"):
        args = [*(w.src(s, kind) for s in sources), repr(one.parts[1])]
    elif root == "bfind":
        args = [w.src(sources[0], kind), f"shiftamt={'shiftamt' in one.parts}"]
    else:
        args = [w.src(s, kind) for s in sources]
    result = "u32" if root in ("popc", "clz", "bfind", "prmt") else kind
    w.put_value(dst, result, f"bits.{root}({', '.join(args)})")


def dot(w: Writer, one: Instruction) -> None:
    """`dp4a` and `dp2a` (operands of one sign only)."""
    if one.parts[-1] != one.parts[-2]:
        raise w.fail("operands of two signs are not emulated")
    part = f", {one.parts[1]!r}" if one.parts[0] == "dp2a" else ""
    dst, *sources = one.operands
    args = ", ".join(w.src(s, one.parts[-1]) for s in sources)
    w.put_value(dst, one.parts[-1], f"bits.{one.parts[0]}({args}{part})")


def compare(w: Writer, one: Instruction) -> None:
    """`setp`: a comparison, perhaps combined with a predicate, perhaps with its complement."""
    parts, kind = one.parts, one.parts[-1]
    dst, a, b, *more = one.operands
    test = _test(w, parts[1], w.src(a, kind), w.src(b, kind), kind, "ftz" in parts)
    if more:
        operator = next(p for p in parts if p in ("and", "or", "xor"))
        other = w.src(more[0], "pred")
        name, complement = w.temporary(), w.temporary()
        w.line(f"{name} = {test}")
        w.line(f"{complement} = {_LOGIC[operator]}(~{name}, {other})")
        w.line(f"{name} = {_LOGIC[operator]}({name}, {other})")
    elif isinstance(dst, Pair):
        name, complement = w.temporary(), w.temporary()
        w.line(f"{name} = {test}")
        w.line(f"{complement} = ~{name}")
    else:
        w.put_value(dst, "pred", test)
        return
    if isinstance(dst, Pair):
        w.put_value(dst.first, "pred", name)
        w.put_value(dst.second, "pred", complement)
    else:
        w.put_value(dst, "pred", name)


def _test(w: Writer, how: str, a: str, b: str, kind: str, ftz: bool) -> str:
    if kind in ("f16x2", "bf16x2"):
        raise w.fail("comparisons of packed halves are not emulated")
    if kind == "bf16":
        a, b = f"halves.bf16_to_f32({a})", f"halves.bf16_to_f32({b})"
    if ftz:
        a, b = f"flush({a})", f"flush({b})"
    floating = kind in ("f16", "f32", "f64", "bf16")
    if how in ("num", "nan"):
        return f"(isnan({a}) | isnan({b}))" if how == "nan" else f"~(isnan({a}) | isnan({b}))"
    if floating and how == "ne":
        return f"(({a} < {b}) | ({a} > {b}))"
    if how in _UNORDERED:
        inner = _UNORDERED[how]
        base = f"{_COMPARE[inner]}({a}, {b})"
        return base if inner == "ne" else f"({base} | isnan({a}) | isnan({b}))"
    if how not in _COMPARE:
        raise w.fail(f"comparison .{how} is unknown")
    return f"{_COMPARE[how]}({a}, {b})"


def set_value(w: Writer, one: Instruction) -> None:
    """`set`: a comparison whose result is all ones, or 1.0."""
    kind, out = one.parts[-1], one.parts[-2]
    dst, a, b = one.operands
    test = _test(w, one.parts[1], w.src(a, kind), w.src(b, kind), kind, "ftz" in one.parts)
    if out == "f32":
        w.put_value(dst, "f32", f"({test}).astype('f4')")
    else:
        w.put_value(dst, "s32", f"-({test}).astype('i4')")


def select(w: Writer, one: Instruction) -> None:
    """`selp`."""
    kind = one.parts[-1]
    dst, a, b, p = one.operands
    w.put_value(dst, kind, f"where({w.src(p, 'pred')}, {w.src(a, kind)}, {w.src(b, kind)})")


def select_by_sign(w: Writer, one: Instruction) -> None:
    """`slct`: a where c is not negative, otherwise b."""
    kind, test = one.parts[-2], one.parts[-1]
    dst, a, b, c = one.operands
    asked = f"flush({w.src(c, test)})" if "ftz" in one.parts else w.src(c, test)
    w.put_value(dst, kind, f"where({asked} >= 0, {w.src(a, kind)}, {w.src(b, kind)})")


def convert(w: Writer, one: Instruction) -> None:
    """`cvt`, one value or two packed into one register."""
    *flags, target, source = one.parts[1:]
    dst, *sources = one.operands
    rounding = next(
        (f for f in flags if f in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")), None
    )
    options = f"sat={'sat' in flags}, ftz={'ftz' in flags}"
    if target == "tf32":
        w.put_value(dst, "b32", f"halves.tf32_round({w.src(sources[0], 'f32')}, {rounding!r}).view('u4')")
    elif target in ("f16x2", "bf16x2"):
        half = target[:-2]
        pack = "pack_halves" if half == "f16" else "pack_words"
        high, low = (
            f"cvt({w.src(s, source)}, {source!r}, {half!r}, {rounding!r}, {options})" for s in sources
        )
        w.put_value(dst, "b32", f"halves.{pack}({low}, {high})")
    elif source[0] in "us" and target[0] in "us" and "sat" not in flags:
        text = w.src(sources[0], source)
        same = dtype_of(source) == dtype_of(target)
        w.put_value(dst, target, text if same else f"{text}.astype('{dtype_of(target)}')")
    else:
        args = f"{w.src(sources[0], source)}, {source!r}, {target!r}, {rounding!r}, {options}"
        w.put_value(dst, target, f"cvt({args})")


BITS: dict[str, Callable[[Writer, Instruction], None]] = {
    "mov": move,
    **dict.fromkeys(("and", "or", "xor", "not", "cnot"), logic),
    **dict.fromkeys(("shl", "shr"), shift),
    "shf": funnel,
    **dict.fromkeys(
        ("bfe", "bfi", "popc", "clz", "brev", "prmt", "lop3", "bfind", "sad", "mul24", "mad24"), by_bits
    ),
    **dict.fromkeys(("dp4a", "dp2a"), dot),
    "setp": compare,
    "set": set_value,
    "selp": select,
    "slct": select_by_sign,
    "cvt": convert,
}
