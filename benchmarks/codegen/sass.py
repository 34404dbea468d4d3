"""Machine code of a kernel as nvdisasm prints it, and its main loop."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ekc.codegen.nvrtc import find_nvdisasm
from ekc.errors import EkcError

BYTES = 16
"""Bytes of one instruction, since Volta."""
MULTIPLY_ADDS = {"FFMA": 1, "HFMA2": 2, "DFMA": 1, "IDP": 4, "HMMA": 1, "IMMA": 1, "HGMMA": 1}
"""Opcode -> multiply-adds per lane. An HMMA counts as one, although the number depends on its shape. An
HGMMA counts as one for each strip of 8 columns (`Instruction.products`)."""
INTEGER = {
    "IMAD",
    "IADD3",
    "IADD",
    "LEA",
    "LOP3",
    "SHF",
    "SHL",
    "SHR",
    "ISETP",
    "IMNMX",
    "PRMT",
    "IABS",
    "SEL",
}
"""Opcodes of address and index arithmetic. Moves that ptxas writes as IMAD.MOV count too."""
FETCHES = ("LDG", "LDGSTS")
"""Opcodes that read global memory."""
NEVER = "@!PT"
"""The predicate of an instruction that never runs."""
_REGISTER = re.compile(r"\bR(\d+)(?:\.(64))?")


@dataclass(frozen=True)
class Instruction:
    """One instruction: `opcode` with its modifiers, operands as text."""

    opcode: str
    operands: str
    predicate: str = ""

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".")[0]

    @property
    def products(self) -> int:
        """Number of products that the instruction counts as: 16 for HGMMA.64x128x16, otherwise 1."""
        shape = re.search(r"\.\d+x(\d+)x\d+", self.opcode)
        if self.name not in MULTIPLY_ADDS:
            return 0
        return int(shape[1]) // 8 if self.name == "HGMMA" and shape else 1

    @property
    def bytes(self) -> int:
        """Bytes that a load or store moves for each lane; 4 unless the opcode says otherwise."""
        widths = [int(part) // 8 for part in self.opcode.split(".") if part in ("64", "128")]
        if widths:
            return widths[0]
        narrow = {"U8": 1, "S8": 1, "U16": 2, "S16": 2}
        return next((narrow[part] for part in self.opcode.split(".") if part in narrow), 4)


class NoDisassembler(EkcError):
    """nvdisasm is not installed."""


def disassemble(cubin: bytes) -> dict[str, tuple[Instruction, ...]]:
    """The instructions of every function of a CUBIN, in order. Raises `NoDisassembler`."""
    program = find_nvdisasm()
    if program is None:
        raise NoDisassembler("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([program, "-json", str(file)], capture_output=True, text=True, check=True)
    _, functions = json.loads(done.stdout)
    return {
        f["function-name"]: tuple(
            Instruction(x["opcode"], x.get("operands", ""), x.get("predicate", ""))
            for x in f["sass-instructions"]
        )
        for f in functions
    }


def derive_main_loop(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """The loop that has most multiply-adds outside its inner loops; all code where there is no loop."""
    first, last = _find_main_span(code)
    return code[first : last + 1]


def derive_fetching_loop(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """The main loop, or where that reads no global memory the nearest around it that does."""
    main = _find_main_span(code)
    around = [(a, b) for a, b in _find_loops(code) if a <= main[0] and main[1] <= b]
    for first, last in sorted({main, *around}, key=lambda span: span[1] - span[0]):
        if any(x.name in FETCHES and x.predicate != NEVER for x in code[first : last + 1]):
            return code[first : last + 1]
    return derive_main_loop(code)


def _find_main_span(code: Sequence[Instruction]) -> tuple[int, int]:
    """First and last instruction of the main loop."""
    spans = sorted(set(_find_loops(code)))
    works = {span: sum(_count_multiply_adds(x) for x in code[span[0] : span[1] + 1]) for span in spans}

    def own(span: tuple[int, int]) -> int:
        inside = [(a, b) for a, b in spans if (a, b) != span and span[0] <= a and b <= span[1]]
        outermost = [x for x in inside if not any(x != y and y[0] <= x[0] and x[1] <= y[1] for y in inside)]
        return works[span] - sum(works[x] for x in outermost)

    return max(spans, key=own, default=(0, len(code) - 1))


def _find_loops(code: Sequence[Instruction]) -> list[tuple[int, int]]:
    """(first, last) instruction of each loop: from the target of a backward branch to the branch. A branch to
    itself, which ends a function, is no loop."""
    found = []
    for number, x in enumerate(code):
        target = re.search(r"0x([0-9a-f]+)\s*$", x.operands)
        if x.name == "BRA" and target and int(target[1], 16) // BYTES < number:
            found.append((int(target[1], 16) // BYTES, number))
    return found


def _count_multiply_adds(x: Instruction) -> int:
    return MULTIPLY_ADDS.get(x.name, 0) * x.products


@dataclass(frozen=True)
class Account:
    """Instruction counts of a main loop, and the global loads of the loop that fetches its tiles."""

    instructions: int
    names: Counter[str]
    shared_loads: Counter[int]
    """Number of loads by bytes for each lane."""
    global_loads: Counter[int]
    async_copies: Counter[int]
    matrix_loads: int
    group_products: int
    """HGMMA instructions, which read their factors from shared memory."""
    products: int
    """Instructions that multiply and add; an HGMMA counts as the equivalent number of HMMA."""
    multiply_adds: int
    """Multiply-adds of a lane in one trip."""
    integer: int
    spills: int
    """Accesses to local memory in the whole kernel."""
    bytes_in_flight: int
    """Most bytes for each lane loaded from global memory before the first of them is used."""

    def share(self, name: str) -> float:
        """Share of the instructions with this opcode."""
        return self.names[name] / self.instructions

    @property
    def tensor_share(self) -> float:
        """Share of tensor-core instructions; an HGMMA counts as the equivalent number of HMMA."""
        others = self.names["HMMA"] + self.names["IMMA"]
        grouped = self.products - sum(self.names[n] for n in MULTIPLY_ADDS if n != "HGMMA")
        return (others + grouped) / (self.instructions - self.group_products + grouped)

    @property
    def integer_per_multiply_add(self) -> float:
        """Integer instructions for each instruction that multiplies and adds."""
        return self.integer / self.products if self.products else float("inf")


def count_main_loop(code: Sequence[Instruction]) -> Account:
    """Count a kernel's main loop, without what never runs: ptxas puts that before asynchronous copies."""
    loop, fetching = (
        [x for x in found if x.predicate != NEVER]
        for found in (derive_main_loop(code), derive_fetching_loop(code))
    )
    return Account(
        instructions=len(loop),
        names=Counter(x.name for x in loop),
        shared_loads=Counter(x.bytes for x in loop if x.name == "LDS"),
        global_loads=Counter(x.bytes for x in fetching if x.name == "LDG"),
        async_copies=Counter(x.bytes for x in fetching if x.name == "LDGSTS"),
        matrix_loads=sum(x.name == "LDSM" for x in loop),
        group_products=sum(x.name == "HGMMA" for x in loop),
        products=sum(x.products for x in loop),
        multiply_adds=sum(_count_multiply_adds(x) for x in loop),
        integer=sum(x.name in INTEGER for x in loop),
        spills=sum(x.name in ("LDL", "STL") for x in code),
        bytes_in_flight=_count_bytes_in_flight(fetching),
    )


def _count_bytes_in_flight(loop: Sequence[Instruction]) -> int:
    """Two trips of the loop, one after the other: loads may be used in the trip after their own."""
    waiting: dict[int, int] = {}
    most = 0
    for x in (*loop, *loop):
        target, _, rest = x.operands.partition(",")
        for register in _find_read_registers(x, rest) & waiting.keys():
            del waiting[register]
        if x.name == "LDG":
            first = min(_find_registers(target), default=0)
            waiting |= {first + i: 4 for i in range(max(x.bytes // 4, 1))}
            most = max(most, sum(waiting.values()))
    return most


def _find_read_registers(x: Instruction, rest: str) -> set[int]:
    """Registers that an instruction needs; `rest` are its operands after the first."""
    if x.name == "LDG":
        return _find_registers(rest)
    if x.name in ("STG", "STS"):
        first = max(_find_registers(rest), default=0)
        return _find_registers(x.operands) | set(range(first, first + x.bytes // 4))
    return _find_registers(x.operands)


def _find_registers(text: str) -> set[int]:
    """Numbers of the registers named; R4.64 is two."""
    found: set[int] = set()
    for number, pair in _REGISTER.findall(text):
        found |= {int(number), int(number) + 1} if pair else {int(number)}
    return found
