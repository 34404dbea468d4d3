"""The writer of the Python text of one basic block: operands are rows of lanes, results go under a mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from ekc.emulator.decode.context import DecodeContext, dtype_of, to_scalar, view_letter
from ekc.emulator.geometry import SPECIAL_REGISTERS
from ekc.errors import EkcError
from ekc.ptx.cfg import Block
from ekc.ptx.module import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Symbol,
    list_registers,
)

_CLASS_BYTES = {"P": 1, "H": 2, "W": 4, "D": 8}


class BlockWriter:
    """The text of one block, either for all lanes (`mask` is None) or masked (`mask` is "M")."""

    def __init__(self, context: DecodeContext, block: Block, is_masked: bool) -> None:
        self.context = context
        self.base_mask = "M" if is_masked else None
        self.mask = self.base_mask
        self.lines: list[str] = []
        self.probe_names: dict[tuple[str, str], str] = {}
        self.temporary_count = 0
        self.widened_rows: dict[str, int] = {}
        self.free_scratch_rows: list[int] = []
        self.remaining_reads = Counter(n for one in block.code for n in one.reads)

    # -- statements -----------------------------------------------------------------------------
    def begin_instruction(self, instruction: Instruction) -> None:
        """Start an instruction: its guard narrows the mask."""
        self.instruction, self.parts, self.mask = instruction, instruction.parts, self.base_mask
        self.root, self.kind = self.parts[0], self.parts[-1]
        if instruction.guard is not None:
            guard = self.row_name(instruction.guard.name)
            text = f"~{guard}" if instruction.guard.is_negated else guard
            self.emit(f"G = {text} & M" if self.base_mask else f"G = {text} & TRUE")
            self.mask = "G"
        self._emit_initialized_checks()
        if instruction in self.context.hazards.in_flight_accesses:
            number = self.context.add_site(instruction, "other", "u4")
            self.emit(f"products.check_access({number}, {self.mask})")

    def _emit_initialized_checks(self) -> None:
        """Check registers that some path does not set. Moves are exempt: compilers move unused values."""
        early = [n for n in dict.fromkeys(self.instruction.reads) if n in self.context.maybe_unset_registers]
        if early and self.instruction.parts[0] not in ("mov", "selp"):
            number = self.context.add_site(self.instruction, "other", "u4")
            for name in early:
                row, lanes = self.context.maybe_unset_registers.index(name), self._format_reading_lanes(name)
                self.emit(f"is_set({number}, I{row}, {name!r}, {lanes})")

    def _format_reading_lanes(self, name: str) -> str | None:
        """The lanes that read a register. A `wgmma` reads its sums only in lanes that add to them."""
        if not self.instruction.is_accumulating or name not in list_registers(self.instruction.operands[0]):
            return self.mask
        keep = self.read(self.instruction.operands[3], "pred")
        return f"{keep} & {self.mask or 'TRUE'} & EVERY"

    def end_instruction(self) -> None:
        """Mark written registers as set, and drop probes and copies of registers that were overwritten."""
        for name in self.instruction.writes:
            if name in self.context.maybe_unset_registers:
                where = f", where={self.mask}" if self.mask else ""
                self.emit(f"copyto(I{self.context.maybe_unset_registers.index(name)}, TRUE{where})")
            self.probe_names = {key: value for key, value in self.probe_names.items() if key[0] != name}
            if name in self.widened_rows:
                self.free_scratch_rows.append(self.widened_rows.pop(name))
        for name in self.instruction.reads:
            self.remaining_reads[name] -= 1
            if self.remaining_reads[name] <= 0 and name in self.widened_rows:
                self.free_scratch_rows.append(self.widened_rows.pop(name))

    def emit(self, text: str) -> None:
        """One line of the function's body."""
        self.lines.append(text)

    def new_temporary(self) -> str:
        """A fresh local name."""
        self.temporary_count += 1
        return f"t{self.temporary_count}"

    def make_error(self, reason: str) -> EkcError:
        """The error for an instruction that is not emulated."""
        module = self.context.module
        return self.instruction.make_error(f"{reason} (PTX {module.version}, {module.target})")

    # -- operands -------------------------------------------------------------------------------
    @property
    def dst(self) -> Operand:
        """The first operand, which mostly is the result."""
        return self.instruction.operands[0]

    @property
    def sources(self) -> tuple[Operand, ...]:
        """The operands behind the first."""
        return self.instruction.operands[1:]

    @property
    def wide_kind(self) -> str:
        """The integer type of twice as many bits."""
        return self.kind[0] + str(2 * int(self.kind[1:]))

    def row_name(self, name: str, view: str = "") -> str:
        """The bound name of a register's row in one of its views."""
        kind, slot = self._find_slot(name)
        return f"{kind}{slot}{view}" if kind != "P" else f"P{slot}"

    def register_bytes(self, name: str) -> int:
        """Bytes of a register."""
        return _CLASS_BYTES[self._find_slot(name)[0]]

    def _find_slot(self, name: str) -> tuple[str, int]:
        if name not in self.context.register_slots:
            raise self.make_error(f"register {name} is not declared")
        return self.context.register_slots[name]

    def read_sources(self, *kinds: str) -> list[str]:
        """The texts of all sources, read as these types; as that of the instruction where none is given."""
        by_place = dict(enumerate(kinds))
        return [self.read(source, by_place.get(i) or self.kind) for i, source in enumerate(self.sources)]

    def read(self, operand: Operand, kind: str) -> str:
        """The text of an operand, read as a PTX type."""
        if isinstance(operand, Register):
            return self._read_register(operand, kind)
        if isinstance(operand, Immediate):
            return self.context.bind_constant(to_scalar(operand.value, kind))
        if isinstance(operand, Symbol):
            return self._read_symbol(operand, kind)
        raise self.make_error("this operand is not supported here")

    def _read_register(self, operand: Register, kind: str) -> str:
        if kind == "pred":
            row = self.row_name(operand.name)
            return f"(~{row})" if operand.is_negated else row
        size, own = TYPE_BYTES[kind], self.register_bytes(operand.name)
        if size == own:
            return self.row_name(operand.name, view_letter(kind))
        if size > own:
            return f"{self.row_name(operand.name, 'i' if kind[0] == 's' else 'u')}.astype('{dtype_of(kind)}')"
        text = f"{self.row_name(operand.name, 'u')}.astype('u{size}')"
        code = dtype_of(kind)
        return text if code[0] == "u" else f"{text}.view('{code}')"

    def _read_symbol(self, operand: Symbol, kind: str) -> str:
        name = operand.name
        if name.startswith("%"):
            row = f"S{name.replace('%', '_').replace('.', '_')}"
            if row not in SPECIAL_REGISTERS:
                raise self.make_error(f"the special register {name} is not emulated")
            return row if TYPE_BYTES[kind] == 4 else f"{row}.astype('{dtype_of(kind)}')"
        if name not in self.context.variables:
            raise self.make_error(f"{name} is not declared")
        key = (dtype_of(kind), f"{name}+{operand.offset}")
        return self.context.address_rows.setdefault(key, f"A_{len(self.context.address_rows)}")

    # -- results --------------------------------------------------------------------------------
    def put_call(self, dst: Operand, kind: str, function: str, *args: str) -> None:
        """Store the result of a ufunc; directly into the row where no mask applies."""
        target = self.target_row(dst, kind)
        if target is None:
            return
        if self.mask is None:
            self.emit(f"{function}({', '.join(args)}, {target})")
        else:
            self.emit(f"copyto({target}, {function}({', '.join(args)}), where={self.mask})")

    def put_value(self, dst: Operand, kind: str, text: str) -> None:
        """Store an expression of the type's dtype."""
        target = self.target_row(dst, kind)
        if target is not None:
            where = f", where={self.mask}" if self.mask else ""
            self.emit(f"copyto({target}, {text}{where})")

    def target_row(self, dst: Operand, kind: str) -> str | None:
        """The row to store into; a wider register is sign-extended for signed types."""
        if not isinstance(dst, Register):
            raise self.make_error("the result must be a register")
        if dst.name == "_":
            return None
        if kind == "pred":
            return self.row_name(dst.name)
        if self.register_bytes(dst.name) < TYPE_BYTES[kind]:
            raise self.make_error(f"register {dst.name} is too narrow for .{kind}")
        if self.register_bytes(dst.name) > TYPE_BYTES[kind]:
            return self.row_name(dst.name, "i" if kind[0] == "s" else "u")
        return self.row_name(dst.name, view_letter(kind))

    # -- addresses ------------------------------------------------------------------------------
    def emit_probe(self, address: Operand, space: str) -> tuple[str, int]:
        """The local name of an address's probe, and the immediate offset."""
        if not isinstance(address, Address):
            raise self.make_error("an address was expected")
        base = address.base
        key = (base.name if isinstance(base, Register | Symbol) else str(base.value), space)
        cached = self.mask == self.base_mask
        if cached and key in self.probe_names:
            return self.probe_names[key], address.offset
        if isinstance(base, Register):
            row = self.row_name(base.name, "u")
        elif isinstance(base, Symbol):
            row = self._read_symbol(Symbol(base.name), "u64" if space in ("", "global") else "u32")
        else:
            row = f"full({int(base.value) & (1 << 64) - 1}, 'u8')"
        name = self._emit_row_probe(space, row)
        if cached and not isinstance(base, Immediate):
            self.probe_names[key] = name
        return name, address.offset

    def emit_shared_probe(self, address: Operand, is_generic: bool) -> tuple[str, int]:
        """`emit_probe` for shared memory; `is_generic` where the opcode does not name the space."""
        if not is_generic:
            return self.emit_probe(address, "shared")
        if not (isinstance(address, Address) and isinstance(address.base, Register)):
            raise self.make_error("a generic address in a register was expected")
        row = f"{self.row_name(address.base.name, 'u')} - SHARED_WINDOW"
        return self._emit_row_probe("shared", row), address.offset

    def _emit_row_probe(self, space: str, row: str) -> str:
        name = self.new_temporary().replace("t", "q")
        self.emit(f"{name} = probe({space!r}, {row}, {self.mask}, {self.instruction.line})")
        return name

    # -- float64 copies of float32 rows ---------------------------------------------------------
    def widen_operand(self, operand: Operand) -> str:
        """The name of a float64 copy of a float32 operand, for all instructions of the block."""
        if not isinstance(operand, Register):
            assert isinstance(operand, Immediate)
            return self.context.bind_constant(np.float64(to_scalar(operand.value, "f32")))
        if operand.name not in self.widened_rows:
            if not self.free_scratch_rows:
                self.free_scratch_rows.append(self.context.scratch_row_count)
                self.context.scratch_row_count += 1
            row = self.free_scratch_rows.pop()
            self.widened_rows[operand.name] = row
            self.emit(f"copyto(F{row}, {self.row_name(operand.name, 'f')})")
        return f"F{self.widened_rows[operand.name]}"


Writer = Callable[[BlockWriter], None]
"""Writes the instruction that its writer has begun."""
