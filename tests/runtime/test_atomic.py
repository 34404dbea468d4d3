"""Sums by atomics as compiled kernels: correct, race-free, without a workspace, and counted completely."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated import specs
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import compute_work
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.execute import execute
from ekc.runtime.verify import UNSAFE_KERNEL, WRONG_RESULT, verify, verify_on_device
from tests.codegen.helpers import export_sample
from tests.codegen.samples import shared_sum
from tests.drawn.checks import check_verdict, judge
from tests.runtime.faults import spoiled
from tests.scripted.cuda.node import ScriptedNode

A100 = specs.find_spec("a100")
_ATOMIC = re.compile(r"(?:atom|red)\.global\.add\.(\w+)\s+(?:%\w+, )?(\[[^\]]*\]), (%\w+);")


def matvec_shared(each: int, columns: int = 65536) -> Schedule:
    """A row per warp, with so many terms of it per block."""
    rows = Schedule(ekc.matvec(64, columns)).cache_write("y").atomic("y").split("k", (each // 32, 32))
    rows = rows.reorder("k.0", "i", "k.2", "k.1").bind("k.0", "block.y").bind("i", "block.x")
    return rows.bind("k.2", "thread.x")


def products_shared() -> Schedule:
    """Matrix products on tensor cores, with parts of the depth in different blocks."""
    op = ekc.matmul(48, 40, 256, dtype="float16", out_dtype="float32")
    s = Schedule(op).cache_write("C").atomic("C")
    s = s.split("i", (1, 2, 2, 8)).split("j", (1, 2, 4, 2)).split("k", (2, 2, 16))
    order = ("k.0", "i.0", "j.0", "i.1", "j.1", "i.4", "j.3", "k.1", "k.2", "i.2", "j.2", "i.3", "j.4", "k.3")
    s = s.reorder(*order).bind("k.0", "block.z").bind("i.0", "block.y").bind("j.0", "block.x")
    s = s.bind("i.1", "thread.y").bind("j.1", "thread.y").bind("i.4", "thread.x").bind("j.3", "thread.x")
    for tensor in "AB":
        s = s.cache_read(tensor, "shared", at="k.1", vector=8)
        s = s.cache_read(f"{tensor}.shared", "fragment", at="k.2")
    return s.tensorize("k.3", "mma.m16n8k16")


@pytest.mark.parametrize(
    "schedule",
    [
        shared_sum(33, 70, 600),
        shared_sum(33, 70, 600, dtype="int8", out_dtype="int32"),
        shared_sum(16, 32, 512, dtype="bfloat16"),
        matvec_shared(8192),
        products_shared(),
    ],
    ids=["edges", "integers", "bfloat16", "lanes", "products"],
)
def test_atomic_sums_match_the_reference(schedule: Schedule) -> None:
    check_verdict(schedule)


def test_call_gives_the_complete_result() -> None:
    schedule = shared_sum(33, 70, 600)
    arrays = make_random_input_arrays(schedule.op)
    kernel = ekc.compile(schedule, arch="sm_80")
    right = schedule.op.reference(*arrays)
    assert np.allclose(kernel(*arrays), right, atol=1e-3)


def test_sums_that_are_0_count_as_written() -> None:
    schedule = shared_sum(33, 70, 600, dtype="int8", out_dtype="int32")
    nothing = tuple(np.zeros(t.shape, t.dtype.numpy_dtype) for t in schedule.op.inputs)
    kernel = compile_schedule(schedule)
    assert verify(schedule, kernel, ReferenceEvaluator(schedule.op, nothing)).ok
    assert not ekc.compile(schedule, arch="sm_80")(*nothing).any()


def test_samples_of_a_large_grid_contain_complete_sums() -> None:
    schedule = shared_sum(512, 1024, 1024)
    verdict = judge(schedule)
    assert verdict.ok, str(verdict)
    _, main = verdict.launches
    assert 0 < main.agreement.blocks < main.agreement.total_blocks
    assert main.agreement.blocks % 4 == 0
    assert main.agreement.max_error > 0


def change(ptx: str, new: Callable[[re.Match[str]], str]) -> str:
    made, found = _ATOMIC.subn(new, ptx)
    assert found, "no atomic to spoil"
    return made


def plain(ptx: str) -> str:
    """Every block stores its part over that of others."""
    return change(ptx, lambda m: f"st.global.{m[1]} {m[2]}, {m[3]};")


def unguarded(ptx: str) -> str:
    """Read, add and store, one after another."""
    sum_ = "{{.reg .{0} %sum; ld.global.{0} %sum, {1}; add.{0} %sum, %sum, {2}; st.global.{0} {1}, %sum;}}"
    return change(ptx, lambda m: sum_.format(m[1], m[2], m[3]))


def mixed(ptx: str) -> str:
    """The first part stores, later ones add: correct in the order in which this machine runs blocks."""
    either = (
        "{{.reg .pred %first; .reg .u32 %part; mov.u32 %part, %ctaid.z; setp.eq.u32 %first, %part, 0; "
        "@%first st.global.{0} {1}, {2}; @!%first red.global.add.{0} {1}, {2};}}"
    )
    return change(ptx, lambda m: either.format(m[1], m[2], m[3]))


@pytest.mark.parametrize("fault", [plain, unguarded, mixed], ids=lambda f: f.__name__)
def test_store_in_place_of_an_atomic_is_found(fault: Callable[[str], str]) -> None:
    schedule = shared_sum(16, 32, 512)
    wrong = spoiled(compile_schedule(schedule), fault)
    verdict = judge(schedule, wrong)
    assert verdict.fault == UNSAFE_KERNEL
    assert {f.kind for f in verdict.findings} == {"block-conflict"}


def test_kernel_that_clears_nothing_is_wrong() -> None:
    schedule = shared_sum(16, 32, 512)
    kernel = compile_schedule(schedule)
    clear = re.compile(r"st\.global\.v4\.f32[^;]*;")
    assert clear.search(kernel.ptx)
    verdict = judge(schedule, replace(kernel, ptx=clear.sub("", kernel.ptx, count=1)))
    assert verdict.fault == WRONG_RESULT
    assert not verdict.launches[0].agreement.complete


def test_part_left_out_is_wrong() -> None:
    schedule = shared_sum(16, 32, 512)
    kernel = compile_schedule(schedule)
    fewer = replace(kernel.launches[1], grid=(*kernel.launches[1].grid[:2], 1))
    arrays = make_random_input_arrays(schedule.op)
    found = execute(schedule.op, replace(kernel, launches=(kernel.launches[0], fewer)), arrays)
    assert not np.allclose(found[-1].output, schedule.op.reference(*arrays), atol=1e-3)


def test_c_interface_asks_for_no_workspace(tmp_path: Path) -> None:
    schedule = shared_sum(16, 32, 512)
    kernel = compile_schedule(schedule)
    assert kernel.workspace_bytes == 0
    text = export_sample(schedule, tmp_path).read_text()
    assert "(void)workspace;" in text
    assert "{ &tensor_2 }" in text
    assert "&tensor_0, &tensor_1, &tensor_2 }" in text
    assert "any order" in (tmp_path / "include/ekc/matmul.hpp").read_text()


def test_header_promises_the_same_result_where_it_is(tmp_path: Path) -> None:
    schedule = shared_sum(16, 32, 512, dtype="int8", out_dtype="int32")
    export_sample(schedule, tmp_path)
    assert "any order" not in (tmp_path / "include/ekc/matmul.hpp").read_text()


def test_check_on_a_gpu_uses_the_complete_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The scripted driver looks a module up in the compile cache, and a user's holds thousands.
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))
    schedule = shared_sum(33, 70, 600)
    device = ScriptedNode().open()
    expected = ReferenceEvaluator.from_seed(schedule.op, 0)
    verdict = verify_on_device(device, schedule, compile_schedule(schedule), expected)
    assert not verdict.fault
    (judged,) = verdict.launches
    assert judged.blocks == judged.total_blocks
    assert judged.complete
    device.close()


def test_both_launches_and_the_changes_in_l2_are_counted() -> None:
    assert A100 is not None
    parts, rows = 8, 64
    kernel = compile_schedule(matvec_shared(65536 // parts))
    (clear, _), (main, _) = compute_work(A100, kernel, profile_kernel(kernel)).launches
    assert clear.traffic.l2_bytes == pytest.approx(rows * 4)
    whole = rows * 65536 * 4
    vector = parts * rows * 65536 // parts * 4
    # A lane adds one number of a sector, which L2 reads and writes.
    assert main.traffic.l2_bytes == pytest.approx(whole + vector + 2 * parts * rows * 32)
    (atomic_,) = [a for a in profile_kernel(kernel)[1].accesses if a.kind == "atomic"]
    assert (atomic_.tensor, atomic_.requests, atomic_.bytes_per_lane) == ("y", 1.0, 4)


def test_few_rows_fill_the_device_by_atomics() -> None:
    device = ekc.devices.open("a100")
    few, many = (device.time(compile_schedule(matvec_shared(n))).latency_s for n in (65536, 2048))
    assert many < few / 2


@pytest.mark.slow
def test_search_uses_and_reports_a_given_atomic_schedule() -> None:
    op = ekc.matvec(64, 65536)
    given = matvec_shared(2048)
    result = ekc.tune(op, target="a100", trials=8, seed=0, start=[given], progress=False)
    assert given in [t.schedule for t in result.trials]
    assert all(t.ok for t in result.trials if t.schedule == given)
    others = [t.schedule for t in result.trials if t.schedule != given]
    assert not any(step.kind == "atomic" for s in others for step in s.steps)
    told = replace(result, best=next(t for t in result.trials if t.schedule == given)).summary()
    assert "any order" in told
    assert "any order" not in replace(result, best=result.baseline).summary()
