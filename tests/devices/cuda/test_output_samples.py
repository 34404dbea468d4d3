"""A kernel checked on a device chunk by chunk: no array of a tensor's size is made on the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ekc
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda import loaded_kernel
from ekc.devices.cuda.loaded_kernel import LoadedKernel
from ekc.devices.cuda.messages import make_sample_request
from ekc.devices.device import OutputSample, OutputSelection
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import InputTensor
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.processes.child import WorkerTimeouts
from ekc.runtime.execute import BLANK_WORDS
from ekc.runtime.verify import DeviceVerdict, verify_on_device
from tests.scripted.cuda.driver import ScriptedDriver

CHUNK = 512


class Measuring(ScriptedDriver):
    """Records the largest copy between host and device, and may change the output of a kernel."""

    largest = 0
    spoil: int | None = None

    def upload(self, address: int, array: np.ndarray) -> None:
        self.largest = max(self.largest, array.nbytes)
        super().upload(address, array)

    def download(self, array: np.ndarray, address: int) -> None:
        self.largest = max(self.largest, array.nbytes)
        super().download(array, address)

    def _run(self, *arguments: object) -> None:
        before = {address: memory.data.copy() for address, memory in self.memory.items()}
        super()._run(*arguments)  # type: ignore[arg-type]
        if self.spoil is not None:
            written = arguments[-1][-1]  # type: ignore[index]
            self.memory[written].data[self.spoil : self.spoil + 4] = before[written][
                self.spoil : self.spoil + 4
            ]


class OnStage:
    """A device without a worker process."""

    executed_by = label = "scripted"

    def __init__(self) -> None:
        self.driver = Measuring()
        self.driver.push_context(0)

    def sample(
        self, kernel: CompiledKernel, inputs: tuple[InputTensor, ...], selections: list[OutputSelection]
    ) -> tuple[OutputSample, ...]:
        return LoadedKernel(self.driver).sample(kernel, inputs, selections)

    def execute(self, *arguments: object) -> tuple[np.ndarray, ...]:
        raise AssertionError("whole arrays are sent")


@pytest.fixture
def device(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> OnStage:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(loaded_kernel, "CHUNK_BYTES", CHUNK)
    return OnStage()


OPERATORS = {
    "floats": ekc.matmul(40, 24, 16),
    "integers": ekc.matmul(40, 24, 16, dtype="int8"),
    "bytes": ekc.matmul(40, 24, 16, dtype="int8", out_dtype="int8"),
    "launches": ekc.softmax((40, 24)),
}


def verify(op: Operator, device: OnStage) -> DeviceVerdict:
    schedule = make_naive_schedule(op)
    kernel = ekc.compile(schedule).compiled
    return verify_on_device(device, schedule, kernel, ReferenceEvaluator.from_seed(op, 0))


@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
def test_correct_kernel_passes_by_chunks(op: Operator, device: OnStage) -> None:
    verdict = verify(op, device)
    assert not verdict.fault, str(verdict)
    assert 0 < device.driver.largest <= CHUNK


@pytest.mark.parametrize("name", ["floats", "integers", "bytes"])
def test_elements_that_keep_every_blank_are_reported(name: str, device: OnStage) -> None:
    op = OPERATORS[name]
    # Far from its start: in a chunk that is not the first.
    device.driver.spoil = op.outputs[0].bytes - 40
    verdict = verify(op, device)
    assert verdict.fault == "wrong result"
    assert not verdict.worst_agreement.complete


def test_selected_elements_alone_come_back(device: OnStage) -> None:
    op = OPERATORS["floats"]
    kernel, places = ekc.compile(make_naive_schedule(op)).compiled, np.array([0, 127, 128, 959])
    inputs = ReferenceEvaluator.from_seed(op, 0).arrays
    selection = OutputSelection(op.outputs[0], BLANK_WORDS["float32"], places)
    (sample,) = device.sample(kernel, inputs, [selection])
    right = op.reference(*(one.to_array() for one in inputs)).reshape(-1)[places]
    np.testing.assert_allclose(sample.values, right, rtol=1e-5, atol=1e-5)
    assert (sample.is_written.all(), sample.unwritten_count) == (True, 0)
    request = make_sample_request(kernel, inputs, (selection, replace(selection, blank_words=(1, 2))))
    moved = sum(spec.bytes for spec in op.inputs) + 6 * op.outputs[0].bytes
    assert request.moved_bytes == moved
    assert WorkerTimeouts(reply_s=1.0, transfer_bytes_per_s=1.0).compute_timeout_s(request) == 1.0 + moved
