"""Pipelines of `wgmma` with one mistake: a finding in the right words; without it, none."""

# ruff: noqa: E501 (CUDA text)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.emulator import Report
from ekc.emulator.access_survey import survey_accesses
from ekc.emulator.paged_memory import BlankArray
from ekc.errors import EkcError
from tests.emulator.by_hand_pipelines import HELPERS, pipeline
from tests.emulator.case import Case, ptx
from tests.emulator.test_faults import replace_text

SYNC, SHOW, ARRIVE, COMMIT = "__syncthreads();", "show();", "arrive();", "commit();"
PRODUCTS = "multiply(d, tile(x + 32 * j, 16, 1024), tile(y + 2048 * j, 8192, 1024));"
DEEP, SHORT = pipeline(3, 1), pipeline(2, 0)

SLIPS: list[tuple[str, Case, list[tuple[str, str]], str, str]] = [
    ("too few tiles", pipeline(2, 1), [], "async-product", "copies over what a product still in flight reads"),
    ("no wait", SHORT, [("    wait<0>();\n  }", "  }")], "async-product", "copies over what a product still"),
    ("no commit", SHORT, [("    commit();\n", "")], "async-product", "copies over what a product still"),
    ("no barrier", SHORT, [(SYNC, "")], "race", "reads (PTX line"),
    ("no wait for copies", SHORT, [("wait_copies<0>();", "")], "async-copy", "reads what a copy still in flight"),
    ("no proxy fence", DEEP, [(f"    {SHOW}\n", "")], "proxy", "with no fence.proxy.async since"),
    ("fence before the copies land", DEEP,
     [(f"    {SHOW}\n", ""), ("wait_copies<0>();", f"{SHOW} wait_copies<0>();")], "proxy", "with no fence"),
    ("fence after the barrier", DEEP,
     [(f"    {SHOW}\n", ""), (SYNC, SYNC + SHOW)], "proxy", "whose fence came too late"),
    ("fence by one warp", DEEP, [(f"    {SHOW}\n", f"    if (t < 32) {SHOW}\n")], "proxy", "thread 32 wrote"),
    ("a part of a group", SHORT, [(PRODUCTS, f"if (t % 128 < 96) {PRODUCTS}")], "warpgroup", "only 96 threads"),
    ("a part commits", SHORT, [(f"    {COMMIT}", f"    if (t % 128 < 64) {COMMIT}")], "warpgroup", "only 64"),
    ("a part of a warp", SHORT, [(f"    {ARRIVE}", f"    if (t % 128 != 5) {ARRIVE}")], "warpgroup", "only 127"),
    ("descriptors differ", SHORT, [("tile(x + 32 * j", "tile(x + t / 64 % 2 * 32 + 32 * j")], "warpgroup",
     "different values of the descriptor of a"),
    ("scale-d differs", SHORT, [("8192, 1024));", "8192, 1024), t % 128 < 77);")], "warpgroup", "of scale-d"),
    ("a tile off its pattern", SHORT,
     [("__align__(1024) unsigned char s", "__align__(128) unsigned char s")], "misaligned", "a starts off the pattern of its 128-byte swizzle"),
    ("strides off the pattern", SHORT, [("tile(x + 32 * j, 16, 1024)", "tile(x + 32 * j, 16, 1040)")],
     "misaligned", "a has strides off the pattern"),
    ("a start across its line", SHORT, [("tile(x + 32 * j", "tile(x + 16 + 32 * j")], "misaligned", "a goes over the end of its line, off the pattern"),
    ("outside", SHORT, [("tile(y + 2048 * j, 8192", "tile(y + 8192 + 2048 * j, 8192")], "out-of-bounds",
     "product of shared memory"),
    ("half of a tile", SHORT, [("j < 512; j += 256", "j < 256; j += 256")], "uninitialised",
     "product of shared memory that was never written"),
    ("sums before the wait", DEEP, [("  wait<0>();\n  for (int i = 0; i < 32", "  for (int i = 0; i < 32")], "sums",
     "which holds sums of a product still in flight"),
    ("sums scaled in flight", DEEP, [("wait<1>();", "wait<1>(); d[0] *= 3;")], "sums", "reads %f"),
    ("no fence at all", SHORT, [(f"    {ARRIVE}\n", "")], "sums", "with no wgmma.fence before it"),
    ("fence before the sums are written", SHORT,
     [(f"    {ARRIVE}\n", ""), ("  load(0);", f"  load(0); {ARRIVE}"), ("    wait<0>();\n  }", "    wait<0>(); d[0] *= 3; }")],
     "sums", "wrote with no wgmma.fence since"),
]  # fmt: skip


def run(case: Case, text: str) -> Report:
    return case.run(text)[0]


@pytest.mark.parametrize("case", [DEEP, SHORT, pipeline(4, 2), pipeline(3, 0)], ids=lambda c: c.name)
def test_pipeline_is_right_and_clean(case: Case) -> None:
    case.check()


@pytest.mark.parametrize(
    ("case", "slips", "kind", "words"), [s[1:] for s in SLIPS], ids=[s[0] for s in SLIPS]
)
def test_mistake_in_a_pipeline_is_found(
    case: Case, slips: list[tuple[str, str]], kind: str, words: str
) -> None:
    text = case.source
    for old, new in slips:
        text = replace_text(text, old, new, 0)
    report = run(case, text)
    messages = [finding.message for finding in report.findings if finding.kind == kind]
    assert any(words in message for message in messages), str(report)


SMALL = """
extern "C" __global__ void k(const unsigned* a, float* c, int n) {
  __shared__ __align__(1024) unsigned s[4][2048];
  __shared__ unsigned out[THREADS];
  const int t = threadIdx.x;
  for (int i = t; i < 8192; i += THREADS) s[i / 2048][i % 2048] = a[i];
  show();
  __syncthreads();
  const unsigned x = (unsigned)__cvta_generic_to_shared(s[0]), y = (unsigned)__cvta_generic_to_shared(s[2]);
  float d[32], e[32];
  for (int i = 0; i < 32; ++i) { d[i] = 0; e[i] = 0; }
  BODY
  for (int i = 0; i < 32; ++i) c[i * THREADS + t] = d[i] + 2 * e[i];
}
"""
FIRST, SECOND = (
    f"multiply({d}, tile(x + {at}, 16, 1024), tile(y, 8192, 1024));" for d, at in (("d", 0), ("e", 8192))
)
ISSUED = f"arrive(); {FIRST} commit();"
BODIES: list[tuple[str, int, str, set[str], str]] = [
    ("waited", 128, f"{ISSUED} wait<0>(); __syncthreads(); s[0][t] = 1;", set(), ""),
    ("own store", 128, f"{ISSUED} s[0][t] = 1; wait<0>();", {"async-product", "race"},
     "overwrites what a product still in flight reads"),
    ("own store elsewhere", 128, f"{ISSUED} s[1][t] = 1; wait<0>();", set(), ""),
    ("an atomic", 128, f"{ISSUED} atomicAdd(&s[2][t], 1); wait<0>();", {"async-product", "race"},
     "changes what a product still in flight reads"),
    ("no barrier behind the wait", 128, f"{ISSUED} wait<0>(); s[0][t] = 1;", {"race"}, "that thread"),
    ("another group writes, waited but no barrier", 256,
     f"if (t < 128) {{ {ISSUED} }} __syncthreads(); if (t < 128) wait<0>(); else s[0][t] = 1; hold(d);", {"async-product"},
     "overwrites what a product still in flight reads"),
    ("another group writes behind the wait, no barrier", 256,
     f"if (t < 128) {{ {ISSUED} }} __syncthreads(); if (t < 128) wait<0>(); hold(d); if (t >= 128) s[0][t] = 1;",
     {"async-product"}, "overwrites what a product still in flight reads"),
    ("the other group has not waited", 256,
     f"{ISSUED} if (t < 128) wait<0>(); hold(d); __syncthreads(); if (t < 128) s[0][t] = 1; wait<0>();",
     {"async-product"}, "overwrites what a product still in flight reads"),
    ("one thread writes behind its wait, no barrier", 128, f"{ISSUED} wait<0>(); if (t == 0) s[0][0] = 1;", {"race"},
     "thread 0 writes"),
    ("one thread writes behind its wait and a barrier", 128,
     f"{ISSUED} wait<0>(); __syncthreads(); if (t == 0) s[0][0] = 1;", set(), ""),
    ("another group writes, waited and a barrier", 256,
     f"if (t < 128) {{ {ISSUED} wait<0>(); }} __syncthreads(); if (t >= 128) s[0][t] = 1;", set(), ""),
    ("a group alone", 256, f"if (t < 128) {{ {ISSUED} wait<0>(); }}", set(), ""),
    ("the second group alone", 256, f"if (t >= 128) {{ {ISSUED} wait<0>(); }}", set(), ""),
    ("warps across groups", 256, f"if (t >= 64 && t < 192) {{ {ISSUED} wait<0>(); }}", {"warpgroup"}, "only 64"),
    ("a group and a warp", 160, f"if (t < 128) {{ {ISSUED} wait<0>(); }}", set(), ""),
    ("a block of five warps", 160, f"{ISSUED} wait<0>();", {"warpgroup"}, "only 32 threads"),
    ("warps that come late", 128, f"for (int i = 0; i < t / 32 * n; ++i) out[t] = i; {ISSUED} wait<0>();", set(), ""),
    ("written by store, fence after it", 128,
     f"s[0][t] = 1; __syncthreads(); show(); __syncthreads(); {ISSUED} wait<0>();", set(), ""),
    ("written by store, no fence", 128, f"s[0][t] = 1; __syncthreads(); {ISSUED} wait<0>();", {"proxy"},
     "with no fence.proxy.async since"),
    ("written by store, global fence", 128,
     f'asm volatile("fence.proxy.async.global;"); s[0][t] = 1; asm volatile("fence.proxy.async.global;"); __syncthreads(); {ISSUED} wait<0>();',
     {"proxy"}, "with no fence.proxy.async since"),
    ("written by store, fence of all", 128,
     f's[0][t] = 1; asm volatile("fence.proxy.async;" ::: "memory"); __syncthreads(); {ISSUED} wait<0>();', set(), ""),
    ("two in flight", 128, f"{ISSUED} {SECOND} commit(); wait<1>(); d[0] += 1; wait<0>();", set(), ""),
    ("two in flight, the younger touched", 128, f"{ISSUED} {SECOND} commit(); wait<1>(); e[0] += 1; wait<0>();",
     {"sums"}, "reads %f"),
    ("waited on one way only", 128, f"{ISSUED} if (n > 5) wait<0>(); if (n > 5) d[0] += 1; wait<0>();", set(), ""),
    ("not waited on one way", 128, f"{ISSUED} if (n > 9) wait<0>(); if (n > 5) d[0] += 1; wait<0>();", {"sums"},
     "reads %f"),
    ("sums written behind the fence", 128, f"arrive(); d[0] = c[t] * n; {FIRST} commit(); wait<0>();", {"sums"},
     "wrote with no wgmma.fence since"),
    ("sums written before the fence", 128, f"d[0] = c[t] * n; {ISSUED} wait<0>();", set(), ""),
    ("reads that the compiler moves before the wait", 256,
     f"if (t < 128) {{ {ISSUED} }} __syncthreads(); if (t < 128) wait<0>(); else s[3][t] = 1;", {"sums"},
     "reads %f"),
    ("sums that change places", 128,
     f"for (int i = 0; i < n; ++i) {{ {ISSUED} for (int j = 0; j < 32; ++j) {{ float f = d[j]; d[j] = e[j]; e[j] = f; }} }} wait<0>();",
     set(), ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("threads", "body", "kinds", "words"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES]
)
def test_findings_of_small_kernels(threads: int, body: str, kinds: set[str], words: str) -> None:
    text = HELPERS + SMALL.replace("BODY", body).replace("THREADS", str(threads))
    arguments: list[Any] = [np.zeros(8192, np.uint32), np.zeros(32 * threads, np.float32), 7]
    report = emulator.launch(ptx(text, "sm_90a"), "k", grid=(2,), block=(threads,), args=arguments)
    assert {finding.kind for finding in report.findings} == kinds, str(report)
    assert all("..., " in f.instruction for f in report.findings if "wgmma.mma_async" in f.instruction)
    assert not words or any(words in finding.message for finding in report.findings), str(report)


def test_first_product_must_not_add_to_unset_sums() -> None:
    for keep, kinds in (("0", set()), ("1", {"uninitialised"}), ("n", {"uninitialised"}), ("n - 7", set())):
        text = HELPERS + SMALL.replace("BODY", f"{ISSUED} wait<0>();").replace("THREADS", "128")
        text = text.replace("8192, 1024));", f"8192, 1024), {keep});").replace("d[i] = 0;", "")
        arguments: list[Any] = [np.zeros(8192, np.uint32), np.zeros(32 * 128, np.float32), 7]
        report = emulator.launch(ptx(text, "sm_90a"), "k", grid=(1,), block=(128,), args=arguments)
        assert {finding.kind for finding in report.findings} == kinds, f"{keep}: {report}"


FORM = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (FORM, FORM.replace("f32.f16", "f16.f16"), "this wgmma is not emulated"),
        (FORM, FORM.replace("k16.f32.f16.f16", "k32.f32.e4m3.e4m3"), ".e4m3 is not emulated here"),
        (FORM, FORM.replace("f16.f16", "f16.bf16"), "this wgmma is not emulated"),
        (FORM, FORM.replace("mma_async", "mma_async.sp"), ".sp is not emulated here"),
        (FORM, FORM.replace("m64n64", "m64n65"), ".m64n65k16 is not emulated here"),
        (FORM, FORM.replace("m64n64", "m64n72"), "d of 72 columns has 36 registers"),
        ("p, 1, 1, 0, 1;", "p, 1, 2, 0, 1;", "imm-scale is 1 or -1"),
        ("p, 1, 1, 0, 1;", "p, 1, 1;", "a number of operands"),
        ("wgmma.fence.sync", "wgmma.arrive.sync", ".arrive is not emulated here"),
    ],
)
def test_unsupported_form_is_refused(old: str, new: str, why: str) -> None:
    text = ptx(SHORT.source, "sm_90a")
    assert old in text
    with pytest.raises(EkcError, match="PTX line") as caught:
        emulator.launch(text.replace(old, new), "k", grid=(1,), block=(256,), args=SHORT.args())
    assert why in str(caught.value)


def test_register_factor_and_base_offset_are_refused() -> None:
    text = ptx(SHORT.source, "sm_90a")
    at = text.index("}, %rd", text.index(FORM)) + 3
    end = text.index(",", at)
    with pytest.raises(EkcError, match="with a in registers"):
        emulator.launch(
            text[:at] + "{%r1, %r1, %r1, %r1}" + text[end:], "k", grid=(1,), block=(256,), args=SHORT.args()
        )
    moved = SHORT.source.replace("| 1ull << 62", "| 1ull << 62 | 3ull << 49")
    with pytest.raises(EkcError, match="base offset"):
        SHORT.run(moved)


def test_survey_leaves_products_out() -> None:
    """Also where a branch asks for a sum."""
    for source in (DEEP.source, DEEP.source.replace("wait<0>();", "wait<0>(); if (d[0] > 1) c[t] = 1;")):
        seen = survey_accesses(
            ptx(source, "sm_90a"),
            "k",
            grid=(1, 1, 1),
            block=(256, 1, 1),
            arguments=[BlankArray(n) for n in (128 * 320 * 2, 320 * 64 * 2, 128 * 64 * 4, 4)],
        )
        copies = {(t.space, t.argument_number) for t in seen.profiles if t.bytes_per_lane == 16}
        assert copies == {("global", 0), ("global", 1), ("shared", None)}
        assert any(t.is_write and t.argument_number == 2 for t in seen.profiles)
