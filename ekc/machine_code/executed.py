"""How often each machine instruction runs: loops of the machine code joined with those of the PTX.

The PTX says how often its loops run. ptxas writes some of them out and unrolls others. It keeps the products,
the barriers and the bytes that a trip moves. So loops of both are matched in their order and by the shares of
these, and a loop whose trip has u times as much work runs 1/u as often.

    PTX: 64 trips of 8 multiply-adds; machine code: a loop of 32 of them, and of 3 accesses to local memory
    -> the loop runs 16 times, and a warp accesses local memory 48 times
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.machine_code.decode import MachineCode
from ekc.ptx.cfg import derive_loop_ranges, split_blocks
from ekc.ptx.counting.counts import list_counts
from ekc.ptx.module import KernelText

Amounts = NDArray[np.float64]
"""Amounts of `KEPT`, [9]."""
KEPT: Mapping[str, tuple[str, ...]] = {
    "fma32": ("FFMA",),
    "tensor": ("HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA"),
    "sfu": ("MUFU",),
    "shuffle": ("SHFL",),
    "barrier": ("BAR",),
    "bytes_load_global": ("LDG", "LDGSTS"),
    "bytes_store_global": ("STG",),
    "bytes_load_shared": ("LDS", "LDSM"),
    "bytes_store_shared": ("STS", "LDGSTS"),
}
"""Kept by ptxas in a trip: field of `InstructionCounts` -> machine instructions, or bytes they move."""
ACCESSES = ("LDG", "STG", "LDGSTS", "LDS", "STS", "LDSM", "LDL", "STL", "LD", "ST")
"""Names of accesses to memory that move a width of bytes; LD and ST go through generic pointers."""
ATOMICS = ("RED", "REDG", "ATOMG", "ATOMS")
"""Names of atomics, with and without a result. The code has their type where accesses have their width."""
_SKIP_PTX, _SKIP_MACHINE = 0.6, 0.9
"""Costs of the matching beside the distance of two loops, 0 to 1: of a loop that ptxas wrote out, and of a
loop that the PTX does not have."""


@dataclass(eq=False)
class _Loop:
    """A loop of PTX or machine code, or the whole of it."""

    first: int
    last: int
    """Blocks of the PTX, or positions of instructions; both belong to it."""
    amounts: Amounts
    """Work of one trip, nested loops included: of PTX as executed, of machine code as written."""
    runs: float = 1.0
    """Trips in all."""
    children: list[_Loop] = field(default_factory=list)


def count_runs(
    code: MachineCode, kernel: KernelText, runs_by_line: Mapping[int, float]
) -> NDArray[np.float64]:
    """Runs of each machine instruction by a warp, [n]. `runs_by_line`: runs of each instruction of the PTX,
    by its line; where they are means over warps, so is the result.

    A guarded instruction of `KEPT` runs as often as makes the sum that of the PTX, which has a branch in the
    place of the guard; any other guard counts as true."""
    weights = _weigh(code)
    ptx, machine = _build_ptx_loops(kernel, runs_by_line), _build_machine_loops(code, weights)
    _join(ptx, machine)
    runs = np.ones(len(code.opcodes))
    for loop in _walk(machine):
        runs[loop.first : loop.last + 1] = loop.runs
    is_left = code.is_guarded.copy()
    for place, names in enumerate(KEPT.values()):
        amounts = runs * weights[:, place]
        guarded = is_left & code.find(*names)
        is_left &= ~guarded
        if some := amounts[guarded].sum():
            runs[guarded] *= np.clip((ptx.amounts[place] - amounts[~guarded].sum()) / some, 0.0, 1.0)
    # No warp reaches the branch to itself at the end of a function, nor the padding behind it.
    padding = max((branch for branch, target in code.targets.items() if branch == target), default=len(runs))
    runs[padding:] = 0.0
    return runs


def _walk(loop: _Loop) -> Iterable[_Loop]:
    """The loop and all nested ones, outer ones first."""
    yield loop
    for child in loop.children:
        yield from _walk(child)


def _weigh(code: MachineCode) -> NDArray[np.float64]:
    """Amounts of `KEPT` by instruction, [n, 9]."""
    amounts = [
        code.find(*names) * np.where(kept.startswith("bytes"), code.bytes_per_lane, 1)
        for kept, names in KEPT.items()
    ]
    return np.stack(amounts, axis=1).astype(np.float64)


def _build_machine_loops(code: MachineCode, weights: NDArray[np.float64]) -> _Loop:
    sums = np.concatenate([np.zeros((1, len(KEPT))), np.cumsum(weights, axis=0)])
    return _nest([_Loop(a, b, sums[b + 1] - sums[a]) for a, b in [(0, len(weights) - 1), *code.loops]])


def _build_ptx_loops(kernel: KernelText, runs_by_line: Mapping[int, float]) -> _Loop:
    blocks = split_blocks(kernel)
    runs = np.array(
        [runs_by_line.get(b.instructions[0].line, 0.0) if b.instructions else 0.0 for b in blocks]
    )
    places = {kept: place for place, kept in enumerate(KEPT)}
    executed = np.zeros((len(blocks) + 1, len(KEPT)))
    for block, times in zip(blocks, runs, strict=True):
        for one in block.instructions:
            for kept, amount in list_counts(one, one.parts):
                if kept in places:
                    executed[block.number + 1, places[kept]] += times * amount
    sums = np.cumsum(executed, axis=0)
    loops = [_Loop(0, len(blocks) - 1, sums[-1])]
    loops += [
        _Loop(first, last, (sums[last + 1] - sums[first]) / runs[first], float(runs[first]))
        for first, last in derive_loop_ranges((b.number, target) for b in blocks for target in b.exit.targets)
        if runs[first]
    ]
    return _nest(loops)


def _nest(loops: Sequence[_Loop]) -> _Loop:
    """Put each loop into the smallest one around it; the first has all, outer ones come before inner ones."""
    path = [loops[0]]
    for loop in loops[1:]:
        enter_loop(path, loop)
    return loops[0]


def enter_loop(path: list[Any], loop: Any) -> None:
    """Add a loop to the smallest one around it; `path` has those around the last one, outer ones first."""
    while not (path[-1].first <= loop.first and loop.last <= path[-1].last):
        path.pop()
    path[-1].children.append(loop)
    path.append(loop)


def _join(ptx: _Loop, machine: _Loop) -> None:
    """Set the runs of all loops inside `machine`, which is made of `ptx`."""
    for source, copy in _match(ptx.children, machine.children):
        if source is None:
            # ptxas wrote out the loop of the PTX around it, or it is a loop of a subroutine.
            copy.runs = machine.runs
            _join(ptx, copy)
        else:
            copy.runs = machine.runs * source.runs / ptx.runs / _find_factor(source, copy)
            _join(source, copy)


def _find_factor(source: _Loop, copy: _Loop) -> int:
    """How many trips of the PTX one trip of the machine code has."""
    both = (source.amounts > 0) & (copy.amounts > 0)
    if not both.any():
        return 1
    most = int(np.argmax(np.where(both, source.amounts, -1.0)))
    return max(1, round(float(copy.amounts[most] / source.amounts[most])))


def _match(sources: Sequence[_Loop], copies: Sequence[_Loop]) -> list[tuple[_Loop | None, _Loop]]:
    """Each loop of machine code with the loop of the PTX that it comes from, both in order, at least cost."""
    costs = {(0, 0): 0.0}
    steps: dict[tuple[int, int], tuple[int, int]] = {}
    for i in range(len(sources) + 1):
        for j in range(len(copies) + 1):
            ways = {}
            if i:
                ways[1, 0] = costs[i - 1, j] + _SKIP_PTX
            if j:
                ways[0, 1] = costs[i, j - 1] + _SKIP_MACHINE
            if i and j:
                distance = _measure_distance(sources[i - 1].amounts, copies[j - 1].amounts)
                ways[1, 1] = costs[i - 1, j - 1] + distance
            if ways:
                steps[i, j] = min(ways, key=lambda way: ways[way])
                costs[i, j] = ways[steps[i, j]]
    pairs: list[tuple[_Loop | None, _Loop]] = []
    i, j = len(sources), len(copies)
    while i or j:
        step = steps[i, j]
        if step[1]:
            pairs.append((sources[i - 1] if step[0] else None, copies[j - 1]))
        i, j = i - step[0], j - step[1]
    return pairs[::-1]


def _measure_distance(one: Amounts, other: Amounts) -> float:
    """Half the summed difference of the shares: 0 for loops of the same work, 1 for nothing in common."""
    if not one.any() or not other.any():
        return float(one.any() != other.any())
    return 0.5 * float(np.abs(one / one.sum() - other / other.sum()).sum())


@dataclass(frozen=True)
class MachineAccess:
    """Accesses to memory of one kind, as ptxas made them."""

    name: str
    """Instruction and bits of a lane, such as "LDS.128", or an atomic, such as "RED". "LDL.32" and "STL.32"
    are spilled registers, and arrays that a thread keeps in local memory."""
    in_code: int
    """Such instructions in the machine code."""
    per_warp: float
    """Such instructions that a warp executes, mean over the warps."""


def list_machine_accesses(code: MachineCode, runs: NDArray[np.float64]) -> tuple[MachineAccess, ...]:
    """The accesses of a function to memory, the most executed first. `runs`: of `count_runs`."""
    found = []
    for name in (*ACCESSES, *ATOMICS):
        places = code.find(name)
        widths = code.bytes_per_lane * np.isin(name, ACCESSES)
        for width in np.unique(widths[places]).tolist():
            own, label = places & (widths == width), f"{name}.{8 * width}" if width else name
            found.append(MachineAccess(label, int(own.sum()), float(runs[own].sum())))
    return tuple(sorted(found, key=lambda one: (-one.per_warp, one.name)))
