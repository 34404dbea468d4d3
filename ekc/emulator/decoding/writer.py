"""Writes the Python text of one basic block: operands as bound arrays, results under a mask."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ekc.emulator.decoding.shelf import Shelf, dtype_of, immediate, letter
from ekc.emulator.geometry import SPECIALS
from ekc.emulator.ptx.cfg import Block
from ekc.emulator.ptx.program import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Symbol,
    names,
)
from ekc.errors import EkcError

_CLASS_BYTES = {"P": 1, "H": 2, "W": 4, "D": 8}


class Writer:
    """The text of one block in one form: whole (`mask` is None) or masked (`mask` is "M")."""

    def __init__(self, shelf: Shelf, block: Block, masked: bool) -> None:
        self.shelf = shelf
        self.base_mask = "M" if masked else None
        self.mask = self.base_mask
        self.lines: list[str] = []
        self.probes: dict[tuple[str, str], str] = {}
        self.serial = 0
        self.wide: dict[str, int] = {}
        self.spare: list[int] = []
        self.uses = Counter(n for one in block.code for n in one.reads)
        self.one: Instruction = block.code[0] if block.code else Instruction("", None, (), 0, None, "")

    # -- statements -----------------------------------------------------------------------------
    def begin(self, one: Instruction) -> None:
        """Start an instruction: its guard narrows the mask."""
        self.one = one
        self.mask = self.base_mask
        if one.guard is not None:
            guard = self.row(one.guard.name)
            text = f"~{guard}" if one.guard.negated else guard
            self.line(f"G = {text} & M" if self.base_mask else f"G = {text} & TRUE")
            self.mask = "G"
        self._ask_whether_set()
        if one in self.shelf.hazards.touches:
            self.line(f"products.touched({self.shelf.site(one, 'other', 'u4')}, {self.mask})")

    def _ask_whether_set(self) -> None:
        """Values that are only passed on are not asked for: merges of paths move what nobody then reads."""
        early = [n for n in dict.fromkeys(self.one.reads) if n in self.shelf.early]
        if early and self.one.parts[0] not in ("mov", "selp"):
            number = self.shelf.site(self.one, "other", "u4")
            for name in early:
                line = f"is_set({number}, I{self.shelf.early.index(name)}, {name!r}, {self._readers(name)})"
                self.line(line)

    def _readers(self, name: str) -> str | None:
        """The lanes that read a register: of the sums of a `wgmma`, those that add to them."""
        if not self.one.accumulates or name not in names(self.one.operands[0]):
            return self.mask
        keep = self.src(self.one.operands[3], "pred")
        return f"{keep} & {self.mask or 'TRUE'} & EVERY"

    def end(self) -> None:
        """Forget what the instruction overwrote."""
        for name in self.one.writes:
            if name in self.shelf.early:
                where = f", where={self.mask}" if self.mask else ""
                self.line(f"copyto(I{self.shelf.early.index(name)}, TRUE{where})")
        for name in self.one.writes:
            self.probes = {key: value for key, value in self.probes.items() if key[0] != name}
            if name in self.wide:
                self.spare.append(self.wide.pop(name))
        for name in self.one.reads:
            self.uses[name] -= 1
            if self.uses[name] <= 0 and name in self.wide:
                self.spare.append(self.wide.pop(name))

    def line(self, text: str) -> None:
        """One line of the function's body."""
        self.lines.append(text)

    def temporary(self) -> str:
        """A fresh local name."""
        self.serial += 1
        return f"t{self.serial}"

    def fail(self, why: str) -> EkcError:
        """The error for what is not emulated."""
        return EkcError(
            f"PTX line {self.one.line}: {self.one.text}: {why} (PTX {self.shelf.module.version}, "
            f"{self.shelf.module.target})"
        )

    # -- operands -------------------------------------------------------------------------------
    def row(self, name: str, view: str = "") -> str:
        """The bound name of a register's row in one of its views."""
        if name not in self.shelf.places:
            raise self.fail(f"register {name} is not declared")
        kind, slot = self.shelf.places[name]
        return f"{kind}{slot}{view}" if kind != "P" else f"P{slot}"

    def width(self, name: str) -> int:
        """Bytes of a register."""
        if name not in self.shelf.places:
            raise self.fail(f"register {name} is not declared")
        return _CLASS_BYTES[self.shelf.places[name][0]]

    def src(self, operand: Operand, kind: str) -> str:
        """An operand read as a PTX type."""
        if isinstance(operand, Register):
            return self._register(operand, kind)
        if isinstance(operand, Immediate):
            return self.shelf.constant(immediate(operand.value, kind))
        if isinstance(operand, Symbol):
            return self._symbol(operand, kind)
        raise self.fail("this operand is not supported here")

    def _register(self, operand: Register, kind: str) -> str:
        if kind == "pred":
            row = self.row(operand.name)
            return f"(~{row})" if operand.negated else row
        size, own = TYPE_BYTES[kind], self.width(operand.name)
        if size == own:
            return self.row(operand.name, letter(kind))
        if size > own:
            return f"{self.row(operand.name, 'i' if kind[0] == 's' else 'u')}.astype('{dtype_of(kind)}')"
        text = f"{self.row(operand.name, 'u')}.astype('u{size}')"
        code = dtype_of(kind)
        return text if code[0] == "u" else f"{text}.view('{code}')"

    def _symbol(self, operand: Symbol, kind: str) -> str:
        name = operand.name
        if name.startswith("%"):
            row = f"S{name.replace('%', '_').replace('.', '_')}"
            if row not in SPECIALS:
                raise self.fail(f"the special register {name} is not emulated")
            return row if TYPE_BYTES[kind] == 4 else f"{row}.astype('{dtype_of(kind)}')"
        if name not in self.shelf.variables:
            raise self.fail(f"{name} is not declared")
        code = dtype_of(kind)
        key = f"A_{len(self.shelf.full)}"
        wanted = (code, f"{name}+{operand.offset}")
        for known, what in self.shelf.full.items():
            if what == wanted:
                return known
        self.shelf.full[key] = wanted
        return key

    # -- results --------------------------------------------------------------------------------
    def put(self, dst: Operand, kind: str, function: str, *args: str) -> None:
        """Store what a ufunc gives; straight into the row where nothing is masked."""
        target = self.target(dst, kind)
        if target is None:
            return
        if self.mask is None:
            self.line(f"{function}({', '.join(args)}, {target})")
        else:
            self.line(f"copyto({target}, {function}({', '.join(args)}), where={self.mask})")

    def put_value(self, dst: Operand, kind: str, text: str) -> None:
        """Store an expression of the type's dtype."""
        target = self.target(dst, kind)
        if target is not None:
            where = f", where={self.mask}" if self.mask else ""
            self.line(f"copyto({target}, {text}{where})")

    def target(self, dst: Operand, kind: str) -> str | None:
        """The row to store into; a wider register extends by the sign of the type."""
        if not isinstance(dst, Register):
            raise self.fail("the result must be a register")
        if dst.name == "_":
            return None
        if kind == "pred":
            return self.row(dst.name)
        if self.width(dst.name) < TYPE_BYTES[kind]:
            raise self.fail(f"register {dst.name} is too narrow for .{kind}")
        if self.width(dst.name) > TYPE_BYTES[kind]:
            return self.row(dst.name, "i" if kind[0] == "s" else "u")
        return self.row(dst.name, letter(kind))

    # -- addresses ------------------------------------------------------------------------------
    def probe(self, address: Operand, space: str) -> tuple[str, int]:
        """A local name that holds the probe of an address, and the immediate offset."""
        if not isinstance(address, Address):
            raise self.fail("an address was expected")
        base = address.base
        key = (base.name if isinstance(base, Register | Symbol) else str(base.value), space)
        cached = self.mask == self.base_mask
        if cached and key in self.probes:
            return self.probes[key], address.offset
        if isinstance(base, Register):
            row = self.row(base.name, "u")
        elif isinstance(base, Symbol):
            row = self._symbol(Symbol(base.name), "u64" if space in ("", "global", "const") else "u32")
        else:
            row = f"full({int(base.value) & (1 << 64) - 1}, 'u8')"
        name = self.temporary().replace("t", "q")
        self.line(f"{name} = probe({space!r}, {row}, {self.mask}, {self.one.line})")
        if cached and not isinstance(base, Immediate):
            self.probes[key] = name
        return name, address.offset

    def shared_probe(self, address: Operand, generic: bool) -> tuple[str, int]:
        """The same for an address that must lie in shared memory, even where the opcode does not say so."""
        if not generic:
            return self.probe(address, "shared")
        if not (isinstance(address, Address) and isinstance(address.base, Register)):
            raise self.fail("a generic address in a register was expected")
        name = self.temporary().replace("t", "q")
        row = f"{self.row(address.base.name, 'u')} - SHARED_WINDOW"
        self.line(f"{name} = probe('shared', {row}, {self.mask}, {self.one.line})")
        return name, address.offset

    # -- float64 copies of float32 rows ---------------------------------------------------------
    def widened(self, operand: Operand) -> str:
        """A float64 copy of a float32 operand, kept while later instructions of the block use it."""
        if not isinstance(operand, Register):
            assert isinstance(operand, Immediate)
            return self.shelf.constant(np.float64(immediate(operand.value, "f32")))
        if operand.name not in self.wide:
            if not self.spare:
                self.spare.append(self.shelf.scratch)
                self.shelf.scratch += 1
            row = self.spare.pop()
            self.wide[operand.name] = row
            self.line(f"copyto(F{row}, {self.row(operand.name, 'f')})")
        return f"F{self.wide[operand.name]}"
