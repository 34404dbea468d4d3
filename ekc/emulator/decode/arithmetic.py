"""Arithmetic instructions as NumPy calls: integers, float32, float64, halves."""

from __future__ import annotations

from ekc.emulator.decode.block_writer import BlockWriter, Writer
from ekc.emulator.decode.context import dtype_of
from ekc.ptx.module import TYPE_BYTES, Immediate

_UFUNC_NAMES = {"add": "add", "sub": "subtract", "mul": "multiply"}
_ROUNDING_MODES = ("rn", "rz", "rm", "rp")
_SLOW_MODIFIERS = frozenset(("rz", "rm", "rp", "ftz", "sat"))
"""Modifiers of float32 that a NumPy function does not have."""
_FMA_CONSTANTS = {"f32": (1.0, -1.0, -0.0), "bf16": (0x3F80, 0xBF80, 0x8000)}
_FMA_CONSTANTS["bf16x2"] = (0x3F803F80, 0xBF80BF80, 0x80008000)
"""1, -1 and -0 of types whose sums and products are computed by `fma`."""


def _format_options(w: BlockWriter) -> str:
    """Rounding mode and flushing, as arguments."""
    mode = next((p for p in w.parts if p in _ROUNDING_MODES), "rn")
    return f"mode={mode!r}, ftz={'ftz' in w.parts}"


def _put_float(w: BlockWriter, text: str) -> None:
    """Store a float, with `.sat` or `.relu`."""
    after = f"saturate_{w.kind}" if "sat" in w.parts else "halves.relu" if "relu" in w.parts else ""
    w.put_value(w.dst, w.kind, f"{after}({text})")


def _put_fma(w: BlockWriter, *args: str) -> None:
    """Store a fused multiply-add."""
    text = ", ".join(args)
    _put_float(w, f"fma32({text}, {_format_options(w)})" if w.kind == "f32" else f"fma_{w.kind}({text})")


def write_add_sub_mul(w: BlockWriter) -> None:
    """`add`, `sub`, `mul` of every type."""
    if w.kind[0] in "usb" and w.kind not in _FMA_CONSTANTS:
        _write_integer(w)
    elif w.kind == "f64" or (w.kind == "f32" and _SLOW_MODIFIERS.isdisjoint(w.parts)):
        w.put_call(w.dst, w.kind, _UFUNC_NAMES[w.root], *w.read_sources())
    elif w.kind in _FMA_CONSTANTS:
        one, minus, zero = (w.read(Immediate(x), w.kind) for x in _FMA_CONSTANTS[w.kind])
        if "rm" in w.parts:
            # The zero that keeps the sign of a product to which it is added.
            zero = w.read(Immediate(0.0), w.kind)
        a, b = w.read_sources()
        _put_fma(w, *{"add": (a, one, b), "sub": (b, minus, a), "mul": (a, b, zero)}[w.root])
    else:
        _put_float(w, f"{w.root}_{w.kind}({', '.join(w.read_sources())})")


def _write_integer(w: BlockWriter) -> None:
    a, b = w.read_sources()
    if w.root == "mul" and "wide" in w.parts:
        w.put_value(w.dst, w.wide_kind, f"multiply({a}, {b}, dtype='{dtype_of(w.wide_kind)}')")
    elif w.root == "mul" and "hi" in w.parts:
        w.put_value(w.dst, w.kind, f"bits.mul_hi({a}, {b})")
    elif "sat" in w.parts:
        total = f"{a}.astype('i8') {'+' if w.root == 'add' else '-'} {b}.astype('i8')"
        w.put_value(w.dst, w.kind, f"clip({total}, -2147483648, 2147483647).astype('i4')")
    else:
        w.put_call(w.dst, w.kind, _UFUNC_NAMES[w.root], a, b)


def write_mad(w: BlockWriter) -> None:
    """`mad.lo/hi/wide` of integers; of floats it is `fma`."""
    if w.kind[0] == "f":
        write_fma(w)
        return
    total = w.wide_kind if "wide" in w.parts else w.kind
    a, b, c = w.read_sources("", "", total)
    if "lo" in w.parts:
        name = w.new_temporary()
        w.emit(f"{name} = multiply({a}, {b})")
        w.put_call(w.dst, total, "add", name, c)
    else:
        part = "wide" if "wide" in w.parts else "hi"
        w.put_value(w.dst, total, f"bits.mad({a}, {b}, {c}, {part!r}, sat={'sat' in w.parts})")


def write_fma(w: BlockWriter) -> None:
    """`fma` with one rounding: in float64 where that is exact enough, otherwise by `fma32`."""
    args = w.read_sources()
    if w.kind != "f32" or w.mask is not None or not _SLOW_MODIFIERS.isdisjoint(w.parts):
        _put_fma(w, *args)
        return
    target = w.target_row(w.dst, "f32")
    first, second = (w.widen_operand(x) for x in w.sources[:2])
    w.emit(f"multiply({first}, {second}, X); copyto(Y, {args[2]}); add(X, Y, X); bitwise_and(XU, LOW, Z)")
    w.emit(f"if zmin() or plain(): copyto({target}, X, casting='same_kind')")
    w.emit(f"else: fma32({', '.join(args)}, out={target})")


def write_function(w: BlockWriter) -> None:
    """`div`, `rem`, `ex2`, `lg2`, `rcp`, `sqrt`, `rsqrt`, `sin`, `cos`, `tanh`."""
    args = ", ".join(w.read_sources())
    if w.kind == "f32":
        form = next((p for p in ("approx", "full") if p in w.parts), "ieee")
        options = _format_options(w) if form == "ieee" else f"ftz={'ftz' in w.parts}"
        text = f"approximations.{w.root}_{form}({args}, {options})"
    else:
        text = f"bits.{w.root}({args})" if w.kind[0] in "us" else f"{w.root}_{w.kind}({args})"
    w.put_value(w.dst, w.kind, text)


def write_min_max(w: BlockWriter) -> None:
    """`min` and `max`: a NaN loses, unless `.NaN`."""
    # NVRTC writes both max.relu.s32 and max.s32.relu.
    kind = next(p for p in reversed(w.parts) if p in TYPE_BYTES)
    text, *others = (w.read(s, kind) for s in w.sources)
    flags = "" if kind[0] in "us" else f", nan={'NaN' in w.parts}, ftz={'ftz' in w.parts}"
    for other in others:
        text = f"{w.root}{'imum' if kind[0] in 'us' else f'_{kind}'}({text}, {other}{flags})"
    w.put_value(w.dst, kind, f"maximum({text}, {w.read(Immediate(0), kind)})" if "relu" in w.parts else text)


def write_sign(w: BlockWriter) -> None:
    """`neg` and `abs`."""
    if w.kind[0] == "s":
        w.put_call(w.dst, w.kind, "negative" if w.root == "neg" else "absolute", *w.read_sources())
        return
    bits = 8 * TYPE_BYTES[w.kind]
    raw, top = f"b{bits}", 0x80008000 if w.kind.endswith("x2") else 1 << (bits - 1)
    mask = w.read(Immediate(top if w.root == "neg" else ~top), raw)
    function = "bitwise_xor" if w.root == "neg" else "bitwise_and"
    if "ftz" in w.parts:
        w.put_value(w.dst, "f32", f"flush({function}({w.read(w.sources[0], raw)}, {mask}).view('f4'))")
    else:
        w.put_call(w.dst, raw, function, w.read(w.sources[0], raw), mask)


ARITHMETIC_WRITERS: dict[str, Writer] = {
    **dict.fromkeys(("add", "sub", "mul"), write_add_sub_mul),
    **dict.fromkeys(("min", "max"), write_min_max),
    **dict.fromkeys(("neg", "abs"), write_sign),
    **dict.fromkeys(
        ("div", "rem", "ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh"), write_function
    ),
    "mad": write_mad,
    "fma": write_fma,
}
