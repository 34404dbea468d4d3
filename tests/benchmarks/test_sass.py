"""Counts of the report on machine code, for code written by hand and for a schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

import ekc
from benchmarks.codegen import sass
from ekc.codegen.generate import compile_schedule
from tests.benchmarks.helpers import Run


def code(*lines: str) -> tuple[object, ...]:
    return tuple(sass.Instruction(*line.split(" ", 1)) for line in lines)


NESTED = code(
    "MOV R1,c[0x0][0x28]",
    "FFMA R2,R3,R4,R2",  # 1: the outer loop begins
    "LDS.128 R4,[R1]",  # 2: the inner loop begins
    "FFMA R2,R3,R4,R2",
    "FFMA R2,R3,R5,R2",
    "IADD3 R1,R1,0x10,RZ",
    "BRA 0x20",  # 6
    "STG.E [R8.64],R2",
    "BRA 0x10",  # 8
    "EXIT ",
    "BRA 0xa0",  # a branch to itself ends a function
)


def test_main_loop_has_most_multiply_adds_outside_inner_loops() -> None:
    assert sass.derive_main_loop(NESTED) == NESTED[2:7]
    found = sass.count_main_loop(NESTED)
    assert found.instructions == 5
    assert found.share("FFMA") == 0.4
    assert found.shared_loads == {16: 1}
    assert found.integer_per_multiply_add == 0.5
    assert found.spills == 0


def test_main_loop_includes_small_inner_loops() -> None:
    """One that brings a tile, say; that it adds something up makes it no main loop."""
    copying = code("LDG.E R9,[R6.64]", "FFMA R9,R9,R9,R9", "BRA 0x10")
    around = (*NESTED[:1], *copying, *NESTED[3:5], *code("BRA 0x10", "EXIT "))
    assert sass.derive_main_loop(around) == around[1:7]
    assert sass.count_main_loop(around).names["FFMA"] == 3


def test_fetching_loop_may_surround_the_main_loop() -> None:
    """Instructions outside that loop do not count, nor those that never run."""
    copies = code("LDGSTS.E.128 [R9],[R6.64]", "LDGSTS.E.128 [R9+0x10],[R6.64]")
    idle = sass.Instruction("LDG", "RZ,[R6.64]", sass.NEVER)
    before = code("LDG.E.64 R2,[R4.64]")
    tiled = (*before, idle, *NESTED[1:2], *copies, *code("LDS.128 R4,[R1]"), *NESTED[3:6])
    tiled = (*tiled, *code("BRA 0x50", "STG.E [R8.64],R2", "BRA 0x20", "EXIT "))
    assert sass.derive_main_loop(tiled) == tiled[5:10]
    assert sass.derive_fetching_loop(tiled) == tiled[2:12]
    found = sass.count_main_loop(tiled)
    assert (found.async_copies, found.global_loads) == ({16: 2}, {})
    assert found.instructions == 5


def test_instructions_that_never_run_do_not_count() -> None:
    idle = sass.Instruction("LDS", "RZ,[RZ]", "@!PT")
    assert sass.count_main_loop((*NESTED[:3], idle, *NESTED[3:5], *NESTED[6:])).shared_loads == {16: 1}


def test_code_without_a_loop_counts_whole() -> None:
    straight = code("LDG.E.64 R2,[R4.64]", "FFMA R6,R2,R3,RZ", "STL [R1],R6", "EXIT ")
    assert sass.derive_main_loop(straight) == straight
    assert sass.count_main_loop(straight).global_loads == {8: 1}
    assert sass.count_main_loop(straight).spills == 1


def test_bytes_in_flight_end_with_the_first_use() -> None:
    two = ["LDG.E.128 R4,[R2.64]", "LDG.E.128 R8,[R2.64+0x10]"]
    use = ["FFMA R0,R4,R8,R0", "FFMA R0,R5,R9,R0", "FFMA R0,R6,R10,R0", "FFMA R0,R7,R11,R0"]
    together, apart = code(*two, *use), code(two[0], *use, two[1], *use)
    assert sass.count_main_loop(together).bytes_in_flight == 32
    assert sass.count_main_loop(apart).bytes_in_flight == 16


def test_load_may_be_used_in_the_next_trip() -> None:
    ahead = code("FFMA R0,R4,R5,R0", "LDG.E.64 R4,[R2.64]", "LDG.E.64 R6,[R2.64+0x8]", "BRA 0x0")
    assert sass.count_main_loop(ahead).bytes_in_flight == 16


def test_store_uses_its_registers() -> None:
    copied = code("LDG.E.128 R4,[R2.64]", "STS.128 [R1],R4", "LDG.E.128 R8,[R2.64]", "STS.128 [R1],R8")
    assert sass.count_main_loop(copied).bytes_in_flight == 16


def _tiled() -> ekc.Schedule:
    """256 blocks of 16 x 4 threads, 4 x 4 elements each, tiles in shared memory."""
    return (
        ekc.Schedule(ekc.matmul(256, 256, 256))
        .split("i", (16, 4))
        .split("j", (4, 4))
        .split("k", (8,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C", "register", vector=4)
        .cache_read("A", "shared", at="k.0", vector=4, order=(1, 0), pad=4)
        .cache_read("B", "shared", at="k.0", vector=4)
        .cache_read("A.shared", "register", at="k.1", vector=4)
        .cache_read("B.shared", "register", at="k.1", vector=4)
        .unroll("k.1")
    )


def test_counts_of_a_generated_kernel() -> None:
    kernel = compile_schedule(_tiled(), "sm_80")
    ((name, instructions),) = sass.disassemble(kernel.cubin).items()
    assert name == kernel.launches[0].name
    found = sass.count_main_loop(instructions)
    # A trip of k.0: 8 steps of 4 x 4 multiply-adds, each on one vector of A and one of B.
    assert found.names["FFMA"] == 8 * 16
    assert found.shared_loads == {16: 16}
    assert found.names["BAR"] == 2
    assert found.global_loads.keys() <= {16}


def test_report_of_a_schedule(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tiled.json"
    file.write_text(_tiled().to_json())
    text, figures = run("codegen.sass_report", "--target", "a100", "--schedule", str(file))
    (line,) = figures["lines"]
    assert "16 x 128" in text
    assert line["ffma"] > 0.5
    assert line["spills"] == 0


@pytest.mark.slow
def test_schedule_by_hand_meets_every_bar(run: Run) -> None:
    _, figures = run("codegen.sass_report", "--target", "a100", "--only", "written out")
    (line,) = figures["lines"]
    assert set(line["bar"]) >= {"ffma", "narrow_shared", "narrow_global", "spills", "spare_passes"}
    assert line["missed"] == []
    assert line["share_of_peak"] > 0.85


def test_missing_nvdisasm_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(sass.NoDisassembler, match="pip install nvidia-cuda-nvdisasm"):
        sass.disassemble(b"")
