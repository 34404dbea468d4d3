"""Arithmetic instructions as NumPy calls: integers, float32, float64, halves."""

from __future__ import annotations

from collections.abc import Callable

from ekc.emulator.decoding.shelf import dtype_of, immediate
from ekc.emulator.decoding.writer import Writer
from ekc.emulator.ptx.program import TYPE_BYTES, Instruction

_PLAIN = {"add": "add", "sub": "subtract", "mul": "multiply"}
_ROUND = ("rn", "rz", "rm", "rp")


def _kind(one: Instruction) -> str:
    return one.parts[-1]


def _float_flags(one: Instruction) -> tuple[str, bool, bool]:
    """Rounding mode, flush to zero, saturate."""
    mode = next((p for p in one.parts if p in _ROUND), "rn")
    return mode, "ftz" in one.parts, "sat" in one.parts


def _way(one: Instruction) -> str:
    """The end of the name of the function that does it: approximate, or with a rounding."""
    return next((p for p in ("approx", "full") if p in one.parts), "ieee")


def _options(one: Instruction) -> str:
    """Further arguments of that function."""
    mode, ftz, _ = _float_flags(one)
    return f"mode={mode!r}, ftz={ftz}" if _way(one) == "ieee" else f"ftz={ftz}"


def add_sub_mul(w: Writer, one: Instruction) -> None:
    """`add`, `sub`, `mul` of every type."""
    kind, root = _kind(one), one.parts[0]
    dst, *sources = one.operands
    if kind[0] in "usb" and kind not in ("bf16", "bf16x2"):
        _integer(w, one, kind)
        return
    args = [w.src(s, kind) for s in sources]
    if kind == "f32":
        _single(w, one, root, args)
    elif kind == "f64":
        w.put(dst, kind, _PLAIN[root], *args)
    else:
        text = f"{root}_{kind}({', '.join(args)})"
        w.put_value(dst, kind, f"saturate_{kind}({text})" if "sat" in one.parts else text)


def _single(w: Writer, one: Instruction, root: str, args: list[str]) -> None:
    mode, ftz, sat = _float_flags(one)
    dst = one.operands[0]
    if mode == "rn" and not ftz and not sat:
        w.put(dst, "f32", _PLAIN[root], *args)
        return
    a, b = args
    # Added to a product, the zero that leaves its sign as it is.
    zero = "ZERO" if mode == "rm" else "NEGZERO"
    triple = {"add": (a, "ONE", b), "sub": (b, "MINUS", a), "mul": (a, b, zero)}[root]
    text = f"fma32({', '.join(triple)}, mode={mode!r}, ftz={ftz})"
    w.put_value(dst, "f32", f"saturate({text})" if sat else text)


def _integer(w: Writer, one: Instruction, kind: str) -> None:
    root, parts = one.parts[0], one.parts
    dst, a, b = one.operands[:3]
    if root == "mul" and "wide" in parts:
        wide = kind[0] + str(2 * int(kind[1:]))
        code = dtype_of(wide)
        w.put_value(dst, wide, f"multiply({w.src(a, kind)}, {w.src(b, kind)}, dtype='{code}')")
    elif root == "mul" and "hi" in parts:
        w.put_value(dst, kind, f"bits.mul_hi({w.src(a, kind)}, {w.src(b, kind)})")
    elif "sat" in parts:
        sign = "" if root == "add" else "-"
        wide = f"{w.src(a, kind)}.astype('i8') + {sign}{w.src(b, kind)}.astype('i8')"
        w.put_value(dst, kind, f"clip({wide}, -2147483648, 2147483647).astype('i4')")
    else:
        w.put(dst, kind, _PLAIN[root], w.src(a, kind), w.src(b, kind))


def mad(w: Writer, one: Instruction) -> None:
    """`mad.lo/hi/wide` of integers; of floats it is `fma`."""
    kind = _kind(one)
    if kind[0] == "f":
        fma(w, one)
        return
    dst, a, b, c = one.operands
    if "lo" in one.parts:
        name = w.temporary()
        w.line(f"{name} = multiply({w.src(a, kind)}, {w.src(b, kind)})")
        w.put(dst, kind, "add", name, w.src(c, kind))
        return
    wide = kind[0] + str(2 * int(kind[1:]))
    part = "wide" if "wide" in one.parts else "hi"
    total, sat = (wide if part == "wide" else kind), "sat" in one.parts
    args = f"{w.src(a, kind)}, {w.src(b, kind)}, {w.src(c, total)}, {part!r}, sat={sat}"
    w.put_value(dst, total, f"bits.mad({args})")


def fma(w: Writer, one: Instruction) -> None:
    """`fma` with one rounding: float64 where that is enough, the careful way for lanes where it is not."""
    kind = _kind(one)
    dst, a, b, c = one.operands
    mode, ftz, sat = _float_flags(one)
    args = [w.src(x, kind) for x in (a, b, c)]
    if kind == "f32" and mode == "rn" and not ftz and not sat and w.mask is None:
        _fast_fma(w, one, args)
    elif kind == "f32":
        text = f"fma32({', '.join(args)}, mode={mode!r}, ftz={ftz})"
        w.put_value(dst, kind, f"saturate({text})" if sat else text)
    elif kind == "f64":
        w.put_value(dst, kind, f"fma64({', '.join(args)})")
    else:
        text = f"fma_{kind}({', '.join(args)})"
        after = f"saturate_{kind}" if sat else "halves.relu" if "relu" in one.parts else ""
        w.put_value(dst, kind, f"{after}({text})")


def _fast_fma(w: Writer, one: Instruction, args: list[str]) -> None:
    dst, a, b, _ = one.operands
    target = w.target(dst, "f32")
    first, second = w.widened(a), w.widened(b)
    w.line(f"multiply({first}, {second}, X); copyto(Y, {args[2]}); add(X, Y, X); bitwise_and(XU, LOW, Z)")
    w.line(f"if zmin() or plain(): copyto({target}, X, casting='same_kind')")
    w.line(f"else: fma32({', '.join(args)}, out={target})")


def divide(w: Writer, one: Instruction) -> None:
    """`div` and `rem`."""
    kind, root = _kind(one), one.parts[0]
    dst, a, b = one.operands
    args = f"{w.src(a, kind)}, {w.src(b, kind)}"
    if kind == "f64":
        w.put_value(dst, kind, f"divide({args})")
    elif kind == "f32":
        w.put_value(dst, kind, f"approximations.div_{_way(one)}({args}, {_options(one)})")
    else:
        w.put_value(dst, kind, f"bits.{root}({args})")


def extreme(w: Writer, one: Instruction) -> None:
    """`min` and `max`: a NaN loses, unless `.NaN`."""
    # NVRTC writes both max.relu.s32 and max.s32.relu.
    kind, root = next(p for p in reversed(one.parts) if p in TYPE_BYTES), one.parts[0]
    dst, *sources = one.operands
    args = [w.src(s, kind) for s in sources]
    if kind[0] in "us":
        text = f"{root}imum({', '.join(args)})"
        zero = w.shelf.constant(immediate(0, kind))
        w.put_value(dst, kind, f"maximum({text}, {zero})" if "relu" in one.parts else text)
    elif kind in ("f32", "f64") and not {"NaN", "ftz"} & set(one.parts) and len(args) == 2:
        w.put_value(dst, kind, f"ordered({root!r}, {', '.join(args)})")
    else:
        flags = f"nan={'NaN' in one.parts}, ftz={'ftz' in one.parts}"
        text = f"extreme_{kind}({root!r}, {args[0]}, {args[1]}, {flags})"
        for more in args[2:]:
            text = f"extreme_{kind}({root!r}, {text}, {more}, {flags})"
        w.put_value(dst, kind, text)


def sign(w: Writer, one: Instruction) -> None:
    """`neg` and `abs`."""
    kind, root = _kind(one), one.parts[0]
    dst, a = one.operands
    if kind[0] == "s":
        w.put(dst, kind, "negative" if root == "neg" else "absolute", w.src(a, kind))
        return
    size = 8 if kind == "f64" else 4 if kind in ("f32", "f16x2", "bf16x2") else 2
    top = {"f64": 1 << 63, "f32": 1 << 31, "f16x2": 0x80008000, "bf16x2": 0x80008000}.get(kind, 0x8000)
    raw, ones = f"b{8 * size}", (1 << 8 * size) - 1
    mask = w.shelf.constant(immediate(top if root == "neg" else ones ^ top, raw))
    function = "bitwise_xor" if root == "neg" else "bitwise_and"
    if "ftz" in one.parts:
        w.put_value(dst, "f32", f"flush({function}({w.src(a, raw)}, {mask}).view('f4'))")
    else:
        w.put(dst, raw, function, w.src(a, raw), mask)


def approximate(w: Writer, one: Instruction) -> None:
    """`ex2`, `lg2`, `rcp`, `sqrt`, `rsqrt`, `sin`, `cos`, `tanh`."""
    kind, root = _kind(one), one.parts[0]
    dst, a = one.operands
    if kind == "f32":
        options = f", {_options(one)}" if root != "tanh" else ""
        w.put_value(dst, kind, f"approximations.{root}_{_way(one)}({w.src(a, kind)}{options})")
    else:
        w.put_value(dst, kind, f"unary_{kind}({root!r}, {w.src(a, kind)})")


def copy_sign(w: Writer, one: Instruction) -> None:
    """`copysign`: the value of b with the sign of a."""
    kind = _kind(one)
    dst, a, b = one.operands
    w.put_value(dst, kind, f"copysign({w.src(a, kind)}, {w.src(b, kind)})")


ARITHMETIC: dict[str, Callable[[Writer, Instruction], None]] = {
    **dict.fromkeys(("add", "sub", "mul"), add_sub_mul),
    **dict.fromkeys(("div", "rem"), divide),
    **dict.fromkeys(("min", "max"), extreme),
    **dict.fromkeys(("neg", "abs"), sign),
    **dict.fromkeys(("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh"), approximate),
    "mad": mad,
    "fma": fma,
    "copysign": copy_sign,
}
