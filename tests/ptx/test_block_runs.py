"""Runs of blocks: branches that counters and threads decide, loops as LLVM rewrites them, and long loops."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.errors import EkcError
from ekc.ptx.counting import loop_trips
from ekc.ptx.counting.branch_slice import Threads
from ekc.ptx.counting.counts import count_instructions
from ekc.ptx.counting.loop_trips import extend_line
from ekc.search.space.space import Space
from tests.ptx.helpers import BOTH_COMPILERS, TOUCH, count_body, make_loop

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


@BOTH_COMPILERS
@pytest.mark.parametrize(("condition", "trips"), GUARDS)
def test_code_guarded_by_the_counter_counts_where_it_runs(condition: str, trips: int, arch: str) -> None:
    body = f"if ({condition}) {{ {TOUCH.format('i * t')} }} __syncthreads();"
    got = count_body(make_loop("int i = 0; i < 40; ++i", body), arch)
    assert (got.load_global, got.barrier) == (trips, 40)


@BOTH_COMPILERS
def test_guards_on_the_thread_count_where_a_lane_passes(arch: str) -> None:
    inner = "".join(f"if (t >= {n}) {{ {TOUCH.format(f'i + t * {n}')} }}" for n in (5, 16, 31, 32))
    got = count_body(
        make_loop("int i = 0; i < 40; ++i", f"if (i + 1 < 40) {{ {inner} }} __syncthreads();"), arch
    )
    assert (got.load_global, got.barrier) == (3 * 39, 40)


@BOTH_COMPILERS
def test_guard_on_the_outer_counter_multiplies_with_inner_trips(arch: str) -> None:
    inner = make_loop(
        "int j = 0; j < 9; ++j", f"if (j != 4) {{ {TOUCH.format('i * t + j')} }} __syncthreads();"
    )
    got = count_body(make_loop("int i = 0; i < 20; ++i", f"if (i >= 5) {{ {inner} }} __syncthreads();"), arch)
    assert (got.load_global, got.barrier) == (15 * 8, 15 * 9 + 20)


@BOTH_COMPILERS
def test_branch_on_the_counter_counts_each_side(arch: str) -> None:
    body = f"if (i < 8) {{ {TOUCH.format('i')} }} else {{ __syncthreads(); }}"
    got = count_body(make_loop("int i = 0; i < 30; ++i", body), arch)
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


@BOTH_COMPILERS
def test_pipelined_loop_may_thread_its_exit_through_guards(arch: str) -> None:
    # LLVM makes the exit's predicate a constant on each way through the guards.
    got = count_body(STAGES, arch)
    assert got.load_global == 6 * (1 + 3)
    assert got.barrier == 6 * (1 + 2)
    assert got.load_shared == 6 * 2
    assert got.store_shared == 6 * (1 + 3)


def test_loop_with_too_many_irregular_trips_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_trips, "_MOST_FOLLOWED", 1000)
    head = "unsigned i = 1, n = 0; n < {}; i = i * 5u & 0xffffu, ++n"
    inner = f"if (i & 64u) {TOUCH.format('i')}"
    assert count_body(make_loop(head.format(999), inner)).load_global > 400
    with pytest.raises(
        EkcError,
        match=r"cannot be found: it runs more than 1000 times, and its trips differ from each other; ",
    ):
        count_body(make_loop(head.format(1001), inner))


HEADER = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k() {{
  .reg .pred %p<9>;
  .reg .b32 %r<9>;
"""
"""The start of a kernel without parameters."""
BEGIN = (
    HEADER
    + """\
  mov.u32 %r1, %tid.x;
  setp.gt.s32 %p1, %r1, 9;
  mov.u32 %r2, 0;
LOOP:
"""
)
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


def test_both_sides_of_a_run_time_branch_may_agree() -> None:
    got = count_instructions(ASSEMBLY.format(one=-1, other=-1), "k")
    assert (got.barrier, got.int_ops) == (5, 1 + 6 * 2)


def test_sides_that_disagree_on_the_exit_end_the_loop_for_some_lanes() -> None:
    got = count_instructions(ASSEMBLY.format(one=-1, other=0), "k")
    # The other lanes leave the loop after the first barrier. Lanes above 9 pass five, so the warp does.
    assert (got.barrier, got.int_ops) == (5, 1 + 6 * 2)
    one_lane = Threads(block=(1, 1, 1))
    assert count_instructions(ASSEMBLY.format(one=-1, other=0), "k", one_lane).barrier == 1


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
def test_back_edge_that_skips_the_rest_is_no_second_loop(trips: int) -> None:
    """NVVM compiles a loop so if its last guard depends on the thread. It looks like two nested loops."""
    got = count_instructions(SKIPPED.format(end=2 * trips - 1), "k")
    assert (got.barrier, got.int_ops) == (trips, 1 + 2 * trips + 2 * (trips - 1))


@pytest.mark.parametrize(
    ("end", "reason"), [("%r1", "it does not end"), ("%r5", "its exit on line 15 depends on run-time data")]
)
def test_shared_header_without_any_trip_count_is_refused(end: str, reason: str) -> None:
    """Even lanes never meet an odd counter; %r5 is never set."""
    with pytest.raises(EkcError, match=rf"loop at LOOP \(line 11\).*{reason}"):
        count_instructions(SKIPPED.format(end=end), "k")


def test_value_changed_by_an_inner_loop_is_unknown_after_it() -> None:
    inner = make_loop("int j = 0; j < (int)a[i]; ++j", TOUCH.format("j") + "n += 2;")
    with pytest.raises(EkcError, match="depends on run-time data"):
        count_body("int n = 0;\n" + make_loop("int i = 0; n < 20; ++i", inner + "n += 1;"))


TRIANGLES = [
    (make_loop("int i = 0; i < 20; ++i", make_loop("int j = 0; j < i; ++j", TOUCH.format("i * t + j"))), 190),
    (make_loop("int i = t; i < 1024; i += 256", TOUCH.format("i")), 4),
    (make_loop("int i = t; i < 20; ++i", TOUCH.format("i")), 20),
    (
        make_loop(
            "int i = 0; i < 7; ++i",
            make_loop("int j = 0; j < 4; ++j", f"if (4 * i + j < 27) {{ {TOUCH.format('i * t + j')} }}"),
        ),
        27,
    ),
    (
        make_loop(
            "int i = 0; i < 9; ++i",
            make_loop("int j = 1; j < 100; j *= 2", f"if (j > t * i) {{ {TOUCH.format('j')} }}"),
        ),
        63,
    ),
    (
        make_loop(
            "int i = 0, n = 0; n < 30; ++i",
            make_loop("int j = 0; j < 4; ++j", f"if ((i ^ j) & 1) {{ {TOUCH.format('j')} ++n; }}"),
        ),
        30,
    ),
]


@BOTH_COMPILERS
@pytest.mark.parametrize(("body", "loads"), TRIANGLES)
def test_branches_on_several_counters(body: str, loads: int, arch: str) -> None:
    assert count_body(body, arch).load_global == loads


@pytest.mark.parametrize("kernels", [2, pytest.param(8, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "op",
    [
        ekc.conv2d(16, 256, 14, 14, out_channels=256, kernel=3, padding=1),
        ekc.conv2d(4, 64, 28, 28, out_channels=64, kernel=3, padding=1, groups=4, dtype="float16"),
        ekc.matmul(127, 255, 63),
    ],
    ids=["conv2d", "grouped", "matmul"],
)
def test_kernels_of_the_search_space_are_counted(op: ekc.Operator, kernels: int) -> None:
    """More kernels of each operator are exhaustive."""
    device = devices.open("a100")
    space = Space(op, device.limits)
    random = np.random.default_rng(1)
    population, _ = space.repair(random, space.sample(random, 12))
    for row in range(min(len(population), kernels)):
        kernel = compile_schedule(space.build_schedule(population, row), "sm_80", device.limits)
        # One launch of several may pack what another multiplies, maybe on tensor cores.
        every = [count_instructions(kernel.ptx, x.name, Threads(x.grid, x.block)) for x in kernel.launches]
        assert sum(got.fma32 + got.fp16 + got.fp32 + got.tensor for got in every) > 0
        assert all(got.bytes_load_global > 0 for got in every)


COMPARISONS = ("lt", "le", "gt", "ge", "ne", "eq")
COUNTED_LOOP = (
    HEADER
    + """\
  mov.u32 %r1, {start};
  mov.u32 %r2, {bound};
  mov.u32 %r3, 0;
LOOP:
  setp.{guard}.{kind} %p1, %r1, {middle};
  @%p1 bra SKIP;
  bar.sync 0;
SKIP:
  add.{kind} %r1, %r1, {step};
  sub.s32 %r2, %r2, {back};
  setp.{comparison}.{kind} %p2, %r1, %r2;
  @%p2 bra LOOP;
  ret;
}}
"""
)


def count_barriers(facts: dict[str, object]) -> float | str:
    """Runs of the guarded barrier, or the message of the refusal."""
    try:
        return count_instructions(COUNTED_LOOP.format(**facts), "k").barrier
    except EkcError as problem:
        return str(problem)


@settings(max_examples=60)
@given(
    st.fixed_dictionaries(
        {
            "start": st.integers(-300, 300),
            "bound": st.integers(-300, 300),
            "middle": st.integers(-300, 300),
            "step": st.integers(-9, 9),
            "back": st.integers(-3, 3),
            "guard": st.sampled_from(COMPARISONS),
            "comparison": st.sampled_from(COMPARISONS),
            "kind": st.sampled_from(("s32", "u32")),
        }
    )
)
def test_trips_in_one_go_equal_trips_one_by_one(facts: dict[str, object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found = count_barriers(facts)
        patch.setattr(loop_trips, "_MOST_FOLLOWED", 700)
        patch.setattr(loop_trips, "measure_growth", lambda *_: None)
        followed = count_barriers(facts)
    # Some loops have more trips than this test follows one by one.
    assert found == followed or isinstance(followed, str)


@pytest.mark.parametrize(
    ("start", "bound", "step", "right"), [(0, 2**30, 1, 2**30), (-(2**31), 2**31 - 1024, 1024, 2**22 - 1)]
)
def test_long_loop_runs_few_trips(
    start: int, bound: int, step: int, right: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"start": start, "bound": bound, "step": step, "back": 0, "kind": "s32", "comparison": "lt"}
    run = note_trips(monkeypatch)
    assert count_barriers({**facts, "guard": "ge", "middle": start + step * (right // 2)}) == right // 2
    assert 2 <= max(run) < MOST_RUN


@pytest.mark.parametrize("extent", [2**26, 3 * 2**24 + 5])
def test_sum_over_a_long_axis_runs_few_trips(extent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"for (int i = 0; i < {extent}; ++i) {TOUCH.format('i')}"
    run = note_trips(monkeypatch)
    assert count_body(body).load_global == extent
    assert 2 <= max(run) < MOST_RUN


MOST_RUN = 5000
"""Trips of a loop that may be run at once, however many it has."""


def note_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Trips that are run at once, as they come."""
    run: list[int] = []

    def extend(start: object, growth: object, numbers: np.ndarray, *more: int) -> object:
        run.append(len(numbers))
        return extend_line(start, growth, numbers, *more)

    monkeypatch.setattr(loop_trips, "extend_line", extend)
    return run


def test_endless_loop_is_refused() -> None:
    facts = {"start": 0, "bound": 5, "step": 0, "back": 0, "kind": "s32", "guard": "lt", "middle": 0}
    assert "it does not end" in str(count_barriers({**facts, "comparison": "lt"}))


@BOTH_COMPILERS
def test_nested_loops_under_a_guard_take_little_memory(arch: str) -> None:
    """Which threads pass the guard changes with four counters, and the trips of the loops in it do not."""
    body = make_loop(
        "int m = 0; m < 9; ++m",
        make_loop("int n = 0; n < 7; ++n", f"{TOUCH.format('m * n + t')} __syncthreads();"),
    )
    body = f"if ((7 * i + 5 * j + 3 * k + l + t) % 4 != 1) {{ {body} }}"
    for header in ("int l = 0; l < 11; ++l", "int k = 0; k < 2; ++k", "int j = 0; j < 24; ++j"):
        body = make_loop(header, body)
    tracemalloc.start()
    got = count_body(make_loop("int i = 0; i < 3; ++i", body), arch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert got.load_global == 3 * 24 * 2 * 11 * 9 * 7
    assert peak < 60e6
