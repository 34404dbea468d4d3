"""Instructions of a CUBIN, decoded array at a time: what each does, how much it moves, where it branches.

From sm_75 to sm_120 an instruction has 128 bits. The lowest nine say what it does, the next three where its
operands are. Beside the operands there are the predicate that guards it (bits 12 to 15), the width of an
access (73 to 75) and, from bit 105 on, how the hardware schedules it: cycles until the next instruction, and
barriers that it sets and waits for. NVIDIA documents none of that. It was read in what nvdisasm 13.5 prints
of 19,000 to 416,000 instructions of each of six architectures; a test holds the decoder against nvdisasm.

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
from ekc.ptx.cfg import find_loop_ranges

INSTRUCTION_BYTES = 16
_OPCODE_BITS, _GUARD_SHIFT, _NO_GUARD = 9, 12, 7
_HOPPER, _BLACKWELL = 90, 100
_SECTION_HEADER = "<IIQQQQIIQQ"
_TEXT = ".text."

_BRANCH, _LDSM, _LDGSTS = 0x147, 0x03B, 0x1AE
NAMES = {
    0x023: "FFMA", 0x108: "MUFU",
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
    """The lowest nine bits."""
    bytes_per_lane: NDArray[np.int64]
    """Bytes that a lane moves, of memory accesses; without a meaning elsewhere."""
    is_guarded: NDArray[np.bool_]
    """Whether a predicate decides, lane by lane, if the instruction runs."""
    targets: dict[int, int]
    """Position of a branch -> position of its target."""

    def find(self, *names: str) -> NDArray[np.bool_]:
        """Where instructions of these names are."""
        wanted = [code for code, name in NAMES.items() if name in names]
        return np.isin(self.opcodes, wanted)

    @cached_property
    def loops(self) -> tuple[tuple[int, int], ...]:
        """First and last position of each loop, outer loops first. The branch to itself at the end of a
        function is none."""
        edges = ((branch, target) for branch, target in self.targets.items() if target != branch)
        return tuple(find_loop_ranges(edges))


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
    targets = {at: at + 1 + find_target(int(low[at]), int(high[at])) for at in branches}
    return MachineCode(opcodes, widths, ((low >> _GUARD_SHIFT) & 7) != _NO_GUARD, targets)


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
