"""Modifiers of opcodes that are emulated. Any other modifier is refused, so that none is ignored silently."""

from __future__ import annotations

from functools import lru_cache

from ekc.ptx.module import TYPE_BYTES, Instruction, Module, split_opcode

_ROUNDING_MODES = "rn rz rm rp"
_LOGIC = "and or xor"
_SPACES = "global shared shared::cta shared::cluster local const param param::entry"
_MEMORY_ORDERS = "weak volatile relaxed acquire release acq_rel mmio cta cluster gpu sys"
_MMA_SHAPES = "m8n8k4 m8n8k16 m8n8k32 m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64"
_WGMMA_SHAPES = " ".join(f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16, 32))
_COMPARISONS = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan"
_ANY_TYPE = ""
"""The key for every type that is not named there."""

_SUPPORTED_MODIFIERS: dict[str, dict[str, str]] = {
    "add sub": {_ANY_TYPE: "", "f32": f"{_ROUNDING_MODES} ftz sat", "f64": "rn", "f16 f16x2": "rn sat",
                "bf16 bf16x2": "rn", "s32": "sat"},
    "mul": {_ANY_TYPE: "lo hi wide", "f32": f"{_ROUNDING_MODES} ftz sat", "f64": "rn", "f16 f16x2": "rn sat",
            "bf16 bf16x2": "rn"},
    "mad": {_ANY_TYPE: "lo hi wide", "s32": "lo hi wide sat", "f32": f"{_ROUNDING_MODES} ftz sat",
            "f64": "rn"},
    "fma": {"f32": f"{_ROUNDING_MODES} ftz sat", "f64": "rn", "f16 f16x2": "rn sat relu",
            "bf16 bf16x2": "rn relu"},
    "div": {_ANY_TYPE: "", "f32": f"approx full {_ROUNDING_MODES} ftz", "f64": "rn"},
    "min max": {_ANY_TYPE: "", "f32": "ftz NaN", "f16 f16x2 bf16 bf16x2": "NaN", "s32": "relu"},
    "neg abs": {_ANY_TYPE: "", "f32": "ftz"},
    "rcp sqrt": {"f32": f"approx {_ROUNDING_MODES} ftz", "f64": "rn approx ftz"},
    "rsqrt lg2 sin cos": {_ANY_TYPE: "approx ftz"},
    "ex2": {"f32 bf16 bf16x2": "approx ftz", "f16 f16x2": "approx"},
    "tanh": {_ANY_TYPE: "approx"},
    "rem copysign mov and or xor not cnot shl shr bfe bfi popc clz brev lop3 sad dp4a selp": {_ANY_TYPE: ""},
    "activemask trap": {_ANY_TYPE: ""},
    "shf": {_ANY_TYPE: "l r wrap clamp"},
    "prmt": {_ANY_TYPE: "f4e b4e rc8 ecl ecr rc16"},
    "bfind": {_ANY_TYPE: "shiftamt"},
    "mul24 mad24 dp2a": {_ANY_TYPE: "lo hi"},
    "setp": {_ANY_TYPE: f"{_COMPARISONS} {_LOGIC}", "f32": f"{_COMPARISONS} {_LOGIC} ftz"},
    "set": {_ANY_TYPE: _COMPARISONS, "f32": f"{_COMPARISONS} ftz"},
    "slct": {_ANY_TYPE: "", "f32": "ftz"},
    "cvt": {_ANY_TYPE: f"{_ROUNDING_MODES} rni rzi rmi rpi ftz sat", "tf32": "rna rn rz"},
    "ld ldu": {_ANY_TYPE: f"{_SPACES} {_MEMORY_ORDERS} nc ca cg cs lu cv v2 v4 v8"},
    "st": {_ANY_TYPE: f"{_SPACES} {_MEMORY_ORDERS} wb cg cs wt v2 v4 v8"},
    "cvta": {_ANY_TYPE: f"{_SPACES} to"},
    "isspacep": {_ANY_TYPE: _SPACES},
    "atom red": {_ANY_TYPE: f"{_SPACES} {_MEMORY_ORDERS} {_LOGIC} add min max exch cas inc dec noftz"},
    "cp": {_ANY_TYPE: "async ca cg shared shared::cta global commit_group wait_group wait_all"},
    "ldmatrix": {_ANY_TYPE: "sync aligned m8n8 x1 x2 x4 trans shared shared::cta"},
    "shfl": {_ANY_TYPE: "sync up down bfly idx"},
    "vote": {_ANY_TYPE: "sync all any uni ballot"},
    "match": {_ANY_TYPE: "sync any all"},
    "redux": {_ANY_TYPE: f"sync {_LOGIC} add min max"},
    "mma": {_ANY_TYPE: f"sync aligned row col satfinite {_MMA_SHAPES}"},
    "wgmma": {_ANY_TYPE: f"mma_async fence commit_group wait_group sync aligned satfinite {_WGMMA_SHAPES}"},
    "bar barrier": {_ANY_TYPE: "sync red arrive warp cta aligned popc and or"},
    "bra brx ret exit": {_ANY_TYPE: "uni idx"},
}  # fmt: skip
"""Instructions -> types -> modifiers that are emulated. Others are hints without an effect."""
_RULES_BY_ROOT = {root: rules for roots, rules in _SUPPORTED_MODIFIERS.items() for root in roots.split()}
_HINTED_ROOTS = ("ld", "ldu", "st", "atom", "red", "cp")
_CACHE_HINTS = ("L1::", "L2::")
"""Beginnings of cache hints, which change no result."""


def check_modifiers(module: Module, instruction: Instruction) -> None:
    """Refuse a modifier that is not emulated; `EkcError` names it with its line."""
    unsupported = _find_unsupported(instruction.opcode)
    if unsupported:
        version = f"(PTX {module.version}, {module.target})"
        raise instruction.make_error(f".{unsupported} is not emulated here {version}")


@lru_cache(maxsize=4096)
def _find_unsupported(opcode: str) -> str:
    """The first modifier of an opcode that is not emulated, "" if all are."""
    root, *parts = split_opcode(opcode)
    rules = _RULES_BY_ROOT.get(root)
    if rules is None:
        return ""
    supported = _list_modifiers(rules, _find_deciding_type(root, parts))
    hints = root in _HINTED_ROOTS
    for part in parts:
        if part not in TYPE_BYTES and part not in supported and not (hints and part.startswith(_CACHE_HINTS)):
            return part
    return ""


def _find_deciding_type(root: str, parts: list[str]) -> str:
    """The type that selects the modifiers: the last one; for a conversion the type of its result."""
    types = [part for part in parts if part in TYPE_BYTES]
    return "" if not types else types[-2] if root == "cvt" and len(types) > 1 else types[-1]


def _list_modifiers(rules: dict[str, str], kind: str) -> frozenset[str]:
    for kinds, modifiers in rules.items():
        if kind in kinds.split():
            return frozenset(modifiers.split())
    return frozenset(rules.get(_ANY_TYPE, "").split())
