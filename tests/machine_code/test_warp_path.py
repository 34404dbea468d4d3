"""Cycles of a warp alone and conflicts of register banks: instructions made up here, and real ones."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.codegen import nvrtc
from ekc.machine_code.decode import MachineCode, decode_functions
from ekc.machine_code.warp_path import LOAD_CYCLES, count_machine_code, mark_bank_conflicts, measure_path
from ekc.ptx.counting.branch_slice import ONE_WARP
from ekc.ptx.counting.counts import list_instruction_runs
from ekc.ptx.parser import parse_module
from tests.devices import samples

FFMA, LDS, LDG, BRA, NONE = 0x023, 0x184, 0x181, 0x147, 7


@dataclass(frozen=True)
class Line:
    """An instruction: what it does, cycles until the next, scoreboard it sets, scoreboards it waits for."""

    opcodes: int
    cycles: int = 1
    result_boards: int = NONE
    waits: int = 0
    sources: tuple[int, int, int] = (0, 1, 2)
    is_kept: tuple[bool, bool, bool] = (False, False, False)


def assemble(*lines: Line, targets: dict[int, int] | None = None) -> MachineCode:
    columns = {x.name: np.array([getattr(one, x.name) for one in lines]) for x in fields(Line)}
    count = len(lines)
    return MachineCode(
        **columns,
        bytes_per_lane=np.full(count, 4),
        is_guarded=np.zeros(count, np.bool_),
        targets=targets or {},
        operand_boards=np.full(count, NONE),
        has_three_registers=np.ones(count, np.bool_),
    )


def test_use_of_a_shared_load_waits_for_what_is_left_of_its_latency() -> None:
    between = [Line(FFMA, 4), Line(FFMA, 4), Line(FFMA, 4)]
    code = assemble(Line(LDS, 1, result_boards=0), *between, Line(FFMA, 4, waits=1))
    # The load issues at 0, its result is there at 30, and the last instruction takes 4.
    assert measure_path(code, np.ones(5)) == (34.0,) * 4
    far = assemble(Line(LDS, 1, result_boards=0), *between * 10, Line(FFMA, 4, waits=1))
    assert measure_path(far, np.ones(32)) == (1.0 + 30 * 4 + 4,) * 4


def test_global_loads_take_each_of_the_latencies() -> None:
    code = assemble(Line(LDG, 2, result_boards=3), Line(FFMA, 5, waits=1 << 3))
    assert measure_path(code, np.ones(2)) == tuple(cycles + 5 for cycles in LOAD_CYCLES)
    # Two loads that are in flight together are waited for once.
    both = assemble(Line(LDG, 2, result_boards=3), Line(LDG, 2, result_boards=3), Line(FFMA, 5, waits=1 << 3))
    assert measure_path(both, np.ones(3)) == tuple(2 + cycles + 5 for cycles in LOAD_CYCLES)


def test_loop_whose_load_is_used_in_the_next_trip_hides_it() -> None:
    """A trip of 1 + 400 + 4 cycles; the load at its start is for the trip after."""

    def loop(first: Line, last: Line) -> tuple[float, ...]:
        code = assemble(first, *[Line(FFMA, 4)] * 100, last, Line(BRA, 4), targets={102: 0})
        return measure_path(code, np.full(103, 50.0))

    trip = 1 + 400 + 1 + 4
    hidden = loop(Line(LDG, 1, result_boards=0, waits=1), Line(FFMA, 1))
    assert hidden[1] == 50 * trip
    assert hidden[3] == pytest.approx(trip + 49 * LOAD_CYCLES[3])
    exposed = loop(Line(LDG, 1, result_boards=0), Line(FFMA, 1, waits=1))
    assert exposed[3] == 50 * (LOAD_CYCLES[3] + 1 + 4)


@given(trips=st.integers(1, 9), inner=st.integers(1, 9))
def test_nested_loops_take_their_trips(trips: int, inner: int) -> None:
    lines = [Line(FFMA, 3), Line(FFMA, 5), Line(BRA, 2), Line(BRA, 7), Line(FFMA, 1)]
    code = assemble(*lines, targets={2: 1, 3: 0})
    runs = np.array([trips, trips * inner, trips * inner, trips, 1], np.float64)
    assert measure_path(code, runs)[0] == pytest.approx(trips * (3 + inner * 7 + 7) + 1)


@pytest.mark.parametrize(
    ("sources", "before", "conflicts"),
    [
        ((2, 4, 6), (False, False, False), True),
        ((3, 5, 7), (False, False, False), True),
        ((2, 4, 7), (False, False, False), False),
        ((2, 4, 4), (False, False, False), False),
        ((2, 255, 6), (False, False, False), False),
        ((2, 4, 6), (True, False, False), False),
    ],
)
def test_three_operands_of_one_bank_conflict(
    sources: tuple[int, int, int], before: tuple[bool, bool, bool], conflicts: bool
) -> None:
    """Even and odd registers are the banks; 255 is zero; an operand may still be there from before."""
    code = assemble(Line(FFMA, sources=(sources[0], 9, 10), is_kept=before), Line(FFMA, sources=sources))
    assert mark_bank_conflicts(code).tolist() == [False, conflicts]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_90", "sm_120"])
def test_real_code_waits_for_its_loads(arch: str) -> None:
    """A chain of 64 dependent loads takes 64 latencies, and some cycles more for the addresses."""
    text = """extern "C" __global__ void chase(const int* next, int* out) { int at = threadIdx.x;
        #pragma unroll 1
        for (int i = 0; i < 64; ++i) at = next[at];
        out[threadIdx.x] = at; }"""
    output = nvrtc.compile(text, arch)
    kernel = parse_module(output.ptx).find_kernel("chase")
    runs = {one.line: times for one, times in list_instruction_runs(kernel, ONE_WARP)}
    found = count_machine_code(decode_functions(output.cubin, arch)["chase"], kernel, runs)
    for cycles, path in zip(LOAD_CYCLES, found.path_cycles, strict=True):
        assert 64 * cycles < path < 64 * (cycles + 40) + 200
    assert found.local_requests == 0


def test_counts_of_a_product() -> None:
    kernel = samples.sgemm(1024)
    parsed = parse_module(kernel.ptx).find_kernel("sgemm")
    runs = {one.line: times for one, times in list_instruction_runs(parsed, ONE_WARP)}
    code = decode_functions(kernel.cubin, "sm_80")["sgemm"]
    found = count_machine_code(code, parsed, runs)
    products = 64 * 1024
    assert products < found.instructions < 1.25 * products
    assert found.integers + found.integer_products < 0.1 * products
    assert 0 <= found.bank_conflicts < 0.2 * products
    # The tiles come a trip ahead, so the latency of L2 hides behind the products.
    assert products < found.path_cycles[0] <= found.path_cycles[1] < 1.05 * found.path_cycles[0]
