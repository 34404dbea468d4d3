"""Loops whose trips differ: branches that the counter decides, and what LLVM makes of such loops."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.codegen import nvrtc
from ekc.codegen.generate import compile_schedule
from ekc.errors import EkcError
from ekc.ptx.counting import trip_counts
from ekc.ptx.counting.counts import InstructionCounts, count_instructions
from ekc.search.space.space import Space

BOTH = pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
TOUCH = "s += *(volatile const float*)&a[{}];"


def counted(body: str, arch: str = "sm_80") -> InstructionCounts:
    """Counts of a kernel that may read `a`, write `c` and use `s`, `t`."""
    source = (
        'extern "C" __global__ void k(const float* __restrict__ a, float* c) {\n'
        f"const int t = threadIdx.x; float s = 0;\n{body}\nc[t] = s; }}"
    )
    return count_instructions(nvrtc.compile(source, arch).ptx, "k")


def loop(head: str, inner: str) -> str:
    return f"\n#pragma unroll 1\nfor ({head}) {{\n{inner}\n}}"


# Condition on the counter i < 40, and in how many trips it holds.
GUARDS = [
    ("i + 1 < 40", 39),
    ("i > 0", 39),
    ("i % 4 == 0", 10),
    ("i == 7", 1),
    ("i < 10 || i >= 35", 15),
    ("i * i < 50", 8),
    ("(i & 1) == 0 && i > 20", 9),
]


@BOTH
@pytest.mark.parametrize(("condition", "trips"), GUARDS)
def test_code_that_the_counter_guards_counts_where_it_runs(condition: str, trips: int, arch: str) -> None:
    body = f"if ({condition}) {{ {TOUCH.format('i * t')} }} __syncthreads();"
    got = counted(loop("int i = 0; i < 40; ++i", body), arch)
    assert (got.load_global, got.barrier) == (trips, 40)


@BOTH
def test_run_time_guards_within_known_ones_count_as_taken(arch: str) -> None:
    inner = "".join(f"if (t < {n}) {{ {TOUCH.format(f'i + t * {n}')} }}" for n in (50, 60, 70))
    got = counted(loop("int i = 0; i < 40; ++i", f"if (i + 1 < 40) {{ {inner} }} __syncthreads();"), arch)
    assert (got.load_global, got.barrier) == (3 * 39, 40)


@BOTH
def test_a_guard_on_the_outer_counter_multiplies_with_the_inner_trips(arch: str) -> None:
    inner = loop("int j = 0; j < 9; ++j", f"if (j != 4) {{ {TOUCH.format('i * t + j')} }} __syncthreads();")
    got = counted(loop("int i = 0; i < 20; ++i", f"if (i >= 5) {{ {inner} }} __syncthreads();"), arch)
    assert (got.load_global, got.barrier) == (15 * 8, 15 * 9 + 20)


@BOTH
def test_two_sides_that_the_counter_tells_apart(arch: str) -> None:
    body = f"if (i < 8) {{ {TOUCH.format('i')} }} else {{ __syncthreads(); }}"
    got = counted(loop("int i = 0; i < 30; ++i", body), arch)
    assert (got.load_global, got.barrier) == (8, 22)


STAGES = """
__shared__ float buffer[2][256];
#pragma unroll 1
for (int i = 0; i < 6; ++i) {
  buffer[0][t] = a[i * 999 + t];
  __syncthreads();
  #pragma unroll 1
  for (int k = 0; k < 2; ++k) {
    float next[3];
    if (k + 1 < 2) {
      #pragma unroll
      for (int n = 0; n < 3; ++n)
        if (n * 90 + t < 256) next[n] = *(volatile const float*)&a[i * 999 + k * 333 + n * 90 + t];
    }
    s += buffer[k % 2][t ^ 1];
    if (k + 1 < 2) {
      #pragma unroll
      for (int n = 0; n < 3; ++n) if (n * 90 + t < 256) buffer[(k + 1) % 2][n * 90 + t] = next[n];
    }
    __syncthreads();
  }
}
"""


@BOTH
def test_a_pipelined_loop_whose_exit_is_threaded_through_its_guards(arch: str) -> None:
    # LLVM makes the exit's predicate a constant on each way through the guards.
    got = counted(STAGES, arch)
    assert got.load_global == 6 * (1 + 3)
    assert got.barrier == 6 * (1 + 2)
    assert got.load_shared == 6 * 2
    assert got.store_shared == 6 * (1 + 3)


def test_a_loop_of_too_many_trips_is_refused_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trip_counts, "_MOST_FOLLOWED", 1000)
    head = "unsigned i = 1, n = 0; n < {}; i = i * 5u & 0xffffu, ++n"
    inner = f"if (i & 64u) {TOUCH.format('i')}"
    assert counted(loop(head.format(999), inner)).load_global > 400
    with pytest.raises(
        EkcError, match=r"cannot be found: it runs more than 1000 times, each trip unlike the others; "
    ):
        counted(loop(head.format(1001), inner))


BEGIN = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k() {{
  .reg .pred %p<9>;
  .reg .b32 %r<9>;
  mov.u32 %r1, %tid.x;
  setp.gt.s32 %p1, %r1, 9;
  mov.u32 %r2, 0;
LOOP:
"""
"""A counter in %r2, and %p1, which depends on the thread."""
ASSEMBLY = (
    BEGIN
    + """\
  setp.gt.u32 %p2, %r2, 4;
  mov.pred %p3, 0;
  @%p2 bra END;
  bar.sync 0;
  mov.pred %p3, {one};
  @%p1 bra END;
  mov.pred %p3, {other};
END:
  add.s32 %r2, %r2, 1;
  @%p3 bra LOOP;
  ret;
}}
"""
)


def test_both_ways_of_a_run_time_branch_may_agree() -> None:
    got = count_instructions(ASSEMBLY.format(one=-1, other=-1), "k")
    assert (got.barrier, got.int_ops) == (5, 1 + 6 * 2)


def test_ways_that_disagree_on_the_exit_are_refused_by_its_line() -> None:
    with pytest.raises(EkcError, match=r"loop at LOOP \(line 11\).* exit on line 21 depends on run-time"):
        count_instructions(ASSEMBLY.format(one=-1, other=0), "k")


SKIPPED = (
    BEGIN
    + """\
  bar.sync 0;
  add.s32 %r3, %r2, 1;
  setp.eq.s32 %p2, %r3, {end};
  @%p2 bra END;
  add.s32 %r2, %r2, 2;
  @%p1 bra LOOP;
  add.s32 %r4, %r4, 1;
  bra.uni LOOP;
END:
  ret;
}}
"""
)


@pytest.mark.parametrize("trips", [2, 20])
def test_a_way_back_that_skips_the_rest_of_a_loop_is_no_loop_of_its_own(trips: int) -> None:
    """NVVM makes such of a loop whose last guard depends on the thread; it looks like a loop in a loop."""
    got = count_instructions(SKIPPED.format(end=2 * trips - 1), "k")
    assert (got.barrier, got.int_ops) == (trips, 1 + 2 * trips + 2 * (trips - 1))


def test_where_neither_reading_tells_the_first_is_refused() -> None:
    with pytest.raises(EkcError, match=r"loop at LOOP \(line 11\).* exit on line 15 depends on run-time"):
        count_instructions(SKIPPED.format(end="%r1"), "k")


def test_what_an_inner_loop_changes_is_unknown_after_it() -> None:
    inner = loop("int j = 0; j < (int)a[i]; ++j", TOUCH.format("j") + "n += 2;")
    with pytest.raises(EkcError, match="depends on run-time data"):
        counted("int n = 0;\n" + loop("int i = 0; n < 20; ++i", inner + "n += 1;"))


@pytest.mark.parametrize(
    "op",
    [
        ekc.conv2d(16, 256, 14, 14, out_channels=256, kernel=3, padding=1),
        ekc.conv2d(4, 64, 28, 28, out_channels=64, kernel=3, padding=1, groups=4, dtype="float16"),
        ekc.matmul(127, 255, 63),
    ],
    ids=["conv2d", "grouped", "matmul"],
)
def test_kernels_from_the_tuner_s_space_are_counted(op: ekc.Operator) -> None:
    device = devices.open("a100")
    space = Space(op, device.limits)
    random = np.random.default_rng(1)
    population, _ = space.repair(random, space.sample(random, 12))
    for row in range(min(len(population), 8)):
        kernel = compile_schedule(space.build_schedule(population, row), "sm_80", device.limits)
        # One launch of several may pack what another multiplies, maybe on tensor cores.
        every = [count_instructions(kernel.ptx, launch.name) for launch in kernel.launches]
        assert sum(got.fma32 + got.fp16 + got.fp32 + got.tensor_half for got in every) > 0
        assert all(got.bytes_load_global > 0 for got in every)
