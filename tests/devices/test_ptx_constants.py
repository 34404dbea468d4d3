"""Constants in the PTX that a simulated device counts: every form that PTX allows, one line for any other."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import ekc
from ekc.errors import EkcError
from ekc.ptx.counting.counts import InstructionCounts, count_instructions

HEAD = """.version 8.0
.target sm_80
.visible .entry k(.param .u64 p)
{
.reg .pred %p<2>; .reg .b32 %r<2>; .reg .f32 %f<2>; .reg .b64 %rd<2>;
"""


def counted(body: str) -> InstructionCounts:
    return count_instructions(f"{HEAD}{body}\nret;\n}}\n", "k")


@pytest.mark.parametrize(
    "size", ["16", "0x10", "020", "0b10000", "16U", "(8+8)", "( 8 + 8 )", "1<<4", "WARP_SZ/2"]
)
def test_the_bytes_of_an_asynchronous_copy(size: str) -> None:
    counts = counted(f"cp.async.cg.shared.global [%r1], [%rd1], {size};")
    assert counts.bytes_async == counts.bytes_store_shared == 16


@pytest.mark.parametrize("left", ["2", "0x2", "02", "0b10", "(1+1)", "WARP_SZ >> 4"])
def test_the_groups_that_a_wait_leaves(left: str) -> None:
    assert counted(f"cp.async.wait_group {left};").async_left == 2


@pytest.mark.parametrize(("start", "step", "end"), [
    ("0x0", "1", "0x20"), ("0", "0b1", "040"), ("+0", "+1", "WARP_SZ"), ("~-1", "!0", "(4+4)*4"),
    ("-WARP_SZ", "- -1", "0U"), ("1-1", "3 - 2", "1 << 5"),
])  # fmt: skip
def test_the_trips_of_a_loop(start: str, step: str, end: str) -> None:
    body = f"""mov.u32 %r1, {start};
L: ld.volatile.global.f32 %f1, [%rd1];
add.s32 %r1, %r1, {step};
setp.ne.s32 %p1, %r1, {end};
@%p1 bra L;"""
    assert counted(body).load_global == 32


@pytest.mark.parametrize("wrong", ["0q", "09", "16u", "1.5", "(8", "8/0"])
def test_no_number_is_refused_with_its_line_and_instruction(wrong: str) -> None:
    with pytest.raises(EkcError, match=r"^PTX line 6: .*cp.async.cg.shared.global \[%r1\], \[%rd1\], "):
        counted(f"cp.async.cg.shared.global [%r1], [%rd1], {wrong};")
    with pytest.raises(EkcError, match=r"^PTX line 7: .*"):
        counted(f"mov.u32 %r1, 0;\nL: setp.ne.s32 %p1, %r1, {wrong.replace('1.5', '1_5')};\n@%p1 bra L;")


def test_a_simulated_device_takes_a_kernel_whose_copies_are_written_in_hex() -> None:
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
