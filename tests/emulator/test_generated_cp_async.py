"""Generated pipelines of asynchronous copies: their traffic is as predicted, and mistakes in their text are
found."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.codegen import nvrtc
from ekc.codegen.generate import generate
from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES
from tests.emulator.generated import run
from tests.emulator.predicted import check_traffic
from tests.emulator.test_faults import replace_text
from tests.ir.async_examples import async_conv2d, async_matmul, async_twice

EXACT = (
    "barriers", "shared_store_requests", "shared_store_wavefronts", "fma", "global_load_requests",
    "global_load_sectors", "shared_load_wavefronts",
)  # fmt: skip


def test_traffic_of_whole_tiles_is_predicted_exactly() -> None:
    check_traffic(run(async_matmul(32, 64, 48, stages=4)), EXACT)


SYNC = "__syncthreads();"
RAGGED, TWICE = async_matmul(33, 44, 36), async_twice("register")
FAULTS = [
    (RAGGED, "wait_copies<1>();", "wait_copies<2>();", 0, {"async-copy", "uninitialised"}),
    (RAGGED, "wait_copies<1>();", "", 0, {"async-copy", "uninitialised"}),
    (RAGGED, SYNC, "", 0, {"race", "async-copy"}),
    (RAGGED, "commit_copies();", "", 1, {"async-copy", "uninitialised"}),
    (RAGGED, "i_0 * 16 + i < 33 && ", "", 1, {"out-of-bounds"}),
    (RAGGED, "k_0_copy = k_0_free", "k_0_copy = k_0_slot", 0, {"race", "async-copy"}),
    (RAGGED, "k_0_slot == 2 ? 0", "k_0_slot == 1 ? 0", 0, {"race", "async-copy", "uninitialised"}),
    # The tile is complete, but the wrong one.
    (RAGGED, "const int k_0 = k_0_now + 2;", "const int k_0 = k_0_now + 3;", 0, set()),
    (RAGGED, "k_0_now + 2 < 5", "k_0_now + 2 < 4", 0, set()),
    (async_conv2d(2), SYNC, "", 1, {"race", "async-copy"}),
    (TWICE, "wait_copies<1>();", "wait_copies<2>();", 0, {"async-copy", "uninitialised"}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_mistake_in_the_text_is_found(number: int) -> None:
    schedule, old, new, which, kinds = FAULTS[number]
    text = replace_text(generate(schedule).source, old, new, which)
    ran = run(schedule, ptx=lambda _source, arch: nvrtc.compile(text, arch).ptx)
    found = {f.kind for report in ran.reports for f in report.findings}
    assert found & kinds or found == kinds, found
    with pytest.raises(AssertionError):
        ran.check()


@pytest.mark.parametrize("width", ASYNC_COPIES_BY_BYTES)
def test_copy_instruction_matches_its_semantics(width: int) -> None:
    copy = ASYNC_COPIES_BY_BYTES[width]
    text = f"""extern "C" __global__ void k(const unsigned char* a, const int* read, unsigned char* b) {{
        __shared__ __align__(16) unsigned char s[32][{width}]; const int t = threadIdx.x;
        const unsigned int shared = static_cast<unsigned int>(__cvta_generic_to_shared(s[t]));
        asm volatile("{copy.ptx}, %2;" : : "r"(shared), "l"(a + {width} * t), "r"(read[t]));
        asm volatile("cp.async.wait_all;" : : : "memory");
        for (int i = 0; i < {width}; ++i) b[{width} * t + i] = s[t][i]; }}"""
    random = np.random.default_rng(width)
    source = random.integers(1, 256, (32, width), dtype=np.uint8)
    read = random.integers(0, width + 1, 32).astype(np.int32)
    found = np.zeros_like(source)
    ptx = nvrtc.compile(text, "sm_80").ptx
    report = emulator.launch(ptx, "k", grid=(1,), block=(32,), args=[source, read, found])
    assert report.findings == ()
    np.testing.assert_array_equal(found, np.where(np.arange(width) < read[:, None], source, 0))
