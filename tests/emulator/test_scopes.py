"""Labels and variables between the braces of inlined assembly hold there only."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.errors import EkcError
from tests.emulator.case import integers, ptx

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a) {
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;
ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1];
"""


def run(body: str, *given: int) -> list[int]:
    found = np.array(given, np.uint32)
    report = emulator.launch(HEAD + body + "\nret; }", "k", grid=(1,), block=(1,), args=[found])
    assert report.clean, str(report)
    return [int(x) for x in found]


def test_a_label_of_inlined_assembly_stands_for_itself() -> None:
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
def test_an_inner_label_hides_the_outer_one(first: int) -> None:
    body = """mov.u32 %r2, 0; setp.eq.u32 %p1, %r1, 1;
    { @%p1 bra L; { bra L; add.u32 %r2, %r2, 100; L: add.u32 %r2, %r2, 1; } add.u32 %r2, %r2, 10; L: }
    @%p1 bra L; add.u32 %r2, %r2, 1000;
    L: st.global.u32 [%rd1+4], %r2;"""
    assert run(body, first, 5) == [first, 0 if first else 1011]


def test_tables_of_targets_keep_to_their_scope() -> None:
    table = """{ T: .branchtargets A, B; brx.idx %r1, T; A: add.u32 %r2, %r2, 1; bra C;
    B: add.u32 %r2, %r2, 5; C: }"""
    body = f"mov.u32 %r2, 0; {table} mul.lo.u32 %r2, %r2, 10; {table} st.global.u32 [%rd1+4], %r2;"
    assert run(body, 0, 0)[1] == 11
    assert run(body, 1, 0)[1] == 55


def test_a_variable_holds_in_its_scope() -> None:
    body = """.shared .align 4 .b32 v; st.shared.u32 [v], 1;
    { .shared .align 4 .b32 v; st.shared.u32 [v], 2; { .shared .align 4 .b32 v; st.shared.u32 [v], 3; }
      ld.shared.u32 %r3, [v]; }
    ld.shared.u32 %r2, [v]; st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+4], %r3;"""
    assert run(body, 0, 0) == [1, 2]


def test_a_label_that_stands_twice_is_named() -> None:
    with pytest.raises(EkcError, match="line 8: label L: declared twice"):
        run("L: mov.u32 %r2, 1;\nL: mov.u32 %r2, 2;", 0)
