"""Loads, stores, atomics, address conversions and asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable

from ekc.emulator.decoding.shelf import dtype_of, items
from ekc.emulator.decoding.writer import Writer
from ekc.emulator.ptx.program import TYPE_BYTES, Address, Immediate, Instruction, Operand, Register, Symbol

_SPACES = ("global", "shared", "local", "param", "const")
_STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")


def space_of(w: Writer, one: Instruction) -> str:
    """The address space that the opcode names; "" is generic."""
    found = [p.split("::")[0] for p in one.parts[1:] if p.split("::")[0] in _SPACES]
    if any("cluster" in p and p != "shared::cta" for p in one.parts if p.startswith("shared::")):
        raise w.fail("shared memory of other blocks of a cluster is not emulated")
    return found[0] if found else ""


def load(w: Writer, one: Instruction) -> None:
    """`ld` of every space and width."""
    kind, space = one.parts[-1], space_of(w, one)
    dst, address = one.operands[:2]
    if space == "param" and isinstance(address, Address) and isinstance(address.base, Symbol):
        _parameter(w, dst, kind, address)
        return
    code = _memory_code(w, kind)
    targets = [_load_target(w, item, kind) for item in items(dst)]
    strong = any(p in _STRONG for p in one.parts)
    wanted = tuple(t != "None" for t in targets)
    site = w.shelf.site(one, "load", code, len(targets), strong, wanted)
    probe, offset = w.probe(address, _space_name(space))
    w.line(f"load({site}, {probe}, {offset}, {w.mask}, ({', '.join(targets)},))")


def _space_name(space: str) -> str:
    return "global" if space in ("const", "param") else space


def _memory_code(w: Writer, kind: str) -> str:
    if kind == "b128" or kind not in TYPE_BYTES:
        raise w.fail(f"memory accesses of type .{kind} are not emulated")
    size = TYPE_BYTES[kind]
    return f"{'i' if kind[0] == 's' and size < 4 else 'u'}{size}"


def _load_target(w: Writer, item: Operand, kind: str) -> str:
    if isinstance(item, Register) and item.name in w.shelf.dead:
        # NVRTC widens loads over padding: what nobody reads is not loaded.
        return "None"
    if not isinstance(item, Register) or w.width(item.name) < TYPE_BYTES[kind]:
        raise w.fail("the result of a load must be a register that is wide enough")
    same = w.width(item.name) == TYPE_BYTES[kind]
    return w.row(item.name, "i" if kind[0] == "s" and (TYPE_BYTES[kind] < 4 or not same) else "u")


def _parameter(w: Writer, dst: Operand, kind: str, address: Address) -> None:
    assert isinstance(address.base, Symbol)
    size = TYPE_BYTES[kind]
    for i, item in enumerate(items(dst)):
        w.put_value(
            item, kind, f"parameter({address.base.name!r}, {address.offset + i * size}, {dtype_of(kind)!r})"
        )


def store(w: Writer, one: Instruction) -> None:
    """`st` of every space and width."""
    kind, space = one.parts[-1], space_of(w, one)
    address, value = one.operands[:2]
    raw = f"b{8 * TYPE_BYTES[kind]}" if kind in TYPE_BYTES else kind
    _memory_code(w, kind)
    values = [w.src(item, raw) for item in items(value)]
    strong = any(p in _STRONG for p in one.parts)
    site = w.shelf.site(one, "store", f"u{TYPE_BYTES[kind]}", len(values), strong)
    probe, offset = w.probe(address, _space_name(space))
    w.line(f"store({site}, {probe}, {offset}, {w.mask}, ({', '.join(values)},))")


def convert_address(w: Writer, one: Instruction) -> None:
    """`cvta`: generic addresses of shared and local memory lie in windows of their own."""
    dst, a = one.operands
    space, kind = space_of(w, one), one.parts[-1]
    window = {"shared": "SHARED_WINDOW", "local": "LOCAL_WINDOW"}.get(space)
    if window is None:
        w.put_value(dst, kind, w.src(a, kind))
    elif "to" in one.parts:
        w.put(dst, kind, "subtract", w.src(a, kind), window)
    else:
        w.put(dst, kind, "add", w.src(a, kind), window)


def in_space(w: Writer, one: Instruction) -> None:
    """`isspacep`."""
    w.put_value(one.operands[0], "pred", f"in_space({space_of(w, one)!r}, {w.src(one.operands[1], 'u64')})")


def atomic(w: Writer, one: Instruction) -> None:
    """`atom` and `red`."""
    root, kind, space = one.parts[0], one.parts[-1], space_of(w, one)
    what = next(
        (p for p in one.parts if p in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")),
        None,
    )
    if what is None:
        raise w.fail("this atomic is not emulated")
    dst = one.operands[0] if root == "atom" else None
    operands = one.operands[:-1] if "L2::cache_hint" in one.parts else one.operands
    address, *sources = operands[1:] if dst is not None else operands
    site = w.shelf.site(one, "atom", f"u{TYPE_BYTES[kind]}", 1, True)
    values = ", ".join(w.src(s, kind) for s in sources)
    target = "None" if dst is None else (w.target(dst, kind) or "None")
    probe, offset = w.probe(address, _space_name(space))
    w.line(f"atomic({site}, {probe}, {offset}, {w.mask}, {what!r}, {kind!r}, ({values},), {target})")


def async_copy(w: Writer, one: Instruction) -> None:
    """`cp.async` with its commit and wait."""
    if "commit_group" in one.parts:
        w.line(f"copies.commit({w.mask})")
    elif "wait_all" in one.parts or "wait_group" in one.parts:
        left = one.operands[0] if one.operands else Immediate(0)
        if not isinstance(left, Immediate):
            raise w.fail("the number of groups must be a number")
        number = w.shelf.site(one, "other", "u4")
        w.line(f"copies.wait({int(left.value)}, {w.mask}, {number}, {'wait_all' in one.parts})")
    else:
        _issue_copy(w, one)


def _issue_copy(w: Writer, one: Instruction) -> None:
    dst, src, size, *more = one.operands[:-1] if "L2::cache_hint" in one.parts else one.operands
    sizes = (16,) if "cg" in one.parts else (4, 8, 16)
    if not isinstance(size, Immediate) or size.value not in sizes:
        raise w.fail(f"the size of a copy is {', '.join(map(str, sizes))} bytes")
    count = int(size.value)
    part = min(count, 8)
    into = w.shelf.site(one, "async", f"u{part}", count // part)
    out_of = w.shelf.site(one, "load", f"u{part}", count // part)
    filled = "None"
    if more and not (isinstance(more[0], Register) and w.shelf.types.get(more[0].name) == "pred"):
        filled = w.src(more[0], "u32")
    elif more and isinstance(more[0], Register):
        raise w.fail("cp.async with ignore-src is not emulated")
    target, first = w.probe(dst, "shared")
    source, second = w.probe(src, "global")
    w.line(f"copies.issue({into}, {out_of}, {target}, {first}, {source}, {second}, {w.mask}, {filled})")


def fence(w: Writer, one: Instruction) -> None:
    """`fence`: that of the async proxy shows products of warpgroups what was written to shared memory."""
    if one.parts[1:3] == ("proxy", "async") and "global" not in one.parts:
        w.line(f"products.proxy({w.mask})")


def nothing(w: Writer, one: Instruction) -> None:
    """Fences and hints: lanes run in lockstep, memory is one."""


def matrices(w: Writer, one: Instruction) -> None:
    """`ldmatrix`: eight lanes give the rows of each 8x8 matrix of 16-bit numbers."""
    count = {"x1": 1, "x2": 2, "x4": 4}[next(p for p in one.parts if p in ("x1", "x2", "x4"))]
    if "b16" not in one.parts[-1] or "m8n8" not in one.parts:
        raise w.fail("only ldmatrix m8n8 b16 is emulated")
    targets = [w.target(item, "b32") or "None" for item in items(one.operands[0])]
    site = w.shelf.site(one, "load", "u8", 2)
    probe, offset = w.shared_probe(one.operands[1], generic=not space_of(w, one))
    text = f"{site}, {probe}, {offset}, {w.mask}, ({', '.join(targets)},), {'trans' in one.parts}"
    assert len(targets) == count
    w.line(f"ldmatrix({text})")


MEMORY: dict[str, Callable[[Writer, Instruction], None]] = {
    "ld": load,
    "ldu": load,
    "st": store,
    "cvta": convert_address,
    "isspacep": in_space,
    "atom": atomic,
    "red": atomic,
    "cp": async_copy,
    "ldmatrix": matrices,
    "fence": fence,
    **dict.fromkeys(("membar", "prefetch", "prefetchu", "nanosleep", "discard", "griddepcontrol"), nothing),
}
