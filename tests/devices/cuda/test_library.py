"""cuBLASLt and cuDNN on a scripted GPU: right arguments, each way to be absent or wrong, and a tuning run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cuda.pathfinder import load_nvidia_dynamic_lib

import ekc
from ekc import devices
from ekc.cli import main
from ekc.devices.cuda.device import WORKER_MODULE, CudaDevice
from ekc.devices.cuda.library_kernel import Convolution, LibraryKernel, MatrixProduct, derive_library_call
from ekc.devices.cuda.messages import WorkerRequest
from ekc.devices.cuda.nvidia_libraries import CublasLt, Cudnn, NvidiaLibrary
from ekc.errors import DeviceError, InvalidInput
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.child import ChildProcess, RemoteWorker
from ekc.runtime.verify import verify_library_kernel
from ekc.search import run
from ekc.search.data.defaults import MEASURING
from ekc.search.data.selection import SelectionRule
from ekc.search.data.trial import Trial
from ekc.search.database.database import RecordStore
from ekc.search.loop import finals, task
from ekc.search.loop.finals import LibraryContender
from ekc.search.loop.measure import Measurer
from tests.scripted.cuda import library_node
from tests.scripted.cuda.library_node import LibraryNode, build_libraries, hire_with_libraries

OP = ekc.matmul(16, 16, 16)
CONV = ekc.conv2d(2, 4, 8, 7, out_channels=6, kernel=(3, 2), stride=(2, 1), padding=(1, 0), groups=2)
RIGHT = (
    ekc.matmul(5, 7, 9),
    ekc.matmul(5, 7, 9, dtype="tf32"),
    ekc.matmul(5, 7, 9, dtype="float16", transpose_a=True),
    ekc.matmul(5, 7, 9, dtype="bfloat16", transpose_b=True),
    ekc.matmul(5, 7, 9, dtype="float16", out_dtype="float32", transpose_a=True, transpose_b=True),
    ekc.matmul(5, 1, 9),
    ekc.matvec(24, 17),
    ekc.matvec(24, 17, dtype="float16"),
    ekc.batch_matmul(3, 5, 7, 9, transpose_b=True),
    ekc.einsum("mk,kn->nm", (5, 9), (9, 7)),
    ekc.einsum("kb,bkn->bn", (9, 3), (3, 9, 7)),
    ekc.einsum("bk,bk->b", (3, 9), (3, 9)),
    CONV,
    ekc.conv2d(1, 3, 9, 9, out_channels=4, dilation=2, padding=2, layout="NHWC", dtype="float16"),
    ekc.conv2d(1, 4, 6, 6, out_channels=4, padding=1, dtype="tf32", groups=4),
    ekc.conv2d(1, 4, 6, 6, out_channels=4, kernel=1, dtype="bfloat16"),
)
OTHER = (
    ekc.softmax((4, 5)),
    OP.epilogue(lambda c: ekc.relu(c)),
    OP.epilogue(lambda c, bias: c + bias, bias=(16,)),
    ekc.matmul(16, 16, 16, dtype="int8"),
    ekc.einsum("ik,jk,lk->ijl", (3, 4), (3, 4), (3, 4)),
    ekc.einsum("ii,ik->ik", (4, 4), (4, 4)),
    ekc.einsum("ab,cb->acb", (3, 4), (5, 4)),
    ekc.einsum("abk,k->ab", (3, 4, 5), (5,)),
    ekc.conv2d(1, 4, 8, 8, out_channels=4, padding=((0, 1), (1, 0))),
    ekc.conv1d(1, 4, 8, out_channels=4),
    ekc.conv_transpose2d(1, 4, 6, 6, out_channels=4),
)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cuda-cache"))
        yield


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler here")
    return found


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> tuple[Path, ...]:
    return build_libraries(tmp_path_factory.mktemp("libraries"), compiler)


def open_device(libraries: tuple[Path, ...], **settings: float) -> CudaDevice:
    """A scripted GPU on which a launch of ours takes at least 30 us, at the 300 W of the card."""
    return LibraryNode().open("cuda:0", hire_with_libraries(libraries, {"launch_s": 30e-6}, **settings))


@pytest.fixture(scope="module")
def device(libraries: tuple[Path, ...]):  # type: ignore[no-untyped-def]
    opened = open_device(libraries)
    yield opened
    opened.close()


def test_each_product_and_convolution_is_right(device: CudaDevice) -> None:
    for op in RIGHT:
        kernels = device.list_library_kernels(op, 16)
        assert len(kernels) == 3, "the fourth is not supported"
        for kernel in kernels:
            verdict = verify_library_kernel(device, kernel, ReferenceEvaluator.from_seed(op, 0))
            assert verdict.startswith("executed on Scripted A100 (cuda:0)"), (op, kernel.name, verdict)
    assert len(device.list_library_kernels(OP, 2)) == 2


@pytest.mark.parametrize("op", OTHER, ids=str)
def test_anything_else_is_no_call(op: Operator) -> None:
    assert derive_library_call(op) is None


def test_operators_are_recognised_by_their_expression() -> None:
    assert isinstance(derive_library_call(OP), MatrixProduct)
    found = derive_library_call(CONV)
    assert isinstance(found, Convolution)
    assert (found.padding, found.stride, found.dilation, found.groups) == ((1, 0), (2, 1), (1, 1), 2)
    # Padding behind the image that no output reads is none.
    unread = ekc.conv2d(1, 4, 7, 7, out_channels=4, kernel=3, stride=2, padding=((0, 1), (0, 1)))
    assert isinstance(derive_library_call(unread), Convolution)


def test_names_timing_and_metering(device: CudaDevice, libraries: tuple[Path, ...]) -> None:
    first, second, _ = device.list_library_kernels(OP, 16)
    assert (first.name, second.name) == ("cuBLASLt 13.1.2, algorithm 1", "cuBLASLt 13.1.2, algorithm 2")
    slow, fast = device.time(first), device.time(second)
    assert slow.latency_s == pytest.approx(24e-6, rel=0.02)
    assert fast.latency_s == pytest.approx(20e-6, rel=0.02)
    assert fast.method.startswith("graph replay")
    assert fast.conditions.nvrtc == "cuBLASLt 13.1.2"
    metering = device.meter(second, seconds=0.5)
    assert metering.power_w == pytest.approx(250.0, rel=0.03)
    (convolution, *_) = device.list_library_kernels(CONV, 16)
    assert convolution.name == "cuDNN 9.19.0, algorithm 1"
    long = open_device(libraries, call_s=1e-3)
    (kernel, *_) = long.list_library_kernels(OP, 1)
    assert long.time(kernel).method.startswith("events")
    long.close()


def test_wrong_algorithms_are_found(libraries: tuple[Path, ...]) -> None:
    wrong = open_device(libraries, wrong=0b101)
    for op in (OP, CONV):
        reference = ReferenceEvaluator.from_seed(op, 0)
        verdicts = [
            verify_library_kernel(wrong, one, reference) for one in wrong.list_library_kernels(op, 16)
        ]
        assert [v.startswith("wrong result: ") for v in verdicts] == [True, False, True]
    wrong.close()


def test_float32_by_tf32_is_wrong(device: CudaDevice) -> None:
    """A library may be switched to TF32 from outside (NVIDIA_TF32_OVERRIDE)."""
    rounded, exact = (ekc.matmul(64, 64, 512, dtype=dtype) for dtype in ("tf32", "float32"))
    (kernel, *_) = device.list_library_kernels(rounded, 1)
    assert "wrong" in verify_library_kernel(device, kernel, ReferenceEvaluator.from_seed(exact, 0))
    assert "wrong" not in verify_library_kernel(device, kernel, ReferenceEvaluator.from_seed(rounded, 0))


def test_refused_call_costs_itself_alone(libraries: tuple[Path, ...]) -> None:
    refusing = open_device(libraries, refused=0b10)
    for op, status in ((OP, "cublasLtMatmul"), (CONV, "cudnnConvolutionForward")):
        first, second, third = refusing.list_library_kernels(op, 16)
        refusing.time(first)
        with pytest.raises(
            DeviceError, match=rf"{status}: status 13 \(CU(BLAS|DNN)_STATUS_EXECUTION_FAILED, cu"
        ):
            refusing.time(second)
        assert refusing.time(third).latency_s > 0
    refusing.close()


def test_library_without_an_algorithm_has_a_reason(libraries: tuple[Path, ...]) -> None:
    empty = open_device(libraries, count=0)
    with pytest.raises(DeviceError, match="cublasLtMatmulAlgoGetHeuristic: status 15"):
        empty.list_library_kernels(OP, 16)
    with pytest.raises(DeviceError, match="the library proposes no algorithm"):
        empty.list_library_kernels(CONV, 16)
    with pytest.raises(DeviceError, match="cuBLASLt and cuDNN have no call for softmax as it is"):
        empty.list_library_kernels(ekc.softmax((4, 5)), 16)
    empty.close()


def test_other_version_is_refused(tmp_path: Path, compiler: str) -> None:
    other = open_device(build_libraries(tmp_path, compiler, cublasLt=110601, cudnn=7605))
    for op, text in (
        (OP, "cuBLASLt 11.6.1 is not called, only versions 12 and 13: install nvidia-cublas"),
        (CONV, "cuDNN 7.6.5 is not called, only versions 8 and 9: install nvidia-cudnn-cu13"),
    ):
        with pytest.raises(DeviceError, match=text):
            other.list_library_kernels(op, 16)
    other.close()


def is_installed() -> bool:
    try:
        load_nvidia_dynamic_lib("cublasLt")
    except RuntimeError:
        return False
    return True


def test_absent_library_has_a_reason() -> None:
    if is_installed():
        pytest.skip("cuBLASLt is installed here")
    device = open_device(())
    with pytest.raises(DeviceError, match=r"cuBLASLt is not found: pip install nvidia-cublas \(CUDA 13\)"):
        device.list_library_kernels(OP, 1)
    device.close()


@pytest.mark.parametrize("op", [OP, RIGHT[3], RIGHT[8], CONV], ids=str)
def test_installed_libraries_take_these_descriptors(op: Operator) -> None:
    """The real libraries, if they are installed: their descriptors need no GPU."""
    call = derive_library_call(op)
    kind = CublasLt if isinstance(call, MatrixProduct) else Cudnn
    library = object.__new__(kind)
    try:
        NvidiaLibrary.__init__(library)
    except DeviceError as problem:
        pytest.skip(str(problem))
    library._descriptions = {}
    arguments = (call,) if isinstance(call, MatrixProduct) else (call, 3)
    assert all(one.value for one in library._describe(*arguments))


def test_worker_process_finds_libraries_by_their_names(
    libraries: tuple[Path, ...], compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m`, the dynamic linker, the real bindings of the driver, and both libraries."""
    folder = libraries[0].parent
    source = library_node.SOURCE.with_name("libcuda.c")
    made = [compiler, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source), "-ldl"]
    library_node.subprocess.run(made, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    remote = RemoteWorker("cuda:0", partial(ChildProcess, WORKER_MODULE))
    for op, name in ((OP, "cuBLASLt 13.1.2, algorithm 1"), (CONV, "cuDNN 9.19.0, algorithm 1")):
        call = derive_library_call(op)
        assert call is not None
        kernel = LibraryKernel(op.name, call, op.inputs, op.outputs[0])
        found = remote.query(WorkerRequest("list_algorithms", (kernel, 16)))
        assert found[0].name == name
    remote.close()


SHORT = replace(MEASURING, label_window_s=0.5, final_window_s=0.5)
"""Windows of half a second: the virtual card is read a thousand times a second."""
START = Schedule(OP).bind("i", "block.x").bind("j", "thread.x").cache_write("C")


def tune(device: CudaDevice, monkeypatch: pytest.MonkeyPatch, **options: Any) -> ekc.TuningResult:
    monkeypatch.setattr(devices, "open", lambda target: device)
    for module in (run, finals, task):
        monkeypatch.setattr(module, "MEASURING", SHORT)
    small = {"trials": 1, "start": [START], "progress": False, "contenders": ["library"]}
    return ekc.tune(OP, target="cuda:0", **small, **options)


def test_faster_library_is_reported_and_does_not_win(
    libraries: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Planted: a library that takes 5 us at 250 W."""
    device = open_device(libraries, call_s=5e-6, wrong=0b1)
    result = tune(device, monkeypatch)
    library, best = result.library, result.best
    assert library is not None
    assert library.name == "cuBLASLt 13.1.2, algorithm 2"
    assert library.latency_s == pytest.approx(5e-6, rel=0.02)
    assert best.latency_s is not None
    assert best.latency_s > library.latency_s
    assert library.speed == pytest.approx(best.latency_s / library.latency_s)
    assert library.power_w == pytest.approx(250.0, rel=0.03)
    assert library.energy is not None
    assert library.energy_difference is not None
    assert library.energy == pytest.approx(library.energy_difference.ratio, rel=0.02)
    assert library.energy_difference.is_significant
    assert library.in_turn
    assert library.algorithms == 3
    assert library.failures[0].startswith(
        "cuBLASLt 13.1.2, algorithm 1: wrong result: executed on Scripted A100"
    )
    line = " ".join(result.summary().split())
    assert (
        f"library the library's kernel is {library.speed:.3g} times as fast as the best kernel and takes"
        in line
    )
    assert "(a significant difference: " in line
    assert "1 of 3 algorithms failed" in line
    found = json.loads(json.dumps(result.to_json()))["library"]
    assert found["name"] == library.name
    assert found["energy_difference"]["interval"] == [*vars(library.energy_difference.interval).values()]
    exported = result.export(tmp_path / "out")
    assert not any("cublas" in file.read_text(errors="replace").lower() for file in exported)
    device.close()


def contend(device: CudaDevice, objective: str, repeats: int) -> LibraryContender:
    contender = LibraryContender(OP, Measurer(device, RecordStore(None)), SelectionRule(objective))
    contender.choose(lambda: True)
    for repeat in range(repeats):
        contender.measure(repeat, False)
    return contender


def test_objective_chooses_among_the_fastest(
    libraries: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Algorithms 2 and 3 differ by 2 %, and draw the same power: both objectives take the faster."""
    monkeypatch.setattr(finals, "MEASURING", SHORT)
    device = open_device(libraries)
    best = Trial(START, "", "ok", latency_s=10e-6)
    for objective in ("latency", "energy"):
        contender = contend(device, objective, 1)
        result, note = contender.make_result(best, in_turn=True)
        assert result is not None
        assert (result.name, note) == ("cuBLASLt 13.1.2, algorithm 2", "")
        assert result.speed == pytest.approx(0.5, rel=0.02)
        assert result.energy is None
        assert str(result).endswith(" times as fast as the best kernel; its energy was not compared")
    device.close()


def test_library_that_fails_says_why(libraries: tuple[Path, ...]) -> None:
    device = open_device(libraries, refused=0b111)
    contender = contend(device, "latency", 1)
    result, note = contender.make_result(Trial(START, "", "ok", latency_s=10e-6), in_turn=True)
    assert result is None
    assert note.startswith("no algorithm of 3 works: cuBLASLt 13.1.2, algorithm 1: cuda:0: cublasLtMatmul: ")
    unfinished = LibraryContender(OP, Measurer(device, RecordStore(None)), SelectionRule("latency"))
    assert unfinished.make_result(Trial(START, "", "ok"), in_turn=True) == (None, unfinished.note)
    assert unfinished.note == "not measured, because the run ended before"
    device.close()


def test_simulated_device_runs_no_library() -> None:
    contender = LibraryContender(OP, Measurer(devices.open("a100"), RecordStore(None)), SelectionRule())
    contender.choose(lambda: True)
    contender.measure(1, True)
    assert contender.make_result(Trial(START, "", "ok"), in_turn=True) == (None, contender.note)
    assert contender.note == "a100 (simulated) runs no library; a real GPU does"


def test_command_line_checks_contenders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["tune", "matmul", "16", "16", "16", "--target", "a100", "--out", str(tmp_path / "out")]
    assert main([*words, "--contender", "cublas"]) == 2
    assert "contenders: no 'cublas'; choices are library" in capsys.readouterr().err
    model = ["tune", "--model", "examples/layers.toml", "--target", "a100", "--contender", "library"]
    assert main(model) == 2
    assert "--contender: no library is measured with --model" in capsys.readouterr().err


def test_contenders_are_checked() -> None:
    with pytest.raises(InvalidInput, match="contenders: 'library' is not a list of names"):
        ekc.tune(OP, target="a100", contenders="library")
    with pytest.raises(InvalidInput, match="contenders: "):
        ekc.tune(OP, target="a100", contenders=["cublas"])
