"""Modifiers of opcodes: their effects, and the refusal of those that are not emulated."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.errors import EkcError
from tests.emulator.case import ptx

NAN, SUBNORMAL = 0x7FC00000, 0x00000001
SIGN = 0x80000000


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def run_once(opcode: str, sources: tuple[int, ...], form: str = "rr", arch: str = "sm_90") -> int:
    """The result of one instruction in inlined assembly; `form`: constraints of its result and sources."""
    kinds = {"r": "unsigned", "h": "unsigned short", "l": "unsigned long long"}
    given = ", ".join(f'"{form[1]}"(({kinds[form[1]]})a[{i}])' for i in range(len(sources)))
    places = "".join(f", %{i + 1}" for i in range(len(sources)))
    source = f"""extern "C" __global__ void k(const unsigned long long* a, unsigned long long* o) {{
        {kinds[form[0]]} r; asm volatile("{opcode} %0{places};" : "={form[0]}"(r) : {given}); *o = r; }}"""
    given_array, found = np.array(sources, np.uint64), np.zeros(1, np.uint64)
    emulator.launch(ptx(source, arch), "k", grid=(1,), block=(1,), args=[given_array, found])
    return int(found[0])


@pytest.mark.parametrize(
    ("opcode", "sources", "expected"),
    [
        ("neg.ftz.f32", (SUBNORMAL,), SIGN),
        ("abs.ftz.f32", (SIGN + 1,), 0),
        ("abs.f32", (SIGN + 1,), 1),
        ("rcp.rn.f32", (bits(3),), 0x3EAAAAAB),
        ("rcp.rz.f32", (bits(3),), 0x3EAAAAAA),
        ("rcp.rm.f32", (bits(3),), 0x3EAAAAAA),
        ("rcp.rp.f32", (bits(3),), 0x3EAAAAAB),
        ("sqrt.rn.f32", (bits(2),), 0x3FB504F3),
        ("sqrt.rp.f32", (bits(2),), 0x3FB504F4),
        ("sqrt.rp.f32", (bits(4),), bits(2)),
        ("div.rz.f32", (bits(2), bits(3)), 0x3F2AAAAA),
        ("div.rp.f32", (bits(-2), bits(3)), 0xBF2AAAAA),
        ("div.rm.f32", (bits(-2), bits(3)), 0xBF2AAAAB),
        ("div.rz.f32", (bits(3e38), bits(1e-3)), 0x7F7FFFFF),
        ("div.rp.ftz.f32", (SUBNORMAL, bits(1)), 0),
        ("mul.rm.f32", (0, bits(1)), 0),
        ("mul.rm.f32", (0, bits(-1)), SIGN),
        ("mul.rp.f32", (0, bits(-1)), SIGN),
        ("mul.rz.f32", (0, bits(1)), 0),
        ("sub.rm.f32", (bits(1), bits(1)), SIGN),
        ("cvt.rna.tf32.f32", (0x3F801000,), 0x3F802000),
        ("cvt.rn.tf32.f32", (0x3F801000,), 0x3F800000),
        ("cvt.rn.tf32.f32", (0x3F803000,), 0x3F804000),
        ("cvt.rz.tf32.f32", (0x3F801FFF,), 0x3F800000),
        ("add.sat.f16x2", (0x3C00BC00, 0x3C00BC00), 0x3C000000),
        ("fma.rn.sat.f16x2", (0x3C003C00, 0x3C00BC00, 0x3C000000), 0x3C000000),
        ("fma.rn.relu.f16x2", (0x3C003C00, 0x3C00BC00, 0x3C000000), 0x40000000),
        ("fma.rn.relu.bf16x2", (0x3F803F80, 0x3F80BF80, 0x3F800000), 0x40000000),
        ("max.relu.s32", (bits(-2), bits(-3)), 0),
        ("min.relu.s32", (7, 5), 5),
        ("slct.ftz.u32.f32", (7, 9, SIGN + 1), 7),
        ("slct.u32.f32", (7, 9, SIGN + 1), 9),
        ("prmt.b32.f4e", (0x33221100, 0x77665544, 1), 0x44332211),
        ("ex2.approx.ftz.bf16x2", (0x3F80C300,), 0x40000000),
        ("tanh.approx.bf16x2", (0x00007F80,), 0x00003F80),
    ],
)
def test_modifiers_of_32_bit_instructions(opcode: str, sources: tuple[int, ...], expected: int) -> None:
    assert hex(run_once(opcode, sources)) == hex(expected)


@pytest.mark.parametrize(
    ("opcode", "sources", "expected"),
    [
        ("add.sat.f16", (0x3C00, 0x3C00), 0x3C00),
        ("sub.sat.f16", (0x3C00, 0x4000), 0),
        ("mul.f16", (0x4000, 0x4000), 0x4400),
        ("fma.rn.sat.f16", (0x3C00, 0x3C00, 0x3C00), 0x3C00),
        ("fma.rn.relu.f16", (0x3C00, 0xBC00, 0x0000), 0),
        ("fma.rn.relu.bf16", (0x3F80, 0x3F80, 0x3F80), 0x4000),
        ("ex2.approx.ftz.bf16", (0x3F80,), 0x4000),
        ("tanh.approx.bf16", (0x0000,), 0),
    ],
)
def test_modifiers_of_16_bit_instructions(opcode: str, sources: tuple[int, ...], expected: int) -> None:
    assert hex(run_once(opcode, sources, "hh")) == hex(expected)


@pytest.mark.parametrize(
    ("opcode", "form", "source", "expected"),
    [
        ("cvt.rzi.s32.f32", "rr", NAN, 0),
        ("cvt.rzi.u32.f32", "rr", NAN, 0),
        ("cvt.rzi.s64.f32", "lr", NAN, 1 << 63),
        ("cvt.rzi.u64.f32", "lr", NAN, 1 << 63),
        ("cvt.rzi.s32.f64", "rl", 0x7FF8 << 48, 1 << 31),
        ("cvt.rzi.u32.f64", "rl", 0x7FF8 << 48, 1 << 31),
        ("cvt.rzi.s64.f64", "ll", 0x7FF8 << 48, 1 << 63),
    ],
)
def test_conversion_of_nan_to_integer(opcode: str, form: str, source: int, expected: int) -> None:
    assert hex(run_once(opcode, (source,), form)) == hex(expected)


@pytest.mark.parametrize(("space", "expected"), [("shared", 2), ("global", 0)])
def test_float_atomics_on_global_memory_flush_subnormals(space: str, expected: int) -> None:
    source = """extern "C" __global__ void k(float* o) { __shared__ float s; s = __int_as_float(1);
        *o = __int_as_float(1); atomicAdd(TARGET, __int_as_float(1)); o[1] = s; }"""
    source = source.replace("TARGET", "&s" if space == "shared" else "o")
    found = np.zeros(2, np.uint32)
    emulator.launch(ptx(source), "k", grid=(1,), block=(1,), args=[found.view(np.float32)])
    assert int(found[1 if space == "shared" else 0]) == expected


HEAD = """.version 8.6
.target sm_100
.address_size 64
.visible .entry k(.param .u64 a) {
.reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<9>; .shared .align 16 .b8 s[16];
"""


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("add.rz.f64 %d1, %d2, %d3", "rz"),
        ("fma.rm.f64 %d1, %d2, %d3, %d4", "rm"),
        ("rcp.rp.f64 %d1, %d2", "rp"),
        ("sub.ftz.f16 %h1, %h2, %h3", "ftz"),
        ("setp.eq.ftz.f16 %p1, %h2, %h3", "ftz"),
        ("min.xorsign.abs.f32 %r1, %r2, %r3", "xorsign"),
        ("add.cc.u32 %r1, %r2, %r3", "cc"),
        ("mad.lo.cc.u32 %r1, %r2, %r3, %r4", "cc"),
        ("mad24.hi.sat.s32 %r1, %r2, %r3, %r4", "sat"),
        ("add.s16x2 %r1, %r2, %r3", "s16x2"),
        ("cvt.rn.relu.f16.f32 %h1, %r2", "relu"),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %r2, %r3", "satfinite"),
        ("lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 3, %p2", "or"),
        ("redux.sync.min.abs.f32 %r1, %r2, -1", "abs"),
        ("cp.async.bulk.shared::cluster.global [s], [%d1], 16, [%d2]", "bulk"),
        ("st.async.shared::cluster.b32 [s], %r1, [%d2]", "async"),
        ("barrier.cluster.arrive", "cluster"),
        ("atom.global.v2.f32.add {%r1, %r2}, [%d1], {%r1, %r2}", "v2"),
    ],
)
def test_unknown_modifier_is_refused_by_name(text: str, part: str) -> None:
    with pytest.raises(EkcError, match=rf"PTX line 7: .*: \.{part} is not emulated"):
        emulator.launch(f"{HEAD}mov.u32 %r1, 1;\n{text};\nret; }}", "k", grid=(1,), block=(1,), args=[0])
