"""Verdicts on compiled kernels: correct ones pass, each kind of mistake is named."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import ekc
import ekc.ir.expr as ex
from ekc.codegen.generate import compile_schedule
from ekc.errors import EkcError, KernelFault
from ekc.ir.comparison.compare import make_random_input_arrays, sample_blocks
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime import verify as room
from ekc.runtime.execute import execute_blocks
from ekc.runtime.kernel import Kernel
from ekc.runtime.verify import Verdict
from tests.drawn.checks import judge
from tests.ir import examples
from tests.ir.interpret import interpret_program
from tests.runtime import faults
from tests.runtime.faults import spoiled


def judged(schedule: Schedule, fault: Callable[[str], str] = lambda ptx: ptx) -> Verdict:
    return judge(schedule, spoiled(compile_schedule(schedule), fault))


def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every launch as large."""
    monkeypatch.setattr(room, "OPERATION_BUDGET", 0.0)


def tiled(side: int = 256) -> Schedule:
    return examples.tiled_matmul(side, side, 32)


def chain() -> Schedule:
    """Two launches; the second reads all that the first writes."""
    op = ekc.matmul(48, 40, 24).then(
        "D", axes={"p": 48, "q": 40}, reduce={"r": 40}, body=lambda C, p, q, r: ex.relu(C[p, r]) * C[p, q]
    )
    return make_naive_schedule(op)


RIGHT = {
    "tiled": tiled,
    "conv2d": examples.tiled_conv2d,
    "lanes": examples.lanes_matvec,
    "on_the_spot": examples.fused_on_the_spot,
    "fused_loops": examples.fused_loops,
    "half": lambda: make_naive_schedule(ekc.matmul(31, 33, 17, dtype="float16")),
    "bfloat16": lambda: make_naive_schedule(ekc.matmul(31, 33, 17, dtype="bfloat16")),
    "int8": lambda: make_naive_schedule(ekc.matmul(31, 33, 17, dtype="int8")),
    "int8 clamped": lambda: make_naive_schedule(ekc.matvec(65, 40, dtype="int8", out_dtype="int8")),
    "chain": chain,
    "behind_the_sum": examples.behind_the_sum,
    "into_its_reader": examples.put_into_its_reader,
}


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_correct_kernels_pass_complete_and_sampled(
    make: Callable[[], Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = make()
    whole = judged(schedule)
    assert whole.ok, str(whole)
    assert all(x.agreement.blocks == x.agreement.total_blocks for x in whole.launches)
    assert "the sanitizer found nothing" in str(whole)
    few_blocks(monkeypatch)
    part = judged(schedule)
    assert part.ok, str(part)
    assert all(x.agreement.blocks == min(4, x.agreement.total_blocks) for x in part.launches)


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_blocks_of_the_grid_are_blocks_of_the_loops(make: Callable[[], Schedule]) -> None:
    """The output of some blocks of the last launch is that of the loop tree, element by element."""
    schedule = make()
    *earlier, last = derive_launches(schedule.program)
    expected = ReferenceEvaluator(schedule.op, make_random_input_arrays(schedule.op))
    chosen = sample_blocks(last, 3, seed=5)
    blocks = [*(np.arange(int(x.block_count)) for x in earlier), chosen]
    run = execute_blocks(
        compile_schedule(schedule), expected.for_operator(schedule.program.op), [*earlier, last], blocks
    )
    output, tree = (
        run[-1][0],
        interpret_program(schedule.program, make_random_input_arrays(schedule.op), chosen),
    )
    np.testing.assert_array_equal(output.positions, np.flatnonzero(tree.written_mask))
    np.testing.assert_allclose(
        output.values.astype(float), tree.output[tree.written_mask].astype(float), rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize("out_dtype", ["int32", "int8"])
def test_integers_that_are_never_written_are_noticed(out_dtype: str) -> None:
    """Elements without a mark in memory, because every pattern is a number."""
    verdict = judged(
        make_naive_schedule(ekc.matmul(31, 33, 17, dtype="int8", out_dtype=out_dtype)), faults.no_store
    )
    assert not verdict.worst_agreement.complete
    assert verdict.fault == "wrong result"


@pytest.mark.parametrize("number", [0, 1])
def test_launches_are_all_checked(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few_blocks(monkeypatch)

    def fault(ptx: str) -> str:
        at = ptx.index(f"_{number}(")
        return ptx[:at] + faults.squared(ptx[at:])

    verdict = judged(chain(), fault)
    assert not verdict.launches[number].agreement.ok
    assert verdict.launches[0].agreement.ok == (number == 1)
    assert verdict.fault == "wrong result"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.no_barrier, "unsafe kernel: .*first race: "),
        (faults.far_store, "unsafe kernel: .*first out-of-bounds: "),
        (faults.squared, "wrong result: .*max error .*the sanitizer found nothing"),
        (faults.no_store, "wrong result: .*not every element was written"),
    ],
)
@pytest.mark.parametrize("part", [False, True], ids=["whole", "sampled"])
def test_mistakes_are_named(
    fault: Callable[[str], str], words: str, part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part:
        few_blocks(monkeypatch)
    verdict = judged(tiled(), fault)
    assert not verdict.ok
    assert re.search(words, str(verdict)), str(verdict)


def test_blocks_that_write_what_others_own_are_strays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of these blocks is correct, but at the address of another block."""
    few_blocks(monkeypatch)
    schedule = examples.tiled_matmul(512, 512, 16)
    verdict = judged(schedule, faults.other_block)
    assert verdict.fault == "wrong result"
    assert verdict.worst_agreement.strays > 0
    assert "belong to other blocks" in str(verdict)


def test_unknown_instruction_is_an_error() -> None:
    with pytest.raises(EkcError, match=r"frob\.rn\.f32"):
        judged(tiled(), faults.unknown_word)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.far_store, "^1 finding; the first: out-of-bounds"),
        (faults.store_behind, r"after the end of C \(argument 2\)"),
        (faults.no_store, "of its output unwritten"),
    ],
)
def test_call_of_a_faulty_kernel_raises(fault: Callable[[str], str], words: str) -> None:
    schedule = tiled()
    kernel = Kernel(schedule, spoiled(compile_schedule(schedule), fault))
    with pytest.raises(KernelFault, match=words):
        kernel(*make_random_input_arrays(schedule.op))


def test_findings_of_sampled_blocks_name_tensors() -> None:
    assert "after the end of C (argument 2)" in str(judged(tiled(), faults.store_behind))
