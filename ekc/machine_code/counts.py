"""What a warp executes of the machine code of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.machine_code.decode import MachineCode
from ekc.machine_code.executed import count_runs
from ekc.machine_code.warp_path import measure_path
from ekc.ptx.module import KernelText

INTEGER_NAMES = (
    *(
        "MOV",
        "P2R",
        "SEL",
        "FSEL",
        "FMNMX",
        "FSETP",
        "ISETP",
        "IADD3",
        "LEA",
        "LOP3",
        "IABS",
        "PRMT",
        "IMNMX",
    ),
    *("SHF", "PLOP3", "VIADD", "VIADDMNMX", "VIMNMX"),
)
"""Instructions of the integer pipe, which also compares and selects floats."""
_NO_REGISTER = 255
_BANKS = 2
"""Banks of registers of a warp, even and odd numbers. Three operands of one instruction out of one bank take
a cycle more (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018)."""


@dataclass(frozen=True)
class MachineCounts:
    """Executed machine instructions of a warp, mean over the warps."""

    instructions: float
    integers: float
    """Those of the integer pipe."""
    integer_products: float
    """Products and sums of integers (IMAD), which the pipe of float32 does."""
    bank_conflicts: float
    """FFMA whose three operands come out of one bank of registers."""
    local_requests: float
    """Accesses to local memory: spilled registers, and arrays that no register holds."""
    path_cycles: tuple[float, ...]
    """Cycles of a warp that has an SM for itself, for each latency of `LOAD_CYCLES`."""


def count_machine_code(
    code: MachineCode, kernel: KernelText, runs_by_line: Mapping[int, float]
) -> MachineCounts:
    """The counts of one launch; arguments as of `count_runs`."""
    runs = count_runs(code, kernel, runs_by_line)

    def sum_runs(*names: str) -> float:
        return float(runs[code.find(*names)].sum())

    return MachineCounts(
        instructions=float(runs.sum()),
        integers=sum_runs(*INTEGER_NAMES),
        integer_products=sum_runs("IMAD"),
        bank_conflicts=float(runs[find_bank_conflicts(code)].sum()),
        local_requests=sum_runs("LDL", "STL"),
        path_cycles=measure_path(code, runs),
    )


def find_bank_conflicts(code: MachineCode) -> NDArray[np.bool_]:
    """Where three operands of an FFMA come out of one bank, [n]. An operand that the instruction before left
    in the cache of operands comes from there."""
    kept = np.zeros_like(code.is_kept)
    kept[1:] = code.is_kept[:-1] & (code.sources[1:] == code.sources[:-1])
    a, b, c = code.sources.T
    is_alone = (code.sources != _NO_REGISTER).all(axis=1) & ~kept.any(axis=1)
    same_bank = (a % _BANKS == b % _BANKS) & (b % _BANKS == c % _BANKS)
    differ = (a != b) & (b != c) & (a != c)
    return np.asarray(code.find("FFMA") & code.has_three_registers & is_alone & same_bank & differ)
