"""An operator beyond a device or this host is refused in one line, before anything is allocated."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.devices.device import check_device_memory, check_kernel_memory
from ekc.devices.recording.reader import read_recording
from ekc.devices.recording.writer import RecordingWriter
from ekc.devices.simulated import specs
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import DeviceError, InvalidInput
from ekc.host_memory import HostMemory
from ekc.ir import tensor_memory
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.tensor_memory import compute_largest_extent


def test_shell_refuses_an_operator_that_does_not_fit() -> None:
    command = [sys.executable, "-m", "ekc", "tune", "matmul", "200000", "200000", "8", "--target", "a100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    line = (
        "ekc: memory: matmul needs 149 GiB (A 6.1 MiB, B 6.1 MiB, C 149 GiB), a100 (simulated) has 40 GiB; "
    )
    assert (done.returncode, done.stderr) == (2, f"{line}use j <= 53676\n")


OPERATORS: dict[str, tuple[Callable[[int], Operator], int]] = {
    "rows": (lambda n: ekc.matmul(n, 8192, 64), 3_000_000),
    "depth": (lambda n: ekc.matmul(64, 64, n), 200_000_000),
    "int8": (lambda n: ekc.matmul(n, 65536, 8, dtype="int8"), 300_000),
    "images": (lambda n: ekc.conv2d(n, 64, 56, 56, out_channels=64, kernel=3, padding=1), 50_000),
    "chain": (lambda n: ekc.matmul(n, 4096, 8).epilogue(lambda c, r: c + r, r=(n, 4096)), 3_000_000),
}


@pytest.mark.parametrize(("make", "extent"), OPERATORS.values(), ids=OPERATORS)
def test_extent_that_the_line_proposes_is_the_largest_that_fits(
    make: Callable[[int], Operator], extent: int
) -> None:
    device = ekc.devices.open("a100")
    with pytest.raises(InvalidInput, match=r"use \w+ <= \d+$") as refused:
        check_device_memory(make(extent), device)
    proposed = int(re.findall(r"\d+", str(refused.value))[-1])
    check_device_memory(make(proposed), device)
    with pytest.raises(InvalidInput):
        check_device_memory(make(proposed + 1), device)


def test_axes_of_one_dimension_shrink_together() -> None:
    square = ekc.compute(
        "gram", axes={"i": 1000, "j": 1000}, reduce={"k": 10}, inputs={"A": (1000, 10)},
        body=lambda A, i, j, k: A[i, k] * A[j, k],
    )  # fmt: skip
    read, made = square.inputs[0], square.outputs[0]
    # At 500 of 1000, the result takes a quarter and the input, which both axes walk, a half.
    limit = read.bytes // 2 + made.bytes // 4
    found = compute_largest_extent(square, {read.name: read.bytes, made.name: made.bytes}, limit)
    assert found in (("i", 500), ("j", 500))


def test_every_simulated_device_knows_its_memory() -> None:
    sizes = {name: specs.find_spec(name).memory_bytes >> 30 for name in specs.list_names()}  # type: ignore[union-attr]
    expected = {"a100": 40, "a100-sxm": 40, "h100": 80, "h200": 141, "rtx4090": 24, "rtx3090": 24}
    assert sizes == expected | {"rtx2080ti": 11}


def test_tensors_between_launches_count() -> None:
    device, op = ekc.devices.open("a100"), ekc.softmax((1024, 64))
    kernel = ekc.compile(make_naive_schedule(op), device=device).compiled
    check_kernel_memory(kernel, "it", 10 * 2**20)
    with pytest.raises(DeviceError, match=r"memory: softmax needs .* it has 515 KiB"):
        check_kernel_memory(kernel, "it", 515 * 1024)
    small = SimulatedDevice(replace(specs.A100, memory_bytes=515 * 1024))
    with pytest.raises(DeviceError, match="memory: softmax needs"):
        small.time(kernel)


def test_recording_keeps_the_memory_of_its_device(tmp_path: Path) -> None:
    path = tmp_path / "here.gz"
    with RecordingWriter(path, ekc.devices.open("rtx3090")):
        pass
    assert read_recording(path).origin.memory_bytes == 24 * 2**30
    replayed = ekc.devices.open(f"recorded:{path}")
    assert replayed.memory_bytes == 24 * 2**30
    with pytest.raises(InvalidInput, match="has 24 GiB; use j <= "):
        ekc.tune(ekc.matmul(200000, 200000, 8), target=f"recorded:{path}", progress=False)


@pytest.fixture
def small_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_memory, "measure_free_memory", lambda: HostMemory(20000, "available memory"))


@pytest.mark.usefixtures("small_host")
def test_call_and_reference_report_the_memory_they_need() -> None:
    op = ekc.matmul(64, 32, 16)
    arrays = np.ones((64, 16), np.float32), np.ones((16, 32), np.float32)
    kernel = ekc.compile(make_naive_schedule(op))
    with pytest.raises(
        InvalidInput, match=r"^memory: a call of matmul on the CPU needs .* this host has 19.5 KiB "
    ):
        kernel(*arrays)
    with pytest.raises(InvalidInput, match=r"^memory: the reference of matmul needs .*; use [ijk] <= \d+$"):
        op.reference(*arrays)


def test_predicted_memory_of_a_call_matches_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    op = ekc.compute(
        "scale", axes={"i": 2**20}, inputs={"A": (2**20,)}, body=lambda A, i: A[i] * 2, dtype="int8"
    )
    kernel, array = ekc.compile(make_naive_schedule(op)), np.ones(2**20, np.int8)
    said: list[int] = []

    def check(op: Operator, what: str, needed: dict[str, int], *more: object) -> None:
        said.append(sum(needed.values()))

    monkeypatch.setattr(tensor_memory, "check_memory_fits", check)
    tracemalloc.start()
    kernel(array)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.5 < said[0] / peak < 2
