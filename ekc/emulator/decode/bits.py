"""Moves, logic, shifts, comparisons, selections and conversions as NumPy calls."""

from __future__ import annotations

from typing import NamedTuple

from ekc.emulator.decode.block_writer import BlockWriter, Writer
from ekc.emulator.decode.context import dtype_of
from ekc.ptx.module import TYPE_BYTES, Immediate, Operand, Pair, Register, Symbol, Vector

_UFUNCS = {
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "invert",
    "shl": "left_shift", "shr": "right_shift",
}  # fmt: skip
_COMPARE_UFUNCS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "lo": "less", "ls": "less_equal", "hi": "greater", "hs": "greater_equal",
}  # fmt: skip
_CONVERSION_ROUNDINGS = ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")
_UNORDERED_COMPARISONS = {f"{name}u": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}


class _Form(NamedTuple):
    """An instruction that is one expression."""

    text: str
    """The expression: `{0}` is the first source, `{parts}` the opcode split at its dots."""
    kinds: tuple[str, ...] = ()
    """Types of the sources; "" or nothing for that of the instruction."""
    result: str = ""
    """Type of the result; "" likewise."""


_FORMS = {
    "cnot": _Form("({0} == 0).astype({0}.dtype)"),
    "bfe": _Form("bits.bfe({0}, {1}, {2})", ("", "u32", "u32")),
    "bfi": _Form("bits.bfi({0}, {1}, {2}, {3})", ("", "", "u32", "u32")),
    "popc": _Form("bits.popc({0})", result="u32"),
    "clz": _Form("bits.clz({0})", result="u32"),
    "bfind": _Form("bits.bfind({0}, shiftamt='shiftamt' in {parts})", result="u32"),
    "brev": _Form("bits.brev({0})"),
    "prmt": _Form("bits.prmt({0}, {1}, {2}, *{parts}[2:])", ("u32", "u32", "u32"), "u32"),
    "shf": _Form("bits.shf({0}, {1}, {2}, {parts[1]!r}, {parts[2]!r})", ("u32", "u32", "u32"), "u32"),
    "sad": _Form("bits.sad({0}, {1}, {2})"),
    "mul24": _Form("bits.mul24({0}, {1}, {parts[1]!r})"),
    "mad24": _Form("bits.mad24({0}, {1}, {2}, {parts[1]!r})"),
    "dp4a": _Form("bits.dp4a({0}, {1}, {2})"),
    "dp2a": _Form("bits.dp2a({0}, {1}, {2}, {parts[1]!r})"),
    "copysign": _Form("copysign({1}, {0})"),
    "activemask": _Form("vote('ballot', TRUE, ALL32, {mask})", result="b32"),
    "selp": _Form("where({2}, {0}, {1})", ("", "", "pred")),
}


def write_form(w: BlockWriter) -> None:
    """An instruction of `_FORMS`."""
    form = _FORMS[w.root]
    text = form.text.format(*w.read_sources(*form.kinds), parts=w.parts, mask=w.mask)
    w.put_value(w.dst, form.result or w.kind, text)


def write_dot_product(w: BlockWriter) -> None:
    """`dp4a` and `dp2a` (operands of one sign only)."""
    if w.kind != w.parts[-2]:
        raise w.make_error("operands of two signs are not emulated")
    write_form(w)


def write_move(w: BlockWriter) -> None:
    """`mov`, and packing and unpacking by vectors."""
    (a,) = w.sources
    if isinstance(a, Vector):
        _write_pack(w, a)
    elif isinstance(w.dst, Vector):
        _write_unpack(w, w.dst)
    elif isinstance(a, Symbol) and a.name.startswith("%clock"):
        w.put_value(w.dst, w.kind, f"clock({dtype_of(w.kind)!r})")
    else:
        w.put_value(w.dst, w.kind, w.read(a, w.kind))


def _write_pack(w: BlockWriter, a: Vector) -> None:
    size = TYPE_BYTES[w.kind]
    part, raw = 8 * size // len(a.items), f"b{8 * size}"
    terms = []
    for i, item in enumerate(a.items):
        text = f"{w.read(item, f'b{part}')}.astype('u{size}')"
        terms.append(f"({text} << {w.read(Immediate(part * i), raw)})" if i else text)
    w.put_value(w.dst, raw, f"({' | '.join(terms)})")


def _write_unpack(w: BlockWriter, dst: Vector) -> None:
    part, raw = 8 * TYPE_BYTES[w.kind] // len(dst.items), f"b{8 * TYPE_BYTES[w.kind]}"
    word = w.new_temporary()
    w.emit(f"{word} = {w.read(w.sources[0], raw)}")
    for i, item in enumerate(dst.items):
        shifted = f"({word} >> {w.read(Immediate(part * i), raw)})" if i else word
        if not (isinstance(item, Register) and item.name == "_"):
            w.put_value(item, f"b{part}", f"{shifted}.astype('u{part // 8}')")


def write_logic(w: BlockWriter) -> None:
    """`and`, `or`, `xor`, `not`."""
    w.put_call(w.dst, w.kind, _UFUNCS[w.root], *w.read_sources())


def write_shift(w: BlockWriter) -> None:
    """`shl` and `shr`: the amount is an unsigned 32-bit number and clamps."""
    a, b = w.sources
    if isinstance(b, Immediate) and 0 <= int(b.value) < 8 * TYPE_BYTES[w.kind]:
        w.put_call(w.dst, w.kind, _UFUNCS[w.root], w.read(a, w.kind), w.read(Immediate(int(b.value)), w.kind))
    else:
        w.put_value(w.dst, w.kind, f"bits.{w.root}({w.read(a, w.kind)}, {w.read(b, 'u32')})")


def write_lop3(w: BlockWriter) -> None:
    """`lop3`."""
    if isinstance(w.dst, Pair) or len(w.sources) > 4:
        raise w.make_error("lop3 with a predicate is not emulated")
    *sources, table = w.sources
    if not isinstance(table, Immediate) or not 0 <= table.value <= 255:
        raise w.make_error("the table of lop3 is a number from 0 to 255")
    args = ", ".join(w.read(s, w.kind) for s in sources)
    w.put_value(w.dst, w.kind, f"bits.lop3({args}, {int(table.value)})")


def write_setp(w: BlockWriter) -> None:
    """`setp`: a comparison, perhaps combined with a predicate, perhaps with its complement."""
    a, b, *more = w.sources
    test = _format_comparison(w, a, b)
    if not more and not isinstance(w.dst, Pair):
        w.put_value(w.dst, "pred", test)
        return
    name, complement = w.new_temporary(), w.new_temporary()
    w.emit(f"{name} = {test}")
    w.emit(f"{complement} = ~{name}")
    if more:
        operator = next(_UFUNCS[p] for p in w.parts if p in ("and", "or", "xor"))
        for own in (name, complement):
            w.emit(f"{own} = {operator}({own}, {w.read(more[0], 'pred')})")
    if isinstance(w.dst, Pair):
        w.put_value(w.dst.first, "pred", name)
        w.put_value(w.dst.second, "pred", complement)
    else:
        w.put_value(w.dst, "pred", name)


def _format_comparison(w: BlockWriter, *operands: Operand) -> str:
    """The comparison of two operands that the opcode names."""
    comparison = w.parts[1]
    if w.kind in ("f16x2", "bf16x2"):
        raise w.make_error("comparisons of packed halves are not emulated")
    a, b = (w.read(x, w.kind) for x in operands)
    if w.kind == "bf16":
        a, b = f"halves.bf16_to_f32({a})", f"halves.bf16_to_f32({b})"
    if "ftz" in w.parts:
        a, b = f"flush({a})", f"flush({b})"
    if comparison in ("num", "nan"):
        return f"(isnan({a}) | isnan({b}))" if comparison == "nan" else f"~(isnan({a}) | isnan({b}))"
    if comparison == "ne" and w.kind in ("f16", "f32", "f64", "bf16"):
        return f"(({a} < {b}) | ({a} > {b}))"
    inner = _UNORDERED_COMPARISONS.get(comparison, comparison)
    if inner not in _COMPARE_UFUNCS:
        raise w.make_error(f"comparison .{comparison} is unknown")
    test = f"{_COMPARE_UFUNCS[inner]}({a}, {b})"
    return test if comparison in (inner, "neu") else f"({test} | isnan({a}) | isnan({b}))"


def write_set(w: BlockWriter) -> None:
    """`set`: a comparison whose result is all ones, or 1.0."""
    a, b = w.sources
    test, is_float = _format_comparison(w, a, b), w.parts[-2] == "f32"
    w.put_value(
        w.dst,
        "f32" if is_float else "s32",
        f"({test}).astype('f4')" if is_float else f"-({test}).astype('i4')",
    )


def write_slct(w: BlockWriter) -> None:
    """`slct`: a where c is not negative, otherwise b."""
    kind = w.parts[-2]
    a, b, c = w.read_sources(kind, kind)
    tested = f"flush({c})" if "ftz" in w.parts else c
    w.put_value(w.dst, kind, f"where({tested} >= 0, {a}, {b})")


def write_convert(w: BlockWriter) -> None:
    """`cvt`, one value or two packed into one register."""
    *flags, target, source = w.parts[1:]
    first, *_ = values = w.read_sources("f32" if target == "tf32" else source, source)
    rounding = next((f for f in flags if f in _CONVERSION_ROUNDINGS), None)
    options = f"{rounding!r}, sat={'sat' in flags}, ftz={'ftz' in flags}"
    if target == "tf32":
        w.put_value(w.dst, "b32", f"halves.tf32_round({first}, {rounding!r}).view('u4')")
    elif target in ("f16x2", "bf16x2"):
        high, low = (f"cvt({x}, {source!r}, {target[:-2]!r}, {options})" for x in values)
        w.put_value(
            w.dst, "b32", f"halves.{'pack_halves' if target == 'f16x2' else 'pack_words'}({low}, {high})"
        )
    elif source[0] in "us" and target[0] in "us" and "sat" not in flags:
        same = dtype_of(source) == dtype_of(target)
        w.put_value(w.dst, target, first if same else f"{first}.astype('{dtype_of(target)}')")
    else:
        w.put_value(w.dst, target, f"cvt({first}, {source!r}, {target!r}, {options})")


BIT_WRITERS: dict[str, Writer] = {
    **dict.fromkeys(_FORMS, write_form),
    **dict.fromkeys(("dp4a", "dp2a"), write_dot_product),
    **dict.fromkeys(("and", "or", "xor", "not"), write_logic),
    **dict.fromkeys(("shl", "shr"), write_shift),
    "mov": write_move,
    "lop3": write_lop3,
    "setp": write_setp,
    "set": write_set,
    "slct": write_slct,
    "cvt": write_convert,
}
