"""Loads, stores, atomics, address conversions and asynchronous copies."""

from __future__ import annotations

from ekc.emulator.decode.block_writer import BlockWriter, Writer
from ekc.emulator.decode.context import dtype_of, operand_items
from ekc.ptx.module import TYPE_BYTES, Address, Immediate, Operand, Register, Symbol

_ADDRESS_SPACES = ("global", "shared", "local", "param", "const")
_STRONG_ORDERS = frozenset(("volatile", "relaxed", "acquire", "release", "mmio"))
_ATOMIC_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def find_space(w: BlockWriter) -> str:
    """The address space that the opcode names; "" is generic."""
    if any("cluster" in p for p in w.parts if p.startswith("shared::")):
        raise w.make_error("shared memory of other blocks of a cluster is not emulated")
    names = (p.split("::")[0] for p in w.parts[1:])
    return next((name for name in names if name in _ADDRESS_SPACES), "")


def _emit_probe(w: BlockWriter, address: Operand) -> str:
    """The probe of an address in the space that the opcode names, and the offset, as two arguments."""
    space = find_space(w)
    probe, offset = w.emit_probe(address, "global" if space in ("const", "param") else space)
    return f"{probe}, {offset}"


def write_load(w: BlockWriter) -> None:
    """`ld` of every space and width."""
    (address,), items = w.sources[:1], operand_items(w.dst)
    if find_space(w) == "param" and isinstance(address, Address) and isinstance(address.base, Symbol):
        for i, item in enumerate(items):
            place = f"{address.base.name!r}, {address.offset + i * TYPE_BYTES[w.kind]}"
            w.put_value(item, w.kind, f"parameter({place}, {dtype_of(w.kind)!r})")
        return
    size = _count_element_bytes(w)
    code = f"{'i' if w.kind[0] == 's' and size < 4 else 'u'}{size}"
    targets = [_load_target_row(w, item) for item in items]
    strong, is_read = not _STRONG_ORDERS.isdisjoint(w.parts), tuple(t != "None" for t in targets)
    site = w.context.add_site(w.instruction, "load", code, len(targets), strong, is_read)
    w.emit(f"load({site}, {_emit_probe(w, address)}, ({', '.join(targets)},))")


def _count_element_bytes(w: BlockWriter) -> int:
    if w.kind == "b128" or w.kind not in TYPE_BYTES:
        raise w.make_error(f"memory accesses of type .{w.kind} are not emulated")
    return TYPE_BYTES[w.kind]


def _load_target_row(w: BlockWriter, item: Operand) -> str:
    if isinstance(item, Register) and item.name in w.context.unread_registers:
        # NVRTC widens loads over padding. Elements that are not read are not loaded.
        return "None"
    size = TYPE_BYTES[w.kind]
    if not isinstance(item, Register) or w.register_bytes(item.name) < size:
        raise w.make_error("the result of a load must be a register that is wide enough")
    is_extended = size < 4 or w.register_bytes(item.name) > size
    return w.row_name(item.name, "i" if w.kind[0] == "s" and is_extended else "u")


def write_store(w: BlockWriter) -> None:
    """`st` of every space and width."""
    size = _count_element_bytes(w)
    values = [w.read(item, f"b{8 * size}") for item in operand_items(w.sources[0])]
    strong = not _STRONG_ORDERS.isdisjoint(w.parts)
    site = w.context.add_site(w.instruction, "store", f"u{size}", len(values), strong)
    w.emit(f"store({site}, {_emit_probe(w, w.dst)}, ({', '.join(values)},))")


def write_cvta(w: BlockWriter) -> None:
    """`cvta`: generic addresses of shared and local memory are in windows of their own."""
    (a,), window = w.read_sources(), f"{find_space(w).upper()}_WINDOW"
    if window not in ("SHARED_WINDOW", "LOCAL_WINDOW"):
        w.put_value(w.dst, w.kind, a)
    else:
        w.put_call(w.dst, w.kind, "subtract" if "to" in w.parts else "add", a, window)


def write_isspacep(w: BlockWriter) -> None:
    """`isspacep`."""
    (address,) = w.read_sources("u64")
    w.put_value(w.dst, "pred", f"in_space({find_space(w)!r}, {address})")


def _list_operands(w: BlockWriter) -> tuple[Operand, ...]:
    """The operands without a cache hint."""
    return w.instruction.operands[:-1] if "L2::cache_hint" in w.parts else w.instruction.operands


def write_atomic(w: BlockWriter) -> None:
    """`atom` and `red`."""
    operation = next((p for p in w.parts if p in _ATOMIC_OPERATIONS), None)
    if operation is None:
        raise w.make_error("this atomic is not emulated")
    is_read = w.root == "atom"
    address, *sources = _list_operands(w)[is_read:]
    site = w.context.add_site(w.instruction, "atom", f"u{TYPE_BYTES[w.kind]}", 1, True)
    values = ", ".join(w.read(s, w.kind) for s in sources)
    target = w.target_row(w.dst, w.kind) if is_read else None
    probe = _emit_probe(w, address)
    w.emit(f"atomic({site}, {probe}, {operation!r}, {w.kind!r}, ({values},), {target})")


def write_async_copy(w: BlockWriter) -> None:
    """`cp.async` with its commit and wait."""
    if "commit_group" in w.parts:
        w.emit(f"copies.commit({w.mask})")
    elif "wait_all" in w.parts or "wait_group" in w.parts:
        left = read_group_count(w) if w.instruction.operands else 0
        w.emit(f"copies.wait({left}, {w.mask}, {'wait_all' in w.parts})")
    else:
        _write_copy_issue(w)


def read_group_count(w: BlockWriter) -> int:
    """The groups that may still be in flight after a wait."""
    if not isinstance(w.dst, Immediate):
        raise w.make_error("the number of groups must be a number")
    return int(w.dst.value)


def _write_copy_issue(w: BlockWriter) -> None:
    dst, src, size, *more = _list_operands(w)
    sizes = (16,) if "cg" in w.parts else (4, 8, 16)
    if not isinstance(size, Immediate) or size.value not in sizes:
        raise w.make_error(f"the size of a copy is {', '.join(map(str, sizes))} bytes")
    part = min(int(size.value), 8)
    into, out_of = (
        w.context.add_site(w.instruction, action, f"u{part}", int(size.value) // part)
        for action in ("async", "load")
    )
    if more and isinstance(more[0], Register) and w.context.register_slots[more[0].name][0] == "P":
        raise w.make_error("cp.async with ignore-src is not emulated")
    filled = w.read(more[0], "u32") if more else None
    target, first = w.emit_probe(dst, "shared")
    source, second = w.emit_probe(src, "global")
    w.emit(f"copies.issue({into}, {out_of}, {target}, {first}, {source}, {second}, {w.mask}, {filled})")


def write_fence(w: BlockWriter) -> None:
    """`fence`: a fence of the async proxy makes writes to shared memory visible to `wgmma`."""
    if w.parts[1:3] == ("proxy", "async") and "global" not in w.parts:
        w.emit(f"products.fence_proxy({w.mask})")


def write_nothing(w: BlockWriter) -> None:
    """Fences and hints have no effect: lanes run in lockstep on one memory."""


def write_ldmatrix(w: BlockWriter) -> None:
    """`ldmatrix`: eight lanes give the rows of each 8x8 matrix of 16-bit numbers."""
    count = next(int(p[1]) for p in w.parts if p in ("x1", "x2", "x4"))
    if "b16" not in w.kind or "m8n8" not in w.parts:
        raise w.make_error("only ldmatrix m8n8 b16 is emulated")
    targets = [w.target_row(item, "b32") or "None" for item in operand_items(w.dst)]
    site = w.context.add_site(w.instruction, "load", "u8", 2)
    probe, offset = w.emit_shared_probe(w.sources[0], is_generic=not find_space(w))
    assert len(targets) == count
    rows, trans = ", ".join(targets), "trans" in w.parts
    w.emit(f"ldmatrix({site}, {probe}, {offset}, {w.mask}, ({rows},), {trans})")


MEMORY_WRITERS: dict[str, Writer] = {
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
