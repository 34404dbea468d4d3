"""The parser: comments and line breaks anywhere, and the scopes of inline assembly."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.emulator.access_survey import survey_accesses
from ekc.emulator.paged_memory import BlankArray
from ekc.errors import EkcError
from ekc.ptx.counting.counts import count_instructions
from ekc.ptx.module import Immediate, KernelText, Register, Variable
from ekc.ptx.parser import parse_module
from tests.emulator.case import integers, ptx

HEAD = """.version 8.0
.target sm_80
.address_size 64
.entry k()
{
.reg .pred %p<2>;
.reg .b32 %r<4>;
"""
BODY = """{ .reg .b32 %r1; mov.u32 %r1, -7; @!%p1 add.s32 %r2, %r1, 0x1F; }
mov.u32 %r3, %r1; L: M: @%p1 bra L; ret;"""


def parse_kernel(body: str) -> KernelText:
    return parse_module(f"{HEAD}{body}\n}}\n").kernels["k"]


def list_facts(text: KernelText) -> tuple[object, ...]:
    code = [(one.opcode, one.guard, one.operands, one.text) for one in text.code]
    return code, text.labels, text.registers


@pytest.mark.parametrize("between", ["\n", " \t ", " // ; { L: \n", "/* } ;\n// */"])
def test_blanks_and_comments_between_tokens_change_nothing(between: str) -> None:
    tokens = BODY.replace(",", " , ").replace(";", " ; ").replace(":", " : ").replace("@", "@ ")
    assert list_facts(parse_kernel(between.join(tokens.split()))) == list_facts(parse_kernel(BODY))


def test_lines_count_those_of_comments() -> None:
    code = parse_kernel("/* a\nb */ mov.u32 %r1, /*\n*/ 2; // c ;\nret;").code
    assert [one.line for one in code] == [9, 11]
    assert code[0].operands == (Register("%r1"), Immediate(2))
    with pytest.raises(EkcError, match="line 10: "):
        parse_kernel("// a\n/* b\n*/ mov.u32 %r1 %r2;")


def test_scope_hides_registers_until_it_closes() -> None:
    code = parse_kernel(BODY).code
    inner, outer = code[0].operands[0], code[2].operands[1]
    assert outer == Register("%r1")
    assert inner == code[1].operands[1] != outer


@pytest.mark.parametrize("inlined", ["", ", function_name $L__info0, inlined_at 1 9 3", ", inlined_at 1 9 3"])
@pytest.mark.parametrize("end", ["\n", " "])
def test_location_ends_before_the_next_statement(inlined: str, end: str) -> None:
    first, second = parse_kernel(f".loc 1 5 2{inlined}{end}mov.u32 %r1, 1;{end}ret;").code
    assert (first.opcode, second.opcode) == ("mov.u32", "ret")
    assert first.source_line == second.source_line == 5


@pytest.mark.parametrize(
    "wrong", ["bra. L;", "mov..u32 %r1, %r2;", "mov.u32: %r1, %r2;", ".loc 1 2", "mov.u32 %r1, /* 2;", "ret"]
)
def test_malformed_text_is_refused_with_its_line(wrong: str) -> None:
    with pytest.raises(EkcError, match=r"PTX (line|ends at line) "):
        parse_kernel(f"{wrong}\n")


@pytest.mark.parametrize("wrong", ["mov.u32 %r1, ;", "mov.u32 , %r1;", "mov.u32 %r1, , %r2;"])
def test_missing_operand_beside_a_comma_is_refused(wrong: str) -> None:
    with pytest.raises(EkcError, match="PTX line 8: an operand is missing"):
        parse_kernel(f"{wrong} ret;")


RUN_HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a) {
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;
ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1];
"""


def run_body(body: str, *given: int) -> list[int]:
    found = np.array(given, np.uint32)
    report = emulator.launch(RUN_HEAD + body + "\nret; }", "k", grid=(1,), block=(1,), args=[found])
    assert report.clean, str(report)
    return [int(x) for x in found]


def test_label_of_inline_assembly_may_occur_twice() -> None:
    source = """static __device__ __forceinline__ void w(int n, int& r) {
          asm volatile("{ .reg .pred p; setp.eq.s32 p, %1, 1; @p bra DONE; add.s32 %0, %0, 1; DONE: }"
                       : "+r"(r) : "r"(n)); }
        extern "C" __global__ void k(int* a) {
          int r = 0; w(a[0], r); r += 10; a[1] = 7; w(a[0], r); a[2] = r; }"""
    for first, expected in ((1, [1, 7, 10]), (0, [0, 7, 12])):
        found = integers(3)
        found[0] = first
        assert emulator.launch(ptx(source), "k", grid=(1,), block=(1,), args=[found]).clean
        assert found.tolist() == expected


@pytest.mark.parametrize("first", [0, 1])
def test_inner_label_hides_the_outer_one(first: int) -> None:
    body = """mov.u32 %r2, 0; setp.eq.u32 %p1, %r1, 1;
    { @%p1 bra L; { bra L; add.u32 %r2, %r2, 100; L: add.u32 %r2, %r2, 1; } add.u32 %r2, %r2, 10; L: }
    @%p1 bra L; add.u32 %r2, %r2, 1000;
    L: st.global.u32 [%rd1+4], %r2;"""
    assert run_body(body, first, 5) == [first, 0 if first else 1011]


def test_branch_tables_use_labels_of_their_scope() -> None:
    table = """{ T: .branchtargets A, B; brx.idx %r1, T; A: add.u32 %r2, %r2, 1; bra C;
    B: add.u32 %r2, %r2, 5; C: }"""
    body = f"mov.u32 %r2, 0; {table} mul.lo.u32 %r2, %r2, 10; {table} st.global.u32 [%rd1+4], %r2;"
    assert run_body(body, 0, 0)[1] == 11
    assert run_body(body, 1, 0)[1] == 55


def test_inner_variable_hides_the_outer_one() -> None:
    body = """.shared .align 4 .b32 v; st.shared.u32 [v], 1;
    { .shared .align 4 .b32 v; st.shared.u32 [v], 2; { .shared .align 4 .b32 v; st.shared.u32 [v], 3; }
      ld.shared.u32 %r3, [v]; }
    ld.shared.u32 %r2, [v]; st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+4], %r3;"""
    assert run_body(body, 0, 0) == [1, 2]


def test_label_declared_twice_is_refused() -> None:
    with pytest.raises(EkcError, match="line 8: label L: declared twice"):
        run_body("L: mov.u32 %r2, 1;\nL: mov.u32 %r2, 2;", 0)


def test_module_is_parsed_once_for_counts_survey_and_run() -> None:
    text = ptx('extern "C" __global__ void k(float* a) { a[threadIdx.x] *= 2; }')
    parse_module.cache_clear()
    count_instructions(text, "k")
    survey_accesses(text, "k", grid=(1, 1, 1), block=(32, 1, 1), arguments=[BlankArray(128)])
    emulator.launch(text, "k", grid=(1,), block=(32,), args=[np.ones(32, np.float32)])
    assert parse_module.cache_info().misses == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_ZZ10ekc_matmulE8B_shared", "B_shared"),
        ("_ZZ4kernPfiE1s", "s"),
        ("_ZZ1kE1s_0", "s"),
        ("_ZZ1kE5tile2", "tile2"),
        ("_ZL5table", "table"),
        ("dynamic_shared", "dynamic_shared"),
        ("_ZZ1kE9short", "_ZZ1kE9short"),
    ],
)
def test_variable_has_its_name_in_the_cuda_text(name: str, expected: str) -> None:
    assert Variable(name, "shared", "f32", 4, 4).source_name == expected
