"""Instructions that a warp executes, and its cycles where it has an SM for itself, from its machine code.

The control bits of each instruction say how many cycles the next one has to wait, and which scoreboards it
waits for itself. With the latency of what sets a scoreboard, that gives when each instruction issues. A loop
is followed for two trips: the second is like all further ones.

    LDS sets board 0; FFMA, FFMA, FFMA (4 cycles); FFMA that waits for board 0
    -> 30 cycles from the load to the last one, of which 18 are a wait

The latency of global loads depends on where the data are, so the cycles are found for several of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.machine_code.decode import MachineCode
from ekc.machine_code.executed import count_runs, enter_loop
from ekc.ptx.module import KernelText

L1_CYCLES, L2_CYCLES = 38.0, 262.0
"""Latencies of a global load that hits L1 or L2: 38 and 262 on an A100, 41 and 263 on an H100, 43 and 273 on
an RTX 4090 (Luo et al., arXiv 2402.13499)."""
LOAD_CYCLES = (L1_CYCLES, L2_CYCLES, 500.0, 1000.0)
"""Latencies of a global load for which the path of a warp is found; the last two are of DRAM."""
_SHARED_CYCLES = 30.0
"""From a load of shared memory or a shuffle to the first use of its result (29 to 30, the same source)."""
_OTHER_CYCLES, _OPERAND_CYCLES = 20.0, 12.0
"""From a special function, a conversion or a special register to the first use of its result; from an access
to the first write of its operands (estimate)."""
_SHARED, _LOCAL, _GLOBAL = ("LDS", "LDSM", "SHFL", "ATOMS"), ("LDL",), ("LDG", "LD", "ATOMG", "RED", "REDG")
_BOARDS = 6
_SELDOM = 0.5
"""Part of the trips of a loop below which an instruction delays nothing there."""
INTEGER_NAMES = (
    "MOV", "P2R", "SEL", "FSEL", "FMNMX", "FSETP", "ISETP", "IADD3", "LEA", "LOP3", "IABS", "PRMT", "IMNMX",
    "SHF", "PLOP3", "VIADD", "VIADDMNMX", "VIMNMX",
)  # fmt: skip
"""Instructions of the integer pipe, which also compares and selects floats."""
_NO_REGISTER = 255
_BANKS = 2
"""Banks of registers of a warp, even and odd numbers. Three operands of one instruction out of one bank take
a cycle more (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018)."""


@dataclass(frozen=True)
class _Signal:
    """An instruction that waits for scoreboards or sets them."""

    position: int
    waits: tuple[int, ...]
    sets: tuple[tuple[int, float | None], ...]
    """(scoreboard, cycles); None for a global load."""


@dataclass(eq=False)
class _Stretch:
    """A loop of the machine code, or the whole of it."""

    first: int
    last: int
    runs: float
    """Trips in all."""
    children: list[_Signal | _Stretch] = field(default_factory=list)
    """Signals and nested loops, in order."""


def measure_path(code: MachineCode, runs: NDArray[np.float64]) -> tuple[float, ...]:
    """Cycles of a warp alone from start to end, for each of `LOAD_CYCLES`. `runs`: of `count_runs`."""
    whole = _build_stretches(code, runs)
    elapsed = np.concatenate([[0.0], np.cumsum(code.cycles * runs)]).tolist()
    return tuple(_Clock(elapsed, cycles).run(whole) for cycles in LOAD_CYCLES)


def _build_stretches(code: MachineCode, runs: NDArray[np.float64]) -> _Stretch:
    """Loops with what is in them, nested."""
    whole = _Stretch(0, len(runs) - 1, 1.0)
    loops = [_Stretch(first, last, float(runs[first])) for first, last in code.loops]
    path, waiting = [whole], list(reversed(loops))
    signals = np.flatnonzero(
        (code.waits > 0) | (code.result_boards < _BOARDS) | (code.operand_boards < _BOARDS)
    )
    latencies = _list_latencies(code)
    for position in signals.tolist():
        while waiting and waiting[-1].first <= position:
            enter_loop(path, waiting.pop())
        while not path[-1].first <= position <= path[-1].last:
            path.pop()
        if runs[position] >= _SELDOM * path[-1].runs:
            path[-1].children.append(_make_signal(code, latencies, position))
    for loop in reversed(waiting):
        enter_loop(path, loop)
    return whole


def _list_latencies(code: MachineCode) -> list[float | None]:
    """Cycles from each instruction to its result; None for a global load."""
    latencies = np.full(len(code.opcodes), _OTHER_CYCLES)
    latencies[code.find(*_SHARED)] = _SHARED_CYCLES
    latencies[code.find(*_LOCAL)] = L1_CYCLES
    is_global = code.find(*_GLOBAL).tolist()
    return [None if far else one for one, far in zip(latencies.tolist(), is_global, strict=True)]


def _make_signal(code: MachineCode, latencies: Sequence[float | None], position: int) -> _Signal:
    waits = int(code.waits[position])
    boards = (
        (int(code.result_boards[position]), latencies[position]),
        (int(code.operand_boards[position]), _OPERAND_CYCLES),
    )
    return _Signal(
        position,
        tuple(board for board in range(_BOARDS) if waits >> board & 1),
        tuple((board, cycles) for board, cycles in boards if board < _BOARDS),
    )


class _Clock:
    """Time along the code of one warp, and when each scoreboard is set."""

    def __init__(self, elapsed: Sequence[float], load_cycles: float) -> None:
        self._elapsed, self._load_cycles = elapsed, load_cycles
        self._now = 0.0
        self._ready = [0.0] * _BOARDS

    def run(self, whole: _Stretch) -> float:
        """Cycles from start to end."""
        self._run_trip(whole)
        return self._now

    def _run_trip(self, stretch: _Stretch) -> None:
        elapsed, at = self._elapsed, stretch.first
        for part in stretch.children:
            begin = part.position if isinstance(part, _Signal) else part.first
            self._now += (elapsed[begin] - elapsed[at]) / stretch.runs
            if isinstance(part, _Signal):
                self._pass(part)
                at = begin
            else:
                self._run_loop(part, part.runs / stretch.runs)
                at = part.last + 1
        self._now += (elapsed[stretch.last + 1] - elapsed[at]) / stretch.runs

    def _pass(self, signal: _Signal) -> None:
        for board in signal.waits:
            self._now = max(self._now, self._ready[board])
        for board, cycles in signal.sets:
            latency = self._load_cycles if cycles is None else cycles
            self._ready[board] = max(self._ready[board], self._now + latency)

    def _run_loop(self, loop: _Stretch, trips: float) -> None:
        """Two trips, and as many more like the second as there are."""
        if trips <= 0.0:
            return
        begin = self._now
        self._run_trip(loop)
        if trips > 1.0:
            begin = self._now
            self._run_trip(loop)
        rest = (trips - min(2.0, max(1.0, np.ceil(trips)))) * (self._now - begin)
        self._now += rest
        self._ready = [time + rest for time in self._ready]


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
        bank_conflicts=float(runs[mark_bank_conflicts(code)].sum()),
        local_requests=sum_runs("LDL", "STL"),
        path_cycles=measure_path(code, runs),
    )


def mark_bank_conflicts(code: MachineCode) -> NDArray[np.bool_]:
    """Where three operands of an FFMA come out of one bank, [n]. An operand that the instruction before left
    in the cache of operands comes from there."""
    kept = np.zeros_like(code.is_kept)
    kept[1:] = code.is_kept[:-1] & (code.sources[1:] == code.sources[:-1])
    a, b, c = code.sources.T
    is_alone = (code.sources != _NO_REGISTER).all(axis=1) & ~kept.any(axis=1)
    same_bank = (a % _BANKS == b % _BANKS) & (b % _BANKS == c % _BANKS)
    differ = (a != b) & (b != c) & (a != c)
    return np.asarray(code.find("FFMA") & code.has_three_registers & is_alone & same_bank & differ)
