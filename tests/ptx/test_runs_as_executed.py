"""Runs of instructions that are counted equal those of an execution, on random nests of loops and guards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.block_execution import execute_blocks
from ekc.codegen import nvrtc
from ekc.devices.simulated.launch_counts import KernelStart
from ekc.ptx.counting.branch_slice import Threads
from ekc.ptx.counting.counts import list_instruction_runs
from ekc.ptx.parser import parse_module
from tests.ptx.helpers import TOUCH, make_loop

GRID, BLOCK = (3, 1, 1), (64, 1, 1)
MAX_DEPTH = 3
CONDITIONS = ("{} > 5", "{} % 3 == 0", "({} & 5) == 1", "{} < 9")
STARTS = ("0", "1", "t % 4", "b")
STEPS = ("++i{0}", "i{0} += 2", "i{0} += 1 + b")


@st.composite
def draw_number(draw: st.DrawFn, depth: int) -> str:
    """A sum of thread, block and the counters around, times small numbers."""
    name = st.sampled_from(["t", "b", *(f"i{n}" for n in range(depth))])
    factor, offset = draw(st.integers(-3, 3)), draw(st.integers(-4, 12))
    return f"({factor} * {draw(name)} + {draw(name)} + {offset})"


@st.composite
def draw_body(draw: st.DrawFn, depth: int = 0, guards: int = 0) -> str:
    """CUDA text: one or two loads, guards and loops, nested."""
    text = ""
    for _ in range(draw(st.integers(1, 2))):
        kinds = ["load", *["loop"] * (depth < MAX_DEPTH), *["guard"] * (guards < MAX_DEPTH)]
        kind = draw(st.sampled_from(kinds))
        if kind == "load":
            text += TOUCH.format(draw(draw_number(depth)) + " & 1023")
        elif kind == "guard":
            condition = draw(st.sampled_from(CONDITIONS)).format(draw(draw_number(depth)))
            text += f"if ({condition}) {{ {draw(draw_body(depth, guards + 1))} }}"
            if draw(st.booleans()):
                text += f" else {{ {draw(draw_body(depth, MAX_DEPTH))} }}"
        else:
            bounds = ["3", "1 + t / 16", "2 + b", f"{draw(draw_number(depth))} % 6"]
            start, bound, step = (draw(st.sampled_from(each)) for each in (STARTS, bounds, STEPS))
            head = f"int i{depth} = {start}; i{depth} < {bound}; {step.format(depth)}"
            text += make_loop(head, draw(draw_body(depth + 1, guards)))
    return text


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
@settings(max_examples=25, deadline=None)
@given(body=draw_body())
def test_counted_runs_are_those_of_an_execution(arch: str, body: str) -> None:
    source = (
        'extern "C" __global__ void k(const float* __restrict__ a, float* c) {\n'
        f"const int t = threadIdx.x, b = blockIdx.x; float s = 0;\n{body}\nc[b * 64 + t] = s; }}"
    )
    ptx = nvrtc.compile(source, arch).ptx
    threads = Threads(GRID, BLOCK, tuple(range(GRID[0])))
    counted = list_instruction_runs(parse_module(ptx).find_kernel("k"), threads)
    arrays = {"a": np.zeros(1024, np.float32), "c": np.zeros(GRID[0] * BLOCK[0], np.float32)}
    executed = execute_blocks(ptx, KernelStart("k", GRID, BLOCK, arrays), range(GRID[0]))
    assert {one.line: n for one, n in counted} == pytest.approx({one.line: n for one, n in executed.runs})
