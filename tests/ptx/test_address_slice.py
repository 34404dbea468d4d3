"""Slices of a kernel, and bytes of a loaded register that its readers use."""

from __future__ import annotations

import pytest

from ekc.ptx.address_slice import MAX_REGISTER_BYTES, count_used_bytes, slice_addresses
from ekc.ptx.parser import parse_module

HEAD = """.version 8.0
.target sm_80
.address_size 64
.entry k()
{
.reg .pred %p<2>;
.reg .b16 %rs<8>;
.reg .b32 %r<8>;
.reg .f32 %f<2>;
"""


def count_bytes(body: str) -> int:
    return count_used_bytes("%r1", parse_module(f"{HEAD}{body}\nret;\n}}\n").kernels["k"].readers_by_register)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("", 0),
        ("add.s32 %r2, %r1, %r3;", MAX_REGISTER_BYTES),
        ("mov.u32 %r2, %r1;", MAX_REGISTER_BYTES),
        ("and.b32 %r2, %r1, 255;", 1),
        ("and.b32 %r2, %r1, 65535;", 2),
        ("and.b32 %r2, %r1, -256;", MAX_REGISTER_BYTES),
        ("and.b32 %r2, %r1, %r3;", MAX_REGISTER_BYTES),
        ("cvt.u32.u8 %r2, %r1;", 0),
        ("cvt.u32.u8 %r2, %r1; add.s32 %r3, %r2, 1;", 1),
        ("cvt.u32.u16 %r2, %r1; add.s32 %r3, %r2, 1;", 2),
        ("cvt.s32.s16 %r2, %r1; cvt.s32.s8 %r3, %r2; add.s32 %r3, %r3, 1;", 1),
        ("cvt.rn.f32.s32 %f1, %r1;", 4),
        ("cvt.sat.s8.s32 %r2, %r1; and.b32 %r3, %r2, 1;", 4),
        ("shl.b32 %r2, %r1, 24;", 1),
        ("shl.b32 %r2, %r3, %r1;", MAX_REGISTER_BYTES),
        ("mov.b32 {%rs1, %rs2}, %r1;", 0),
        ("mov.b32 {%rs1, %rs2}, %r1; add.s16 %rs3, %rs1, 1;", 2),
        ("mov.b32 {%rs1, %rs2}, %r1; cvt.s16.s8 %rs3, %rs2; neg.s16 %rs3, %rs3;", 3),
        ("mov.b32 {%rs1, %rs2}, %r1; shr.u16 %rs3, %rs2, 8;", 4),
        ("and.b32 %r2, %r1, 255; and.b32 %r3, %r1, 65535;", 2),
        ("@%p1 and.b32 %r2, %r1, 255;", 1),
    ],
)
def test_register_is_used_up_to_the_last_byte_read(body: str, count: int) -> None:
    assert count_bytes(body) == count


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        ("mov.u32 %r1, 8; @%p1 bra L;\nL: ld.shared.u32 %r2, [%r1];", True),
        ("@%p1 bra L;\nmov.u32 %r1, 8;\nL: ld.shared.u32 %r2, [%r1];", True),
        ("L: ld.shared.u32 %r2, [%r1]; mov.u32 %r1, 8; @%p1 bra L;", True),
        ("L: ld.shared.u32 %r2, [%r1]; @%p1 bra M;\nmov.u32 %r1, 8; bra L;\nM:", True),
        ("ld.shared.u32 %r2, [%r1]; mov.u32 %r1, 8;", False),
        ("L: ld.shared.u32 %r2, [%r1]; @%p1 bra L;\nmov.u32 %r1, 8;", False),
        ("mov.u32 %r1, 8; mov.u32 %r1, 4; @%p1 bra L;\nL: ld.shared.u32 %r2, [%r1];", False),
        ("mov.u32 %r1, 8; @%p1 bra L;\nL: mov.u32 %r1, 4; ld.shared.u32 %r2, [%r1];", False),
        ("mov.u32 %r1, 8; @%p1 bra L;\nL: @%p1 mov.u32 %r1, 4; ld.shared.u32 %r2, [%r1];", True),
    ],
)
def test_slice_has_the_writes_that_may_reach_an_address(body: str, is_kept: bool) -> None:
    """A write of 8 stays where no other write surely replaces it before the load."""
    kernel = parse_module(f"{HEAD}{body}\nret;\n}}\n").kernels["k"]
    assert any(one.text.startswith("mov.u32 %r1, 8") for one in slice_addresses(kernel).code) == is_kept
