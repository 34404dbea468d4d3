"""`repr` and notebook tables of all that a run hands out: short, and marked where figures are simulated."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.display import MAX_LINE_CHARS
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.events import TuningEvent
from ekc.search.tuning_result import TuningResult
from tests.test_display import Reader

FIGURES = {
    "TuningResult",
    "Trial",
    "Trials",
    "DeviceInfo",
    "TuningEvent",
    "SimulatedDevice",
    "Timing",
    "Metering",
}
"""Classes whose objects hold figures of a device."""
MAX_HTML_CHARS = 10_000


@pytest.fixture(scope="module")
def kernel() -> ekc.runtime.Kernel:
    return ekc.compile(make_naive_schedule(ekc.softmax((16, 16))))


def list_objects(result: TuningResult, kernel: ekc.runtime.Kernel) -> list[Any]:
    """Everything that the attributes of a result, a kernel, a schedule and a device lead to."""
    device, program = ekc.devices.open("a100"), result.best.schedule.program
    event = TuningEvent(
        "end", result.op.name, result.device.label, True, "end", 3, 1.0, 9, 9, best=result.best
    )
    launch, x, y = kernel.launches[0], np.ones((16, 16), "float32"), np.zeros((16, 16), "float32")
    report = ekc.emulator.launch(
        kernel.ptx, launch.name, grid=launch.grid, block=launch.block, args=[x, y][: len(launch.arguments)]
    )
    timing = device.time(kernel.compiled)
    return [
        *(result, result.best, result.trials, result.pareto, result.device, result.roof, result.spent),
        *(
            *result.model_cards,
            *result.predictions,
            *result.op.inputs,
            result.op,
            *result.op.computes,
            result.best.schedule,
        ),
        *(program, *program.nests, *(s for nest in program.nests for s in nest.stagings)),
        *(kernel, kernel.compiled, *kernel.launches, *kernel.resources, *kernel.schedule.op.computes),
        *(device, device.clocks(), timing, timing.conditions, device.meter(kernel.compiled)),
        *(event, report, report.counters, ekc.codegen.nvrtc.compile(kernel.cuda_source)),
    ]


def test_every_object_has_a_short_line(plain_run: TuningResult, kernel: ekc.runtime.Kernel) -> None:
    for one in list_objects(plain_run, kernel):
        line, kind = repr(one), type(one).__name__
        assert len(line) <= MAX_LINE_CHARS, line
        assert len(line.splitlines()) == 1
        assert re.match(rf"<?{kind}[ (]", line), line
        assert "simulated" in line or kind not in FIGURES, line


def test_every_table_is_small_and_closes_what_it_opens(
    plain_run: TuningResult, kernel: ekc.runtime.Kernel
) -> None:
    seen = set()
    for one in list_objects(plain_run, kernel):
        if hasattr(one, "_repr_html_"):
            html, kind = one._repr_html_(), type(one).__name__
            seen.add(kind)
            assert len(html) < MAX_HTML_CHARS, kind
            assert "simulated" in html or kind not in FIGURES, kind
            if kind != "Schedule":  # its picture is SVG
                Reader(html)
    assert seen == {"TuningResult", "Trial", "Trials", "Operator", "Schedule", "Program", "Kernel"}


def test_long_names_do_not_lengthen_a_line(plain_run: TuningResult, kernel: ekc.runtime.Kernel) -> None:
    op = replace(plain_run.op, name="x" * 400)
    schedule = ekc.Schedule(op, plain_run.best.schedule.steps)
    result = replace(plain_run, op=op, best=replace(plain_run.best, schedule=schedule))
    for one in (op, schedule, schedule.program, result, replace(kernel, schedule=schedule)):
        assert len(repr(one)) <= MAX_LINE_CHARS
    assert "(simulated)" in repr(result)
    assert "trials" in repr(result)


def test_table_of_a_result_compares_best_fastest_and_naive(plain_run: TuningResult) -> None:
    cells = Reader(plain_run._repr_html_()).cells
    assert {"best", "fastest", "naive", "metered", "of roofline"} <= set(cells)
    assert any("a100 (simulated)" in cell for cell in cells)
    assert any(f"{plain_run.trial_count} trials, " in cell for cell in cells)


def test_schedule_shows_its_steps_and_a_picture_of_its_loops() -> None:
    schedule = ekc.Schedule(ekc.matmul(64, 64, 64)).split("i", (16,)).bind("i.0", "block.x")
    html = schedule._repr_html_()
    assert "<pre" in html
    assert ".split(&quot;i&quot;, (16,))" in html
    assert "<svg" in html
    assert str(schedule).startswith("C[i, j] = sum[k < 64]"), "print shows the Program"


def test_table_of_an_operator_has_its_tensors() -> None:
    cells = Reader(ekc.matmul(64, 32, 16)._repr_html_()).cells
    assert "A" in cells
    assert "[64, 16]" in cells
    assert any("65,536 operations" in cell for cell in cells)


def test_table_of_a_program_has_a_row_for_each_loop() -> None:
    program = ekc.Schedule(ekc.matmul(64, 32, 16)).split("i", (8,)).bind("i.0", "block.x").program
    cells = Reader(program._repr_html_()).cells
    assert {"i.0", "i.1", "j", "k", "block.x", "serial"} <= set(cells)


def test_table_of_a_kernel_has_a_row_for_each_launch(kernel: ekc.runtime.Kernel) -> None:
    cells = Reader(kernel._repr_html_()).cells
    assert {launch.name for launch in kernel.launches} <= set(cells)
    assert str(kernel.resources[0].registers) in cells
