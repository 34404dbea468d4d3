"""Instructions of each kind that a launch executes, counted from its PTX."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ekc.errors import EkcError
from ekc.ptx.cfg import WARPGROUP_SIZE, split_blocks
from ekc.ptx.constants import WARP_SIZE
from ekc.ptx.counting.block_runs import count_block_runs
from ekc.ptx.counting.branch_slice import ONE_WARP, Threads
from ekc.ptx.module import Immediate, Instruction, KernelText, Register, Vector, list_registers
from ekc.ptx.parser import parse_module

WARPGROUP_WARPS = WARPGROUP_SIZE // WARP_SIZE

_TYPE_BITS = re.compile(r"(?:[subf]|bf|tf)(\d+)(x2)?")
_INTEGER_TYPE = re.compile(r"[sub](?:8|16|32|64)|pred")
_MATRIX_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_ELEMENT_TYPE = re.compile(r"[su](?:4|8|32)|b1|f(?:16|32|64)|bf16|tf32|e[2345]m[1-7]\w*")
_FLOPS_FIELDS = ("tensor_flops", "group_flops")
_FACTOR_TYPES = {
    **dict.fromkeys(("f16", "bf16"), "float16"), "tf32": "tf32", **dict.fromkeys(("s8", "u8"), "int8"),
    **dict.fromkeys(("e4m3", "e5m2"), "float8"),
}  # fmt: skip
HALF_SUMS = " in float16"
"""Ending of the type of factors whose products are summed in float16."""
_HALF_TYPES = ("f16", "bf16", "f16x2", "bf16x2")
_VECTOR = re.compile(r"v(\d)")
_MATRIX_ACCESSES = ("ldmatrix", "stmatrix", "wmma")
_SFU_OPCODES = frozenset({"ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh", "div"})
_FIELDS = {
    **dict.fromkeys(("setp", "selp", "set", "slct"), "int_ops"),
    **dict.fromkeys(("bar", "barrier"), "barrier"),
    **dict.fromkeys(("bra", "ret", "exit", "trap"), "branch"),
    "shfl": "shuffle",
}
"""First part of an opcode -> field, where the type does not matter."""
_ACCESS_OPCODES = frozenset({"ld", "ldu", "st", "atom", "red", "ldmatrix", "stmatrix"})
# fmt: off
_INTEGER_OPCODES = frozenset({
    "add", "addc", "sub", "subc", "mul", "mul24", "mad", "mad24", "madc", "div", "rem", "abs", "neg",
    "min", "max", "sad", "dp2a", "dp4a", "and", "or", "xor", "not", "cnot", "shl", "shr", "shf", "lop3",
    "prmt", "bfe", "bfi", "bfind", "bmsk", "popc", "clz", "brev", "fns", "szext",
})
# fmt: on
_FLOAT_OPCODES = {"add", "sub", "mul", "fma", "mad", "min", "max", "abs", "neg", "copysign", "testp"}


@dataclass(frozen=True)
class WarpInstructions:
    """Instructions by kind, each counted once: of one warp, or summed over the warps of a launch."""

    fma32: float = 0.0
    """FP32 multiply-adds; a packed `f32x2` counts two."""
    fp32: float = 0.0
    """Other FP32 arithmetic. Comparisons are in `int_ops`."""
    fp16: float = 0.0
    """Arithmetic on f16, bf16 and their pairs; a pair counts one. Conversions of f16 to f32 are such
    (HADD2.F32 in machine code)."""
    tensor: float = 0.0
    """Matrix instructions (`mma`, `wmma.mma`, `wgmma`), one per warp-wide instruction."""
    sfu: float = 0.0
    """ex2, lg2, rcp, sqrt, rsqrt, sin, cos, tanh and float division, of any precision."""
    convert: float = 0.0
    """Other conversions from or to a float type."""
    pack: float = 0.0
    """Part of `convert`: to 16 bits or pairs of 8 bits (F2FP.PACK in machine code from sm_80 on)."""
    shuffle: float = 0.0
    branch: float = 0.0
    other: float = 0.0
    group_products: float = 0.0
    """Products of a warpgroup (`wgmma`); `tensor` includes them."""


@dataclass(frozen=True)
class InstructionCounts(WarpInstructions):
    """Executed PTX instructions of a warp, and the bytes that accesses of a lane move."""

    tensor_flops: Mapping[str, float] = field(default_factory=dict)
    """Operations of a warp in matrix instructions other than `wgmma`, by the type of their factors: "float16"
    (also bfloat16), "tf32", "float8", "int8", else as in the PTX; with `HALF_SUMS` for sums in float16."""
    float8_registers: float = 0.0
    """Registers of float8 factors of such instructions, each once for all products that share it."""
    group_flops: Mapping[str, float] = field(default_factory=dict)
    """Operations of a warp (a quarter of the warpgroup's) in `wgmma`, likewise."""
    int_ops: float = 0.0
    """Integer, logic, `setp`, `selp`, and conversions among integers. Conversions of bf16 to f32 are such (a
    shift in machine code)."""
    load_global: float = 0.0
    """Loads from global memory and through generic pointers."""
    store_global: float = 0.0
    load_shared: float = 0.0
    store_shared: float = 0.0
    local_accesses: float = 0.0
    """Loads and stores of local memory in the PTX. Spills are in `Resources`."""
    barrier: float = 0.0
    async_groups: float = 0.0
    """Groups of asynchronous copies that are committed."""
    async_waits: float = 0.0
    """Waits for groups of asynchronous copies."""
    async_left: float = 0.0
    """Groups that may still be in flight after these waits, summed over the waits."""
    bytes_async: float = 0.0
    """Bytes that asynchronous copies load; `bytes_load_global` includes them."""
    bytes_load_global: float = 0.0
    """Bytes of `load_global`; likewise the fields below of the accesses that they name."""
    bytes_store_global: float = 0.0
    bytes_load_shared: float = 0.0
    bytes_store_shared: float = 0.0
    bytes_local: float = 0.0
    bytes_group: float = 0.0
    """Bytes of shared memory that `wgmma` reads for a warp: a quarter of the warpgroup's."""
    group_waits: float = 0.0
    """Waits for products of the warpgroup."""


def count_instructions(ptx: str, kernel: str, threads: Threads = ONE_WARP) -> InstructionCounts:
    """Count what a warp of `kernel` executes, mean over the warps of these threads.

    Branches on the numbers of the thread and the block, on counters of loops and on parameters count as they
    go. A branch on data in memory counts both ways, and an instruction under a guard counts as executed.
    `mov`, `cvta` and `ld.param` are free: ptxas coalesces copies, folds constants and reads special registers
    once. Any other PTX instruction counts one, even where ptxas makes several of it (`div.rn`, `sqrt.rn`) or
    moves it out of a loop. An atomic counts as a load and a store, and so does a `cp.async`. An atomic whose
    result is not read waits for nothing, and counts as a store.

    Raises `InvalidInput` if there is no such kernel; `EkcError` for a loop whose trips depend on data in
    memory (naming label and line), for a call and for an indirect branch.
    """
    return sum_instruction_counts(list_instruction_runs(parse_module(ptx).find_kernel(kernel), threads))


InstructionRuns = tuple[tuple[Instruction, float], ...]
"""Instructions of a kernel, each with its runs by a warp."""


def sum_instruction_counts(instruction_runs: InstructionRuns) -> InstructionCounts:
    """The counts of `count_instructions`, from runs that were listed before."""
    totals: dict[str, float] = defaultdict(float)
    flops: dict[str, dict[str, float]] = {name: defaultdict(float) for name in _FLOPS_FIELDS}
    seen: set[str] = set()
    unread = _find_unread_atomics([one for one, _ in instruction_runs])
    for instruction, times in instruction_runs:
        opcode = ("red", *instruction.parts[1:]) if instruction in unread else instruction.parts
        for kind, amount in list_counts(instruction, opcode):
            totals[kind] += times * amount
        if product := _find_product(opcode):
            name, factors, amount = product
            flops[name][factors] += times * amount
            if name == "tensor_flops" and factors.startswith("float8"):
                registers = {r for operand in instruction.operands[1:3] for r in list_registers(operand)}
                totals["float8_registers"] += times * len(registers - seen)
                seen |= registers
    by_type = {name: dict(each) for name, each in flops.items()}
    return InstructionCounts(
        **totals, tensor_flops=by_type["tensor_flops"], group_flops=by_type["group_flops"]
    )


def _find_unread_atomics(instructions: Sequence[Instruction]) -> frozenset[Instruction]:
    """Atomics whose result registers no other operand names. ptxas makes reductions of them."""
    atomics = [one for one in instructions if one.parts[0] == "atom"]
    if not atomics:
        return frozenset()
    uses = Counter(name for one in instructions for x in one.operands for name in list_registers(x))
    return frozenset(
        one for one in atomics if isinstance(r := one.operands[0], Register) and uses[r.name] == 1
    )


def list_instruction_runs(kernel: KernelText, threads: Threads) -> InstructionRuns:
    """Every instruction of `kernel` with its runs by a warp; rules and errors as of `count_instructions`."""
    _refuse_jumps(kernel)
    if not kernel.code:
        return ()
    runs = zip(split_blocks(kernel), count_block_runs(kernel, threads), strict=True)
    return tuple((one, times) for block, times in runs for one in block.instructions)


def _refuse_jumps(kernel: KernelText) -> None:
    """`EkcError` for calls and jump tables: the instructions that run then are not in the straight text."""
    for one in kernel.code:
        if one.parts[0] in ("call", "brx"):
            raise EkcError(
                f"PTX of {kernel.name!r}, line {one.line}: {one.opcode} cannot be counted; "
                "inline the function (__forceinline__) or use plain branches"
            )


def list_counts(instruction: Instruction, opcode: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """(field of `InstructionCounts`, amount) of one instruction; nothing for one that is free."""
    name, kind = opcode[0], opcode[-1]
    if name == "cvta" or (name == "ld" and "param" in opcode):
        return
    if name == "mov":
        # Packing two halves is a byte permute, and no plain copy.
        if isinstance(instruction.operands[1], Vector) and kind == "b32":
            yield "int_ops", 1.0
    elif name in _ACCESS_OPCODES or opcode[:2] in (("wmma", "load"), ("wmma", "store")):
        yield from _count_access(instruction, opcode)
    elif opcode[:2] == ("cp", "async") and "bulk" not in opcode:
        yield from _count_async_copy(instruction)
    elif name == "cvt":
        yield from ((field, 1.0) for field in _list_conversion_fields(opcode))
    else:
        if opcode[:2] == ("wgmma", "wait_group"):
            yield "group_waits", 1.0
        counted = _find_arithmetic_field(opcode)
        yield counted, 2.0 if kind == "f32x2" else 1.0
        if counted == "tensor":
            yield from _count_group_product(opcode)


def _find_product(opcode: tuple[str, ...]) -> tuple[str, str, float] | None:
    """Field, type of the factors and operations of a matrix instruction; None for another one."""
    shape = next((match for part in opcode if (match := _MATRIX_SHAPE.fullmatch(part))), None)
    if shape is None or _find_arithmetic_field(opcode) != "tensor":
        return None
    rows, columns, depth = (int(extent) for extent in shape.groups())
    sums, factors = _find_product_types(opcode)
    kind = _FACTOR_TYPES.get(factors, factors) + (HALF_SUMS if sums == "f16" else "")
    flops = 2.0 * rows * columns * depth
    return (
        ("group_flops", kind, flops / WARPGROUP_WARPS)
        if opcode[0] == "wgmma"
        else ("tensor_flops", kind, flops)
    )


def _find_product_types(opcode: tuple[str, ...]) -> tuple[str, str]:
    """The types of the sums and of the first factor. The types come last, the type of the result first; old
    forms (`wmma`) leave out those of factors in float16."""
    types = [part for part in opcode if _ELEMENT_TYPE.fullmatch(part)]
    if len(types) < 3:
        return types[0] if types else "", "f16" if len(types) == 2 else types[-1] if types else ""
    return types[0], types[1]


def _count_group_product(opcode: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """A product of a warpgroup, and what it reads of shared memory. Along the depth an instruction takes 32
    bytes of every row, whatever the type."""
    shape = next((match for part in opcode if (match := _MATRIX_SHAPE.fullmatch(part))), None)
    if shape and opcode[0] == "wgmma":
        yield "group_products", 1.0
        yield "bytes_group", 32.0 * (int(shape[1]) + int(shape[2])) / WARPGROUP_WARPS


def _count_async_copy(instruction: Instruction) -> Iterator[tuple[str, float]]:
    """A copy counts as a load and a store; a commit and a wait count as other instructions."""
    kind, operands = instruction.parts[2], instruction.operands
    if len(operands) > 2:
        size = float(_read_integer(instruction, 2))
        yield from (("load_global", 1.0), ("bytes_load_global", size), ("bytes_async", size))
        yield from (("store_shared", 1.0), ("bytes_store_shared", size))
        return
    yield "other", 1.0
    if kind == "commit_group":
        yield "async_groups", 1.0
    elif kind in ("wait_group", "wait_all"):
        left = _read_integer(instruction, 0) if operands else 0
        yield from (("async_waits", 1.0), ("async_left", float(left)))


def _read_integer(instruction: Instruction, place: int) -> int:
    """The whole number that an operand is."""
    operand = instruction.operands[place]
    if isinstance(operand, Immediate) and isinstance(operand.value, int):
        return operand.value
    shown = operand.value if isinstance(operand, Immediate) else f"operand {place + 1}"
    raise EkcError(f"PTX line {instruction.line}: {shown} is not a whole number, in {instruction.text!r}")


def _find_arithmetic_field(opcode: tuple[str, ...]) -> str:
    """Field of an instruction on registers, or of one that controls the flow."""
    name, kind = opcode[0], opcode[-1]
    integer = _INTEGER_TYPE.fullmatch(kind) is not None
    if name in ("mma", "wgmma", "tcgen05", "wmma") and any(part.startswith("mma") for part in opcode):
        return "tensor"
    if integer and name in _INTEGER_OPCODES:
        return "int_ops"
    if name in _SFU_OPCODES and kind != "f64":
        return "sfu"
    if name in _FLOAT_OPCODES and kind in ("f32", "f32x2"):
        return "fma32" if name in ("fma", "mad") else "fp32"
    if name in _FLOAT_OPCODES and kind in _HALF_TYPES:
        return "fp16"
    return _FIELDS.get(name, "other")


def _list_conversion_fields(opcode: tuple[str, ...]) -> tuple[str, ...]:
    """Fields of a `cvt`. What ptxas makes of it was read in machine code of sm_75 to sm_90."""
    target, source = opcode[-2:]
    if _INTEGER_TYPE.fullmatch(target) and _INTEGER_TYPE.fullmatch(source):
        return ("int_ops",)
    if target == "f32" and source in ("f32", "f16", "bf16"):
        return ({"f32": "fp32", "f16": "fp16", "bf16": "int_ops"}[source],)
    is_packed = source in ("f32", "f16x2", "bf16x2") and (target in _HALF_TYPES or "x2" in target)
    return ("convert", "pack") if is_packed else ("convert",)


def _count_access(instruction: Instruction, opcode: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """Fields of a memory access, and the bytes of one thread."""
    spaces = {part.split("::")[0] for part in opcode}
    space = next((space for space in ("shared", "local", "const") if space in spaces), "global")
    size = _count_access_bytes(instruction)
    if space == "const":
        yield "other", 1.0
    elif space == "local":
        yield from (("local_accesses", 1.0), ("bytes_local", size))
    else:
        writes = opcode[0] in ("st", "red", "atom", "stmatrix") or "store" in opcode
        reads = opcode[0] == "atom" or not writes
        for verb in ["load"] * reads + ["store"] * writes:
            yield from ((f"{verb}_{space}", 1.0), (f"bytes_{verb}_{space}", size))


def _count_access_bytes(instruction: Instruction) -> float:
    """Bytes that one thread moves: registers times their width."""
    opcode = instruction.parts
    if opcode[0] in _MATRIX_ACCESSES:
        # Fragments: the type is the element's, but each register holds 32 bits.
        registers = next(operand for operand in instruction.operands if isinstance(operand, Vector))
        return 4.0 * len(registers.items)
    lanes = next((int(match[1]) for part in opcode if (match := _VECTOR.fullmatch(part))), 1)
    match = _TYPE_BITS.fullmatch(opcode[-1])
    return lanes * (int(match[1]) * (2 if match[2] else 1) / 8 if match else 4.0)
