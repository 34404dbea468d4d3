"""Loads, stores, atomics, address conversions and asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable

from ekc.emulator.decode.block_writer import BlockWriter
from ekc.emulator.decode.context import dtype_of, operand_items
from ekc.ptx.module import TYPE_BYTES, Address, Immediate, Instruction, Operand, Register, Symbol

_ADDRESS_SPACES = ("global", "shared", "local", "param", "const")
_STRONG_ORDERS = ("volatile", "relaxed", "acquire", "release", "mmio")
_ATOMIC_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def find_space(w: BlockWriter, instruction: Instruction) -> str:
    """The address space that the opcode names; "" is generic."""
    spaces = [p.split("::")[0] for p in instruction.parts[1:] if p.split("::")[0] in _ADDRESS_SPACES]
    if any("cluster" in p and p != "shared::cta" for p in instruction.parts if p.startswith("shared::")):
        raise w.make_error("shared memory of other blocks of a cluster is not emulated")
    return spaces[0] if spaces else ""


def write_load(w: BlockWriter, instruction: Instruction) -> None:
    """`ld` of every space and width."""
    kind, space = instruction.parts[-1], find_space(w, instruction)
    dst, address = instruction.operands[:2]
    if space == "param" and isinstance(address, Address) and isinstance(address.base, Symbol):
        _write_parameter_load(w, dst, kind, address)
        return
    code = _memory_dtype(w, kind)
    targets = [_load_target_row(w, item, kind) for item in operand_items(dst)]
    strong = any(p in _STRONG_ORDERS for p in instruction.parts)
    is_read = tuple(t != "None" for t in targets)
    site = w.context.add_site(instruction, "load", code, len(targets), strong, is_read)
    probe, offset = w.emit_probe(address, _resolve_space(space))
    w.emit(f"load({site}, {probe}, {offset}, ({', '.join(targets)},))")


def _resolve_space(space: str) -> str:
    return "global" if space in ("const", "param") else space


def _memory_dtype(w: BlockWriter, kind: str) -> str:
    if kind == "b128" or kind not in TYPE_BYTES:
        raise w.make_error(f"memory accesses of type .{kind} are not emulated")
    size = TYPE_BYTES[kind]
    return f"{'i' if kind[0] == 's' and size < 4 else 'u'}{size}"


def _load_target_row(w: BlockWriter, item: Operand, kind: str) -> str:
    if isinstance(item, Register) and item.name in w.context.unread_registers:
        # NVRTC widens loads over padding. Elements that are not read are not loaded.
        return "None"
    if not isinstance(item, Register) or w.register_bytes(item.name) < TYPE_BYTES[kind]:
        raise w.make_error("the result of a load must be a register that is wide enough")
    same = w.register_bytes(item.name) == TYPE_BYTES[kind]
    return w.row_name(item.name, "i" if kind[0] == "s" and (TYPE_BYTES[kind] < 4 or not same) else "u")


def _write_parameter_load(w: BlockWriter, dst: Operand, kind: str, address: Address) -> None:
    assert isinstance(address.base, Symbol)
    for i, item in enumerate(operand_items(dst)):
        place = f"{address.base.name!r}, {address.offset + i * TYPE_BYTES[kind]}"
        w.put_value(item, kind, f"parameter({place}, {dtype_of(kind)!r})")


def write_store(w: BlockWriter, instruction: Instruction) -> None:
    """`st` of every space and width."""
    kind, space = instruction.parts[-1], find_space(w, instruction)
    address, value = instruction.operands[:2]
    raw = f"b{8 * TYPE_BYTES[kind]}" if kind in TYPE_BYTES else kind
    _memory_dtype(w, kind)
    values = [w.read(item, raw) for item in operand_items(value)]
    strong = any(p in _STRONG_ORDERS for p in instruction.parts)
    site = w.context.add_site(instruction, "store", f"u{TYPE_BYTES[kind]}", len(values), strong)
    probe, offset = w.emit_probe(address, _resolve_space(space))
    w.emit(f"store({site}, {probe}, {offset}, ({', '.join(values)},))")


def write_cvta(w: BlockWriter, instruction: Instruction) -> None:
    """`cvta`: generic addresses of shared and local memory are in windows of their own."""
    dst, a = instruction.operands
    space, kind = find_space(w, instruction), instruction.parts[-1]
    window = {"shared": "SHARED_WINDOW", "local": "LOCAL_WINDOW"}.get(space)
    if window is None:
        w.put_value(dst, kind, w.read(a, kind))
    elif "to" in instruction.parts:
        w.put_call(dst, kind, "subtract", w.read(a, kind), window)
    else:
        w.put_call(dst, kind, "add", w.read(a, kind), window)


def write_isspacep(w: BlockWriter, instruction: Instruction) -> None:
    """`isspacep`."""
    dst, address = instruction.operands
    w.put_value(dst, "pred", f"in_space({find_space(w, instruction)!r}, {w.read(address, 'u64')})")


def _list_operands(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands without a cache hint."""
    return instruction.operands[:-1] if "L2::cache_hint" in instruction.parts else instruction.operands


def write_atomic(w: BlockWriter, instruction: Instruction) -> None:
    """`atom` and `red`."""
    root, kind, space = instruction.parts[0], instruction.parts[-1], find_space(w, instruction)
    operation = next((p for p in instruction.parts if p in _ATOMIC_OPERATIONS), None)
    if operation is None:
        raise w.make_error("this atomic is not emulated")
    dst = instruction.operands[0] if root == "atom" else None
    operands = _list_operands(instruction)
    address, *sources = operands[1:] if dst is not None else operands
    site = w.context.add_site(instruction, "atom", f"u{TYPE_BYTES[kind]}", 1, True)
    values = ", ".join(w.read(s, kind) for s in sources)
    target = "None" if dst is None else (w.target_row(dst, kind) or "None")
    probe, offset = w.emit_probe(address, _resolve_space(space))
    w.emit(f"atomic({site}, {probe}, {offset}, {operation!r}, {kind!r}, ({values},), {target})")


def write_async_copy(w: BlockWriter, instruction: Instruction) -> None:
    """`cp.async` with its commit and wait."""
    if "commit_group" in instruction.parts:
        w.emit(f"copies.commit({w.mask})")
    elif "wait_all" in instruction.parts or "wait_group" in instruction.parts:
        left = instruction.operands[0] if instruction.operands else Immediate(0)
        if not isinstance(left, Immediate):
            raise w.make_error("the number of groups must be a number")
        number = w.context.add_site(instruction, "other", "u4")
        w.emit(f"copies.wait({int(left.value)}, {w.mask}, {number}, {'wait_all' in instruction.parts})")
    else:
        _write_copy_issue(w, instruction)


def _write_copy_issue(w: BlockWriter, instruction: Instruction) -> None:
    dst, src, size, *more = _list_operands(instruction)
    sizes = (16,) if "cg" in instruction.parts else (4, 8, 16)
    if not isinstance(size, Immediate) or size.value not in sizes:
        raise w.make_error(f"the size of a copy is {', '.join(map(str, sizes))} bytes")
    count = int(size.value)
    part = min(count, 8)
    into = w.context.add_site(instruction, "async", f"u{part}", count // part)
    out_of = w.context.add_site(instruction, "load", f"u{part}", count // part)
    filled = "None"
    if more and not (isinstance(more[0], Register) and w.context.register_types.get(more[0].name) == "pred"):
        filled = w.read(more[0], "u32")
    elif more and isinstance(more[0], Register):
        raise w.make_error("cp.async with ignore-src is not emulated")
    target, first = w.emit_probe(dst, "shared")
    source, second = w.emit_probe(src, "global")
    w.emit(f"copies.issue({into}, {out_of}, {target}, {first}, {source}, {second}, {w.mask}, {filled})")


def write_fence(w: BlockWriter, instruction: Instruction) -> None:
    """`fence`: a fence of the async proxy makes writes to shared memory visible to `wgmma`."""
    if instruction.parts[1:3] == ("proxy", "async") and "global" not in instruction.parts:
        w.emit(f"products.fence_proxy({w.mask})")


def write_nothing(w: BlockWriter, instruction: Instruction) -> None:
    """Fences and hints have no effect: lanes run in lockstep on one memory."""


def write_ldmatrix(w: BlockWriter, instruction: Instruction) -> None:
    """`ldmatrix`: eight lanes give the rows of each 8x8 matrix of 16-bit numbers."""
    count = {"x1": 1, "x2": 2, "x4": 4}[next(p for p in instruction.parts if p in ("x1", "x2", "x4"))]
    if "b16" not in instruction.parts[-1] or "m8n8" not in instruction.parts:
        raise w.make_error("only ldmatrix m8n8 b16 is emulated")
    targets = [w.target_row(item, "b32") or "None" for item in operand_items(instruction.operands[0])]
    site = w.context.add_site(instruction, "load", "u8", 2)
    probe, offset = w.emit_shared_probe(instruction.operands[1], is_generic=not find_space(w, instruction))
    assert len(targets) == count
    rows, trans = ", ".join(targets), "trans" in instruction.parts
    w.emit(f"ldmatrix({site}, {probe}, {offset}, {w.mask}, ({rows},), {trans})")


MEMORY_WRITERS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    **dict.fromkeys(("ld", "ldu"), write_load),
    "st": write_store,
    "cvta": write_cvta,
    "isspacep": write_isspacep,
    **dict.fromkeys(("atom", "red"), write_atomic),
    "cp": write_async_copy,
    "ldmatrix": write_ldmatrix,
    "fence": write_fence,
    **dict.fromkeys(
        ("membar", "prefetch", "prefetchu", "nanosleep", "discard", "griddepcontrol"), write_nothing
    ),
}
