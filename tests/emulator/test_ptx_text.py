"""PTX as NVRTC does not write it but inline assembly may: comments and line breaks anywhere."""

from __future__ import annotations

import pytest

from ekc.errors import EkcError
from ekc.ptx.module import Immediate, KernelText, Register
from ekc.ptx.parser import parse_module

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


def kernel(body: str) -> KernelText:
    return parse_module(f"{HEAD}{body}\n}}\n").kernels["k"]


def plainly(text: KernelText) -> tuple[object, ...]:
    code = [(one.opcode, one.guard, one.operands, one.text) for one in text.code]
    return code, text.labels, text.registers


@pytest.mark.parametrize("between", ["\n", " \t ", " // ; { L: \n", "/* } ;\n// */"])
def test_what_stands_between_tokens_says_nothing(between: str) -> None:
    tokens = BODY.replace(",", " , ").replace(";", " ; ").replace(":", " : ").replace("@", "@ ")
    assert plainly(kernel(between.join(tokens.split()))) == plainly(kernel(BODY))


def test_lines_are_those_of_the_text_with_its_comments() -> None:
    code = kernel("/* a\nb */ mov.u32 %r1, /*\n*/ 2; // c ;\nret;").code
    assert [one.line for one in code] == [9, 11]
    assert code[0].operands == (Register("%r1"), Immediate(2))
    with pytest.raises(EkcError, match="line 10: "):
        kernel("// a\n/* b\n*/ mov.u32 %r1 %r2;")


def test_scopes_hide_registers_until_they_close() -> None:
    code = kernel(BODY).code
    inner, outer = code[0].operands[0], code[2].operands[1]
    assert outer == Register("%r1")
    assert inner == code[1].operands[1] != outer


@pytest.mark.parametrize("inlined", ["", ", function_name $L__info0, inlined_at 1 9 3", ", inlined_at 1 9 3"])
@pytest.mark.parametrize("end", ["\n", " "])
def test_a_location_swallows_no_statement(inlined: str, end: str) -> None:
    first, second = kernel(f".loc 1 5 2{inlined}{end}mov.u32 %r1, 1;{end}ret;").code
    assert (first.opcode, second.opcode) == ("mov.u32", "ret")
    assert first.source_line == second.source_line == 5


@pytest.mark.parametrize(
    "wrong", ["bra. L;", "mov..u32 %r1, %r2;", "mov.u32: %r1, %r2;", ".loc 1 2", "mov.u32 %r1, /* 2;", "ret"]
)
def test_what_is_malformed_is_refused_with_its_line(wrong: str) -> None:
    with pytest.raises(EkcError, match=r"PTX (line|ends at line) "):
        kernel(f"{wrong}\n")


@pytest.mark.parametrize("wrong", ["mov.u32 %r1, ;", "mov.u32 , %r1;", "mov.u32 %r1, , %r2;"])
def test_a_comma_without_its_operand_is_not_taken_for_the_end(wrong: str) -> None:
    with pytest.raises(EkcError, match="PTX line 8: an operand is missing"):
        kernel(f"{wrong} ret;")
