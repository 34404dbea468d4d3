"""Instructions of a CUBIN, decoded array at a time: what each does, how much it moves, where it branches.

From sm_75 to sm_120 an instruction has 128 bits. The lowest nine say what it does, the next three where its
operands are. Beside the operands there are the predicate that guards it (bits 12 to 15), the width of an
access (73 to 75) and, from bit 105 on, how the hardware schedules it: the cycles until the next instruction
of the warp (105 to 108), the scoreboards that it sets when its result is written (110 to 112) and when its
operands are read (113 to 115), those that it waits for (116 to 121), and the operands that stay in a cache
for the next instruction (122 to 124). NVIDIA documents none of that. Names, widths, guards and branches were
read in what nvdisasm 13.5 prints of 19,000 to 416,000 instructions of each of six architectures; a test holds
the decoder against nvdisasm. The scheduling is laid out as Jia et al. found it on Volta ("Dissecting the
NVIDIA Volta GPU Architecture via Microbenchmarking", 2018).

nvdisasm takes 0.3 s of CPU for the smallest kernel, which a search could not pay for each of its trials.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ekc.errors import EkcError
from ekc.ptx.cfg import derive_loop_ranges

INSTRUCTION_BYTES = 16
_OPCODE_BITS, _GUARD_SHIFT, _NO_GUARD, _THREE_REGISTERS = 9, 12, 7, 1
_HOPPER, _BLACKWELL = 90, 100
_SECTION_HEADER = "<IIQQQQIIQQ"
_TEXT = ".text."

_BRANCH, _LDSM, _LDGSTS = 0x147, 0x03B, 0x1AE
_IADD, _IADD3 = 0x035, 0x010
"""The first of Blackwell only: it is a HFMA2 elsewhere."""
NAMES = {
    0x023: "FFMA", 0x108: "MUFU", 0x024: "IMAD", 0x025: "IMAD", 0x027: "IMAD",
    0x002: "MOV", 0x003: "P2R", 0x007: "SEL", 0x008: "FSEL", 0x009: "FMNMX", 0x00B: "FSETP", 0x00C: "ISETP",
    0x010: "IADD3", 0x011: "LEA", 0x012: "LOP3", 0x013: "IABS", 0x016: "PRMT", 0x017: "IMNMX", 0x019: "SHF",
    0x01C: "PLOP3", 0x036: "VIADD", 0x046: "VIADDMNMX", 0x048: "VIMNMX",
    0x037: "IMMA", 0x03C: "HMMA", 0x07A: "QMMA", 0x1F0: "HGMMA", 0x1F1: "IGMMA", 0x1F3: "QGMMA",
    0x180: "LD", 0x185: "ST", 0x18D: "ATOMS", 0x18E: "RED", 0x1A6: "REDG", 0x1A8: "ATOMG", 0x1A9: "ATOMG",
    0x181: "LDG", 0x186: "STG", _LDGSTS: "LDGSTS", 0x183: "LDL", 0x187: "STL", 0x184: "LDS", 0x188: "STS",
    _LDSM: "LDSM", 0x189: "SHFL", 0x11D: "BAR", _BRANCH: "BRA",
}  # fmt: skip
"""Lowest nine bits of an instruction -> its name, of those that are counted, from sm_75 to sm_120."""
WIDTHS = (1, 1, 2, 2, 4, 8, 16, 16)
"""Bytes of a lane by bits 73 to 75: U8, S8, U16, S16, 32, 64, 128 bits. A matrix load has the logarithm of
its registers in bits 72 and 73, an asynchronous copy from sm_100 on that of its words in bits 74 and 75."""


@dataclass(frozen=True, eq=False)
class MachineCode:
    """Instructions of one function, in order; arrays have one entry each, [n]."""

    opcodes: NDArray[np.int64]
    """The lowest nine bits; additions of two numbers, which Blackwell has beside those of three, as those."""
    bytes_per_lane: NDArray[np.int64]
    """Bytes that a lane moves, of memory accesses; without a meaning elsewhere."""
    is_guarded: NDArray[np.bool_]
    """Whether a predicate decides, lane by lane, if the instruction runs."""
    targets: dict[int, int]
    """Position of a branch -> position of its target."""
    cycles: NDArray[np.int64]
    """Cycles until the next instruction of the warp may issue, at least 1."""
    result_boards: NDArray[np.int64]
    """Scoreboard that is set when the result is written; 7 for none."""
    operand_boards: NDArray[np.int64]
    """Scoreboard that is set when the operands are read; 7 for none."""
    waits: NDArray[np.int64]
    """Scoreboards that the instruction waits for, a bit for each of six."""
    sources: NDArray[np.int64]
    """Registers of three operands, [n, 3]; of another meaning where an operand is none."""
    has_three_registers: NDArray[np.bool_]
    """Whether the three operands of arithmetic are registers."""
    is_kept: NDArray[np.bool_]
    """Whether an operand stays in the cache of operands for the next instruction, [n, 3]."""

    def find(self, *names: str) -> NDArray[np.bool_]:
        """Where instructions of these names are."""
        wanted = [code for code, name in NAMES.items() if name in names]
        return np.isin(self.opcodes, wanted)

    @cached_property
    def loops(self) -> tuple[tuple[int, int], ...]:
        """First and last position of each loop, outer loops first. The branch to itself at the end of a
        function is none."""
        edges = ((branch, target) for branch, target in self.targets.items() if target != branch)
        return tuple(derive_loop_ranges(edges))


def decode_functions(cubin: bytes, arch: str) -> dict[str, MachineCode]:
    """Functions of a CUBIN by name, as in the PTX. Raises `EkcError` for bytes that are no CUBIN."""
    generation = int("".join(re.findall(r"\d+", arch)))
    return {name: decode(code, generation) for name, code in _read_functions(cubin).items()}


def decode(code: bytes, generation: int) -> MachineCode:
    """Decode the instructions of one function; `generation`: 80 of sm_80."""
    words = np.frombuffer(code, "<u8").reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    opcodes = (low & ((1 << _OPCODE_BITS) - 1)).astype(np.int64)
    widths = np.array(WIDTHS, np.int64)[((high >> 9) & 7).astype(np.int64)]
    widths = np.where(opcodes == _LDSM, 4 << ((high >> 8) & 3).astype(np.int64), widths)
    if generation >= _BLACKWELL:
        widths = np.where(opcodes == _LDGSTS, 4 << ((high >> 10) & 3).astype(np.int64), widths)
    find_target = _find_target_of_hopper if generation >= _HOPPER else _find_target
    branches = np.flatnonzero(opcodes == _BRANCH).tolist()
    if generation >= _BLACKWELL:
        opcodes = np.where(opcodes == _IADD, _IADD3, opcodes)

    def read(first: int, bits: int) -> NDArray[np.int64]:
        """A field of every instruction; `first`: its lowest bit, of 128."""
        return ((words[:, first // 64] >> (first % 64)) & ((1 << bits) - 1)).astype(np.int64)

    return MachineCode(
        opcodes=opcodes,
        bytes_per_lane=widths,
        is_guarded=read(_GUARD_SHIFT, 3) != _NO_GUARD,
        targets={at: at + 1 + find_target(int(low[at]), int(high[at])) for at in branches},
        cycles=np.maximum(read(105, 4), 1),
        result_boards=read(110, 3),
        operand_boards=read(113, 3),
        waits=read(116, 6),
        sources=np.stack([read(24, 8), read(32, 8), read(64, 8)], axis=1),
        has_three_registers=read(_OPCODE_BITS, 3) == _THREE_REGISTERS,
        is_kept=np.stack([read(122 + slot, 1) for slot in range(3)], axis=1) > 0,
    )


def _find_target(low: int, _high: int) -> int:
    """Instructions that a branch goes on, up to sm_89."""
    return _sign(low >> 32, 32) // INSTRUCTION_BYTES


def _find_target_of_hopper(low: int, high: int) -> int:
    """Instructions that a branch goes on, from sm_90 on: words of four bytes, in two parts."""
    words = _sign(low >> 34 | high << 30, 48 - 8) << 8 | low >> 16 & 0xFF
    return 4 * words // INSTRUCTION_BYTES


def _sign(value: int, bits: int) -> int:
    """The lowest bits as a number with a sign."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _read_functions(cubin: bytes) -> dict[str, bytes]:
    """The code of each function, from the sections of the ELF file."""
    try:
        if cubin[:4] != b"\x7fELF":
            raise ValueError("no ELF file")
        (table,) = struct.unpack_from("<Q", cubin, 40)
        size, count, names_number = struct.unpack_from("<HHH", cubin, 58)
        headers = [struct.unpack_from(_SECTION_HEADER, cubin, table + n * size) for n in range(count)]
        names_at = headers[names_number][4]
        found = {}
        for header in headers:
            begin = names_at + header[0]
            name = cubin[begin : cubin.index(b"\0", begin)].decode()
            if name.startswith(_TEXT):
                code = cubin[header[4] : header[4] + header[5]]
                if len(code) != header[5] or len(code) % INSTRUCTION_BYTES:
                    raise ValueError(f"{name} is cut short")
                found[name.removeprefix(_TEXT)] = code
    except (ValueError, IndexError, struct.error) as problem:
        raise EkcError(f"machine code cannot be read: {problem}") from None
    return found
