"""A check of some blocks makes only the parts of tensors that these blocks touch."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ekc
import ekc.ir.expr as ex
from ekc.codegen.generate import compile_schedule
from ekc.emulator import launch
from ekc.emulator import plan as planning
from ekc.emulator.access_survey import survey_accesses
from ekc.emulator.paged_memory import PAGE_BYTES, BlankArray, LoadedArray
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.compute import TensorSpec
from ekc.ir.dtypes import DTYPE_NAMES, parse_dtype
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import RandomTensor
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.runtime import verify as checking
from ekc.runtime.execute import split_into_boxes
from ekc.runtime.verify import verify
from tests.drawn.checks import judge
from tests.ir import examples

MAKERS = ("arange", "zeros", "empty", "ones", "full", "zeros_like", "empty_like", "concatenate", "where")


def scaling(extent: int, dtype: str = "float32") -> Operator:
    return ekc.compute(
        "scale", axes={"i": extent}, inputs={"A": (extent,)}, body=lambda A, i: A[i] * 2, dtype=dtype
    )


class Longest:
    """Records the longest array that NumPy makes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.size, self.made = 0, 0
        for name in MAKERS:
            patch.setattr(np, name, self._noting(getattr(np, name)))

    def _noting(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any, **options: Any) -> Any:
            found = make(*arguments, **options)
            self.size, self.made = max(self.size, np.size(found)), self.made + 1
            return found

        return noting


@pytest.mark.parametrize(
    "make",
    [lambda: scaling(2**25), lambda: scaling(2**31 - 1), lambda: scaling(3 * 2**30, "int8"),
     lambda: ekc.matmul(2**18, 2**18, 8), lambda: ekc.conv2d(2**14, 8, 28, 28, out_channels=8, kernel=3),
     lambda: scaling(2**24).epilogue(lambda c, b: c + b, b=(2**24,))],
    ids=["2**25", "2**31 - 1", "int8 of 3 * 2**30", "product", "convolution", "chain"],
)  # fmt: skip
def test_arrays_are_no_longer_than_the_share_of_the_blocks(
    make: Callable[[], Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = make_naive_schedule(make())
    compiled, seen = compile_schedule(schedule), Longest(monkeypatch)
    verdict = judge(schedule, compiled)
    assert verdict.ok, str(verdict)
    assert seen.made > 100
    tensors = sum(spec.elements for spec in schedule.op.tensors.values())
    # 64 blocks of 256 threads, the pages around what they touch, and a table with a number for each page.
    assert seen.size <= max(2**21, tensors * 4 // PAGE_BYTES) < tensors // 20


def test_memory_of_a_check_does_not_grow_with_an_extent() -> None:
    peaks = []
    for extent in (2**25, 2**27):
        schedule = make_naive_schedule(scaling(extent))
        compiled = compile_schedule(schedule)
        tracemalloc.start()
        assert judge(schedule, compiled).ok
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A page table grows by 4 bytes for each KiB.
    assert peaks[1] - peaks[0] < 8 * 2**20 < 4 * (2**27 - 2**25)


def test_operator_of_40_gb_is_checked_in_a_process_of_3_gib() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import ekc
from ekc.runtime.verify import verify
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.schedule.naive import make_naive_schedule
n = 10 * 2**30
op = ekc.compute("scale", axes={"i": n}, inputs={"A": (n,)}, body=lambda A, i: A[i] * 2, dtype="float16")
kernel = ekc.compile(make_naive_schedule(op))
print(verify(kernel.schedule, kernel.compiled, ReferenceEvaluator.from_seed(op, 0)))
device = ekc.devices.open("h100")
print(device.time(ekc.compile(make_naive_schedule(op), device=device).compiled).latency_s > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert "64 of 41943040 blocks): max error 0, " in done.stdout, done.stdout + done.stderr
    assert done.stdout.endswith("True\n")


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_parts_of_random_inputs_equal_the_complete_input(dtype: str) -> None:
    drawn = RandomTensor(TensorSpec("A", (37, 1001), parse_dtype(dtype)), 5, 1)
    whole, random = drawn.to_array(), np.random.default_rng(0)
    places = random.integers(0, whole.size, (3, 50))
    np.testing.assert_array_equal(drawn.read_at(places), whole.reshape(-1)[places])
    np.testing.assert_array_equal(drawn.make_span(1234, 4321), whole.reshape(-1)[1234:4321])
    rows, columns = np.ix_([0, 5, 36], [1000, 2, 3])
    if dtype != "tf32":
        np.testing.assert_array_equal(drawn.pick((rows, columns)), whole[rows, columns])
    other = replace(drawn, number=2).to_array()
    assert (other != whole).mean() > 0.9


def test_random_inputs_are_normal_and_independent() -> None:
    a, b = (
        RandomTensor(TensorSpec("A", (1 << 17,), parse_dtype("float32")), 0, n).to_array().astype(float)
        for n in (0, 1)
    )
    assert abs(a.mean()) < 0.02
    assert abs(a.std() - 1) < 0.01
    assert abs((a**4).mean() - 3) < 0.15
    near = [np.corrcoef(a[: -k or None], (a if k else b)[k:])[0, 1] for k in (0, 1, 2, 3, 4, 8, 1024)]
    assert np.abs(near).max() < 0.02
    bytes_ = RandomTensor(TensorSpec("A", (1 << 16,), parse_dtype("int8")), 0, 0).to_array()
    assert np.bincount(bytes_.astype(int) + 128, minlength=256).min() > 150


CHAINS = {
    "softmax": lambda: ekc.softmax((24, 40)),
    "layer_norm": lambda: ekc.layer_norm((24, 40)),
    "two products": lambda: ekc.matmul(32, 32, 16).epilogue(lambda c: ekc.relu(c)),
    "int8": lambda: ekc.matmul(32, 48, 16, dtype="int8"),
    "tf32": lambda: ekc.matmul(32, 48, 16, dtype="tf32"),
}


@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS)
def test_inputs_drawn_where_they_are_read_give_the_verdict_of_arrays(
    make: Callable[[], Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "OPERATION_BUDGET", 0.0)
    schedule = make_naive_schedule(make())
    compiled = compile_schedule(schedule)
    drawn = verify(schedule, compiled, ReferenceEvaluator.from_seed(schedule.op, 3))
    arrays = verify(
        schedule, compiled, ReferenceEvaluator(schedule.op, make_random_input_arrays(schedule.op, 3))
    )
    assert drawn == arrays
    assert drawn.ok


def test_part_of_a_chain_equals_the_complete_chain() -> None:
    """A compute runs only for the elements that its reader needs."""
    op = ekc.softmax((24, 40), axis=0)
    expected, last = ReferenceEvaluator.from_seed(op, 0), op.computes[-1]
    whole = op.reference(*make_random_input_arrays(op))
    columns = np.array([3, 7])
    part = expected.evaluate_at(
        last, dict(zip((a.name for a in last.spatial_axes), (np.arange(24), columns), strict=True))
    )
    np.testing.assert_allclose(part.values, whole[:, columns], rtol=1e-6)
    assert not expected._full_tensors


def test_launch_by_pages_equals_the_complete_launch() -> None:
    schedule = examples.tiled_matmul(64, 64, 32)
    compiled = compile_schedule(schedule)
    one, arrays = compiled.launches[0], make_random_input_arrays(schedule.op)
    spec = schedule.op.outputs[0]
    results = []
    for by_pages in (False, True):
        output = np.zeros(spec.shape, spec.dtype.numpy_dtype)
        given = (
            [LoadedArray(a.reshape(-1).view(np.uint8), False) for a in arrays] if by_pages else list(arrays)
        )
        for array in arrays:
            array.flags.writeable = False
        args = [*given, output]
        report = launch(
            compiled.ptx, one.name, grid=one.grid, block=one.block, args=args, dynamic_shared=one.shared_bytes
        )
        results.append((report, output.tobytes()))
    assert results[0] == results[1]


def test_stray_store_is_found_by_pages_too() -> None:
    text = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .b64 %rd<3>;
.reg .b32 %r<3>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd1, %rd1, %rd2;
st.global.u32 [%rd1+8192], %r1;
ret;
}
"""
    held = LoadedArray(np.zeros(8192 + 64, np.uint8), writable=True)
    report = launch(text, "k", grid=(1,), block=(32,), args=[held])
    assert [f.kind for f in report.findings] == ["out-of-bounds"]
    assert "64 bytes after" in str(report.findings[0]) or "0 bytes after the end" in str(report.findings[0])
    assert held.raw[8192:].view(np.uint32).tolist() == list(range(16))


def test_survey_by_pages_equals_the_complete_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_schedule(examples.tiled_matmul(64, 64, 32))
    one = compiled.launches[0]

    def seen() -> Any:
        arrays, room = [BlankArray(size) for size in one.argument_bytes], one.shared_bytes
        return survey_accesses(
            compiled.ptx, one.name, grid=one.grid, block=one.block, arguments=arrays, dynamic_shared=room
        )

    whole = seen()
    monkeypatch.setattr(planning, "PAGED_FROM", 0)
    assert seen() == whole


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (4, 1, 6, 2)])
def test_boxes_cover_a_range_in_order(shape: tuple[int, ...]) -> None:
    places = np.arange(np.prod(shape)).reshape(shape)
    for start in range(places.size):
        for stop in range(start + 1, places.size + 1):
            found = [places[np.ix_(*box)].ravel() for box in split_into_boxes(start, stop, shape)]
            assert np.concatenate(found).tolist() == list(range(start, stop))


def test_indices_beyond_int32_are_right_at_the_far_end() -> None:
    """The last block is among those that run."""
    extent = 2**32 + 77
    op = ekc.compute(
        "far", axes={"i": extent}, inputs={"A": (extent,)}, body=lambda A, i: ex.maximum(A[i], A[i - 1]),
        dtype="int8",
    )  # fmt: skip
    verdict = judge(make_naive_schedule(op))
    assert verdict.ok, str(verdict)
    assert verdict.worst_agreement.blocks < verdict.worst_agreement.total_blocks
