"""Moves, logic, shifts, comparisons, selections and conversions as NumPy calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.emulator.decode.block_writer import BlockWriter
from ekc.emulator.decode.context import dtype_of
from ekc.ptx.module import TYPE_BYTES, Immediate, Instruction, Pair, Register, Symbol, Vector

_LOGIC_UFUNCS = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
_COMPARE_UFUNCS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "lo": "less", "ls": "less_equal", "hi": "greater", "hs": "greater_equal",
}  # fmt: skip
_CONVERSION_ROUNDINGS = ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")
_UNORDERED_COMPARISONS = {f"{name}u": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def write_move(w: BlockWriter, instruction: Instruction) -> None:
    """`mov`, and packing and unpacking by vectors."""
    kind = instruction.parts[-1]
    dst, a = instruction.operands
    if isinstance(a, Vector):
        _write_pack(w, instruction, kind, a)
    elif isinstance(dst, Vector):
        _write_unpack(w, instruction, kind, dst)
    elif isinstance(a, Symbol) and a.name.startswith("%clock"):
        w.put_value(dst, kind, f"clock({dtype_of(kind)!r})")
    else:
        w.put_value(dst, kind, w.read(a, kind))


def _write_pack(w: BlockWriter, instruction: Instruction, kind: str, a: Vector) -> None:
    part = 8 * TYPE_BYTES[kind] // len(a.items)
    code = dtype_of(f"b{8 * TYPE_BYTES[kind]}")
    terms = []
    for i, item in enumerate(a.items):
        text = f"{w.read(item, f'b{part}')}.astype('{code}')"
        terms.append(f"({text} << {w.context.bind_constant(_make_scalar(part * i, code))})" if i else text)
    w.put_value(instruction.operands[0], f"b{8 * TYPE_BYTES[kind]}", f"({' | '.join(terms)})")


def _write_unpack(w: BlockWriter, instruction: Instruction, kind: str, dst: Vector) -> None:
    part = 8 * TYPE_BYTES[kind] // len(dst.items)
    code = dtype_of(f"b{8 * TYPE_BYTES[kind]}")
    word = w.new_temporary()
    w.emit(f"{word} = {w.read(instruction.operands[1], f'b{8 * TYPE_BYTES[kind]}')}")
    for i, item in enumerate(dst.items):
        shifted = f"({word} >> {w.context.bind_constant(_make_scalar(part * i, code))})" if i else word
        if not (isinstance(item, Register) and item.name == "_"):
            w.put_value(item, f"b{part}", f"{shifted}.astype('u{part // 8}')")


def _make_scalar(value: int, code: str) -> Any:
    return np.dtype(code).type(value)


def write_logic(w: BlockWriter, instruction: Instruction) -> None:
    """`and`, `or`, `xor`, `not`, `cnot`."""
    root, kind = instruction.parts[0], instruction.parts[-1]
    dst, *sources = instruction.operands
    args = [w.read(s, kind) for s in sources]
    if root == "not":
        w.put_call(dst, kind, "logical_not" if kind == "pred" else "invert", *args)
    elif root == "cnot":
        w.put_value(dst, kind, f"({args[0]} == 0).astype('{dtype_of(kind)}')")
    else:
        w.put_call(dst, kind, _LOGIC_UFUNCS[root], *args)


def write_shift(w: BlockWriter, instruction: Instruction) -> None:
    """`shl` and `shr`: the amount is an unsigned 32-bit number and clamps."""
    root, kind = instruction.parts[0], instruction.parts[-1]
    dst, a, b = instruction.operands
    if isinstance(b, Immediate) and 0 <= int(b.value) < 8 * TYPE_BYTES[kind]:
        amount = w.context.bind_constant(_make_scalar(int(b.value), dtype_of(kind)))
        w.put_call(dst, kind, "left_shift" if root == "shl" else "right_shift", w.read(a, kind), amount)
    else:
        w.put_value(dst, kind, f"bits.{root}({w.read(a, kind)}, {w.read(b, 'u32')})")


def write_funnel_shift(w: BlockWriter, instruction: Instruction) -> None:
    """`shf`."""
    dst, a, b, c = instruction.operands
    args = ", ".join(w.read(x, "u32") for x in (a, b, c))
    w.put_value(dst, "u32", f"bits.shf_{instruction.parts[1]}({args}, {instruction.parts[2]!r})")


def write_bit_operation(w: BlockWriter, instruction: Instruction) -> None:
    """`bfe`, `bfi`, `popc`, `clz`, `brev`, `prmt`, `lop3`, `bfind`, `sad`, `mul24`, `mad24`, `dp4a`."""
    root, kind = instruction.parts[0], instruction.parts[-1]
    dst, *sources = instruction.operands
    if root == "bfe":
        args = [w.read(sources[0], kind), *(w.read(s, "u32") for s in sources[1:])]
    elif root == "bfi":
        args = [*(w.read(s, kind) for s in sources[:2]), *(w.read(s, "u32") for s in sources[2:])]
    elif root == "lop3":
        if isinstance(dst, Pair) or len(sources) > 4:
            raise w.make_error("lop3 with a predicate is not emulated")
        table = sources[3]
        if not isinstance(table, Immediate) or not 0 <= table.value <= 255:
            raise w.make_error("the table of lop3 is a number from 0 to 255")
        args = [*(w.read(s, kind) for s in sources[:3]), str(int(table.value))]
    elif root == "prmt":
        mode = instruction.parts[2] if len(instruction.parts) > 2 else None
        args = [*(w.read(s, "u32") for s in sources), repr(mode)]
    elif root in ("mul24", "mad24"):
        args = [*(w.read(s, kind) for s in sources), repr(instruction.parts[1])]
    elif root == "bfind":
        args = [w.read(sources[0], kind), f"shiftamt={'shiftamt' in instruction.parts}"]
    else:
        args = [w.read(s, kind) for s in sources]
    result = "u32" if root in ("popc", "clz", "bfind", "prmt") else kind
    w.put_value(dst, result, f"bits.{root}({', '.join(args)})")


def write_dot_product(w: BlockWriter, instruction: Instruction) -> None:
    """`dp4a` and `dp2a` (operands of one sign only)."""
    if instruction.parts[-1] != instruction.parts[-2]:
        raise w.make_error("operands of two signs are not emulated")
    part = f", {instruction.parts[1]!r}" if instruction.parts[0] == "dp2a" else ""
    dst, *sources = instruction.operands
    args = ", ".join(w.read(s, instruction.parts[-1]) for s in sources)
    w.put_value(dst, instruction.parts[-1], f"bits.{instruction.parts[0]}({args}{part})")


def write_setp(w: BlockWriter, instruction: Instruction) -> None:
    """`setp`: a comparison, perhaps combined with a predicate, perhaps with its complement."""
    parts, kind = instruction.parts, instruction.parts[-1]
    dst, a, b, *more = instruction.operands
    test = _format_comparison(w, parts[1], w.read(a, kind), w.read(b, kind), kind, "ftz" in parts)
    if more:
        operator = next(p for p in parts if p in ("and", "or", "xor"))
        other = w.read(more[0], "pred")
        name, complement = w.new_temporary(), w.new_temporary()
        w.emit(f"{name} = {test}")
        w.emit(f"{complement} = {_LOGIC_UFUNCS[operator]}(~{name}, {other})")
        w.emit(f"{name} = {_LOGIC_UFUNCS[operator]}({name}, {other})")
    elif isinstance(dst, Pair):
        name, complement = w.new_temporary(), w.new_temporary()
        w.emit(f"{name} = {test}")
        w.emit(f"{complement} = ~{name}")
    else:
        w.put_value(dst, "pred", test)
        return
    if isinstance(dst, Pair):
        w.put_value(dst.first, "pred", name)
        w.put_value(dst.second, "pred", complement)
    else:
        w.put_value(dst, "pred", name)


def _format_comparison(w: BlockWriter, comparison: str, a: str, b: str, kind: str, ftz: bool) -> str:
    if kind in ("f16x2", "bf16x2"):
        raise w.make_error("comparisons of packed halves are not emulated")
    if kind == "bf16":
        a, b = f"halves.bf16_to_f32({a})", f"halves.bf16_to_f32({b})"
    if ftz:
        a, b = f"flush({a})", f"flush({b})"
    floating = kind in ("f16", "f32", "f64", "bf16")
    if comparison in ("num", "nan"):
        return f"(isnan({a}) | isnan({b}))" if comparison == "nan" else f"~(isnan({a}) | isnan({b}))"
    if floating and comparison == "ne":
        return f"(({a} < {b}) | ({a} > {b}))"
    if comparison in _UNORDERED_COMPARISONS:
        inner = _UNORDERED_COMPARISONS[comparison]
        base = f"{_COMPARE_UFUNCS[inner]}({a}, {b})"
        return base if inner == "ne" else f"({base} | isnan({a}) | isnan({b}))"
    if comparison not in _COMPARE_UFUNCS:
        raise w.make_error(f"comparison .{comparison} is unknown")
    return f"{_COMPARE_UFUNCS[comparison]}({a}, {b})"


def write_set(w: BlockWriter, instruction: Instruction) -> None:
    """`set`: a comparison whose result is all ones, or 1.0."""
    kind, out = instruction.parts[-1], instruction.parts[-2]
    dst, a, b = instruction.operands
    ftz, args = "ftz" in instruction.parts, (w.read(a, kind), w.read(b, kind))
    test = _format_comparison(w, instruction.parts[1], *args, kind, ftz)
    if out == "f32":
        w.put_value(dst, "f32", f"({test}).astype('f4')")
    else:
        w.put_value(dst, "s32", f"-({test}).astype('i4')")


def write_select(w: BlockWriter, instruction: Instruction) -> None:
    """`selp`."""
    kind = instruction.parts[-1]
    dst, a, b, p = instruction.operands
    w.put_value(dst, kind, f"where({w.read(p, 'pred')}, {w.read(a, kind)}, {w.read(b, kind)})")


def write_slct(w: BlockWriter, instruction: Instruction) -> None:
    """`slct`: a where c is not negative, otherwise b."""
    kind, test = instruction.parts[-2], instruction.parts[-1]
    dst, a, b, c = instruction.operands
    tested = f"flush({w.read(c, test)})" if "ftz" in instruction.parts else w.read(c, test)
    w.put_value(dst, kind, f"where({tested} >= 0, {w.read(a, kind)}, {w.read(b, kind)})")


def write_convert(w: BlockWriter, instruction: Instruction) -> None:
    """`cvt`, one value or two packed into one register."""
    *flags, target, source = instruction.parts[1:]
    dst, *sources = instruction.operands
    rounding = next((f for f in flags if f in _CONVERSION_ROUNDINGS), None)
    options = f"sat={'sat' in flags}, ftz={'ftz' in flags}"
    if target == "tf32":
        w.put_value(dst, "b32", f"halves.tf32_round({w.read(sources[0], 'f32')}, {rounding!r}).view('u4')")
    elif target in ("f16x2", "bf16x2"):
        half = target[:-2]
        pack = "pack_halves" if half == "f16" else "pack_words"
        form = f"{source!r}, {half!r}, {rounding!r}, {options}"
        high, low = (f"cvt({w.read(s, source)}, {form})" for s in sources)
        w.put_value(dst, "b32", f"halves.{pack}({low}, {high})")
    elif source[0] in "us" and target[0] in "us" and "sat" not in flags:
        text = w.read(sources[0], source)
        same = dtype_of(source) == dtype_of(target)
        w.put_value(dst, target, text if same else f"{text}.astype('{dtype_of(target)}')")
    else:
        args = f"{w.read(sources[0], source)}, {source!r}, {target!r}, {rounding!r}, {options}"
        w.put_value(dst, target, f"cvt({args})")


BIT_WRITERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    "mov": write_move,
    **dict.fromkeys(("and", "or", "xor", "not", "cnot"), write_logic),
    **dict.fromkeys(("shl", "shr"), write_shift),
    "shf": write_funnel_shift,
    **dict.fromkeys(
        ("bfe", "bfi", "popc", "clz", "brev", "prmt", "lop3", "bfind", "sad", "mul24", "mad24"),
        write_bit_operation,
    ),
    **dict.fromkeys(("dp4a", "dp2a"), write_dot_product),
    "setp": write_setp,
    "set": write_set,
    "selp": write_select,
    "slct": write_slct,
    "cvt": write_convert,
}
