"""Arithmetic instructions as NumPy calls: integers, float32, float64, halves."""

from __future__ import annotations

from collections.abc import Callable

from ekc.emulator.decode.block_writer import BlockWriter
from ekc.emulator.decode.context import dtype_of, to_scalar
from ekc.ptx.module import TYPE_BYTES, Instruction

_UFUNC_NAMES = {"add": "add", "sub": "subtract", "mul": "multiply"}
_ROUNDING_MODES = ("rn", "rz", "rm", "rp")


def _type_name(instruction: Instruction) -> str:
    return instruction.parts[-1]


def _parse_float_flags(instruction: Instruction) -> tuple[str, bool, bool]:
    """Rounding mode, flush to zero, saturate."""
    mode = next((p for p in instruction.parts if p in _ROUNDING_MODES), "rn")
    return mode, "ftz" in instruction.parts, "sat" in instruction.parts


def _function_suffix(instruction: Instruction) -> str:
    """The end of the function's name: "approx", "full" or "ieee"."""
    return next((p for p in ("approx", "full") if p in instruction.parts), "ieee")


def _function_options(instruction: Instruction) -> str:
    """Further arguments of the function: rounding mode and flushing."""
    mode, ftz, _ = _parse_float_flags(instruction)
    return f"mode={mode!r}, ftz={ftz}" if _function_suffix(instruction) == "ieee" else f"ftz={ftz}"


def write_add_sub_mul(w: BlockWriter, instruction: Instruction) -> None:
    """`add`, `sub`, `mul` of every type."""
    kind, root = _type_name(instruction), instruction.parts[0]
    dst, *sources = instruction.operands
    if kind[0] in "usb" and kind not in ("bf16", "bf16x2"):
        _write_integer(w, instruction, kind)
        return
    args = [w.read(s, kind) for s in sources]
    if kind == "f32":
        _write_float32(w, instruction, root, args)
    elif kind == "f64":
        w.put_call(dst, kind, _UFUNC_NAMES[root], *args)
    else:
        text = f"{root}_{kind}({', '.join(args)})"
        w.put_value(dst, kind, f"saturate_{kind}({text})" if "sat" in instruction.parts else text)


def _write_float32(w: BlockWriter, instruction: Instruction, root: str, args: list[str]) -> None:
    mode, ftz, sat = _parse_float_flags(instruction)
    dst = instruction.operands[0]
    if mode == "rn" and not ftz and not sat:
        w.put_call(dst, "f32", _UFUNC_NAMES[root], *args)
        return
    a, b = args
    # The zero that keeps the sign of a product to which it is added.
    zero = "ZERO" if mode == "rm" else "NEGZERO"
    triple = {"add": (a, "ONE", b), "sub": (b, "MINUS", a), "mul": (a, b, zero)}[root]
    text = f"fma32({', '.join(triple)}, mode={mode!r}, ftz={ftz})"
    w.put_value(dst, "f32", f"saturate({text})" if sat else text)


def _write_integer(w: BlockWriter, instruction: Instruction, kind: str) -> None:
    root, parts = instruction.parts[0], instruction.parts
    dst, a, b = instruction.operands[:3]
    if root == "mul" and "wide" in parts:
        wide = kind[0] + str(2 * int(kind[1:]))
        code = dtype_of(wide)
        w.put_value(dst, wide, f"multiply({w.read(a, kind)}, {w.read(b, kind)}, dtype='{code}')")
    elif root == "mul" and "hi" in parts:
        w.put_value(dst, kind, f"bits.mul_hi({w.read(a, kind)}, {w.read(b, kind)})")
    elif "sat" in parts:
        sign = "" if root == "add" else "-"
        wide = f"{w.read(a, kind)}.astype('i8') + {sign}{w.read(b, kind)}.astype('i8')"
        w.put_value(dst, kind, f"clip({wide}, -2147483648, 2147483647).astype('i4')")
    else:
        w.put_call(dst, kind, _UFUNC_NAMES[root], w.read(a, kind), w.read(b, kind))


def write_mad(w: BlockWriter, instruction: Instruction) -> None:
    """`mad.lo/hi/wide` of integers; of floats it is `fma`."""
    kind = _type_name(instruction)
    if kind[0] == "f":
        write_fma(w, instruction)
        return
    dst, a, b, c = instruction.operands
    if "lo" in instruction.parts:
        name = w.new_temporary()
        w.emit(f"{name} = multiply({w.read(a, kind)}, {w.read(b, kind)})")
        w.put_call(dst, kind, "add", name, w.read(c, kind))
        return
    wide = kind[0] + str(2 * int(kind[1:]))
    part = "wide" if "wide" in instruction.parts else "hi"
    total, sat = (wide if part == "wide" else kind), "sat" in instruction.parts
    args = f"{w.read(a, kind)}, {w.read(b, kind)}, {w.read(c, total)}, {part!r}, sat={sat}"
    w.put_value(dst, total, f"bits.mad({args})")


def write_fma(w: BlockWriter, instruction: Instruction) -> None:
    """`fma` with one rounding: in float64 where that is exact enough, otherwise by `fma32`."""
    kind = _type_name(instruction)
    dst, a, b, c = instruction.operands
    mode, ftz, sat = _parse_float_flags(instruction)
    args = [w.read(x, kind) for x in (a, b, c)]
    if kind == "f32" and mode == "rn" and not ftz and not sat and w.mask is None:
        _write_fast_fma(w, instruction, args)
    elif kind == "f32":
        text = f"fma32({', '.join(args)}, mode={mode!r}, ftz={ftz})"
        w.put_value(dst, kind, f"saturate({text})" if sat else text)
    elif kind == "f64":
        w.put_value(dst, kind, f"fma64({', '.join(args)})")
    else:
        text = f"fma_{kind}({', '.join(args)})"
        after = f"saturate_{kind}" if sat else "halves.relu" if "relu" in instruction.parts else ""
        w.put_value(dst, kind, f"{after}({text})")


def _write_fast_fma(w: BlockWriter, instruction: Instruction, args: list[str]) -> None:
    dst, a, b, _ = instruction.operands
    target = w.target_row(dst, "f32")
    first, second = w.widen_operand(a), w.widen_operand(b)
    w.emit(f"multiply({first}, {second}, X); copyto(Y, {args[2]}); add(X, Y, X); bitwise_and(XU, LOW, Z)")
    w.emit(f"if zmin() or plain(): copyto({target}, X, casting='same_kind')")
    w.emit(f"else: fma32({', '.join(args)}, out={target})")


def write_divide(w: BlockWriter, instruction: Instruction) -> None:
    """`div` and `rem`."""
    kind, root = _type_name(instruction), instruction.parts[0]
    dst, a, b = instruction.operands
    args = f"{w.read(a, kind)}, {w.read(b, kind)}"
    if kind == "f64":
        w.put_value(dst, kind, f"divide({args})")
    elif kind == "f32":
        name = f"approximations.div_{_function_suffix(instruction)}"
        w.put_value(dst, kind, f"{name}({args}, {_function_options(instruction)})")
    else:
        w.put_value(dst, kind, f"bits.{root}({args})")


def write_min_max(w: BlockWriter, instruction: Instruction) -> None:
    """`min` and `max`: a NaN loses, unless `.NaN`."""
    # NVRTC writes both max.relu.s32 and max.s32.relu.
    kind, root = next(p for p in reversed(instruction.parts) if p in TYPE_BYTES), instruction.parts[0]
    dst, *sources = instruction.operands
    args = [w.read(s, kind) for s in sources]
    if kind[0] in "us":
        text = f"{root}imum({', '.join(args)})"
        zero = w.context.bind_constant(to_scalar(0, kind))
        w.put_value(dst, kind, f"maximum({text}, {zero})" if "relu" in instruction.parts else text)
    elif kind in ("f32", "f64") and not {"NaN", "ftz"} & set(instruction.parts) and len(args) == 2:
        w.put_value(dst, kind, f"ordered({root!r}, {', '.join(args)})")
    else:
        flags = f"nan={'NaN' in instruction.parts}, ftz={'ftz' in instruction.parts}"
        text = f"extreme_{kind}({root!r}, {args[0]}, {args[1]}, {flags})"
        for more in args[2:]:
            text = f"extreme_{kind}({root!r}, {text}, {more}, {flags})"
        w.put_value(dst, kind, text)


def write_sign(w: BlockWriter, instruction: Instruction) -> None:
    """`neg` and `abs`."""
    kind, root = _type_name(instruction), instruction.parts[0]
    dst, a = instruction.operands
    if kind[0] == "s":
        w.put_call(dst, kind, "negative" if root == "neg" else "absolute", w.read(a, kind))
        return
    size = 8 if kind == "f64" else 4 if kind in ("f32", "f16x2", "bf16x2") else 2
    top = {"f64": 1 << 63, "f32": 1 << 31, "f16x2": 0x80008000, "bf16x2": 0x80008000}.get(kind, 0x8000)
    raw, ones = f"b{8 * size}", (1 << 8 * size) - 1
    mask = w.context.bind_constant(to_scalar(top if root == "neg" else ones ^ top, raw))
    function = "bitwise_xor" if root == "neg" else "bitwise_and"
    if "ftz" in instruction.parts:
        w.put_value(dst, "f32", f"flush({function}({w.read(a, raw)}, {mask}).view('f4'))")
    else:
        w.put_call(dst, raw, function, w.read(a, raw), mask)


def write_approximate(w: BlockWriter, instruction: Instruction) -> None:
    """`ex2`, `lg2`, `rcp`, `sqrt`, `rsqrt`, `sin`, `cos`, `tanh`."""
    kind, root = _type_name(instruction), instruction.parts[0]
    dst, a = instruction.operands
    if kind == "f32":
        options = f", {_function_options(instruction)}" if root != "tanh" else ""
        name = f"approximations.{root}_{_function_suffix(instruction)}"
        w.put_value(dst, kind, f"{name}({w.read(a, kind)}{options})")
    else:
        w.put_value(dst, kind, f"unary_{kind}({root!r}, {w.read(a, kind)})")


def write_copysign(w: BlockWriter, instruction: Instruction) -> None:
    """`copysign`: the value of b with the sign of a."""
    kind = _type_name(instruction)
    dst, a, b = instruction.operands
    w.put_value(dst, kind, f"copysign({w.read(b, kind)}, {w.read(a, kind)})")


ARITHMETIC_WRITERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    **dict.fromkeys(("add", "sub", "mul"), write_add_sub_mul),
    **dict.fromkeys(("div", "rem"), write_divide),
    **dict.fromkeys(("min", "max"), write_min_max),
    **dict.fromkeys(("neg", "abs"), write_sign),
    **dict.fromkeys(("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh"), write_approximate),
    "mad": write_mad,
    "fma": write_fma,
    "copysign": write_copysign,
}
