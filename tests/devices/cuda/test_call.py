"""Kernels called on arrays of other libraries, without a copy, over a scripted driver in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ekc
from ekc.devices.cuda import call
from ekc.devices.cuda.device_arrays import measure_widest_access
from ekc.errors import DeviceError, InvalidInput
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.runtime.kernel import Kernel
from tests.scripted.cuda.arrays import ByDlpack, OnGpu
from tests.scripted.cuda.driver import FACTS, ScriptedDriver
from tests.scripted.cuda.node import ScriptedNode

OP = ekc.matmul(8, 12, 4)


@pytest.fixture(autouse=True)
def driver(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> ScriptedDriver:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cuda-cache"))
    made = ScriptedDriver()
    monkeypatch.setattr(call, "get_driver", lambda: made)
    monkeypatch.setattr(call, "_FUNCTIONS", {})
    return made


def kernel_of(op: ekc.Operator) -> Kernel:
    return ekc.compile(make_naive_schedule(op))


def on_gpu(driver: ScriptedDriver, op: ekc.Operator, **kind: Any) -> tuple[list[OnGpu], OnGpu]:
    out = op.outputs[0]
    arrays = [OnGpu(driver, a, **kind) for a in make_random_input_arrays(op)]
    return arrays, OnGpu(driver, np.zeros(out.shape, out.dtype.numpy_dtype))


def near(found: np.ndarray, op: ekc.Operator) -> None:
    np.testing.assert_allclose(found, op.reference(*make_random_input_arrays(op)), rtol=1e-5, atol=1e-5)


def test_split_k_kernel_allocates_its_workspace_on_the_stream(driver: ScriptedDriver) -> None:
    arrays, out = on_gpu(driver, OP)
    before = len(driver.memory)
    ekc.compile(ekc.Schedule(OP).rfactor("k", 2).bind("k_part", "block.x"))(*arrays, out=out)
    near(out.numpy(), OP)
    assert len(driver.memory) == before, "the workspace was given back"


def test_arrays_by_interface_are_written_on_the_given_stream(driver: ScriptedDriver) -> None:
    arrays, out = on_gpu(driver, OP)
    before = len(driver.memory)
    assert kernel_of(OP)(*arrays, out=out, stream=7) is out
    near(out.numpy(), OP)
    assert driver.streams == [7]
    assert len(driver.memory) == before, "nothing was copied"
    assert not driver.opened, "the caller's context is current again"


def test_dlpack_owner_gets_the_stream(driver: ScriptedDriver) -> None:
    arrays, out = on_gpu(driver, OP)
    wrapped = [ByDlpack(a) for a in (*arrays, out)]
    kernel = kernel_of(OP)
    kernel(*wrapped[:2], out=wrapped[2], stream=9)
    near(out.numpy(), OP)
    kernel(*wrapped[:2], out=wrapped[2])
    assert [w.asked for w in wrapped] == [[9, 1]] * 3, "the default stream is called 1 there"
    assert driver.streams == [9, 0]


def test_stream_that_an_array_names_is_followed(driver: ScriptedDriver) -> None:
    arrays, out = on_gpu(driver, OP, stream=5)
    kernel_of(OP)(*arrays, out=out)
    assert (driver.streams, driver.followed) == ([5], [])
    kernel_of(OP)(*arrays, out=out, stream=6)
    assert driver.followed == [(6, 5), (6, 5)]


def test_tensors_between_launches_are_allocated_on_the_stream(driver: ScriptedDriver) -> None:
    op = ekc.softmax((4, 16))
    arrays, out = on_gpu(driver, op)
    kernel = kernel_of(op)
    assert len(kernel.launches) > 1
    before = set(driver.memory)
    kernel(*arrays, out=out)
    np.testing.assert_allclose(out.numpy(), op.reference(*make_random_input_arrays(op)), rtol=1e-3, atol=1e-3)
    assert set(driver.memory) == before


def test_float16_and_bfloat16_arrays_are_taken(driver: ScriptedDriver) -> None:
    for name in ("float16", "bfloat16"):
        op = ekc.matmul(8, 8, 8, dtype=name)
        arrays, out = on_gpu(driver, op)
        wrapped = [ByDlpack(a) for a in (*arrays, out)]
        kernel_of(op)(*wrapped[:2], out=wrapped[2])
        right = op.reference(*make_random_input_arrays(op)).astype(np.float32)
        np.testing.assert_allclose(out.numpy().astype(np.float32), right, rtol=1e-2, atol=1e-2)
    assert out.host.dtype == ml_dtypes.bfloat16


def test_unsuitable_arrays_are_refused_in_one_line(driver: ScriptedDriver) -> None:
    kernel = kernel_of(OP)
    (a, b), out = on_gpu(driver, OP)
    wide = OnGpu(driver, np.zeros((4, 12), np.float64))
    with pytest.raises(InvalidInput, match="takes 2 arrays"):
        kernel(a)
    with pytest.raises(InvalidInput, match="B is not on a GPU, others are"):
        kernel(a, b.host, out=out)
    with pytest.raises(InvalidInput, match=r"A has shape \(4, 12\), needed \(8, 4\)"):
        kernel(b, b, out=out)
    with pytest.raises(InvalidInput, match="B is of type <f8, needed float32"):
        kernel(a, wide, out=out)
    with pytest.raises(InvalidInput, match=r"B has strides \(1, 4\), needed \(12, 1\): make it contiguous"):
        kernel(a, OnGpu(driver, b.host, strides=(4, 16)), out=out)
    with pytest.raises(InvalidInput, match="C is read-only"):
        kernel(a, b, out=OnGpu(driver, out.host, read_only=True))
    with pytest.raises(InvalidInput, match="ekc cannot make an array of tests"):
        kernel(a, b)
    with pytest.raises(InvalidInput, match="A cannot be taken: it requires grad"):
        kernel(ByDlpack(a, refuses="it requires grad\nand so on"), b, out=out)
    with pytest.raises(InvalidInput, match="out and stream are for arrays on a GPU"):
        kernel(a.host, b.host, stream=3)


def test_machine_code_for_another_gpu_is_refused(driver: ScriptedDriver) -> None:
    driver.facts = FACTS | {"COMPUTE_CAPABILITY_MAJOR": 9}
    arrays, out = on_gpu(driver, OP)
    with pytest.raises(DeviceError, match=r"compiled for sm_80, .* is sm_90: compile it for sm_90"):
        kernel_of(OP)(*arrays, out=out)
    assert not driver.opened


@dataclass
class Moved:
    """A view of an array that begins a few bytes later, for an argument that is not read."""

    array: OnGpu
    by: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = self.array.__cuda_array_interface__
        return told | {"data": (told["data"][0] + self.by, False)}


def test_array_must_be_aligned_to_the_widest_access(driver: ScriptedDriver) -> None:
    (a, b), out = on_gpu(driver, OP)
    schedule = ekc.Schedule(OP).split("j", (4,)).reorder("i", "k", "j.0", "j.1").vectorize("j.1")
    wide = ekc.compile(schedule.bind("i", "block.x"))
    assert measure_widest_access(wide.ptx) == 16
    wide(a, b, out=out)
    near(out.numpy(), OP)
    with pytest.raises(
        InvalidInput, match=r"^C begins 4 bytes past a multiple of 16, and .*16 bytes at a time"
    ):
        wide(a, b, out=Moved(out, 4))
    assert measure_widest_access(kernel_of(OP).ptx) == 4
    with pytest.raises(InvalidInput, match=r"^A begins 2 bytes past a multiple of 4, and .*pass a copy"):
        kernel_of(OP)(Moved(a, 2), b, out=out)


def test_asynchronous_copies_are_accesses_too() -> None:
    assert measure_widest_access("cp.async.ca.shared.global [%r1], [%rd2], 8;") == 8
    assert measure_widest_access("@%p1 cp.async.cg.shared.global [%r1], [%rd2], 16, %r3;") == 16
    assert measure_widest_access("ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r1];") == 1


def test_result_is_not_written_over_an_input(driver: ScriptedDriver) -> None:
    op = ekc.matmul(8, 8, 8)
    (a, b), out = on_gpu(driver, op)
    for under, name in ((a, "A"), (b, "B"), (Moved(a, 128), "A")):
        with pytest.raises(InvalidInput, match=f"out overlaps {name}, which is read meanwhile"):
            kernel_of(op)(a, b, out=under)
    kernel_of(op)(a, a, out=out)
    assert len(driver.streams) == 1


def test_kernel_for_another_gpu_is_refused_though_its_text_ran_before(driver: ScriptedDriver) -> None:
    arrays, out = on_gpu(driver, OP)
    kernel_of(OP)(*arrays, out=out)
    with pytest.raises(DeviceError, match=r"compiled for sm_90, .* is sm_80"):
        ekc.compile(make_naive_schedule(OP), "sm_90")(*arrays, out=out)


def library(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> type[OnGpu]:
    """A stand-in for a library that ekc knows, and its array type."""
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return type("Tensor", (OnGpu,), {"__module__": name})


def test_pytorch_stream_and_allocator_are_used(
    driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []

    def empty(shape: tuple[int, ...], dtype: str, device: str) -> OnGpu:
        made.append((shape, dtype, device))
        return kind(driver, np.zeros(shape, dtype))

    entered: list[str] = []

    @contextmanager
    def home(device: str) -> Iterator[None]:
        entered.append(device)
        yield

    current = SimpleNamespace(current_stream=lambda _: SimpleNamespace(cuda_stream=77), device=home)
    kind = library(
        monkeypatch,
        "torch",
        cuda=current,
        empty=empty,
        float32="float32",
        strided="strided",
        is_grad_enabled=lambda: True,
    )
    kind.device, kind.layout, kind.requires_grad = SimpleNamespace(type="cuda"), "strided", False  # type: ignore[attr-defined]
    kind.detach = kind.resolve_neg = lambda self: self  # type: ignore[attr-defined]
    arrays = [kind(driver, a) for a in make_random_input_arrays(OP)]
    result = kernel_of(OP)(*arrays)
    assert made == [((8, 12), "float32", kind.device)]  # type: ignore[attr-defined]
    assert driver.streams == [77]
    assert entered == [kind.device]  # type: ignore[attr-defined]
    near(result.numpy(), OP)
    # A class derived from theirs is theirs too; a sign that was put off is applied.
    derived = type("Derived", (kind,), {"__module__": "elsewhere", "resolve_neg": lambda _: arrays[0]})
    near(kernel_of(OP)(derived(driver, np.zeros((8, 4), np.float32)), arrays[1]).numpy(), OP)
    arrays[1].requires_grad = True  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=r"^B requires a gradient, and a kernel has none; pass B\.detach"):
        kernel_of(OP)(*arrays)


def test_numpy_arrays_run_on_the_named_gpu(driver: ScriptedDriver) -> None:
    device = ScriptedNode().open()
    kernel = ekc.compile(make_naive_schedule(OP), device=device)
    near(kernel(*make_random_input_arrays(OP)), OP)
    assert kernel.executed_by == device.executed_by == "Scripted A100 (cuda:0): the machine code itself"
    assert kernel.arch == "sm_80"
    a, b = make_random_input_arrays(OP)
    near(kernel(np.asfortranarray(a), b), OP)
    with pytest.raises(InvalidInput, match="a device has its own"):
        ekc.compile(make_naive_schedule(OP), "sm_80", device=device)
    with pytest.raises(InvalidInput, match="A has shape"):
        kernel(*reversed(make_random_input_arrays(OP)))
