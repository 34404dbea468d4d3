"""Classes of instructions, for counting."""

from __future__ import annotations

from ekc.emulator.ptx.program import Instruction

_SPACES = ("global", "shared", "local", "param", "const")
_CONTROL_ROOTS = ("bra", "brx", "ret", "exit", "trap")
_FLOAT_TYPES = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "tf32")
_SPECIAL_FUNCTIONS = ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh")


def classify_instruction(instruction: Instruction) -> str:
    """Such as "fma.f32", "integer", "load.global", "barrier", "branch"."""
    parts = instruction.parts
    root = parts[0]
    spaces = [p.split("::")[0] for p in parts[1:] if p.split("::")[0] in _SPACES]
    if root in ("ld", "ldu", "st", "atom", "red", "ldmatrix"):
        verb = {"ld": "load", "ldu": "load", "st": "store", "ldmatrix": "load"}.get(root, "atomic")
        return f"{verb}.{spaces[0] if spaces else 'generic'}"
    if root == "cp":
        return "copy.shared" if spaces else "copy.control"
    if root in ("bar", "barrier"):
        return "barrier"
    if root in _CONTROL_ROOTS:
        return "branch"
    if root in ("shfl", "vote", "redux", "match", "activemask"):
        return "warp"
    if root == "mma":
        return "mma"
    if root == "wgmma":
        return "wgmma" if parts[1] == "mma_async" else "wgmma.control"
    if (
        root in ("fma", "mad", "add", "sub", "mul", "div", "min", "max", "neg", "abs")
        and parts[-1] in _FLOAT_TYPES
    ):
        return f"{'fma' if root in ('fma', 'mad') else 'float'}.{parts[-1]}"
    if root in _SPECIAL_FUNCTIONS:
        return "special"
    if root in ("mov", "cvta"):
        return "move"
    if root == "cvt":
        return "convert"
    return "compare" if root in ("setp", "selp", "set", "slct") else "integer"
