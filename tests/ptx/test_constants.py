"""Constants in PTX in every form that ptxas accepts: in the parser, in the machine and in counts of
instructions."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.emulator import launch
from ekc.errors import EkcError
from ekc.ptx.counting.counts import InstructionCounts, count_instructions
from ekc.ptx.module import Address, Immediate, KernelText
from ekc.ptx.parser import parse_module

HEAD = """.version 8.0
.target sm_80
.address_size 64
"""
VALUES = {
    "16": 16, "0x10": 16, "0X1f": 31, "020": 16, "0b101": 5, "0B11": 3, "0": 0, "00": 0, "16U": 16,
    "0x1FU": 31, "017U": 15, "-7": -7, "- 7": -7, "+5": 5, "~0": 2**64 - 1, "~-17": 16, "!5": 0,
    "!0": 1, "-(-5)": 5,
    "- -5": 5, "(16)": 16, "(8+8)": 16, "8 + 8": 16, "((1+2)*3)": 9, "2+3*4": 14, "3 - 2 - 1": 0,
    "100/10/2": 5,
    "1<<2<<3": 32, "2<<1+1": 8, "-5/3": -1, "5/-3": -1, "-5 % 3": 2, "16 % 5": 1, "7&3|8": 11, "7&3==3": 1,
    "1|2^3&2": 1, "1<2&&3<4||0": 1, "2>=2": 1, "2<=1": 0, "3!=3": 0, "1==1U": 1, "-1<0": 1, "-1<0U": 0,
    "1?2:3": 2, "1?0:2?3:4": 0, "0?-1:2U": 2, "WARP_SZ": 32, "-WARP_SZ": -32, "WARP_SZ/5": 6,
    "(WARP_SZ-33)>>1": -1, "(.u64)-1>>1": 2**63 - 1, "(.s64)0xFFFFFFFFFFFFFFFF>>1": -1, "~0>>1": 2**63 - 1,
    "-1>>1": -1, "1<<63": -(2**63), "1<<65": 2, "-1>>65": -1, "(0?2U:-1)>>1": -1, "3U-4>>1": 2**63 - 1,
    "-3U>>1": 2**63 - 2, "9223372036854775808>>1": 2**62, "9223372036854775807+1>>1": -(2**62),
    "0xFFFFFFFFFFFFFFFF": 2**64 - 1,
}  # fmt: skip


def parse_kernel(body: str) -> KernelText:
    return parse_module(
        f"{HEAD}.visible .entry k(.param .u64 p)\n{{\n.reg .b32 %r<0x4>;\n.reg .b64 %rd<02>;\n{body}\n}}\n"
    ).kernels["k"]


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_operand_may_be_any_integer_constant(text: str, value: int) -> None:
    operand = parse_kernel(f"mov.b64 %rd1, {text}; ret;").code[0].operands[1]
    assert isinstance(operand, Immediate)
    assert int(operand.value) % 2**64 == value % 2**64


@pytest.mark.skipif(
    shutil.which("ptxas") is None, reason="ptxas is not installed: it computes the right values"
)
def test_ptxas_computes_the_same_values(tmp_path: Path) -> None:
    mark = 0x1122334455667788
    text = ",".join(map(str, (mark, mark, *VALUES)))
    source, binary = tmp_path / "k.ptx", tmp_path / "k.cubin"
    entry = ".visible .entry k() { ret; }"
    source.write_text(f"{HEAD}.visible .global .align 8 .u64 t[{len(VALUES) + 2}] = {{{text}}};\n{entry}\n")
    subprocess.run(["ptxas", "-arch=sm_80", source, "-o", binary], check=True)
    found = binary.read_bytes()
    at = found.index(struct.pack("<QQ", mark, mark)) + 16
    expected = struct.unpack_from(f"<{len(VALUES)}Q", found, at)
    assert dict(zip(VALUES, expected, strict=True)) == {k: v % 2**64 for k, v in VALUES.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [("0f3F800000", 1.0), ("0F3F800000", 1.0), ("0d3FF8000000000000", 1.5), ("0DBFF0000000000000", -1.0),
     ("1.5", 1.5), ("1e3", 1000.0), ("1.5E-3", 0.0015), ("2.", 2.0), (".5", 0.5), ("(1.5*2.0)", 3.0),
     ("-1.5", -1.5)],
)  # fmt: skip
def test_operand_may_be_any_float_constant(text: str, value: float) -> None:
    assert parse_kernel(f"mov.f64 %rd1, {text}; ret;").code[0].operands[1] == Immediate(value)


@pytest.mark.parametrize(
    ("address", "offset"),
    [
        ("%rd1+0x10", 16),
        ("%rd1+-020", -16),
        ("%rd1+2*4", 8),
        ("%rd1+(1<<3)", 8),
        ("%rd1+4+4", 8),
        ("%rd1+~-5", 4),
    ],
)
def test_offset_may_be_a_constant_expression(address: str, offset: int) -> None:
    found = parse_kernel(f"ld.global.u32 %r1, [{address}]; ret;").code[0].operands[1]
    assert isinstance(found, Address)
    assert found.offset == offset


@pytest.mark.parametrize(
    "wrong",
    ["0q", "09", "16u", "0x", "0b12", "1_000", "0x10000000000000000", "(1", "1+", "5/0", "1.5+1", "~1.5"],
)
def test_malformed_number_is_refused_with_line_and_instruction(wrong: str) -> None:
    with pytest.raises(EkcError, match=r"^PTX line 8: .*, in 'mov.b64 %rd1, .*'$") as refused:
        parse_kernel(f"mov.b64 %rd1, {wrong}; ret;")
    assert "\n" not in str(refused.value)


def test_machine_runs_constants_of_every_form() -> None:
    text = f"""{HEAD}
.global .u32 table[2*2] = {{0x10, 020, 0b11, WARP_SZ/2}};
.visible .entry k(.param .u64 p)
.maxntid 0x20, 01, 0b1
{{
.reg .b32 %r<8>;
.reg .b64 %rd<4>;
.shared .align 0x10 .b8 tile[4*010];
ld.param.u64 %rd1, [p+0x0];
ld.global.u32 %r1, [table+2*4];
mov.u32 %r2, tile;
cp.async.ca.shared.global [%r2], [%rd1], 0b1000;
cp.async.commit_group;
cp.async.wait_group (1-1);
bar.sync 0x0;
ld.shared.u32 %r3, [tile+04];
add.s32 %r4, %r1, 0x10;
add.s32 %r4, %r4, -WARP_SZ;
shl.b32 %r5, %r3, ~0;
lop3.b32 %r6, %r3, %r3, %r3, (0xF0&0xCC&0xAA);
st.global.u32 [%rd1+(2*4)], %r4;
st.global.u32 [%rd1+014], %r5;
st.global.u32 [%rd1+0x10], %r6;
ret;
}}
"""
    data = np.array([1, 7, 0, 9, 0], np.uint32)
    assert not launch(text, "k", grid=(1,), block=(1,), args=[data]).findings
    assert data.view(np.int32).tolist() == [1, 7, 3 + 16 - 32, 0, 7]


@pytest.mark.parametrize(
    ("statement", "words"),
    [("cp.async.ca.shared.global [%r1], [%rd1], 5", "the size of a copy is 4, 8, 16 bytes"),
     ("cp.async.cg.shared.global [%r1], [%rd1], 0x8", "the size of a copy is 16 bytes"),
     ("cp.async.wait_group %r1", "the number of groups must be a number"),
     ("lop3.b32 %r1, %r1, %r1, %r1, 0x100", "the table of lop3 is a number from 0 to 255")],
)  # fmt: skip
def test_constant_out_of_range_is_refused_with_its_instruction(statement: str, words: str) -> None:
    body = f"mov.u32 %r1, 0; ld.param.u64 %rd1, [p]; {statement}; ret;"
    text = f"{HEAD}.visible .entry k(.param .u64 p)\n{{\n.reg .b32 %r<4>;\n.reg .b64 %rd<2>;\n{body}\n}}\n"
    with pytest.raises(EkcError, match=words):
        launch(text, "k", grid=(1,), block=(1,), args=[np.zeros(4, np.uint32)])


COUNTED = """.version 8.0
.target sm_80
.visible .entry k(.param .u64 p)
{{
.reg .pred %p<2>; .reg .b32 %r<2>; .reg .f32 %f<2>; .reg .b64 %rd<2>;
{}
ret;
}}
"""


def count_kernel(body: str) -> InstructionCounts:
    return count_instructions(COUNTED.format(body), "k")


@pytest.mark.parametrize(
    "size", ["16", "0x10", "020", "0b10000", "16U", "(8+8)", "( 8 + 8 )", "1<<4", "WARP_SZ/2"]
)
def test_copy_size_may_be_any_constant(size: str) -> None:
    counts = count_kernel(f"cp.async.cg.shared.global [%r1], [%rd1], {size};")
    assert counts.bytes_async == counts.bytes_store_shared == 16


@pytest.mark.parametrize("left", ["2", "0x2", "02", "0b10", "(1+1)", "WARP_SZ >> 4"])
def test_wait_group_number_may_be_any_constant(left: str) -> None:
    assert count_kernel(f"cp.async.wait_group {left};").async_left == 2


@pytest.mark.parametrize(("start", "step", "end"), [
    ("0x0", "1", "0x20"), ("0", "0b1", "040"), ("+0", "+1", "WARP_SZ"), ("~-1", "!0", "(4+4)*4"),
    ("-WARP_SZ", "- -1", "0U"), ("1-1", "3 - 2", "1 << 5"),
])  # fmt: skip
def test_loop_bounds_may_be_any_constants(start: str, step: str, end: str) -> None:
    body = f"""mov.u32 %r1, {start};
L: ld.volatile.global.f32 %f1, [%rd1];
add.s32 %r1, %r1, {step};
setp.ne.s32 %p1, %r1, {end};
@%p1 bra L;"""
    assert count_kernel(body).load_global == 32


@pytest.mark.parametrize("wrong", ["0q", "09", "16u", "1.5", "(8", "8/0"])
def test_malformed_number_in_counted_ptx_is_refused(wrong: str) -> None:
    with pytest.raises(EkcError, match=r"^PTX line 6: .*cp.async.cg.shared.global \[%r1\], \[%rd1\], "):
        count_kernel(f"cp.async.cg.shared.global [%r1], [%rd1], {wrong};")
    with pytest.raises(EkcError, match=r"^PTX line 7: .*"):
        count_kernel(f"mov.u32 %r1, 0;\nL: setp.ne.s32 %p1, %r1, {wrong.replace('1.5', '1_5')};\n@%p1 bra L;")


def test_simulated_device_accepts_copy_sizes_in_hex() -> None:
    schedule = (
        ekc.Schedule(ekc.matmul(32, 32, 32))
        .split("i", (4,)).split("j", (4,)).split("k", (8,))
        .reorder("i.0", "j.0", "k.0", "i.1", "j.1", "k.1")
        .bind("i.0", "thread.y").bind("j.0", "thread.x")
        .cache_write("C").cache_read("A", "shared", at="k.0", vector=4)
        .cache_read("B", "shared", at="k.0", vector=4)
        .pipeline("k.0", stages=2, copy="async")
    )  # fmt: skip
    device, kernel = ekc.devices.open("a100"), ekc.compile(schedule).compiled
    changed = re.sub(r"(cp\.async\.c[ag]\..*\], )(\d+);", lambda m: f"{m[1]}{int(m[2]):#x};", kernel.ptx)
    assert changed != kernel.ptx
    assert device.time(replace(kernel, ptx=changed)) == device.time(kernel)
